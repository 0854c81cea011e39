"""Calls of FlexAttention's functions that have been translated before."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import Any, NamedTuple

import torch

from attune._recent import Recent
from attune.torch._auxiliary import as_auxiliary
from attune.torch._bound import Bound
from attune.torch._captured import CapturedTensors
from attune.torch._expression import Untranslatable
from attune.torch._fingerprint import Fingerprint
from attune.torch._function import Launch
from attune.torch._numbers import Captured, Recipe, evaluate, may_be_brought
from attune.torch._opened import open_numbers
from attune.torch._launch_plan import Scalars
from attune.torch._plans import ForwardPlan, Variant
from attune.torch._walk import Unknown

_MAX_CALLS = 1024  # of functions with one fingerprint: sizes, types
_MAX_FINGERPRINTS = 1024
_MAX_BOUND = 256  # of functions that are the same objects

Key = tuple[Any, ...]


class View(NamedTuple):
    """A part of a tensor that functions see, which they make themselves: where the tensor stands among those, and the
    part's sizes, strides and offset in it. `Fingerprint.key` tells the tensor's own sizes and strides."""

    of: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda and not tensor.is_floating_point() and tensor.is_contiguous():
            # The tensor's copy in a type that kernels take is kept, one of a view would be made at each call.
            with contextlib.suppress(Untranslatable):
                tensor = as_auxiliary(tensor)
        return tensor.as_strided(self.sizes, self.strides, tensor.storage_offset() + self.offset)


def _source_of(tensor: torch.Tensor, seen: list[torch.Tensor]) -> int | View | None:
    """Which of the tensors that functions see it is, or is a view of. None: of none; a copy, for one."""
    for at, source in enumerate(seen):
        if source is tensor:
            return at
    # The fingerprint tells whether a CPU's number is finite only of tensors that the functions see.
    if not tensor.dim() and tensor.device.type == "cpu":
        return None
    for at, source in enumerate(seen):
        if (
            source.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            and source.dtype is tensor.dtype
            and source.requires_grad is tensor.requires_grad
        ):
            offset = tensor.storage_offset() - source.storage_offset()
            return View(at, tuple(tensor.shape), tensor.stride(), offset)
    return None


Sources = tuple["int | View", ...]


@dataclasses.dataclass(slots=True)
class Known:
    """A translated call: which of the tensors that its functions see are the spec's, by slot, and its scalars."""

    variant: Variant
    plan: ForwardPlan
    sources: Sources
    scalars: Scalars = ()
    launch: Launch = dataclasses.field(init=False)  # of a call without tensors and dropout: always the same

    def __post_init__(self) -> None:
        self.launch = Launch([], [], self.scalars)


@dataclasses.dataclass(slots=True)
class _Translated:
    """A call, and how its scalars follow from the numbers that its functions captured."""

    variant: Variant
    plan: ForwardPlan
    sources: Sources
    recipes: tuple[tuple[Recipe, type], ...]

    def known(self, numbers: tuple[float, ...]) -> Known | None:
        """The call with these numbers; None: no launch can bring what follows from them."""
        scalars: list[Any] = []
        for recipe, of_type in self.recipes:
            try:
                value = evaluate(recipe, numbers)
            except ArithmeticError:
                return None
            if type(value) is not of_type or not may_be_brought(value):
                return None
            scalars.append(value)
        return Known(self.variant, self.plan, self.sources, tuple(scalars))


class _Family:
    """Calls of functions with one fingerprint, whatever numbers they captured.

    Attributes:
        varied: places of the numbers that have had several values.
    """

    __slots__ = ("_calls", "_count", "_last", "varied")

    def __init__(self) -> None:
        # By call, then by the places of the numbers that a translation is of, then by their values.
        self._calls: dict[Key, dict[tuple[int, ...], dict[tuple[float, ...], _Translated]]] = {}
        self._count = 0
        self._last: tuple[float, ...] | None = None
        self.varied: frozenset[int] = frozenset()

    def meet(self, numbers: tuple[float, ...]) -> None:
        """Numbers that are about to be translated."""
        if self._last is not None:
            self.varied |= {at for at, (x, y) in enumerate(zip(numbers, self._last, strict=True)) if x != y}
        self._last = numbers

    def find(self, call: Key, numbers: tuple[float, ...]) -> Known | None:
        for places, translated in self._calls.get(call, {}).items():
            found = translated.get(tuple([numbers[place] for place in places]))
            known = None if found is None else found.known(numbers)
            if known is not None:
                return known
        return None

    def add(self, call: Key, captured: Captured, translated: _Translated) -> None:
        if self._count >= _MAX_CALLS:
            self._calls.clear()
            self._count = 0
        self._count += 1
        places = tuple(sorted(captured.decided))
        values = tuple(captured.values[place] for place in places)
        self._calls.setdefault(call, {}).setdefault(places, {})[values] = translated


