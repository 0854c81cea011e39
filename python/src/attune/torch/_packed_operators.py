"""The gradient of `torch.ops.attune.attention_over_cache` where it is one of packed sequences: keys in a cache have
none."""

from __future__ import annotations

from typing import Any

import torch

from attune._errors import UnsupportedError
from attune._structs import Layout
from attune.torch._cache_operators import launch_of
from attune.torch._cache_plan import NAMES
from attune.torch._operators import _TAGS, LAUNCH, _library, no_second
from attune.torch._packed import _OFFSETS, gradients_of
from attune.torch._plans import variant_of
from attune.torch._transforms import refuse_unlearned

_library.define(
    "attention_packed_backward(Tensor? d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    f"{', '.join(f'Tensor? {name}' for name in _OFFSETS)}, {LAUNCH}) -> Tensor[]",
    tags=_TAGS,
)


def _backward_impl(
    d_o: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *given: Any,
) -> list[torch.Tensor]:
    """Gradients of q, k, v and the tensors that learn; 0 in rows of no sequence."""
    offsets, (tensors, text, *numbers, seed) = given[: len(_OFFSETS)], given[len(_OFFSETS) :]
    spec, launch = launch_of(text, numbers, seed, q.device)
    return gradients_of(spec, (q, k, v, *offsets), tensors or (), o, lse, d_o, d_lse, launch)


def _backward_fake(d_o: Any, d_lse: Any, q: Any, k: Any, v: Any, *given: Any) -> list[torch.Tensor]:
    tensors, text = given[2 + len(_OFFSETS)], given[3 + len(_OFFSETS)]
    learned = [tensors[slot] for slot in variant_of(text).learned]
    made = [x.new_empty(x.shape) for x in (q, k, v)]
    return [*made, *(x.new_empty(x.shape, dtype=torch.float32) for x in learned)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    arrays = dict(zip(NAMES, inputs[: len(NAMES)], strict=True))
    tensors, ctx.spec, *ctx.launch, seed = inputs[len(NAMES) :]
    tensors = tensors or ()
    ctx.count = len(tensors)
    refuse_unlearned(variant_of(ctx.spec).spec, tensors)
    ctx.is_packed = variant_of(ctx.spec).spec.layout_id == Layout.THD and arrays["v"] is not None
    ctx.is_packed = ctx.is_packed and arrays["k_scales"] is None and arrays["v_scales"] is None
    ctx.set_materialize_grads(False)
    offsets = [arrays[name] for name in _OFFSETS]
    if ctx.is_packed:
        ctx.save_for_backward(arrays["q"], arrays["k"], arrays["v"], *output, *offsets, seed, *tensors)


def _backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[Any, ...]:
    if not ctx.is_packed:
        raise UnsupportedError("attention over a cache has no backward pass in a graph", "call under torch.no_grad()")
    ints, floats, *_rest = ctx.launch
    of_numbers: tuple[Any, Any] = None if ints else [], None if floats else []  # as the dense operator's
    gradients: list[torch.Tensor | None] = [None] * ctx.count
    of_offsets = [None] * (len(NAMES) - 3)
    if d_o is None and d_lse is None:
        return None, None, None, *of_offsets, gradients, None, *of_numbers, None, None, None
    saved = ctx.saved_tensors
    seed, *tensors = saved[5 + len(_OFFSETS) :]
    found = torch.ops.attune.attention_packed_backward(
        d_o, d_lse, *saved[: 5 + len(_OFFSETS)], tensors, ctx.spec, *ctx.launch, seed
    )
    for slot, gradient in zip(variant_of(ctx.spec).learned, found[3:], strict=True):
        gradients[slot] = gradient.to(tensors[slot].dtype)
    return *found[:3], *of_offsets, gradients, None, *of_numbers, None, None, None


for _device in ("CPU", "CUDA"):
    _library.impl("attention_packed_backward", _backward_impl, _device)
torch.library.register_fake("attune::attention_packed_backward", _backward_fake, lib=_library)
torch.library.register_autograd("attune::attention_over_cache", _backward, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("attune::attention_packed_backward", no_second, lib=_library)
