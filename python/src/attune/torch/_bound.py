"""Calls that are made again: what a call says leads to what it launches, once its tensors are as they were.

Nothing of it decides anything. What a call means is worked out elsewhere, and is remembered here with all that it was
worked out of: what the caller said is a key, and of the tensors a function tells whether they are as they were.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from attune import _met
from attune._met import CALLS
from attune._recent import Recent
from attune.torch import _autocast, _dropout, _native, _precision
from attune.torch._function import record, record_launch
from attune.torch._gradients import Told
from attune.torch._guard import Check, check_of, may_be_met
from attune.torch._launch_plan import Numbers, Scalars
from attune.torch._launcher import launcher_of
from attune.torch._numbers import plain
from attune.torch._plans import ForwardPlan

MAX_BOUND = 4  # of one key, and of one key and sizes; each costs a look
_NUMBERS = (int, float, bool, type(None))  # a tensor is the same object with another value

Tensors = Sequence[torch.Tensor]
Arrays = tuple[Any, ...]  # tensors, or None
Holds = Callable[[], bool]

_of_operands = operator.itemgetter(0, 1, 2)


class Bound:
    """A call of a ForwardPlan.

    Attributes:
        go: all of it at once, of q, k, v, tensors, whether LSE is asked for, and scalars by name; it gives None where
            tensors are not as they were. None: there is none.
        check: whether what `present` picks of the arrays, and the tensors behind it, are as they were.
        holds: whether what torch is told beside tensors is as it was; None: nothing was asked.
        sizes: of operands and tensors, as _met.sizes_of has them.
        kept: what has to be kept with it.
    """

    __slots__ = (
        "_converts", "_draws", "_handle", "_launcher", "_learned", "_names", "_numbers", "_plan", "_record", "_slots",
        "_told", "check", "go", "holds", "kept", "sizes",
    )  # fmt: skip

    present = staticmethod(_of_operands)

    def __init__(
        self,
        plan: ForwardPlan,
        operands: Tensors,
        tensors: Tensors,
        slots: Sequence[int],
        numbers: tuple[Scalars, float | None, float | None],
        draws: bool,
        holds: Holds | None,
        kept: Any = None,
        names: Sequence[str] = (),
        is_seeded: bool = False,
        sizes: tuple[Any, ...] | None = None,
    ) -> None:
        """`tensors` are in the caller's order, and `slots` says which of them is the spec's, by slot. `draws`: whether
        a call without a seed takes one of torch's generator. `names`: of the scalars that each call brings, by slot;
        without any they are those of `numbers`. `is_seeded`: whether each call brings a seed.
        `sizes`: by which it is looked for, where that is not those of operands and tensors."""
        self.check: Check = check_of((*operands, *tensors))
        self.holds, self.kept = holds, kept
        self.sizes = _met.sizes_of((*operands, *tensors)) if sizes is None else sizes
        self._plan, self._slots, self._draws = plan, tuple(slots), draws
        self._numbers: Numbers = (*numbers, 0, 0)
        variant = plan.variant
        by_slot = [tensors[at] for at in self._slots]
        self._converts = any(
            x.dtype is not dtype or not x.is_contiguous() or x.device != operands[0].device
            for x, dtype in zip(by_slot, variant.dtypes, strict=True)
        )
        self._names = tuple(names)
        self._launcher, handle = launcher_of(plan)
        self._handle = None if draws else handle  # with a seed none but `go` launches it
        self._learned: tuple[int, ...] | None = None  # no gradient is wanted
        self._told: Told | None = None  # what a backward pass needs to know
        of_launch = None
        of_gradients = (*operands, *(by_slot[slot] for slot in variant.learned))
        if torch.is_grad_enabled() and any(x.requires_grad for x in of_gradients):
            self._learned = tuple(self._slots[slot] for slot in variant.learned)
            learning = [(tensors[at].shape, tensors[at].dtype) for at in self._learned]
            self._told = Told(plan.backward, self._numbers, learning, []) if plan.backward is not None else None
            of_launch = None if handle is None or plan.backward is None else record_launch()
            if of_launch is None:
                handle = self._handle = None
            self._record = record if of_launch is None or draws else of_launch[1]
        if self._slots == tuple(range(len(tensors))):
            self._slots = ()  # as they are
        self.go: Callable[..., Any] | None = None
        is_recorded = self._learned is not None
        apply = of_launch[0] if is_recorded and of_launch is not None else None
        if not (holds or self._converts or self._slots or (names and (is_recorded or draws)) or (draws and is_seeded)):
            # Python's collector does not see what `go` keeps: it must not lead back to `go`.
            seeded = copy.copy(self) if draws else self
            self.go = _native.straight(
                self.check, handle, apply, numbers[0], self._told, self._names, self._learned or (),
                seeded._drawn if draws else None, seeded._run_drawn if draws else None,
            )  # fmt: skip

    def _drawn(self) -> Any:
        """What a backward pass needs to know, with a seed that is drawn now."""
        plan = self._plan
        numbers = (*self._numbers[:3], *_dropout.state_of(plan.variant.spec, plan.device))
        told = self._told
        return (None, numbers) if told is None else Told(told.plan, numbers, told.learned, told.bound)

    def _run_drawn(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: Tensors, with_lse: bool, told: Any
    ) -> Any:
        """With a seed that was drawn on the device, as in a captured graph."""
        numbers = told[1]
        plan = self._plan.variant.for_seed(numbers[3]).forward_plan(q, k, v)
        return self._made(plan, (q, k, v), tensors, tensors, with_lse, numbers)

    def run(
        self,
        arrays: Arrays,
        tensors: Tensors,
        with_lse: bool,
        seed: int | None = None,
        offset: int = 0,
        scalars: Mapping[str, Any] | None = None,
    ) -> Any:
        """O, or O and LSE, of what `check` passed."""
        q, k, v = arrays[0], arrays[1], arrays[2]
        plan, numbers, given = self._plan, self._numbers, tensors
        if self._names and scalars:
            numbers = (tuple([scalars[name] for name in self._names]), *numbers[1:])
        if self._draws:
            numbers = (*numbers[:3], *_dropout.state_of(plan.variant.spec, q.device, seed, offset))
            if isinstance(numbers[3], torch.Tensor):
                plan = plan.variant.for_seed(numbers[3]).forward_plan(q, k, v)
        if self._slots:
            given = [tensors[at] for at in self._slots]
        if self._converts:
            given = plan.variant.auxiliaries(given, q.device)
        return self._made(plan, (q, k, v), tensors, given, with_lse, numbers)

    def _made(
        self,
        plan: ForwardPlan,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        tensors: Tensors,
        given: Tensors,
        with_lse: bool,
        numbers: Numbers,
    ) -> Any:
        """`tensors` are the caller's, `given` the same as a launch takes them."""
        (q, k, v), launcher, learned = operands, self._launcher, self._learned
        if learned is None:
            if launcher is not None:
                return launcher(q, k, v, given, with_lse, numbers[0])
            found = plan.run(q, k, v, given, with_lse, *numbers)
            return found if with_lse else found[0]
        told = self._told
        if numbers is not self._numbers and told is not None:
            told = told._replace(numbers=numbers)
        if self._handle is not None:
            call: Any = self._handle, given, numbers[0], with_lse, told
        else:
            call = plan, given, numbers, with_lse, launcher
        if learned:
            return self._record(call, q, k, v, *[tensors[at] for at in learned])
        return self._record(call, q, k, v)


