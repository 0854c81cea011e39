"""One call on torch tensors, with its gradient where the device's family has a backward pass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attune.torch import _native
from attune.torch._dropout import State
from attune.torch._gradients import Gradients, Told, gradients_once
from attune.torch._launch_plan import Numbers, Scalars
from attune.torch._launcher import Launcher
from attune.torch._plans import ForwardPlan, Variant
from attune.torch._transforms import refuse_tangents


@dataclasses.dataclass(slots=True)
class Launch:
    """What a call brings beside its operands.

    Attributes:
        tensors: the spec's, by slot, as they were captured.
        given: the same as a launch takes them.
        scalars: those that the spec leaves to the launch, by slot; scale and dropout where it leaves them, too.
        seed, offset: dropout's, where the spec has any, as _dropout.state_of gives them.
    """

    tensors: list[torch.Tensor]
    given: list[torch.Tensor]
    scalars: Scalars = ()
    scale: float | None = None
    dropout: float | None = None
    seed: State = 0
    offset: int = 0

    def numbers(self) -> Numbers:
        return self.scalars, self.scale, self.dropout, self.seed, self.offset


def attend(
    variant: Variant,
    plan: ForwardPlan,
    launch: Launch,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """O and LSE of tensors that are nothing but memory; recorded for a backward pass where that is wanted.

    Raises:
        UnsupportedError: a gradient is wanted, and there is no backward pass for it.
        NotImplementedError: one of forward mode is.
    """
    refuse_tangents(q, k, v, *launch.tensors)
    if isinstance(launch.seed, torch.Tensor):
        plan = variant.for_seed(launch.seed).forward_plan(q, k, v, launch.tensors)
    if torch.is_grad_enabled():
        learned = [launch.tensors[slot] for slot in variant.learned] if variant.learned else []
        if q.requires_grad or k.requires_grad or v.requires_grad or any(each.requires_grad for each in learned):
            found = _Attention.apply((plan, launch.given, launch.numbers(), with_lse, None), q, k, v, *learned)
            return found if with_lse else (found, None)
    return plan.run(q, k, v, launch.given, with_lse, *launch.numbers())


# As one argument of a Function, for each costs: the given tensors are as a launch takes them, and a launcher is the
# plan's where it has one.
Recorded = tuple[ForwardPlan, Sequence[torch.Tensor], Numbers, bool, Launcher | None]


class _Attention(torch.autograd.Function):
    """O, and LSE where it is asked for, both differentiable. The dispatcher's own way there takes longer than all else
    of a call."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Recorded,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *learned: torch.Tensor,
    ) -> Any:
        plan, given, numbers, with_lse, launcher = call
        if plan.backward is None:  # where there is none it is said now, not when the loss is there
            plan.backward = plan.variant.backward_plan(q, k, v)
        if launcher is None:
            o, lse = plan.run(q, k, v, given, True, *numbers)
        else:
            o, lse = launcher(q, k, v, given, True, numbers[0])
        sizes = [(each.shape, each.dtype) for each in learned] if learned else ()
        ctx.call = Told(plan.backward, numbers, sizes)
        if with_lse:
            ctx.set_materialize_grads(False)
        # Saved, captured tensors too: torch notices where one was changed in between.
        ctx.save_for_backward(q, k, v, o, lse, *given)
        return (o, lse) if with_lse else o

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> tuple[Any, ...]:
        return None, *gradients_once(ctx, d_o, d_lse)


# Function.apply is this behind a look at transforms of torch.func and at what they left, which costs two microseconds:
# for tensors that are known to be neither.
record: Callable[..., Any] = super(torch.autograd.Function, _Attention).apply

# What torch looks up in the class at each call: it is found sooner in the class itself.
_LOOKED_UP = ("setup_context", "clear_saved_tensors_on_access")


@functools.cache
def record_launch(gradients: Gradients = gradients_once) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The same of launches without bytecode: what _native.straight takes for `apply`, and what _native.recorder makes
    of it. None: there are none. `gradients`: a backward pass that was not had before, as `once` makes it."""
    forward = _native.forward()
    if forward is None:
        return None
    inherited = {
        name: inspect.getattr_static(torch.autograd.Function, name)
        for name in _LOOKED_UP
        if hasattr(torch.autograd.Function, name)
    }
    of_library = _native.backward(gradients)

    def backward(ctx: Any, *of_outputs: torch.Tensor | None) -> tuple[Any, ...]:
        """What torch's compiled autograd reads, which asserts that a Function's backward is Python's."""
        found: tuple[Any, ...] = of_library(ctx, *of_outputs)
        return found

    own = {**inherited, "forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type("_Attention", (torch.autograd.Function,), own)
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply, _native.recorder(apply)
