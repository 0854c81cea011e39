"""torch's operations on scalars, each as an expression of Attune's language.

A function here has the name and the argument names of torch's, and takes Expressions. What is not here cannot be
translated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attune.torch._expression import (
    Expression,
    Type,
    Untranslatable,
    as_bool,
    as_float,
    as_number,
    binary,
    call,
    conditional,
    literal,
    negation,
    negative,
    value_of,
)

_MAX_POWER = 8  # of products by repetition

OPERATIONS: dict[str, Callable[..., Expression]] = {}
_DUNDERS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}


def canonical_name(name: str) -> str:
    """ "div" for "__truediv__" and "true_divide"."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        return _DUNDERS.get(name, name)
    return name


def _operation(*names: str) -> Callable[[Callable[..., Expression]], Callable[..., Expression]]:
    def add(function: Callable[..., Expression]) -> Callable[..., Expression]:
        for name in names or (function.__name__.rstrip("_"),):
            OPERATIONS[name] = function
        return function

    return add


def _wider(left: Expression, right: Expression) -> Type:
    return "float" if "float" in (left.type, right.type) else "int"


def _same_type(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Both as torch promotes them."""
    if left.type == right.type:
        return left, right
    if "float" in (left.type, right.type):
        return as_float(left), as_float(right)
    return as_number(left), as_number(right)


def _arithmetic(operator: str, left: Expression, right: Expression) -> Expression:
    left, right = as_number(left), as_number(right)
    return binary(operator, left, right, _wider(left, right))


def _constant(operand: Expression) -> int | None:
    """The number of an int literal."""
    value = value_of(operand)
    return value if isinstance(value, int) else None


# ---- Arithmetic


@_operation("add")
def _add(input: Expression, other: Expression, *, alpha: Expression | None = None) -> Expression:
    return _arithmetic("+", input, other if alpha is None else _mul(other, alpha))


@_operation("sub", "subtract")
def _sub(input: Expression, other: Expression, *, alpha: Expression | None = None) -> Expression:
    return _arithmetic("-", input, other if alpha is None else _mul(other, alpha))


@_operation("rsub")
def _rsub(input: Expression, other: Expression) -> Expression:
    return _sub(other, input)


@_operation("mul", "multiply")
def _mul(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return _logical_and(input, other)
    return _arithmetic("*", input, other)


@_operation("div", "divide", "true_divide")
def _div(input: Expression, other: Expression, *, rounding_mode: str | None = None) -> Expression:
    if rounding_mode is None:
        return binary("/", as_float(input), as_float(other), "float")
    floored = _floor_divide(input, other)
    if rounding_mode == "floor":
        return floored
    if floored.type == "float":
        return _trunc(_div(input, other))
    return conditional(_compare(">=", _mul(input, other), literal(0)), floored, _neg(_floor_divide(_neg(input), other)))


@_operation("floor_divide")
def _floor_divide(input: Expression, other: Expression) -> Expression:
    input, other = as_number(input), as_number(other)
    if _wider(input, other) == "int":
        return binary("//", input, other, "int")
    return _floor(_div(input, other))


@_operation("remainder")
def _remainder(input: Expression, other: Expression) -> Expression:
    input, other = as_number(input), as_number(other)
    if _wider(input, other) == "int":
        return binary("%", input, other, "int")
    return _sub(input, _mul(_floor_divide(input, other), other))


@_operation("neg", "negative")
def _neg(input: Expression) -> Expression:
    return binary("-", literal(0), as_number(input), "int") if input.type != "float" else negative(input)


@_operation("pos", "positive", "clone", "detach", "contiguous")
def _same(input: Expression) -> Expression:
    return input


@_operation("abs", "absolute")
def _abs(input: Expression) -> Expression:
    input = as_number(input)
    return call("abs", input, of_type=input.type)


@_operation("minimum", "min")
def _minimum(input: Expression, other: Expression) -> Expression:
    left, right = _same_type(as_number(input), as_number(other))
    return call("min", left, right, of_type=left.type)


@_operation("maximum", "max")
def _maximum(input: Expression, other: Expression) -> Expression:
    left, right = _same_type(as_number(input), as_number(other))
    return call("max", left, right, of_type=left.type)


@_operation("clamp", "clip")
def _clamp(input: Expression, min: Expression | None = None, max: Expression | None = None) -> Expression:
    if min is not None:
        input = _maximum(input, min)
    return input if max is None else _minimum(input, max)


@_operation("clamp_min")
def _clamp_min(input: Expression, min: Expression) -> Expression:
    return _maximum(input, min)


@_operation("clamp_max")
def _clamp_max(input: Expression, max: Expression) -> Expression:
    return _minimum(input, max)


@_operation("square")
def _square(input: Expression) -> Expression:
    return _mul(input, input)


@_operation("reciprocal")
def _reciprocal(input: Expression) -> Expression:
    return _div(literal(1.0), input)


@_operation("pow")
def _pow(input: Expression, exponent: Expression) -> Expression:
    power = value_of(exponent)
    if power is None:
        return _power_of_a_constant(input, exponent)
    if power == 0.5:
        return call("sqrt", as_float(input))
    if power != int(power) or abs(power) > _MAX_POWER:
        raise Untranslatable(f"`pow` with the exponent {power}")
    base = as_float(input) if exponent.type == "float" else as_number(input)
    product = literal(1.0) if base.type == "float" else literal(1)
    for factor in range(abs(int(power))):
        product = _mul(product, base) if factor else base
    return product if power >= 0 else _reciprocal(product)


def _power_of_a_constant(base: Expression, exponent: Expression) -> Expression:
    """base ** exponent as exp2(exponent * log2(base))."""
    value = value_of(base)
    if value is None or value <= 0:
        raise Untranslatable("`pow` of two values that are not constant")
    return call("exp2", _mul(as_float(exponent), literal(math.log2(value))))


# ---- Functions


def _elementary(name: str) -> Callable[..., Expression]:
    def function(input: Expression) -> Expression:
        return call(name, as_float(input))

    return function


for _name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid"):
    OPERATIONS[_name] = _elementary(_name)


@_operation("rsqrt")
def _rsqrt(input: Expression) -> Expression:
    return _reciprocal(call("sqrt", as_float(input)))


@_operation("silu")
def _silu(input: Expression, inplace: object = None) -> Expression:
    return _mul(input, call("sigmoid", as_float(input)))


@_operation("relu")
def _relu(input: Expression, inplace: object = None) -> Expression:
    return _maximum(input, literal(0))


@_operation("gelu")
def _gelu(input: Expression, *, approximate: str = "none") -> Expression:
    if approximate != "tanh":
        raise Untranslatable("`gelu` by the error function; `approximate='tanh'` can be translated")
    cubic = _add(input, _mul(literal(0.044715), _pow(input, literal(3))))
    bent = call("tanh", _mul(literal(math.sqrt(2 / math.pi)), cubic))
    return _mul(_mul(literal(0.5), input), _add(literal(1.0), bent))


@_operation("floor")
def _floor(input: Expression) -> Expression:
    return input if input.type != "float" else call("float", call("floor", input, of_type="int"))


@_operation("ceil")
def _ceil(input: Expression) -> Expression:
    return input if input.type != "float" else _neg(_floor(_neg(input)))


@_operation("trunc", "fix")
def _trunc(input: Expression) -> Expression:
    if input.type != "float":
        return input
    return conditional(_compare(">=", input, literal(0)), _floor(input), _ceil(input))


@_operation("sign")
def _sign(input: Expression) -> Expression:
    input = as_number(input)
    one, zero, less = (literal(x) if input.type == "int" else literal(float(x)) for x in (1, 0, -1))
    return conditional(_compare(">", input, zero), one, conditional(_compare("<", input, zero), less, zero))


# ---- Comparisons and conditions


def _compare(operator: str, left: Expression, right: Expression) -> Expression:
    return binary(operator, as_number(left), as_number(right), "bool")


def _comparison(operator: str) -> Callable[..., Expression]:
    def function(input: Expression, other: Expression) -> Expression:
        return _compare(operator, input, other)

    return function


for _operator, *_names in (
    ("==", "eq"),
    ("!=", "ne", "not_equal"),
    ("<", "lt", "less"),
    ("<=", "le", "less_equal"),
    (">", "gt", "greater"),
    (">=", "ge", "greater_equal"),
):
    for _name in _names:
        OPERATIONS[_name] = _comparison(_operator)


@_operation("where")
def _where(condition: Expression, input: Expression, other: Expression) -> Expression:
    return conditional(as_bool(condition), *_same_type(input, other))


@_operation("masked_fill")
def _masked_fill(input: Expression, mask: Expression, value: Expression) -> Expression:
    return conditional(as_bool(mask), *_same_type(value, input))


@_operation("logical_and")
def _logical_and(input: Expression, other: Expression) -> Expression:
    return binary("and", as_bool(input), as_bool(other), "bool")


@_operation("logical_or")
def _logical_or(input: Expression, other: Expression) -> Expression:
    return binary("or", as_bool(input), as_bool(other), "bool")


@_operation("logical_xor")
def _logical_xor(input: Expression, other: Expression) -> Expression:
    return _compare("!=", as_bool(input), as_bool(other))


@_operation("logical_not")
def _logical_not(input: Expression) -> Expression:
    return negation(as_bool(input))


# ---- Bits: of ints with a constant beside them, as sums of fields


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
        field = _mul(field, literal(1 << bit)) if bit else field
        total = field if total is None else _add(total, field)
        bit += width
    if mask >> bit == -1:  # a negative mask: all bits from here on
        field = _mul(_shifted(operand, bit), literal(1 << bit)) if bit else operand
        total = field if total is None else _add(total, field)
    return literal(0) if total is None else total


def _shifted(operand: Expression, bits: int) -> Expression:
    return binary("//", operand, literal(1 << bits), "int") if bits else operand


def _bits(what: str, left: Expression, right: Expression) -> tuple[Expression, int]:
    """An operand, and the constant beside it."""
    left, right = _integer(what, left), _integer(what, right)
    for operand, other in ((left, right), (right, left)):
        value = _constant(other)
        if value is not None:
            return operand, value
    raise Untranslatable(f"`{what}` of two ints that are not constant")


@_operation("bitwise_and")
def _bitwise_and(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return _logical_and(input, other)
    return _and_constant(*_bits("bitwise_and", input, other))


@_operation("bitwise_or")
def _bitwise_or(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return _logical_or(input, other)
    operand, value = _bits("bitwise_or", input, other)
    return _sub(_add(operand, literal(value)), _and_constant(operand, value))


@_operation("bitwise_xor")
def _bitwise_xor(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return _logical_xor(input, other)
    operand, value = _bits("bitwise_xor", input, other)
    return _sub(_add(operand, literal(value)), _mul(literal(2), _and_constant(operand, value)))


@_operation("bitwise_not")
def _bitwise_not(input: Expression) -> Expression:
    if input.type == "bool":
        return negation(input)
    return _sub(literal(-1), _integer("bitwise_not", input))


def _shift_bits(what: str, other: Expression) -> int:
    bits = _constant(other)
    if bits is None or not 0 <= bits < 31:
        raise Untranslatable(f"`{what}` by other than a constant from 0 to 30")
    return bits


@_operation("bitwise_left_shift")
def _left_shift(input: Expression, other: Expression) -> Expression:
    bits = _shift_bits("bitwise_left_shift", other)
    return _mul(_integer("bitwise_left_shift", input), literal(1 << bits))


@_operation("bitwise_right_shift")
def _right_shift(input: Expression, other: Expression) -> Expression:
    return _shifted(_integer("bitwise_right_shift", input), _shift_bits("bitwise_right_shift", other))
