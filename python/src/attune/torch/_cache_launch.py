"""Launches over a cache that are made again, without bytecode: what _native takes of their plans."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from attune._launch import Launch
from attune._structs import BackwardArgs, ForwardArgs
from attune.torch import _dropout, _native, _packed_plan
from attune.torch._function import record_launch
from attune.torch._gradients import MAX_BOUND, Told, kinds_of_learned, may_be_bound, once
from attune.torch._guard import check_of
from attune.torch._launch_plan import Numbers, key_of
from attune.torch._numbers import plain
from attune.torch._untouched import LEAST, NONE, ZERO, untouched

if TYPE_CHECKING:
    from attune.torch._cache_plan import Arrays, CachePlan

_Tensors = Sequence[torch.Tensor]


def can_be_native(plan: CachePlan, arrays: Arrays, tensors: _Tensors) -> bool:
    """Whether a call of `plan` may go without bytecode where its tensors, the spec's by slot, are as these."""
    operands = [x for x in arrays[:3] if x is not None]
    return (
        plan.has_work
        and not plan.copied
        and (plan.draws or not plan.drops)
        and len({id(x) for x in operands}) == len(operands)
        and all([x.is_contiguous() for x in tensors])
        and _native.can_launch(plan)
    )


class CacheLaunch:
    """Launches of a CachePlan whose tensors are as others were that `can_be_native` passed. Behind the spec's tensors
    they are given all arrays but q, k and v, each once.

    What `go` gives leads here through capsules, into which Python's collector does not see: nothing that is kept here
    may lead to it.
    """

    def __init__(
        self,
        plan: CachePlan,
        arrays: Arrays,
        tensors: _Tensors,
        launch: Launch,
        records: bool,
        run: Callable[..., Any],
    ) -> None:
        """`run`: _cached's, which may record."""
        self.plan, self._run, self._records = plan, run, records
        self._launch = Launch({}, launch.scalars, launch.scale, launch.dropout, scales=plan.scales)
        self._names = tuple(plan.spec.launch_scalar_slots)
        scalars = tuple([launch.scalars[name] for name in self._names])
        self._numbers: Numbers = (scalars, launch.scale, launch.dropout, 0, 0)
        self._count, self._width = len(tensors), len(arrays)
        self._places, self._twins, self._place_of = _places_of(arrays)
        self._learned: Sequence[tuple[torch.Size, torch.dtype]] = ()
        self._bound: list[Any] = []

    def behind(self, struct: type[ctypes.Structure]) -> _native.Behind:
        """Of a launch with such arguments."""
        members = [(getattr(struct, name).offset, self._place_of[place]) for name, place in self.plan.members]
        return _native.Behind(len(self._places), tuple(members))

    def ends_of(self, side: str) -> tuple[int, int] | None:
        """Of queries, "q", or keys, "kv": where among what stands behind the spec's tensors their offsets are, and in
        these the end of the last sequence. None: not all tokens from the first sequence's up to it are a sequence's."""
        members = dict(self.plan.members)
        if f"cu_{side}" not in members or f"used_{side}" in members:
            return None
        return self._place_of[members[f"cu_{side}"]], self.plan.shape.batch

    def go(self, arrays: Arrays, tensors: _Tensors) -> Callable[..., Any] | None:
        """As _native.straight gives it, of arrays that the launches are like; None: there is none."""
        plan, scalars = self.plan, self._numbers[0]
        args, address, _ = plan._arguments(self._launch)
        args.workspace_bytes = plan.workspace_bytes
        of_o = of_lse = NONE
        if plan.sequences is not None:
            of_o = untouched(plan.o_sizes, plan.dtype, ZERO, 0, self.ends_of("q"))
            of_lse = untouched(plan.lse_sizes, torch.float32, LEAST, 1, self.ends_of("q"))
        outputs = (
            (plan.o_sizes, plan.o_strides, plan.dtype, of_o),
            (plan.lse_sizes, plan.lse_strides, torch.float32, of_lse),
        )
        _, handle = _native.launcher(
            plan, plan.handle, address, (args, plan), outputs, self.run, self.behind(ForwardArgs)
        )
        apply, learned = None, ()
        if self._records:
            recorded = record_launch(gradients_once)
            if recorded is None:
                return None
            apply, learned = recorded[0], _packed_plan.learned_slots(plan)
            self._learned = [(tensors[slot].shape, tensors[slot].dtype) for slot in learned]
        given = [x for x in arrays[:3] if x is not None]
        given += [*tensors, *[arrays[place] for place in self._places]]
        draws = plan.drops
        return _native.straight(
            check_of(given), handle, apply, scalars, self._told(self._numbers), () if self._records else self._names,
            learned, self._drawn if draws else None, self._run_drawn if draws else None, self._places, self._twins,
        )  # fmt: skip

    def _told(self, numbers: Numbers) -> Any:
        return Told(self, numbers, self._learned, self._bound) if self._records else (None, numbers)

    def _drawn(self) -> Any:
        """What a backward pass is told, with a seed that is drawn now."""
        return self._told((*self._numbers[:3], *_dropout.state_of(self.plan.spec, self.plan.device)))

    def arrays_of(self, operands: _Tensors, given: _Tensors) -> tuple[Arrays, _Tensors]:
        """All arrays, and the spec's tensors."""
        arrays: list[Any] = [*operands, *[None] * (self._width - 3)]
        for place, x in zip(self._places, given[self._count :], strict=True):
            arrays[place] = x
        for first, again in self._twins:
            arrays[again] = arrays[first]
        return tuple(arrays), given[: self._count]

    def launch_of(self, numbers: Numbers) -> Launch:
        scalars = dict(zip(self._names, numbers[0], strict=True))
        return Launch({}, scalars, self._launch.scale, self._launch.dropout, numbers[3], numbers[4], self.plan.scales)

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        given: _Tensors,
        with_lse: bool,
        scalars: tuple[float, ...] = (),
        scale: float | None = None,
        dropout: float | None = None,
        seed: Any = 0,
        offset: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """O and LSE, where something keeps a launch from being like others. `scale` and `dropout` are the call's
        own."""
        arrays, tensors = self.arrays_of((q, k, v), given)
        scalars = tuple([plain(x) for x in scalars])
        return self.plan.run(arrays, tensors, self.launch_of((scalars, None, None, seed, offset)), with_lse)

    def _run_drawn(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: _Tensors, with_lse: bool, told: Any
    ) -> Any:
        """With a seed that was drawn on the device, as in a captured graph."""
        arrays, tensors = self.arrays_of((q, k, v), given)
        o, lse = self._run(self.plan, arrays, tensors, self.launch_of(told[1]), with_lse, self._records)
        return (o, lse) if with_lse else o


