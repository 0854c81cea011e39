"""torch's scaled_dot_product_attention on Attune's kernels, through torch's registry of flash implementations.

torch asks its own rules first whether a call is one for a fused kernel; those on CPUs come here. What no kernel of
Attune's takes goes on to torch's own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import attention as torch_attention

from attune._errors import BadInputError, UnsupportedError
from attune._yaml import write_spec
from attune.torch._plans import Variant, variant_of

NAME = "ATTUNE"

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = _FORWARD + "_backward"
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_REFUSALS = (UnsupportedError, BadInputError)


def activate_sdpa() -> None:
    """Makes torch.nn.functional.scaled_dot_product_attention run on Attune on CPUs, until `deactivate_sdpa`.

    That is torch.nn.attention.activate_flash_attention_impl("ATTUNE"), which takes the place of another implementation.
    It holds for eager and compiled code, for gradients, and for graphs that were compiled before. torch's own rules
    say which calls are for a fused kernel: those with dropout, or with a mask that requires a gradient, are not.
    float64 and head dims without a kernel stay torch's too. Not thread-safe.

    Raises:
        NotImplementedError: torch is older than 2.10.
    """
    if not hasattr(torch_attention, "activate_flash_attention_impl"):
        raise NotImplementedError("torch has a registry of attention implementations from 2.10 on")
    torch_attention.activate_flash_attention_impl(NAME)


def deactivate_sdpa() -> None:
    """Gives torch its own back. Where another implementation is active it does nothing."""
    current = getattr(torch_attention, "current_flash_attention_impl", lambda: None)
    if current() == NAME:
        torch_attention.restore_flash_attention_impl()


class _Active:
    """Both operators, replaced for as long as this lives."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for name, function in ((_FORWARD, _forward), (_BACKWARD, _backward)):
            of_torch = torch.library.get_kernel(f"aten::{name}", "CPU")
            self._library.impl(name, functools.partial(function, of_torch), "CPU", with_keyset=True)

    def remove(self) -> None:
        """For torch's registry."""
        self._library._destroy()


@functools.lru_cache(maxsize=256)
def _variant(
    dtype: str, head_dim: tuple[int, int], is_causal: bool, mask_dims: tuple[str, ...] | None, scale: float | None
) -> Variant:
    """mask_dims: of the tensor that is added to scores, by a spec's names; None: there is none."""
    mask, score, tensors = ["causal_top_left"] if is_causal else [], None, {}
    if mask_dims is not None:
        names = {"batch": "b", "heads": "h", "q_len": "q_idx", "kv_len": "kv_idx", "1": "0"}
        added = f"added[{', '.join(names[dim] for dim in mask_dims)}]"
        mask.append(f"{added} > log(0.0)")  # -inf: a tile of dead keys is left out
        score = f"score + {added}"
        tensors["added"] = f"float32[{', '.join(mask_dims)}]"
    return variant_of(
        write_spec(
            name="scaled_dot_product_attention",
            dtype=dtype,
            head_dim=head_dim,
            layout="bhsd",
            mask=" and ".join(mask) or None,
            score=score,
            sink=None,
            scalars={},
            tensors=tensors,
            dropout=0.0,
            scale=scale,
            passes=("forward",),
        )
    )


def _prepare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> tuple[Variant, list[torch.Tensor]]:
    """Raises UnsupportedError, BadInputError where there is no spec for it."""
    if q.dtype not in _DTYPES or q.dim() != 4:
        raise UnsupportedError(f"attention of {q.dim()} dims in {q.dtype}")
    dims = None
    given = []
    if mask is not None:
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])[-mask.dim() :]
        for dim, size in enumerate(sizes):
            if mask.stride(dim) == 0 and size > 1:
                mask = mask.narrow(dim, 0, 1)  # what was expanded
        names = ("batch", "heads", "q_len", "kv_len")[-mask.dim() :]
        dims = tuple("1" if mask.shape[dim] == 1 else name for dim, name in enumerate(names))
        given = [mask]
    variant = _variant(_DTYPES[q.dtype], (q.shape[-1], v.shape[-1]), is_causal, dims, scale)
    return variant, variant.auxiliaries(given, q.device)


@functools.lru_cache(maxsize=1024)
def _strides(*operands: tuple[Any, ...]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Of what torch's two operators give for operands of these sizes, strides and types: compiled code counts on it."""
    q, k, v = (torch.empty_strided(*each[:2], dtype=each[2], device="meta") for each in operands)
    o, lse = getattr(torch.ops.aten, _FORWARD)(q, k, v)
    gradients = getattr(torch.ops.aten, _BACKWARD)(o, q, k, v, o, lse, 0.0, False)
    return (o.stride(), lse.stride()), tuple(each.stride() for each in gradients)


def _strides_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    return _strides(*((x.shape, x.stride(), x.dtype) for x in (q, k, v)))


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _forward(
    of_torch: Any,
    keys: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        if dropout_p:
            raise UnsupportedError("dropout, which torch draws itself")
        variant, given = _prepare(q, k, v, is_causal, attn_mask, scale)
        o, lse = variant.forward_plan(q, k, v).run(q, k, v, given, with_lse=True)
    except _REFUSALS:
        return of_torch.call_boxed(keys, q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    assert lse is not None
    if attn_mask is not None:  # rows without keys have 0 there, which torch's own backward pass expects
        lse.masked_fill_(lse == -torch.inf, 0)
    of_o, of_lse = _strides_of(q, k, v)[0]
    return _with_strides(o, of_o), _with_strides(lse, of_lse)


def _backward(
    of_torch: Any,
    keys: Any,
    d_o: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    try:
        if dropout_p:
            raise UnsupportedError("dropout, which torch draws itself")
        variant, given = _prepare(q, k, v, is_causal, attn_mask, scale)
        found = variant.backward_plan(q, k, v).run((q, k, v), o, lse.contiguous(), d_o, None, given)
    except _REFUSALS:
        return of_torch.call_boxed(
            keys, d_o, q, k, v, o, lse, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
    return tuple(map(_with_strides, found[:3], _strides_of(q, k, v)[1]))


if hasattr(torch_attention, "register_flash_attention_impl"):
    torch_attention.register_flash_attention_impl(NAME, register_fn=_Active)