@dataclasses.dataclass(slots=True)
class Seen:
    """Functions, what they saw when they were last looked at, and the calls that others with their fingerprint had."""

    references: tuple[tuple[Any, int], ...]  # weak, with the function's place among the three
    fingerprint: Fingerprint
    family: _Family
    calls: dict[Key, Known]  # of these very numbers
    last: tuple[Key, Known] | None = None  # comparing takes less than hashing
    # Calls whose tensors are known, too, by what their callers say: _bound.keep_in's.
    bound: Recent[Any, tuple[Bound, ...]] = dataclasses.field(default_factory=lambda: Recent(_MAX_BOUND))

    def find(self, call: Key) -> Known | None:
        """The call, where it or one that differs in numbers that a launch brings was translated before."""
        if self.last is not None and self.last[0] == call:
            return self.last[1]
        known = self.calls.get(call)
        if known is None and self.fingerprint.numbers:
            known = self.family.find(call, tuple(self.fingerprint.numbers))
            if known is not None:
                self._keep(call, known)
        if known is not None:
            self.last = call, known
        return known

    def tensors(self, known: Known) -> list[torch.Tensor]:
        """As the functions see them now."""
        tensors = self.fingerprint.tensors
        return [tensors[each] if type(each) is int else each.made(tensors[each.of]) for each in known.sources]

    def open(self, functions: tuple[Any, ...]) -> tuple[tuple[Any, ...], Captured]:
        """The functions that were looked at, with Numbers where they captured numbers."""
        numbers = tuple(self.fingerprint.numbers)
        self.family.meet(numbers)
        captured = Captured(numbers, self.family.varied, self.fingerprint.of_tensors)
        opened = open_numbers(functions, self.fingerprint, captured) if self.fingerprint.places else functions
        if opened is None:
            captured.decide_all()
        return opened or functions, captured

    def remember(
        self,
        key: Key,
        variant: Variant,
        plan: ForwardPlan,
        tensors: CapturedTensors,
        numbers: Captured,
        called: set[type],
    ) -> None:
        """A call that was translated just now, unless the translation depends on more than the fingerprint says.
        `called`: classes of the modules that the functions called."""
        if tensors.reads_values or not called <= self.fingerprint.whole:
            return
        named = tensors.tensors()
        found = [_source_of(named[tensor.name], self.fingerprint.tensors) for tensor in variant.spec.tensors]
        sources = tuple(source for source in found if source is not None)
        if len(sources) < len(found):
            return
        recipes = tensors.recipes()
        by_slot = tuple(recipes[variant.spec.scalars[slot].name] for slot, _ in variant.scalar_slots)
        translated = _Translated(variant, plan, sources, by_slot)
        known = translated.known(numbers.values)
        if known is None:
            return
        self._keep(key, known)
        if numbers.values:
            self.family.add(key, numbers, translated)

    def _keep(self, key: Key, known: Known) -> None:
        if len(self.calls) >= _MAX_CALLS:
            self.calls.clear()
        self.calls[key] = known


_seen: dict[tuple[int, ...], Seen] = {}
# By fingerprint: the calls of functions that captured no numbers, those of functions that did, and what keeps the
# addresses in the fingerprint from naming something else.
_calls: dict[Key, tuple[dict[Key, Known], _Family, list[Any]]] = {}


def forget() -> None:
    """Every call is translated anew."""
    _seen.clear()
    _calls.clear()


def recall(score_mod: Any, of_blocks: Any, mask_mod: Any, sink: Any = None) -> Seen | None:
    """What was seen of functions that still see it."""
    seen = _seen.get((id(score_mod), id(of_blocks), id(mask_mod), id(sink)))
    if seen is None:
        return None
    functions = score_mod, of_blocks, mask_mod, sink
    for reference, at in seen.references:
        if reference() is not functions[at]:
            return None
    return seen if seen.fingerprint.is_current() else None


def look_at(*functions: Any) -> Seen | None:
    """What is known of a score_mod, two mask_mods and a sink, each of which may be None. None: nothing can be."""
    seen = recall(*functions)
    if seen is not None:
        return seen
    try:
        fingerprint = Fingerprint(functions)
        known = _calls.get(fingerprint.key)
    except (Unknown, TypeError):  # TypeError: a value that cannot be hashed
        return None
    if known is None:
        if len(_calls) >= _MAX_FINGERPRINTS:
            forget()
        known = _calls[fingerprint.key] = {}, _Family(), fingerprint.kept
    calls, family, _ = known
    found = Seen((), fingerprint, family, {} if fingerprint.numbers else calls)
    place = tuple([id(function) for function in functions])
    if fingerprint.is_bound:  # others are looked at anew each time, and nothing keeps what they see
        with contextlib.suppress(TypeError):  # no weak references to a function of this kind
            found.references = tuple(
                (weakref.ref(function, lambda _: _seen.pop(place, None)), at)
                for at, function in enumerate(functions)
                if function is not None
            )
            _seen[place] = found
    return found
