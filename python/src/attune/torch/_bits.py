"""torch's operations on bits: of an int with a constant beside it, as sums of fields."""

from __future__ import annotations

from attune.torch._arithmetic import add, constant, mul, sub
from attune.torch._conditions import logical_and, logical_or, logical_xor
from attune.torch._expression import Expression, Untranslatable, as_number, binary, literal, negation
from attune.torch._table import operation


def _integer(what: str, operand: Expression) -> Expression:
    if operand.type == "float":
        raise Untranslatable(f"`{what}` of a float")
    return as_number(operand)


def _and_constant(operand: Expression, mask: int) -> Expression:
    """operand & mask: each run of ones in the mask is a field, cut out by // and %."""
    total: Expression | None = None
    bit = 0
    while mask >> bit not in (0, -1):
        if not mask >> bit & 1:
            bit += 1
            continue
        width = 0
        while mask >> (bit + width) & 1 and mask >> (bit + width) != -1:
            width += 1
        if bit + width > 31:
            raise Untranslatable("`bitwise_and` with a mask of more than 31 bits")
        field = binary("%", _shifted(operand, bit), literal(1 << width), "int") if width < 31 else operand
        field = mul(field, literal(1 << bit)) if bit else field
        total = field if total is None else add(total, field)
        bit += width
    if mask >> bit == -1:  # a negative mask: all bits from here on
        field = mul(_shifted(operand, bit), literal(1 << bit)) if bit else operand
        total = field if total is None else add(total, field)
    return literal(0) if total is None else total


def _shifted(operand: Expression, bits: int) -> Expression:
    return binary("//", operand, literal(1 << bits), "int") if bits else operand


def _bits(what: str, left: Expression, right: Expression) -> tuple[Expression, int]:
    """An operand, and the constant beside it."""
    left, right = _integer(what, left), _integer(what, right)
    for operand, other in ((left, right), (right, left)):
        value = constant(other)
        if value is not None:
            return operand, value
    raise Untranslatable(f"`{what}` of two ints that are not constant")


@operation("bitwise_and")
def _bitwise_and(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return logical_and(input, other)
    return _and_constant(*_bits("bitwise_and", input, other))


@operation("bitwise_or")
def _bitwise_or(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return logical_or(input, other)
    operand, value = _bits("bitwise_or", input, other)
    return sub(add(operand, literal(value)), _and_constant(operand, value))


@operation("bitwise_xor")
def _bitwise_xor(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return logical_xor(input, other)
    operand, value = _bits("bitwise_xor", input, other)
    return sub(add(operand, literal(value)), mul(literal(2), _and_constant(operand, value)))


@operation("bitwise_not")
def _bitwise_not(input: Expression) -> Expression:
    if input.type == "bool":
        return negation(input)
    return sub(literal(-1), _integer("bitwise_not", input))


def _shift_bits(what: str, other: Expression) -> int:
    bits = constant(other)
    if bits is None or not 0 <= bits < 31:
        raise Untranslatable(f"`{what}` by other than a constant from 0 to 30")
    return bits


@operation("bitwise_left_shift")
def _left_shift(input: Expression, other: Expression) -> Expression:
    bits = _shift_bits("bitwise_left_shift", other)
    return mul(_integer("bitwise_left_shift", input), literal(1 << bits))


@operation("bitwise_right_shift")
def _right_shift(input: Expression, other: Expression) -> Expression:
    return _shifted(_integer("bitwise_right_shift", input), _shift_bits("bitwise_right_shift", other))
