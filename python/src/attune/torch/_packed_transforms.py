"""The operator of packed sequences, and of a cache, under the transforms of torch.func: grad, vjp, jacrev, vmap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from attune._errors import UnsupportedError
from attune._structs import Layout
from attune.torch._cache_plan import NAMES
from attune.torch._packed import _OFFSETS
from attune.torch._plans import variant_of
from attune.torch._transforms import (
    ForwardFunction, GradientFunction, mapped_one_by_one, refuse_tangents_of_a_graph, transforms,
)  # fmt: skip

# The spec's text, ints, floats, scale, dropout and seed, as the operator takes them.
Call: TypeAlias = tuple[str, Sequence[Any], Sequence[Any], "float | None", "float | None", "torch.Tensor | None"]


def refuse_dropout() -> None:
    """Raises UnsupportedError under a transform of torch.func."""
    if not torch.compiler.is_dynamo_compiling() and transforms() is not None:
        raise UnsupportedError("dropout of packed sequences under torch.func", "sequences of one length have it there")


def run_operator(
    arrays: Sequence[torch.Tensor | None], tensors: Sequence[torch.Tensor], call: Call
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE by the operator, of `arrays` as _cache_plan.NAMES has them. Before a seed is drawn `refuse_dropout` is
    called."""
    if torch.compiler.is_dynamo_compiling():
        refuse_tangents_of_a_graph()
    if torch.compiler.is_dynamo_compiling() or transforms() is None:
        found: tuple[torch.Tensor, torch.Tensor] = torch.ops.attune.attention_over_cache(*arrays, tensors, *call)
        return found
    return _Attention.apply(call, *arrays, *tensors)


class _Attention(ForwardFunction):
    @staticmethod
    def forward(call: Call, *given: Any) -> Any:
        return torch.ops.attune.attention_over_cache(*given[: len(NAMES)], given[len(NAMES) :], *call)

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor, d_lse: torch.Tensor) -> Any:
        *given, o, lse = ctx.saved_tensors
        arrays, tensors = dict(zip(NAMES, given, strict=False)), given[len(NAMES) :]
        variant = variant_of(ctx.call[0])
        if variant.spec.layout_id != Layout.THD or arrays["v"] is None or arrays["k_scales"] is not None:
            raise UnsupportedError("keys in a cache have no backward pass", "call under torch.no_grad()")
        offsets = [arrays[name] for name in _OFFSETS]
        found = _Backward.apply(ctx.call, d_o, d_lse, *given[:3], o, lse, *offsets, *tensors)
        of_tensors: list[Any] = [None] * len(tensors)
        for slot, gradient in zip(variant.learned, found[3:], strict=True):
            of_tensors[slot] = gradient.to(tensors[slot].dtype)
        return None, *found[:3], *[None] * (len(NAMES) - 3), *of_tensors

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *given: Any) -> Any:
        return mapped_one_by_one(_Attention.apply, info.batch_size, in_dims[1:], call, given)


class _Backward(GradientFunction):
    @staticmethod
    def forward(call: Call, *given: Any) -> Any:
        count = 7 + len(_OFFSETS)  # d_o, d_lse, q, k, v, o, lse
        return tuple(torch.ops.attune.attention_packed_backward(*given[:count], given[count:], *call))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *given: Any) -> Any:
        return mapped_one_by_one(_Backward.apply, info.batch_size, in_dims[1:], call, given)
