"""attune.attention of torch's jagged nested tensors: packed sequences, with their offsets in the tensor."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from attune._errors import BadInputError
from attune._packed import Offsets
from attune.torch._dropout import is_captured

_RAGGED = {"bshd": 1, "bhsd": 2}  # the dim of lengths


def _tokens(name: str, x: torch.Tensor, ragged: int) -> torch.Tensor:
    """[tokens, heads, head_dim]."""
    if not x.is_nested or x.layout != torch.jagged:
        raise BadInputError(f"`{name}` is no nested tensor of layout torch.jagged, and `q` is one")
    if x.dim() != 4 or x._ragged_idx != ragged:
        order = "[batch, lengths, heads, head_dim]" if ragged == 1 else "[batch, heads, lengths, head_dim]"
        raise BadInputError(
            f"`{name}` is {tuple(map(str, x.shape))}, not {order}", 'layout="bshd" or layout="bhsd" says which it is'
        )
    values = x.values()
    return values.transpose(0, 1) if ragged == 2 else values


# By an offsets tensor's address: itself, which of its versions, and the same in int32. A batch is attended to by every
# layer, and each kernel that converts is a launch.
_converted: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}


def _int32(x: torch.Tensor | None) -> torch.Tensor | None:
    if x is None or x.dtype is torch.int32:
        return x
    # A graph that is replayed converts what stands there then, and tensors of inference mode have no version.
    if x.is_inference() or is_captured(x.device) or torch.compiler.is_compiling():
        return x.to(torch.int32)
    place, version = id(x), x._version
    known = _converted.get(place)
    if known is not None and known[0]() is x and known[1] == version:
        return known[2]
    found = x.to(torch.int32)
    _converted[place] = weakref.ref(x, lambda _: _converted.pop(place, None)), version, found
    return found


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
    found = of_packed(
        *packed,
        cu_q=_int32(q.offsets()),
        cu_kv=_int32(k.offsets()),
        used_q=_int32(q.lengths()),
        used_kv=_int32(k.lengths()),
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
