"""Attune in Hugging Face's transformers: importing this module registers the attention implementation "attune".

    import attune.torch.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attune")

transformers describes masks by functions of positions: those, the padding and the offsets of a cache become the
expressions and tables of a kernel, and nothing of queries times keys is built. docs/python.md says what is covered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.nn.attention import flex_attention as torch_flex
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import causal_mask_function

from attune import _advice
from attune._errors import UnsupportedError
from attune.torch._dense import add_dense, top_left_causal
from attune.torch._positions import FromTheEnd
from attune.torch.block_mask import BlockMask
from attune.torch.flex_attention import flex_attention

NAME = "attune"

_Index = Callable[[Any], Any]


class Mask(BlockMask):
    """A block mask that generation, which makes masks ahead for static caches, may take for a tensor."""

    def contiguous(self) -> Mask:
        return self

    def __radd__(self, scores: Any) -> NoReturn:
        raise UnsupportedError(
            "this model adds its mask to scores by itself, and asks no attention implementation",
            'attn_implementation="eager" is what it has',
        )


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Mask:
    """What transformers asks of a mask interface, once a forward pass for each kind of layer.

    Args:
        q_offset, kv_offset: where the launch's queries and keys begin among all positions.
        mask_function: of batch, head and positions.
        attention_mask: bool [batch, positions], false where a key is padding; it may be shorter, as a static cache is
            longer than what stands in it.

    Returns:
        A block mask whose blocks nobody computes.
    """
    q_position, kv_position = _positions(q_length, kv_length, q_offset, kv_offset, device)
    if not _pads(attention_mask, kv_offset + kv_length):

        def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return mask_function(b, h, q_position(q_idx), kv_position(kv_idx))

    else:
        live = attention_mask[:, kv_offset : kv_offset + kv_length]
        if live.shape[-1] < kv_length:
            live = torch.nn.functional.pad(live, (0, kv_length - live.shape[-1]))

        def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return mask_function(b, h, q_position(q_idx), kv_position(kv_idx)) & live[b, kv_idx]

    return Mask.of_mask_mod(mask_mod, (batch_size, 1, q_length, kv_length), torch.device(device), (128, 128))


def _pads(attention_mask: torch.Tensor | None, length: int) -> bool:
    """Whether the mask of `length` positions says more than that there is none. A graph cannot ask what it holds."""
    if attention_mask is None or torch.compiler.is_compiling():
        return attention_mask is not None
    return attention_mask.shape[-1] < length or not bool(attention_mask.all())


def _positions(
    q_length: int, kv_length: int, q_offset: int | torch.Tensor, kv_offset: int, device: torch.device | str
) -> tuple[_Index, _Index]:
    """From indices of the launch to positions. An offset that another step of generation changes must be no constant of
    the kernel: it is the difference of the lengths, or a tensor of the launch."""
    if torch.compiler.is_compiling():  # numbers of a graph are the launch's
        return _shifted_by(q_offset), _shifted_by(kv_offset)
    if isinstance(q_offset, torch.Tensor):
        # The cache's own counter, which moves on before the first layer attends.
        return _shifted_by(q_offset.to(device, torch.int32, copy=True)), _shifted_by(_as_tensor(kv_offset, device))
    if q_offset - kv_offset != kv_length - q_length:
        return _shifted_by(_as_tensor(q_offset, device)), _shifted_by(_as_tensor(kv_offset, device))
    from_the_end, shift = FromTheEnd(q_length, kv_length), _as_tensor(kv_offset, device)
    if isinstance(shift, int):
        return from_the_end, _shifted_by(shift)
    return lambda q_idx: from_the_end(q_idx) + shift, _shifted_by(shift)


def _as_tensor(offset: int, device: torch.device | str) -> int | torch.Tensor:
    """0 stays: a sequence from its beginning needs no shift."""
    return torch.full((), offset, dtype=torch.int32, device=device) if offset else 0


def _shifted_by(offset: int | torch.Tensor) -> _Index:
    if isinstance(offset, int) and offset == 0:
        return lambda index: index
    return lambda index: index + offset


@functools.lru_cache(maxsize=64)
def _softcap(cap: float) -> Callable[..., Any]:
    return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch_flex.BlockMask | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers asks of an attention interface.

    Args:
        query: [batch, heads, q_len, head_dim].
        key, value: [batch, kv_heads, kv_len, head_dim].
        attention_mask: what `attention_mask` made; or [batch or 1, heads or 1, q_len, kv_len], bool or added to scores.
        is_causal: where there is no mask at all, whether keys after the query are left out; None: as the module says.
        s_aux: [heads], the logit of a sink.
        position_bias: [batch or 1, heads or 1, q_len, kv_len], added to scores.
        kwargs: `cu_seq_lens_q` and `cu_seq_lens_k` say where the sequences of one row begin, as collators that flatten
            a batch give them to flash attention.

    Returns:
        [batch, q_len, heads, head_dim], and no weights.

    Raises:
        UnsupportedError: for the paged cache of continuous batching, and with dropout or a sink where there is no
            kernel.
    """
    if kwargs.get("cache") is not None:
        raise UnsupportedError("continuous batching, whose keys are in pages", 'attn_implementation="sdpa" has it')
    block_mask = dense = None
    if isinstance(attention_mask, torch_flex.BlockMask):
        block_mask = attention_mask
    elif attention_mask is not None:
        dense = attention_mask[..., : key.shape[2]]
    bent = None if softcap is None else _softcap(float(softcap))
    score_mod, mask_mod = add_dense(bent, dense, () if position_bias is None else (position_bias,))
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if attention_mask is None and is_causal and query.shape[2] > 1:
        mask_mod = top_left_causal
    if kwargs.get("cu_seq_lens_q") is not None and kwargs.get("cu_seq_lens_k") is not None:
        within = _within(kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"], query, key)
        mask_mod = within if mask_mod is None else torch_flex.and_masks(mask_mod, within)
    out = flex_attention(
        query,
        key,
        value,
        score_mod,
        block_mask,
        scaling,
        enable_gqa=True,
        mask_mod=mask_mod,
        dropout=dropout,
        sink=s_aux,
    )
    return out.transpose(1, 2).contiguous(), None


def _within(
    cu_q: torch.Tensor, cu_k: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> Callable[..., torch.Tensor]:
    """That a key is of the query's own sequence."""
    if query.shape[0] != 1:
        raise UnsupportedError(f"`cu_seq_lens_q` of {query.shape[0]} rows", "sequences lie in one row, batch 1")

    def sequence_of(cu: torch.Tensor, length: int) -> torch.Tensor:
        positions = torch.arange(length, dtype=cu.dtype, device=cu.device)
        return torch.searchsorted(cu, positions, right=True, out_int32=True)  # int64 would be looked through

    of_q = sequence_of(cu_q, query.shape[2])
    of_k = of_q if cu_k is cu_q and key.shape[2] == query.shape[2] else sequence_of(cu_k, key.shape[2])
    return lambda b, h, q_idx, kv_idx: of_q[q_idx] == of_k[kv_idx]


_of_transformers: Any = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
_told: set[type] = set()


def _implementation(model: PreTrainedModel, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
    """What transformers asks of a model that is made, the parts of another one too. Models of its own that have
    attention of their own know nothing of implementations that are registered: they keep what transformers gives where
    nobody asks."""
    kind = type(model)
    is_of_theirs = kind.__module__.startswith("transformers.models.")
    if requested_attention != NAME or not is_of_theirs or _asks_implementation(kind):
        return str(_of_transformers(model, requested_attention, *args, **kwargs))
    kept = str(_of_transformers(model, None, *args, **kwargs))
    if kind not in _told:
        _told.add(kind)
        _advice.warn(
            f"attune: {kind.__name__} has attention of its own that asks no implementation: this part keeps "
            f'"{kept}"' + (", of which attune.torch.activate_sdpa() takes what torch fuses" if kept == "sdpa" else "")
        )
    return kept


def _asks_implementation(kind: type[PreTrainedModel]) -> bool:
    """As transformers finds out by a look at the source of the class's module; versions that do not are trusted."""
    return bool(getattr(kind, "_can_set_attn_implementation", lambda: True)())


if _of_transformers is not None:
    PreTrainedModel.get_correct_attn_implementation = _implementation
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, attention_mask)
