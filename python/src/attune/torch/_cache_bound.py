"""Calls over a cache that are made again, as attune.torch._bound has them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from attune import _met
from attune._launch import Launch
from attune._packed import OFFSETS
from attune.torch import _bound, _dropout
from attune.torch._cache_launch import CacheLaunch, can_be_native
from attune.torch._guard import Check, check_of

if TYPE_CHECKING:
    from attune.torch._cache_plan import CachePlan


_NO_ARRAYS = (None,) * len(OFFSETS) + (None, None)  # and scales


def _picker(arrays: _bound.Arrays) -> Callable[[_bound.Arrays], tuple[Any, ...]]:
    """What picks of others those that are tensors here, each once: one list says of queries and keys where they begin.
    Of others that are not the same where these are it picks none."""
    first: dict[int, int] = {}
    twice = []
    for place, x in enumerate(arrays):
        if x is not None and first.setdefault(id(x), place) != place:
            twice.append((first[id(x)], place))
    pick = operator.itemgetter(*first.values())
    if not twice:
        return pick
    none = (None,) * len(first)
    return lambda others: pick(others) if all([others[at] is others[again] for at, again in twice]) else none


class CacheBound:
    """A call of a CachePlan. The attributes are a Bound's."""

    __slots__ = (
        "_launch",
        "_names",
        "_plan",
        "_records",
        "_run",
        "_slots",
        "check",
        "holds",
        "kept",
        "present",
        "sizes",
    )

    def __init__(
        self,
        plan: CachePlan,
        arrays: _bound.Arrays,
        tensors: _bound.Tensors,
        slots: Sequence[int],
        launch: Launch,
        holds: _bound.Holds | None,
        kept: Any,
        records: bool,
        run: Callable[..., Any],
    ) -> None:
        self.present = _picker(arrays)
        self.check: Check = check_of((*self.present(arrays), *tensors))
        self.holds, self.kept = holds, kept
        self.sizes = _met.sizes_of((*arrays, *tensors))
        self._plan, self._slots, self._records, self._run = plan, tuple(slots), records, run
        self._launch = Launch({}, {}, launch.scale, launch.dropout)
        self._names = tuple(plan.spec.launch_scalar_slots)  # of scalars that each call brings

    def go(
        self,
        q: Any,
        k: Any,
        v: Any,
        tensors: _bound.Tensors,
        with_lse: bool,
        scalars: Any,
        arrays: _bound.Arrays | None = None,
    ) -> Any:
        """What `run` gives, or None where something is not as it was. `arrays`: all of them, where there are more than
        q, k and v."""
        if arrays is None:
            arrays = q, k, v, *_NO_ARRAYS
        if self.check(*self.present(arrays), *tensors) and (self.holds is None or self.holds()):
            return self.run(arrays, tensors, with_lse, None, 0, scalars)
        return None

    def run(
        self,
        arrays: _bound.Arrays,
        tensors: _bound.Tensors,
        with_lse: bool,
        seed: int | None,
        offset: int,
        scalars: Any,
    ) -> Any:
        plan, launch = self._plan, self._launch
        if plan.drops or self._names:
            launch = Launch({}, {name: scalars[name] for name in self._names}, launch.scale, launch.dropout)
        if plan.drops:
            launch.seed, launch.offset = _dropout.state_of(plan.spec, arrays[0].device, seed, offset)
        given = [tensors[at] for at in self._slots] if tensors else ()
        o, lse = self._run(plan, arrays, given, launch, with_lse, self._records)
        return (o, lse) if with_lse else o


class DrawingCacheBound(CacheBound):
    """One with dropout, whose seed is the call's."""

    __slots__ = ()
    go = None  # type: ignore[assignment]


class NativeCacheBound(CacheBound):
    """One that goes without bytecode."""

    __slots__ = ("go",)


def bind(
    key: Any,
    plan: CachePlan,
    arrays: _bound.Arrays,
    tensors: Mapping[str, torch.Tensor],
    launch: Launch,
    numbers: Sequence[Any],
    asks_precision: bool,
    kept: Any,
    records: bool,
    run: Callable[..., Any],
    is_seeded: bool,
) -> None:
    """A call that was made just now, nothing of which is the caller's beside `kept`. `run`: _cached's, which may
    record. `is_seeded`: whether each call brings a seed."""
    given = tuple({id(x): x for x in arrays if x is not None}.values())
    names, own = list(tensors), tuple(tensors.values())
    if len(given) < 2 or not _bound.can_be_bound(given, given, own, numbers):
        return
    slots = [names.index(tensor.name) for tensor in plan.spec.tensors]
    holds = _bound.holds_of(arrays[0], asks_precision)
    kind = DrawingCacheBound if plan.drops else CacheBound
    go = None
    in_order = slots == list(range(len(slots))) and holds is None
    brings = records and bool(launch.scalars)
    if in_order and not (brings or (plan.drops and is_seeded)) and can_be_native(plan, arrays, own):
        go = CacheLaunch(plan, arrays, own, launch, records, run).go(arrays, own)
    bound = (kind if go is None else NativeCacheBound)(plan, arrays, own, slots, launch, holds, kept, records, run)
    if go is not None:
        bound.go = go  # type: ignore[method-assign]
    _bound.keep(key, bound)
