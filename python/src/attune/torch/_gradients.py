"""The backward pass of a recorded call, and its launches that are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from attune._dlpack import contiguous_strides
from attune._view import operand_strides
from attune.torch import _native
from attune.torch._guard import check_of, may_be_met
from attune.torch._launch_plan import Numbers, view_of
from attune.torch._negative import resolved
from attune.torch._plans import BackwardPlan
from attune.torch._untouched import NONE

NO_SECOND = (
    "attune's attention has no second derivative: where one is wanted (create_graph=True, a penalty on a gradient), "
    "use torch's scaled_dot_product_attention under sdpa_kernel(SDPBackend.MATH)"
)

_NO_BATCH = (
    "attune's attention has no gradients in batches (is_grads_batched=True, vectorize=True): call torch.func.jacrev or "
    "vmap on the whole function, which it takes, or leave that out"
)

_is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched: Any = getattr(torch._C._functorch, "is_legacy_batchedtensor", _is_wrapped)

MAX_BOUND = 4  # of one recorded call; each costs a look


class Told(NamedTuple):
    """What a forward pass tells its backward pass. python/native/backward.cpp knows the places.

    Attributes:
        learned: sizes and types of the learned tensors, as the caller has them.
        bound: what _native.bound_backward gave for the same call made before; None: it is not made again.
    """

    plan: BackwardPlan
    numbers: Numbers
    learned: Sequence[tuple[torch.Size, torch.dtype]] = ()
    bound: list[Any] | None = None


def gradients_of(
    told: Told, saved: tuple[torch.Tensor, ...], d_o: torch.Tensor | None, d_lse: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Of q, k, v and learned tensors."""
    # Hooks on what is saved may give it back with other strides.
    q, k, v, o, lse, *tensors = saved
    lse, tensors = lse.contiguous(), [x.contiguous() for x in tensors]
    plan = told.plan.variant.backward_plan(q, k, v)
    found = plan.run((q, k, v), o, lse, d_o, d_lse, tensors, *told.numbers)
    if told.bound is not None and len(told.bound) < MAX_BOUND and d_o is not None and d_lse is None:
        launch = _bound(plan, told, saved, d_o)
        if launch is not None:
            told.bound.append(launch)
    gradients = (each.reshape(sizes).to(dtype) for each, (sizes, dtype) in zip(found[3:], told.learned, strict=True))
    return *found[:3], *gradients


class _Once(torch.autograd.Function):
    """Gradients, of which no gradient is to be had: torch's once_differentiable lets them pass for constants where d_o
    is one, and a penalty on a gradient would then train nothing."""

    @staticmethod
    def forward(ctx: Any, count: int, *given: Any) -> Any:
        """Of so many gradients, and of all that they depend on."""
        return tuple([x.detach() for x in given[:count]])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(NO_SECOND)


Gradients = Callable[..., tuple[torch.Tensor, ...]]


def once(function: Gradients) -> Gradients:
    """backward(ctx, d_o, d_lse, saved) of a `function` of ctx.call, of what was saved, and of d_o and d_lse. Hooks let
    it be asked for once: `saved` is what it was, where somebody has done so."""

    def backward(
        ctx: Any,
        d_o: torch.Tensor | None,
        d_lse: torch.Tensor | None = None,
        saved: tuple[torch.Tensor, ...] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        saved = ctx.saved_tensors if saved is None else saved
        for x in (d_o, d_lse):
            if x is not None and (_is_wrapped(x) or _is_batched(x)):
                raise NotImplementedError(_NO_BATCH)
        with torch.no_grad():
            found = function(ctx.call, saved, resolved(d_o), resolved(d_lse))
        if not torch.is_grad_enabled():
            return found
        once: tuple[torch.Tensor, ...] = _Once.apply(len(found), *found, *saved, d_o, d_lse)
        return once

    return backward


gradients_once = once(gradients_of)


Learned = Sequence[tuple[Sequence[int], torch.dtype]]  # sizes and types


def may_be_bound(
    told: Told, learned: Learned, saved: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], d_o: torch.Tensor
) -> bool:
    """Whether what a launch of gradients was just made for says all that one of tensors that are as these needs.
    `tensors`: the spec's."""
    return not (
        torch.get_deterministic_debug_mode()
        or list(told.learned) != list(learned)
        or any(x.device != d_o.device for x in saved)
        or not all(x.is_contiguous() for x in (saved[4], *tensors))  # LSE
        or len({id(x) for x in (*saved, d_o)}) != len(saved) + 1
        or not may_be_met((*saved, d_o))
    )


def kinds_of_learned(learned: Learned) -> list[tuple[Any, ...]]:
    """What new tensors their gradients are."""
    return [(tuple(sizes), contiguous_strides(sizes), dtype, NONE) for sizes, dtype in learned]


def _bound(plan: BackwardPlan, told: Told, saved: tuple[torch.Tensor, ...], d_o: torch.Tensor) -> Any:
    """The launch that `plan` just had, for tensors that are as these. None: there was more to do."""
    if not plan.has_work or plan.copies_any or (plan.draws_or_scales and not plan.draws):
        return None
    if plan.draws and not isinstance(told.numbers[3], int):
        return None
    _, _, _, o, _, *tensors = saved
    spec, views = plan.variant.spec, [view_of(x) for x in (o, d_o)]
    learned = [(tensors[slot].shape, tensors[slot].dtype) for slot in plan.variant.learned]
    if (
        any(each is not None for each in told.numbers[1:3])
        or not all(view.is_operand(spec.dtype_id) for view in views)
        or not may_be_bound(told, learned, saved, tensors, d_o)
    ):
        return None
    arguments = plan._arguments()
    o_strides, d_o_strides = (operand_strides(spec.layout_id, view) for view in views)
    arguments.args.o_strides, arguments.args.d_o_strides = o_strides, d_o_strides
    kinds = [(sizes, strides, plan.dtype, NONE) for sizes, strides in plan.dense]
    kinds += kinds_of_learned(learned)
    check = check_of((*saved, d_o))
    return _native.bound_backward(
        plan, plan.kernel, arguments.address, arguments, check, tuple(kinds), plan.variant.learned
    )
