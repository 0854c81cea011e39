"""What a Python function can see: the values that its translation depends on, told apart from tensors, which a launch
brings, and from numbers, which it may bring.

Two calls of functions with one fingerprint have one translation, at least for the same numbers. What cannot be followed
has no fingerprint, and is translated at every call.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

from attune.torch._guard import check_of
from attune.torch._kinds import state_of
from attune.torch._walk import MISSING, Walk
from attune.torch._walked import Unknown

_MAX_HINTS = 1024
_MOST_WALKS = 16  # each meets more names, or is the last; an object may be another at each look
# By addresses of functions' code: the names that all code used when they were last walked. Where it is wrong, the walk
# is done again.
_hints: dict[tuple[int, ...], frozenset[str]] = {}


class Fingerprint:
    """Of functions, at this moment.

    Attributes:
        key: hashable; equal for functions that mean the same but for the tensors that they see.
        kept, tensors, numbers, places, of_tensors, whole, sees_modules, opened: the Walk's.
        is_bound: whether `is_current` can tell: every value stands in a cell or under a global name, and cannot change
            where it stands.
        way: back to what the functions see, Route.way's; other functions that go it have this fingerprint.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        """Raises Unknown where they see something that cannot be followed."""
        given = tuple(functions)
        walk = _walked(given)
        self.key = tuple(walk.parts)
        self.kept, self.tensors, self.numbers, self.places = walk.kept, walk.tensors, walk.numbers, walk.places
        self.of_tensors, self.opened = walk.of_tensors, walk.opened
        self.whole, self.sees_modules = walk.whole, walk.sees_modules
        self.is_bound = walk.is_bound
        self._cells, self._globals, self._functions = walk.cells, walk.globals, walk.functions
        self._attributes = [(vars(tensor), len(vars(tensor))) for tensor in walk.tensors]
        self._as_they_were = check_of(walk.tensors) if walk.tensors else None
        self._states = [state_of(tensor) for tensor in walk.tensors]
        self.way = walk.route.way(len(given), walk.tensors)

    def is_current(self) -> bool:
        """Whether the functions still see the objects that they saw."""
        for cell, value in self._cells:
            try:
                if cell.cell_contents is not value:
                    return False
            except ValueError:  # it is empty now
                return False
        for namespace, name, value in self._globals:
            if namespace.get(name, MISSING) is not value:
                return False
        for reference, code, defaults, named, attributes, count in self._functions:
            function = reference()
            if (
                function is None
                or function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not named
                or len(attributes) != count
            ):
                return False
        for attributes, count in self._attributes:
            if len(attributes) != count:
                return False
        # Where torch has switched something on they are not as they were, and may be all the same.
        return (
            self._as_they_were is None
            or self._as_they_were(*self.tensors)
            or [state_of(tensor) for tensor in self.tensors] == self._states
        )


def _code_of(function: Any) -> Any:
    if type(function) is MethodType:
        function = function.__func__
    return function.__code__ if type(function) is FunctionType else type(function)


def place_of_code(functions: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple([id(_code_of(each)) for each in functions])


def _walked(functions: tuple[Any, ...]) -> Walk:
    """The walk that was given the names which it met. A hint may spare one, and decides nothing: a walk whose names are
    wrong is no beginning, for equal functions would have keys that depend on what was met before them."""
    place = place_of_code(functions)
    hint = _hints.get(place, frozenset())
    opens, names, is_hint = True, hint, bool(hint)
    for _ in range(_MOST_WALKS):
        walk = Walk(opens, names)
        try:
            walk.follow(functions)
        except Unknown:
            if not is_hint:
                raise
            names, is_hint = frozenset(), False  # the hint may be what leads there
            continue
        if walk.asks and walk.met != names:
            names, is_hint = frozenset() if is_hint else frozenset(walk.met), False
            continue
        walk.refuse_hidden()
        if walk.places and (walk.is_reached_twice or walk.tells_numbers_apart()):
            opens, names, is_hint = False, names if walk.asks else frozenset(), False
            continue
        if walk.asks:
            if len(_hints) >= _MAX_HINTS:
                _hints.clear()
            _hints[place] = names
        return walk
    raise Unknown  # what they see changes meanwhile
