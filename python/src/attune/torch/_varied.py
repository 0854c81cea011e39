"""Numbers of words. They are constants of the kernel, until one has had so many values that it changes from call to
call: from then on the launch brings it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from numbers import Real
from typing import Any

from attune.torch._numbers import may_be_brought

# No names of scalars, which have no blanks.
SCALE, DROPOUT = "the scale", "the dropout"

_MAX_CONSTANTS = 2  # what layers of two kinds have
_MAX_KNOWN = 1024
_MAX_AGAIN = 64

Values = tuple[tuple[str, type, Any], ...]


class Family:
    """Calls that differ in numbers alone. Not thread-safe in what it counts, which costs a kernel at worst.

    Attributes:
        is_fixed: whether no kernel takes them from the launch.
    """

    __slots__ = ("_again", "_constants", "_varied", "is_fixed")

    def __init__(self) -> None:
        self._constants: list[Values] = []
        self._varied: frozenset[str] = frozenset()
        self._again: set[Values] = set()
        self.is_fixed = False

    def left_to_launch(self, numbers: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of those that the launch brings."""
        values = _values(numbers)
        if self.is_fixed or values in self._constants:
            return ()
        if len(self._constants) < _MAX_CONSTANTS:
            self._constants.append(values)
            return ()
        self._varied |= {x[0] for known in self._constants for x, y in zip(values, known, strict=True) if x != y}
        return tuple([name for name, value in numbers.items() if name in self._varied and _is_open(name, value)])

    def has_met(self, numbers: Mapping[str, Any]) -> bool:
        """Whether the launch brought these very numbers before."""
        values = _values(numbers)
        if values in self._again:
            return True
        if len(self._again) >= _MAX_AGAIN:
            self._again.clear()
        self._again.add(values)
        return False


def numbers_of(scalars: Mapping[str, Any], dropout: float | None, scale: float | None) -> dict[str, Any]:
    """All that a call of words has."""
    numbers = dict(scalars)
    if scale is not None:
        numbers[SCALE] = scale
    if dropout:
        numbers[DROPOUT] = dropout
    return numbers


def key_of(numbers: Mapping[str, Any], left: tuple[str, ...]) -> Values:
    """Of those that are `left` to the launch without their values."""
    return tuple([(name, type(x), None if name in left else x) for name, x in numbers.items()])


def declared(
    scalars: Mapping[str, Any], dropout: float | None, scale: float | None, left: tuple[str, ...]
) -> tuple[tuple[tuple[str, Any], ...], Any, Any]:
    """Scalars, dropout and scale as a spec's text has them: those that are `left` to the launch by their types."""
    of_scalars = tuple([(name, type(x) if name in left else x) for name, x in scalars.items()])
    return of_scalars, float if DROPOUT in left else dropout, float if SCALE in left else scale


_families: dict[Hashable, Family] = {}


def family_of(said: Hashable, numbers: Mapping[str, Any]) -> Family:
    """`said`: all that the caller said beside numbers and arrays."""
    key = said, tuple([(name, type(value)) for name, value in numbers.items()])
    found = _families.get(key)
    if found is None:
        if len(_families) >= _MAX_KNOWN:
            _families.clear()
        found = _families[key] = Family()
    return found


def _values(numbers: Mapping[str, Any]) -> Values:
    """What is no number, and refused later, by its identity: tensors would be compared by element."""
    return tuple([(name, type(x), x if isinstance(x, Real) else id(x)) for name, x in numbers.items()])


def _is_open(name: str, value: Any) -> bool:
    if name in (SCALE, DROPOUT):
        return isinstance(value, float) and 0 < value and (name == SCALE or value < 1) and may_be_brought(value)
    return may_be_brought(value)
