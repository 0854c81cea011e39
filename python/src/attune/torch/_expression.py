"""Expressions of Attune's language as they are built while a Python function is traced."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Literal

Type = Literal["bool", "int", "float"]

# What the language takes; docs/language.md.
_MAX_BYTES = 16_384
_INT32 = range(-(2**31), 2**31)
_FLOAT32_MAX = 3.4028235677973366e38  # halfway to what does not fit: rounds to infinity


class Untranslatable(Exception):
    """A function does what Attune's language cannot say; the message names the operation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Expression:
    """A typed expression: its text, in brackets unless it is one word, and how it was made.

    Attributes:
        low, high: bounds of an int's values at the traced launch; None: not known. Of floats only literals of ints that
            int32 does not hold have them.
        operation, operands: of the outermost operation; "" of a name, "literal" of a finite number.
    """

    text: str
    type: Type
    low: int | None = None
    high: int | None = None
    operation: str = ""
    operands: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        if len(self.text) > _MAX_BYTES:
            raise Untranslatable(f"the expression is longer than {_MAX_BYTES} bytes")


def infinity(negative: bool) -> Expression:
    """The language has no literal for it, and folds this."""
    return Expression("log(0.0)" if negative else "(-log(0.0))", "float", operation="-inf" if negative else "inf")


def literal(value: bool | int | float) -> Expression:
    """Of a Python number; the float32 nearest to a float."""
    if isinstance(value, bool):
        return Expression("true" if value else "false", "bool")
    if isinstance(value, int):
        value = int(value)  # of an enumeration's member: a range looks for one by going through it
    if isinstance(value, int) and value in _INT32:
        return Expression(f"({value})" if value < 0 else str(value), "int", value, value, "literal")
    if math.isnan(value):
        raise Untranslatable("a NaN constant")
    if abs(value) >= _FLOAT32_MAX:
        return infinity(value < 0)
    text = repr(float(value))
    bound = value if isinstance(value, int) else None
    return Expression(f"({text})" if value < 0 else text, "float", bound, bound, operation="literal")


def is_wide(operand: Expression) -> bool:
    """Whether it is the literal of an int that int32 does not hold, which ints can be compared with, and no more."""
    return operand.type == "float" and operand.low is not None


def value_of(operand: Expression) -> int | float | None:
    """The number that a literal stands for; None: it is none."""
    if operand.operation != "literal":
        return None
    text = operand.text.strip("()")
    return int(text) if operand.type == "int" else float(text)


def name(text: str, of_type: Type, low: int | None = None, high: int | None = None) -> Expression:
    """A name of the language, or a look-up."""
    return Expression(text, of_type, low, high)


def binary(operator: str, left: Expression, right: Expression, of_type: Type) -> Expression:
    """left operator right."""
    low, high = _bounds(operator, left, right) if of_type == "int" else (None, None)
    return Expression(f"({left.text} {operator} {right.text})", of_type, low, high, operator, (left, right))


def call(function: str, *operands: Expression, of_type: Type = "float") -> Expression:
    """function(operands...)."""
    low, high = _call_bounds(function, operands) if of_type == "int" else (None, None)
    return Expression(
        f"{function}({', '.join(each.text for each in operands)})", of_type, low, high, function, operands
    )


def negation(operand: Expression) -> Expression:
    """not operand."""
    return Expression(f"(not {operand.text})", "bool", operation="not", operands=(operand,))


def negative(operand: Expression) -> Expression:
    """-operand, of a float."""
    return Expression(f"(-{operand.text})", "float", operation="neg", operands=(operand,))


def conditional(condition: Expression, left: Expression, right: Expression) -> Expression:
    """left if condition else right; both of one type."""
    low, high = _hull(left, right)
    text = f"({left.text} if {condition.text} else {right.text})"
    return Expression(text, left.type, low, high, "if", (condition, left, right))


def defined(stem: str, value: Expression, *others: Expression) -> tuple[Expression, Callable[[Expression], Expression]]:
    """A name for a value that is used several times, and what puts its definition in front of an expression.

    Args:
        others: what stands in that expression, too: the name is none of theirs.
    """
    if value.operation == "literal" or (value.operation == "" and "(" not in value.text):
        return value, lambda body: body
    texts = [value.text, *(each.text for each in others)]
    chosen = next(f"{stem}{at}_" for at in itertools.count() if not any(f"{stem}{at}_" in text for text in texts))

    def put(body: Expression) -> Expression:
        return Expression(f"(let {chosen} = {value.text} in {body.text})", body.type, body.low, body.high, "let")

    return Expression(chosen, value.type, value.low, value.high), put


def as_number(operand: Expression) -> Expression:
    """A bool as 0 or 1."""
    return conditional(operand, literal(1), literal(0)) if operand.type == "bool" else operand


def as_float(operand: Expression) -> Expression:
    operand = as_number(operand)
    if operand.type == "float":
        return operand
    value = value_of(operand)
    return call("float", operand) if value is None else literal(float(value))


def as_bool(operand: Expression) -> Expression:
    return operand if operand.type == "bool" else binary("!=", operand, literal(0), "bool")


def _hull(left: Expression, right: Expression) -> tuple[int | None, int | None]:
    low = None if left.low is None or right.low is None else min(left.low, right.low)
    high = None if left.high is None or right.high is None else max(left.high, right.high)
    return low, high


def _bounds(operator: str, left: Expression, right: Expression) -> tuple[int | None, int | None]:
    """Of an int operation: exact at the corners of what the operands may be, unless int32 might wrap."""
    if operator == "%" and right.low is not None and right.low == right.high and right.low > 0:
        return 0, right.low - 1
    if operator == "&":  # of operands one of which is not negative, no more than that one
        highs = [each.high for each in (left, right) if each.low is not None and each.low >= 0]
        return (0, min((high for high in highs if high is not None), default=None)) if highs else (None, None)
    a, b, c, d = left.low, left.high, right.low, right.high
    if operator == "//" and b is None and a is not None and a >= 0 and c is not None and c > 0:
        return 0, None  # a quotient of a position: its length may be a symbol
    if a is None or b is None or c is None or d is None:
        return None, None
    if operator == "+":
        corners = [a + c, b + d]
    elif operator == "-":
        corners = [a - d, b - c]
    elif operator == "*":
        corners = [x * y for x in (a, b) for y in (c, d)]
    elif operator == "//" and c > 0:
        corners = [x // y for x in (a, b) for y in (c, d)]
    elif operator == "<<" and 0 <= c and d < 32:
        corners = [x << y for x in (a, b) for y in (c, d)]
    elif operator == ">>" and 0 <= c and d < 32:
        corners = [x >> y for x in (a, b) for y in (c, d)]
    elif operator in ("|", "^") and a >= 0 and c >= 0:
        corners = [0, (1 << max(b.bit_length(), d.bit_length())) - 1]
    else:
        return None, None
    low, high = min(corners), max(corners)
    return (low, high) if low in _INT32 and high in _INT32 else (None, None)


def _call_bounds(function: str, operands: tuple[Expression, ...]) -> tuple[int | None, int | None]:
    if function == "max":
        lows = [each.low for each in operands if each.low is not None]
        return max(lows, default=None), _hull(*operands)[1]
    if function == "min":
        highs = [each.high for each in operands if each.high is not None]
        return _hull(*operands)[0], min(highs, default=None)
    return (0, None) if function == "abs" else (None, None)
