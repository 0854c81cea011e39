"""Numbers that a traced function captured: what a launch can bring, instead of a constant of the kernel.

A traced function sees a Number in the place of a captured int or float. Arithmetic of Numbers is done by the host, in
Python's own way. Where one meets a traced value it becomes a scalar of the launch. Whatever else looks at its value (a
branch, a loop, an index into a list, a function of `math`) decides it: the translation is of this value then.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_INT32 = range(-(2**31), 2**31)
_MAX_FLOAT = 3.0e38  # float32 holds it
_OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"),
        *("neg", "pos", "abs", "invert"),
    )
}

_NONE: Mapping[int, int] = {}

# How a value follows from the captured numbers: ("captured", place), ("constant", value), or an operation of such.
Recipe = tuple[Any, ...]


def constant(value: Any) -> Any:
    """A float as a graph that is being made has it for a constant; one of a changed attribute, or under dynamic=True,
    is open to begin with. Eager code's is what it was."""
    if torch.compiler.is_dynamo_compiling() and isinstance(value, float):
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # seconds to load, and Dynamo has it

        return guard_scalar(value)
    return value


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's; all else as it is."""
    if type(value).__module__ == "numpy" and isinstance(value, sys.modules["numpy"].generic):
        number = value.item()
        return number if type(number) in (int, float, bool) else value
    return value


def may_be_brought(value: Any) -> bool:
    """Whether a scalar of a launch can have this value, and it says no more than its size."""
    if type(value) is int:
        return value in _INT32
    return type(value) is float and 0 < abs(value) < _MAX_FLOAT  # 0.0 is not -0.0; infinities are masks


def evaluate(recipe: Recipe, values: Sequence[float]) -> Any:
    """Of captured numbers, by place."""
    operation, *operands = recipe
    if operation == "captured":
        return values[operands[0]]
    if operation == "constant":
        return operands[0]
    return _OPERATIONS[operation](*(evaluate(each, values) for each in operands))


class Captured:
    """The numbers that the functions of one translation captured.

    Attributes:
        values: by place.
        varied: places of those known to have had several values.
        decided: places of those which the translation is of, and of no other value.
        of_tensors: places of those that are tensors without dims, by the tensors' addresses.
    """

    def __init__(
        self, values: Sequence[float] = (), varied: frozenset[int] = frozenset(), of_tensors: Mapping[int, int] = _NONE
    ) -> None:
        self.values, self.varied, self.of_tensors = tuple(values), varied, of_tensors
        self.decided: set[int] = set()

    def decide_all(self) -> None:
        self.decided.update(range(len(self.values)))

    def number(self, place: int) -> Number:
        return Number(self, ("captured", place), frozenset((place,)), self.values[place])


class Number:
    """A captured number, or what the function computes of some.

    Attributes:
        recipe: how it is computed.
    """

    __array_ufunc__ = None  # NumPy's numbers leave their operators to this
    __slots__ = ("_captured", "_places", "_value", "recipe")

    def __init__(self, captured: Captured, recipe: Recipe, places: frozenset[int], value: float) -> None:
        self._captured, self.recipe, self._places, self._value = captured, recipe, places, value

    @property
    def __class__(self) -> Any:  # isinstance(window, int) is asked by functions that take tensors too
        return type(self._value)

    def of_type(self) -> type:
        return type(self._value)

    def peek(self) -> Any:
        """The value, for what is checked at each launch anew."""
        return self._value

    def decide(self) -> Any:
        """The value, for good."""
        self._captured.decided |= self._places
        return self._value

    def has_varied(self) -> bool:
        return bool(self._places & self._captured.varied)

    def reciprocal(self) -> Number:
        """1 / this, which is not 0."""
        return Number(self._captured, ("truediv", ("constant", 1.0), self.recipe), self._places, 1.0 / self._value)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(self.decide(), attribute)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*constants(args), **constants(kwargs or {}))


def is_number(value: object) -> bool:
    return type(value) is Number


def constants(value: Any) -> Any:
    """The same with the values of all Numbers inside."""
    if type(value) is Number:
        return value.decide()
    if type(value) in (tuple, list):
        return type(value)(map(constants, value))
    if type(value) is dict:
        return {key: constants(each) for key, each in value.items()}
    if type(value) is slice:
        return slice(constants(value.start), constants(value.stop), constants(value.step))
    return value


def _operand(value: Any) -> tuple[Recipe, frozenset[int], Any] | None:
    if type(value) is Number:
        return value.recipe, value._places, value._value
    value = plain(value)
    return (("constant", value), frozenset(), value) if type(value) in (int, float) else None


def _combined(operation: str, captured: Captured, *operands: tuple[Recipe, frozenset[int], Any]) -> Any:
    value = _OPERATIONS[operation](*(each[2] for each in operands))
    places = frozenset().union(*(each[1] for each in operands))
    if not may_be_brought(value):
        captured.decided |= places
        return value
    return Number(captured, (operation, *(each[0] for each in operands)), places, value)


def _add_operators() -> None:
    def binary(name: str, swapped: bool) -> Callable[[Number, Any], Any]:
        def method(self: Number, other: Any) -> Any:
            mine, others = _operand(self), _operand(other)
            if mine is None or others is None:
                return NotImplemented
            return _combined(name, self._captured, *((others, mine) if swapped else (mine, others)))

        return method

    def unary(name: str) -> Callable[[Number], Any]:
        def method(self: Number) -> Any:
            mine = _operand(self)
            return NotImplemented if mine is None else _combined(name, self._captured, mine)

        return method

    def comparison(name: str) -> Callable[[Number, Any], Any]:
        def method(self: Number, other: Any) -> Any:
            other = plain(other)
            if not isinstance(other, (int, float)):
                return NotImplemented
            return getattr(operator, name)(self.decide(), constants(other))

        return method

    def deciding(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args: function(self.decide(), *args)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"):
        dunder = name.strip("_")
        setattr(Number, f"__{dunder}__", binary(name, swapped=False))
        setattr(Number, f"__r{dunder}__", binary(name, swapped=True))
    for name in ("neg", "pos", "abs", "invert"):
        setattr(Number, f"__{name}__", unary(name))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Number, f"__{name}__", comparison(name))
    for dunder, function in (
        *(("bool", bool), ("int", int), ("float", float), ("index", operator.index), ("hash", hash)),
        *(("round", round), ("trunc", math.trunc), ("floor", math.floor), ("ceil", math.ceil)),
        *(("divmod", divmod), ("repr", repr), ("str", str), ("format", format), ("complex", complex)),
    ):
        setattr(Number, f"__{dunder}__", deciding(function))


_add_operators()
