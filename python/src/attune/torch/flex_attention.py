"""torch.nn.attention.flex_attention's function on Attune's kernels."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

from attune._errors import BadInputError, UnsupportedError
from attune._structs import DTYPE_BY_ARRAY_NAME, Shape
from attune._yaml import write_spec
from attune.spec import Spec, spec_of_text
from attune.torch._expression import Untranslatable
from attune.torch._function import Attention, Problem, check_kernel, run_forward
from attune.torch._translate import Translation, translate
from attune.torch.block_mask import BlockMask, MaskMod, mask_mod_of

_warned: set[str] = set()


@torch.compiler.disable
def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: torch_flex.BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: torch_flex.AuxRequest | None = None,
    mask_mod: MaskMod | None = None,
    strict: bool = False,
) -> Any:
    """torch's flex_attention; `mask_mod` and `strict` are Attune's.

    The functions are traced into expressions of Attune's language at every call, so what they capture may change
    between calls. Captured tensors become tensors of the launch, captured numbers constants of the kernel.

    Args:
        query: [batch, heads, q_len, head_dim]; float16, bfloat16, or float32 on the CPU.
        key: [batch or 1, kv_heads, kv_len, head_dim].
        value: [batch or 1, kv_heads, kv_len, any head_dim].
        score_mod: score_mod(score, b, h, q_idx, kv_idx) -> score, of scalars. -inf leaves a key out.
        block_mask: of this package's create_block_mask, which costs nothing, or torch's.
        scale: of the product; None: 1 / sqrt(head_dim).
        enable_gqa: whether heads may be a multiple of kv_heads.
        return_lse: whether to return (out, lse).
        kernel_options: torch's, for its own kernels; used where a call falls back to them.
        return_aux: torch's AuxRequest; `max_scores` falls back.
        mask_mod: mask_mod(b, h, q_idx, kv_idx) -> bool, instead of a block mask or beside it.
        strict: whether what cannot be translated raises; else it falls back to torch's own, with one warning a reason.

    Returns:
        out: [batch, heads, q_len, head_dim of value], its axes in memory in query's order. lse: float32
        [batch, heads, q_len], natural logarithm. A row without live keys is 0, its lse -inf.

    Raises:
        Untranslatable, UnsupportedError: under `strict`, what is in the way.
        NotImplementedError: a gradient is wanted, and there is no backward pass for it.
        ValueError: sizes that do not fit.
    """
    _check(query, key, value, block_mask, enable_gqa)
    if return_lse and return_aux is not None:
        raise ValueError("Cannot specify both return_lse and return_aux.")
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    call = _Call(query, key, value, score_mod, _whole_mask(block_mask, mask_mod), scale)
    try:
        if return_aux is not None and return_aux.max_scores:
            raise Untranslatable("max_scores is asked for, which Attune's kernels do not give")
        problem = call.problem()
    except (Untranslatable, UnsupportedError, BadInputError) as reason:
        if strict:
            raise
        _warn(str(reason))
        if mask_mod is not None:
            block_mask = call.block_mask()
        # torch has deprecated `return_lse`, and Attune has not.
        aux = torch_flex.AuxRequest(lse=True) if return_lse else return_aux
        result: Any = torch_flex.flex_attention(
            query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options=kernel_options, return_aux=aux
        )
        return (result[0], result[1].lse) if return_lse else result
    out, lse = call.run(problem, wants_lse)
    if return_aux is not None:
        return out, torch_flex.AuxOutput(lse=lse if wants_lse else None, max_scores=None)
    return (out, lse) if return_lse else out


@dataclasses.dataclass(frozen=True)
class _Call:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    score_mod: Any
    mask_mod: MaskMod | None
    scale: float | None

    def problem(self) -> Problem:
        """A launch that the device has a kernel for."""
        batch, heads, q_len, _ = self.query.shape
        shape = Shape(batch, heads, self.key.shape[1], q_len, self.key.shape[2])
        scale, factor = self.scale, 1.0
        if scale is not None and scale <= 0:  # a spec's own is above 0
            scale, factor = 1.0, float(scale)
        translation = translate(self.score_mod, self.mask_mod, shape, self.query.device, factor=factor)
        captured = translation.captured
        problem = Problem(self._spec(translation, scale), captured.tensors(), captured.learned())
        check_kernel(problem.spec, shape, self.query)
        return problem

    def run(self, problem: Problem, wants_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        q, k, v = self.query, self.key, self.value
        if q.shape[0] != k.shape[0]:
            k, v = (each.expand(q.shape[0], -1, -1, -1) for each in (k, v))
        if torch.is_grad_enabled() and (problem.learned or any(each.requires_grad for each in (q, k, v))):
            return Attention.apply(problem, q, k, v, *problem.learned.values())
        return run_forward(problem, q, k, v, with_lse=wants_lse)

    def block_mask(self) -> BlockMask:
        """Of the whole mask, for torch's own function."""
        assert self.mask_mod is not None
        sizes = (*self.query.shape[:2], self.query.shape[2], self.key.shape[2])
        return BlockMask.of_mask_mod(self.mask_mod, sizes, self.query.device, (128, 128))

    def _spec(self, translation: Translation, scale: float | None) -> Spec:
        dtype = DTYPE_BY_ARRAY_NAME.get(str(self.query.dtype).removeprefix("torch."))
        if dtype is None:
            raise UnsupportedError(f"attention in {self.query.dtype}")
        return spec_of_text(
            write_spec(
                name="flex_attention",
                dtype=dtype.name.lower(),
                head_dim=(self.query.shape[-1], self.value.shape[-1]),
                layout="bhsd",
                mask=translation.mask,
                score=translation.score,
                sink=None,
                scalars={},
                tensors=translation.captured.declarations(),
                dropout=0.0,
                scale=scale,
                passes=("forward",),
            )
        )


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_mask: torch_flex.BlockMask | None,
    enable_gqa: bool,
) -> None:
    """What torch refuses is refused here, in its words."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("query, key, and value must be 4D tensors")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"Expected one dtype, but got {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.device == key.device == value.device:
        raise ValueError(f"Expected one device, but got {query.device}, {key.device} and {value.device}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"Expect query and key to have one head_dim, but got {query.shape[-1]} and {key.shape[-1]}")
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and Hkv={kv_heads}. "
            "Try setting enable_gqa=True for GQA."
        )
    if heads % kv_heads:
        raise ValueError(f"Expect Hq to be a multiple of Hkv, but got Hq={heads} and Hkv={kv_heads}.")
    if key.shape[0] not in (1, query.shape[0]):
        raise ValueError(f"Expect one batch, or 1 of key/value, but got Bq={query.shape[0]} and Bkv={key.shape[0]}.")
    if block_mask is None:
        return
    of_all = torch_flex._LARGE_SPARSE_BLOCK_SIZE
    lengths = (query.shape[-2], key.shape[-2])
    if tuple(block_mask.BLOCK_SIZE) != (of_all, of_all) and tuple(block_mask.shape[-2:]) != lengths:
        raise ValueError(
            f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={lengths[0]} and "
            f"kv_len={lengths[1]}."
        )
    if block_mask.mask_mod is torch_flex._sliced_mask_mod_error:
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")


def _whole_mask(block_mask: torch_flex.BlockMask | None, mask_mod: MaskMod | None) -> MaskMod | None:
    if block_mask is None:
        return mask_mod
    of_blocks = mask_mod_of(block_mask)
    return of_blocks if mask_mod is None else torch_flex.and_masks(of_blocks, mask_mod)


def _warn(reason: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"attune falls back to torch's flex_attention: {reason}", stacklevel=3)
