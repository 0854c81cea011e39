"""attune.attention of torch's jagged nested tensors: packed sequences, with their offsets in the tensor."""

from __future__ import annotations

from typing import Any

import torch

from attune._errors import BadInputError
from attune._packed import Offsets

_RAGGED = {"bshd": 1, "bhsd": 2}  # the dim of lengths


def _tokens(name: str, x: torch.Tensor, ragged: int) -> torch.Tensor:
    """[tokens, heads, head_dim]."""
    if not x.is_nested:
        raise BadInputError(f"`{name}` is no nested tensor, and `q` is one")
    if x.layout != torch.jagged:
        raise BadInputError(
            f"`{name}` is a nested tensor of layout {x.layout}, not torch.jagged",
            "torch.nested.nested_tensor(..., layout=torch.jagged) makes one",
        )
    if x.dim() != 4 or x._ragged_idx != ragged:
        order = "[batch, lengths, heads, head_dim]" if ragged == 1 else "[batch, heads, lengths, head_dim]"
        raise BadInputError(
            f"`{name}` is {tuple(map(str, x.shape))}, not {order}", 'layout="bshd" or layout="bhsd" says which it is'
        )
    values = x.values()
    return values.transpose(0, 1) if ragged == 2 else values


def _in_int32(of_q: torch.Tensor | None, of_k: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Converted once, where q and k have the same. Nothing is kept: what stands in them may change unseen."""
    lists = [None if x is None else x.to(torch.int32) for x in ((of_q,) if of_k is of_q else (of_q, of_k))]
    return [lists[0], lists[-1]]


def attention(
    q: Any, k: Any, v: Any, offsets: Offsets, *, layout: str | None, return_lse: bool, spec: Any, **rest: Any
) -> Any:
    """As attune.attention has it. O has q's lengths and the order of its axes; LSE is [batch, heads, lengths].

    `layout` tells the order of the axes, [batch, lengths, heads, head_dim] where it is left out. A spec is of layout
    thd.
    """
    from attune.attention import attention as of_packed

    if v is None:
        raise BadInputError("`v` is None, and `q` is a nested tensor", "give its values() and offsets() as cu_q")
    if offsets.is_given:
        raise BadInputError("`q` is a nested tensor, which has offsets of its own, and others are given")
    if layout not in (None, *_RAGGED):
        raise BadInputError(f"a nested tensor in layout `{layout}`", 'it is "bshd" or "bhsd"')
    ragged = _RAGGED[layout or "bshd"]
    packed = [_tokens(name, x, ragged) for name, x in (("q", q), ("k", k), ("v", v))]
    if k.offsets() is not v.offsets() and not torch.equal(k.offsets(), v.offsets()):
        raise BadInputError("`k` and `v` have other lengths")
    cu_q, cu_kv = _in_int32(q.offsets(), k.offsets())
    used_q, used_kv = _in_int32(q.lengths(), k.lengths())
    found = of_packed(
        *packed,
        cu_q=cu_q,
        cu_kv=cu_kv,
        used_q=used_q,
        used_kv=used_kv,
        layout="thd" if spec is None else None,
        spec=spec,
        return_lse=return_lse,
        **rest,
    )

    def nested(values: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(values, offsets=q.offsets(), lengths=q.lengths(), jagged_dim=dim)

    o, lse = found if return_lse else (found, None)
    o = nested(o.transpose(0, 1) if ragged == 2 else o, ragged)
    return o if lse is None else (o, nested(lse, 2))
