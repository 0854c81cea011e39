"""Calls of FlexAttention's functions that have been translated before."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attune._recent import Recent
from attune.torch._auxiliary import as_auxiliary
from attune.torch._bound import Bound
from attune.torch._captured import CapturedTensors
from attune.torch._expression import Untranslatable
from attune.torch._fingerprint import Fingerprint, place_of_code
from attune.torch._function import Launch
from attune.torch._numbers import Captured, Recipe, evaluate, may_be_brought
from attune.torch._opened import open_numbers
from attune.torch._launch_plan import Scalars
from attune.torch._plans import ForwardPlan, Variant
from attune.torch._route import Again, Way
from attune.torch._walked import Unknown

_MAX_CALLS = 1024  # of functions with one fingerprint: sizes, types
_MAX_FINGERPRINTS = 1024
_METHOD = types.MethodType
_MAX_BOUND = 256  # of functions with the same numbers
_MAX_NUMBERS = 64  # sets of numbers that functions with one fingerprint had
_MAX_PLACES = 1024
_MAX_OF_CODE = 8  # programs that functions of the same code are; each costs a look
_MAX_WAYS = 4  # of a program: one without autocast and one within, for example
_MAX_COMPILED = 16  # of a program

Key = tuple[Any, ...]


class View(NamedTuple):
    """A part of a tensor that functions see, which they make themselves: where the tensor stands among those, and the
    part's sizes, strides and offset in it. `Fingerprint.key` tells the tensor's own sizes and strides."""

    of: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.as_strided(self.sizes, self.strides, tensor.storage_offset() + self.offset)
        if tensor.is_cuda and not tensor.is_floating_point():
            # To look at the values of a part would wait for the device at each call.
            with contextlib.suppress(Untranslatable):
                return as_auxiliary(part, whole=tensor)
        return part


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
    """Functions with a fingerprint and certain numbers, and the calls that they had."""

    program: Program
    numbers: tuple[float, ...]
    calls: dict[Key, Known] = dataclasses.field(default_factory=dict)
    last: tuple[Key, Known] | None = None  # comparing takes less than hashing
    # Calls whose tensors are known, too, by what their callers say: _bound.keep_in's.
    bound: Recent[Any, tuple[Bound, ...]] = dataclasses.field(default_factory=lambda: Recent(_MAX_BOUND))

    def find(self, call: Key) -> Known | None:
        """The call, where it or one that differs in numbers that a launch brings was translated before."""
        if self.last is not None and self.last[0] == call:
            return self.last[1]
        known = self.calls.get(call)
        if known is None and self.numbers:
            known = self.program.family.find(call, self.numbers)
            if known is not None:
                self.keep(call, known)
        if known is not None:
            self.last = call, known
        return known

    def keep(self, key: Key, known: Known) -> None:
        if len(self.calls) >= _MAX_CALLS:
            self.calls.clear()
        self.calls[key] = known


class Program:
    """Functions with one fingerprint, whatever numbers and tensors they see. It keeps none of them.

    Attributes:
        kept: what keeps the addresses in the fingerprint from naming something else.
    """

    __slots__ = ("_count", "_new", "_seen", "_ways", "family", "kept")

    def __init__(self, kept: list[Any]) -> None:
        self.kept, self.family = kept, _Family()
        self._new: Way | None = None
        self._ways: tuple[Again, ...] = ()
        self._count = 0
        self._seen: dict[tuple[float, ...], Seen] = {}

    def seen(self, numbers: tuple[float, ...]) -> Seen:
        found = self._seen.get(numbers)
        if found is None:
            if len(self._seen) >= _MAX_NUMBERS:
                self._seen.clear()
            found = self._seen[numbers] = Seen(self, numbers)
        return found

    def look(self, functions: tuple[Any, ...]) -> Met | None:
        """None: it is not told whether they have the fingerprint."""
        new, self._new = self._new, None
        if new is not None:
            self._ways = new(), *self._ways[: _MAX_WAYS - 1]
        for again in self._ways:
            found = again(*functions)
            if found is not None:
                tensors, numbers = found
                return self._seen.get(numbers) or self.seen(numbers), tensors
        return None

    def learn(self, way: Way) -> None:
        """Of functions that have the fingerprint, and of which no way before told it."""
        if self._count < _MAX_COMPILED:
            self._count += 1
            self._new = way


# What was seen, and the tensors that the functions see now.
Met = tuple[Seen, Sequence[torch.Tensor]]


class Look:
    """Functions as they are now.

    Attributes:
        seen: what functions like them had.
        fingerprint: where all that they see was walked over.
    """

    __slots__ = ("_tensors", "fingerprint", "seen")

    def __init__(self, met: Met, fingerprint: Fingerprint | None = None) -> None:
        self.seen, self._tensors = met
        self.fingerprint = fingerprint

    def tensors(self, known: Known) -> list[torch.Tensor]:
        """As the functions see them now."""
        tensors = self._tensors
        return [tensors[each] if type(each) is int else each.made(tensors[each.of]) for each in known.sources]

    @property
    def sees_modules(self) -> bool:
        return self.fingerprint is not None and self.fingerprint.sees_modules

    def sees_only(self, known: Known) -> bool:
        """Whether the call's tensors are all that the functions see, in order."""
        return known.sources == tuple(range(len(self._tensors)))

    def open(self, functions: tuple[Any, ...]) -> tuple[tuple[Any, ...], Captured]:
        """The functions that were walked over, with Numbers where they captured numbers."""
        fingerprint = self.fingerprint
        assert fingerprint is not None
        numbers, family = tuple(fingerprint.numbers), self.seen.program.family
        family.meet(numbers)
        captured = Captured(numbers, family.varied, fingerprint.of_tensors)
        opened = open_numbers(functions, fingerprint, captured) if fingerprint.places else functions
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
        fingerprint = self.fingerprint
        if fingerprint is None or tensors.reads_values or not called <= fingerprint.whole:
            return
        named = tensors.tensors()
        found = [_source_of(named[tensor.name], fingerprint.tensors) for tensor in variant.spec.tensors]
        sources = tuple(source for source in found if source is not None)
        if len(sources) < len(found):
            return
        recipes = tensors.recipes()
        by_slot = tuple(recipes[variant.spec.scalars[slot].name] for slot, _ in variant.scalar_slots)
        translated = _Translated(variant, plan, sources, by_slot)
        known = translated.known(numbers.values)
        if known is None:
            return
        self.seen.keep(key, known)
        if numbers.values:
            self.seen.program.family.add(key, numbers, translated)