def can_be_bound(given: Tensors, operands: Tensors, tensors: Tensors, numbers: Sequence[Any]) -> bool:
    """Whether a call may be found by `check_of` its tensors and by comparing all else. `given` are the caller's arrays,
    `operands` the same as autocast has them, `numbers` what is compared."""
    return (
        all([x is y for x, y in zip(given, operands, strict=True)])
        and all([type(plain(each)) in _NUMBERS for each in numbers])
        and len({id(x) for x in (*operands, *tensors)}) == len(operands) + len(tensors)
        and may_be_met((*operands, *tensors))
    )


def holds_of(q: torch.Tensor, asks_precision: bool) -> Holds | None:
    """A Bound's `holds`. `asks_precision`: whether the caller leaves that of fp32 to torch."""
    device = q.device.type
    asked: list[Callable[[], Any]] = []
    if _autocast.is_on(device):  # the tensors' dispatch keys tell that it is, and not its type
        asked.append(lambda: torch.get_autocast_dtype(device))
    if asks_precision and q.dtype is torch.float32 and device == "cuda":
        asked.append(lambda: _precision.of_call(None, device, torch.float32))
    if not asked:
        return None
    known = [ask() for ask in asked]
    return lambda: [ask() for ask in asked] == known


def keep_in(calls: Recent[Any, tuple[Any, ...]], key: Any, bound: Any) -> None:
    """As one of the calls of a key. More than a few are told apart by their sizes first, which costs as much however
    many there are. Thread-safe: no tuple that somebody walks changes."""
    known = calls.recall(key)
    if known is None or 0 < len(known) < MAX_BOUND:
        calls.put(key, (bound, *(known or ())))
        return
    calls.put(key, ())
    for each in (*reversed(known), bound):
        place = key, each.sizes
        calls.put(place, (each, *(calls.recall(place) or ())[: MAX_BOUND - 1]))


def keep(key: Any, bound: Any) -> None:
    """For attune.attention, which asks for it by all that its caller said."""
    keep_in(CALLS, key, bound)
    if _met.find is None:
        _met.find = _native.find()
        _native.enter_attention(_met.function_of_calls)


_met.begin(torch.compiler.is_dynamo_compiling, torch.is_grad_enabled, forward_ad)
