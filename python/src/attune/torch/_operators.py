"""The operators `torch.ops.attune.attention` and `attention_backward`: what a compiled graph holds.

The spec travels as its YAML, or as a name of the library of specs: a graph that was kept and is run by another process
still says what it means. Everything else is the launch's: tensors and scalars in the order of the spec's slots, which
is that of their names, and dropout's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attune import _advice
from attune._errors import BadInputError
from attune._structs import Layout
from attune._view import axes
from attune.torch import _dropout
from attune.torch._dropout import State
from attune.torch._gradients import NO_SECOND
from attune.torch._launch_plan import dense_like
from attune.torch._plans import Variant, variant_of
from attune.torch._transforms import refuse_tangents, refuse_unlearned

_TAGS = tuple(
    getattr(torch.Tag, tag) for tag in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, tag)
)
# AOTInductor's programs hand None over in the place of an empty list of tensors or sizes.
LAUNCH = "Tensor[]? tensors, str spec, SymInt[]? ints, float[] floats, float? scale, float? dropout, Tensor? seed"

_library = torch.library.Library("attune", "DEF")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {LAUNCH}) -> (Tensor, Tensor)", tags=_TAGS)
_library.define(
    "attention_backward(Tensor? d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    f"{LAUNCH}) -> Tensor[]",
    tags=_TAGS,
)


def _scalars(variant: Variant, ints: Sequence[int] | None, floats: Sequence[float]) -> tuple[float, ...]:
    """By slot: ints and floats, each in the order in which the spec has them."""
    left_ints, left_floats = list(ints or ()), list(floats)
    found: list[float] = []
    for slot, is_int in variant.scalar_slots:
        left = left_ints if is_int else left_floats
        if not left:
            name = variant.spec.scalars[slot].name
            raise BadInputError(f"the launch brings no `{name}`, which the spec `{variant.spec.name}` leaves to it")
        found.append(left.pop(0))
    if left_ints or left_floats:
        raise BadInputError(f"the launch brings more scalars than the spec `{variant.spec.name}` leaves to it")
    return tuple(found)


def _state(variant: Variant, seed: torch.Tensor | None, device: torch.device) -> tuple[Variant, State, int]:
    """What a launch takes of an int64 tensor of seed and offset, of any device, and whose launch it is."""
    if seed is None:
        return variant, 0, 0
    if seed.device.type != "cpu" and variant.spec.dropout != 0:
        seed = seed.to(device).contiguous()
        return variant.for_seed(seed), seed, 0
    if variant.spec.dropout != 0 and _dropout.is_captured(device):
        _advice.warn(
            "attune: compiled code with dropout in a captured CUDA graph: each replay drops the same elements, as "
            "the call gives the seed. Without `seed=` each replay draws one.",
            RuntimeWarning,
        )
    first, second = seed.tolist()
    if variant.spec.seed_on_device:
        return variant, *_dropout.state_of(variant.spec, device, first, second)
    return variant, first & (2**64 - 1), second & (2**64 - 1)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: Sequence[torch.Tensor] | None,
    spec: str,
    ints: Sequence[int] | None,
    floats: Sequence[float],
    scale: float | None,
    dropout: float | None,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = tensors or ()
    refuse_tangents(q, k, v, *tensors)
    variant, *state = _state(variant_of(spec), seed, q.device)
    plan = variant.forward_plan(q, k, v, tensors)
    given = variant.auxiliaries(tensors, q.device)
    scalars = _scalars(variant, ints, floats)
    o, lse = plan.run(q, k, v, given, True, scalars, scale, dropout, *state)
    assert lse is not None
    return o, lse


def _attention_backward(
    d_o: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    tensors: Sequence[torch.Tensor] | None,
    spec: str,
    ints: Sequence[int] | None,
    floats: Sequence[float],
    scale: float | None,
    dropout: float | None,
    seed: torch.Tensor | None,
) -> list[torch.Tensor]:
    tensors = tensors or ()
    refuse_tangents(d_o, d_lse, q, k, v, *tensors)
    variant, *state = _state(variant_of(spec), seed, q.device)
    plan = variant.backward_plan(q, k, v)
    given = variant.auxiliaries(tensors, q.device)
    scalars = _scalars(variant, ints, floats)
    found = plan.run((q, k, v), o, lse.contiguous(), d_o, d_lse, given, scalars, scale, dropout, *state)
    learned = [tensors[slot] for slot in variant.learned]
    return found[:3] + [each.reshape(x.shape).to(x.dtype) for each, x in zip(found[3:], learned, strict=True)]


def _new_dense_like(tensor: torch.Tensor, width: Any) -> torch.Tensor:
    return tensor.new_empty_strided(*dense_like(tensor, width))


@torch.library.register_fake("attune::attention", lib=_library)
def _attention_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: Any, spec: str, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    layout: Layout = variant_of(spec).spec.layout_id
    batch, q_len, heads, _width = axes(layout, tuple(q.shape))
    return _new_dense_like(q, v.shape[-1]), q.new_empty((batch, heads, q_len), dtype=torch.float32)


@torch.library.register_fake("attune::attention_backward", lib=_library)
def _attention_backward_fake(
    d_o: Any,
    d_lse: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: Any,
    lse: Any,
    tensors: Sequence[torch.Tensor],
    spec: str,
    *_: Any,
) -> list[torch.Tensor]:
    learned = [tensors[slot] for slot in variant_of(spec).learned]
    contiguous = torch.contiguous_format
    return [_new_dense_like(x, x.shape[-1]) for x in (q, k, v)] + [
        torch.empty_like(x, memory_format=contiguous) for x in learned
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, tensors, spec, *launch, seed = inputs
    tensors = tensors or ()
    refuse_unlearned(variant_of(spec).spec, tensors)
    ctx.spec, ctx.launch, ctx.count = spec, launch, len(tensors)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, seed, *tensors)


def _backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, o, lse, seed, *tensors = ctx.saved_tensors
    learned = variant_of(ctx.spec).learned
    gradients: list[torch.Tensor | None] = [None] * ctx.count
    ints, floats, *_rest = ctx.launch
    # torch takes an empty list for one of tensors.
    of_numbers: tuple[Any, Any] = None if ints else [], None if floats else []
    if d_o is None and d_lse is None:
        return None, None, None, gradients, None, *of_numbers, None, None, None
    found = torch.ops.attune.attention_backward(d_o, d_lse, q, k, v, o, lse, tensors, ctx.spec, *ctx.launch, seed)
    for slot, gradient in zip(learned, found[3:], strict=True):
        gradients[slot] = gradient
    return *found[:3], gradients, None, *of_numbers, None, None, None


def no_second(ctx: Any, *_: Any) -> Any:
    """The derivative of gradients. An operator without one gives what torch takes for constants."""
    raise NotImplementedError(NO_SECOND)


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _attention, _device)
    _library.impl("attention_backward", _attention_backward, _device)
torch.library.register_autograd("attune::attention", _backward, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("attune::attention_backward", no_second, lib=_library)