def _places_of(arrays: Arrays) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], dict[int, int]]:
    """Places of arrays behind q, k and v, each array's first; pairs of places at which there is one; and at which of
    the first ones the array of a place is."""
    first: dict[int, int] = {}
    twins, at = [], {}
    for place, x in enumerate(arrays[3:], 3):
        if x is not None:
            known = first.setdefault(id(x), place)
            if known != place:
                twins.append((known, place))
            at[place] = list(first.values()).index(known)
    return tuple(first.values()), tuple(twins), at


def _gradients_of(
    told: Told, saved: tuple[torch.Tensor, ...], d_o: torch.Tensor | None, d_lse: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Of q, k, v and learned tensors, where no launch that was had before gives them."""
    of: Any = told.plan
    q, k, v, o, lse, *given = saved
    arrays, tensors = of.arrays_of((q, k, v), given)
    launch = of.launch_of(told.numbers)
    found = _packed_plan.gradients(of.plan, arrays, tensors, o, lse, d_o, d_lse, launch, told.learned)
    if told.bound is not None and len(told.bound) < MAX_BOUND and d_o is not None and d_lse is None:
        bound = _bound(of, told, saved, d_o, launch)
        if bound is not None:
            told.bound.append(bound)
    return found


gradients_once = once(_gradients_of)


def _bound(of: CacheLaunch, told: Told, saved: tuple[torch.Tensor, ...], d_o: torch.Tensor, launch: Launch) -> Any:
    """The launch that gradients just had, for tensors that are as these. None: there was more to do."""
    plan = of.plan
    q, k, v, o, _, *given = saved
    arrays, tensors = of.arrays_of((q, k, v), given)
    backward = plan.backwards.get((d_o.stride(), torch.get_deterministic_debug_mode()))
    learned = [(tensors[slot].shape, tensors[slot].dtype) for slot in _packed_plan.learned_slots(plan)]
    if (
        backward is None
        or (plan.drops and not isinstance(told.numbers[3], int))
        or key_of(arrays) != plan.key
        or o.stride() != tuple(plan.o_strides)
        or not may_be_bound(told, learned, saved, tensors, d_o)
    ):
        return None
    args, *keep = backward._arguments(launch)
    kinds = [
        (sizes, strides, plan.dtype, untouched(sizes, plan.dtype, ZERO, 0, of.ends_of(side)))
        for (sizes, strides), side in zip(backward.dense, ("q", "kv", "kv"), strict=True)
    ]
    kinds += kinds_of_learned(learned)
    return _native.bound_backward(
        backward, backward.kernel, ctypes.addressof(args), (args, keep), check_of((*saved, d_o)), tuple(kinds),
        backward.learned, of.behind(BackwardArgs),
    )  # fmt: skip