class _Same(NamedTuple):
    """Functions that are kept: weak references with their places, what they saw and what is told of it."""

    references: tuple[tuple[Any, int], ...]
    fingerprint: Fingerprint
    met: Met


_same: dict[tuple[int, ...], _Same] = {}  # by addresses of functions that still are there
_programs: dict[Key, Program] = {}  # by fingerprint
# Where to look first, and nothing else: by addresses, of what may be there no more, and by those of the code.
_by_place: dict[tuple[int, ...], Program] = {}
_by_code: dict[tuple[int, ...], tuple[Program, ...]] = {}


def forget() -> None:
    """Every call is translated anew."""
    _same.clear()
    _programs.clear()
    _by_place.clear()
    _by_code.clear()


def _place_of_method(method: Any) -> int:
    """What may be called need not have a hash."""
    return id(method.__func__) ^ id(method.__self__)


def _place(score_mod: Any, of_blocks: Any, mask_mod: Any, sink: Any) -> tuple[int, ...]:
    """Of methods, which are made anew each time they are asked for, the functions' and the objects'."""
    return (
        _place_of_method(score_mod) if type(score_mod) is _METHOD else id(score_mod),
        _place_of_method(of_blocks) if type(of_blocks) is _METHOD else id(of_blocks),
        _place_of_method(mask_mod) if type(mask_mod) is _METHOD else id(mask_mod),
        id(sink),
    )


def recall(score_mod: Any, of_blocks: Any, mask_mod: Any, sink: Any = None) -> Met | None:
    """What was seen of functions that see what others saw, or the same again."""
    functions = score_mod, of_blocks, mask_mod, sink
    same = _same.get((id(score_mod), id(of_blocks), id(mask_mod), id(sink)))
    if same is not None:
        for reference, at in same.references:
            if reference() is not functions[at]:
                break
        else:
            if same.fingerprint.is_current():
                return same.met
    return _go_back(functions)


def _keep_same(functions: tuple[Any, ...], fingerprint: Fingerprint, met: Met) -> None:
    """Functions that come again as they are are asked in less time than the way back takes."""
    place = tuple([id(function) for function in functions])
    with contextlib.suppress(TypeError):  # no weak references to a function of this kind
        references = tuple(
            (weakref.ref(function, lambda _: _same.pop(place, None)), at)
            for at, function in enumerate(functions)
            if function is not None
        )
        _same[place] = _Same(references, fingerprint, met)


def _go_back(functions: tuple[Any, ...]) -> Met | None:
    place = _place(*functions)
    first = _by_place.get(place)
    if first is not None:
        met = first.look(functions)
        if met is not None:
            return met
    for program in _by_code.get(place_of_code(functions), ()):
        met = None if program is first else program.look(functions)
        if met is not None:
            _put(_by_place, place, program)
            return met
    return None


def _put(places: dict[tuple[int, ...], Any], place: tuple[int, ...], found: Any) -> None:
    if len(places) >= _MAX_PLACES:
        places.clear()
    places[place] = found


def _met(fingerprint: Fingerprint) -> Met:
    program = _programs.get(fingerprint.key)
    if program is None:
        if len(_programs) >= _MAX_FINGERPRINTS:
            forget()
        program = _programs[fingerprint.key] = Program(fingerprint.kept)
    return program.seen(tuple(fingerprint.numbers)), fingerprint.tensors


def look_at(*functions: Any) -> Look | None:
    """What is known of the same, by all that they see. None: nothing can be."""
    try:
        fingerprint = Fingerprint(functions)
        met = _met(fingerprint)
    except (Unknown, TypeError):  # TypeError: a value that cannot be hashed
        return None
    program = met[0].program
    if program.look(functions) is None:
        program.learn(fingerprint.way)
    if fingerprint.is_bound:
        _keep_same(functions, fingerprint, met)
    _put(_by_place, _place(*functions), program)
    code = place_of_code(functions)
    others = [each for each in _by_code.get(code, ()) if each is not program]
    _put(_by_code, code, (program, *others[: _MAX_OF_CODE - 1]))
    return Look(met, fingerprint)
