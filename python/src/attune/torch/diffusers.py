"""Attune in Hugging Face's diffusers: importing this module adds the attention backend "attune".

    import attune.torch.diffusers
    pipeline.transformer.set_attention_backend("attune")

It is for models whose attention goes through diffusers' dispatcher, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models import attention_dispatch
from torch.nn.attention import flex_attention as torch_flex

from attune._errors import UnsupportedError
from attune.torch._dense import add_dense, top_left_causal
from attune.torch.flex_attention import flex_attention

NAME = "attune"


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | torch_flex.BlockMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> torch.Tensor:
    """What diffusers asks of a backend.

    Args:
        query: [batch, q_len, heads, head_dim]; key, value likewise, with kv_len and kv_heads.
        attn_mask: a block mask; or a tensor that broadcasts to [batch, heads, q_len, kv_len], or [batch, kv_len], bool
            or added to scores.
        is_causal: whether keys after the query are left out; both sequences begin together.

    Returns:
        [batch, q_len, heads, head_dim of value].

    Raises:
        UnsupportedError: for context parallelism and log-sum-exps, which diffusers asks for there.
    """
    if return_lse or _parallel_config is not None:
        raise UnsupportedError("context parallelism of diffusers", 'the backends "native" and "flash" have it')
    block_mask = dense = None
    if isinstance(attn_mask, torch_flex.BlockMask):
        block_mask = attn_mask
    elif attn_mask is not None:
        dense = attn_mask
        if dense.shape == (query.shape[0], key.shape[1]):  # as diffusers' own backends read it
            dense = dense[:, None, None]
        while dense.dim() < 4:
            dense = dense[None]
    score_mod, mask_mod = add_dense(None, dense)
    if is_causal:
        mask_mod = top_left_causal if mask_mod is None else torch_flex.and_masks(mask_mod, top_left_causal)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    out = flex_attention(
        query, key, value, score_mod, block_mask, scale, enable_gqa, mask_mod=mask_mod, dropout=dropout_p
    )
    return out.transpose(1, 2)


def _add_name() -> Any:
    """The name among diffusers' backends, which are an enumeration."""
    names = attention_dispatch.AttentionBackendName
    if NAME in names._value2member_map_:
        return names(NAME)
    member = str.__new__(names, NAME)
    member._name_, member._value_ = NAME.upper(), NAME
    type.__setattr__(names, member._name_, member)
    names._member_names_.append(member._name_)
    names._member_map_[member._name_] = member
    names._value2member_map_[NAME] = member
    return member


attention_dispatch._AttentionBackendRegistry.register(
    _add_name(), constraints=[attention_dispatch._check_device, attention_dispatch._check_shape]
)(attention)
