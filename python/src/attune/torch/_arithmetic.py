"""torch's arithmetic of scalars: operators, roundings, powers."""

from __future__ import annotations

import math

from attune.torch._conditions import compare, logical_and, same_type
from attune.torch._expression import (
    Expression,
    Type,
    Untranslatable,
    as_float,
    as_number,
    binary,
    call,
    conditional,
    is_wide,
    literal,
    negative,
    value_of,
)
from attune.torch._table import operation

_MAX_POWER = 8  # of products by repetition


def wider(left: Expression, right: Expression) -> Type:
    return "float" if "float" in (left.type, right.type) else "int"


def _refuse_wide(left: Expression, right: Expression) -> None:
    """Raises where the result is an int of torch's 64 bits."""
    for wide, other in ((left, right), (right, left)):
        if is_wide(wide) and (other.type == "int" or is_wide(other)):
            raise Untranslatable(f"arithmetic of ints with {wide.low}, which 32 bits do not hold")


def arithmetic(operator: str, left: Expression, right: Expression) -> Expression:
    left, right = as_number(left), as_number(right)
    _refuse_wide(left, right)
    return binary(operator, left, right, wider(left, right))


@operation("add")
def add(input: Expression, other: Expression, *, alpha: Expression | None = None) -> Expression:
    return arithmetic("+", input, other if alpha is None else mul(other, alpha))


@operation("sub", "subtract")
def sub(input: Expression, other: Expression, *, alpha: Expression | None = None) -> Expression:
    return arithmetic("-", input, other if alpha is None else mul(other, alpha))


@operation("rsub")
def _rsub(input: Expression, other: Expression) -> Expression:
    return sub(other, input)


@operation("mul", "multiply")
def mul(input: Expression, other: Expression) -> Expression:
    if input.type == other.type == "bool":
        return logical_and(input, other)
    return arithmetic("*", input, other)


@operation("div", "divide", "true_divide")
def div(input: Expression, other: Expression, *, rounding_mode: str | None = None) -> Expression:
    if rounding_mode is None:
        return binary("/", as_float(input), as_float(other), "float")
    floored = floor_divide(input, other)
    if rounding_mode == "floor":
        return floored
    if floored.type == "float":
        return trunc(div(input, other))
    return conditional(compare(">=", mul(input, other), literal(0)), floored, neg(floor_divide(neg(input), other)))


@operation("floor_divide")
def floor_divide(input: Expression, other: Expression) -> Expression:
    input, other = as_number(input), as_number(other)
    _refuse_wide(input, other)
    if wider(input, other) == "int":
        return binary("//", input, other, "int")
    return floor(div(input, other))


@operation("remainder")
def _remainder(input: Expression, other: Expression) -> Expression:
    input, other = as_number(input), as_number(other)
    _refuse_wide(input, other)
    if wider(input, other) == "int":
        return binary("%", input, other, "int")
    return sub(input, mul(floor_divide(input, other), other))


@operation("neg", "negative")
def neg(input: Expression) -> Expression:
    return binary("-", literal(0), as_number(input), "int") if input.type != "float" else negative(input)


@operation("floor")
def floor(input: Expression) -> Expression:
    return input if input.type != "float" else call("float", call("floor", input, of_type="int"))


@operation("ceil")
def ceil(input: Expression) -> Expression:
    return input if input.type != "float" else neg(floor(neg(input)))


@operation("trunc", "fix")
def trunc(input: Expression) -> Expression:
    if input.type != "float":
        return input
    return conditional(compare(">=", input, literal(0)), floor(input), ceil(input))


@operation("frac")
def _frac(input: Expression) -> Expression:
    return sub(input, trunc(input))


@operation("fmod")
def _fmod(input: Expression, other: Expression) -> Expression:
    """The rest of a division that is rounded towards zero."""
    return sub(input, mul(div(input, other, rounding_mode="trunc"), other))


@operation("round")
def _round(input: Expression, *, decimals: Expression | None = None) -> Expression:
    """Of halves to the even one."""
    if decimals is not None:
        raise Untranslatable("`round` to decimals")
    if input.type != "float":
        return input
    up = call("floor", add(input, literal(0.5)), of_type="int")
    is_half = compare("==", call("float", up), add(input, literal(0.5)))
    is_odd = compare("!=", binary("%", up, literal(2), "int"), literal(0))
    return conditional(logical_and(is_half, is_odd), call("float", sub(up, literal(1))), call("float", up))


@operation("pos", "positive", "clone", "detach", "contiguous")
def _same(input: Expression) -> Expression:
    return input


@operation("abs", "absolute")
def _abs(input: Expression) -> Expression:
    input = as_number(input)
    return call("abs", input, of_type=input.type)


@operation("minimum", "min", "fmin")
def minimum(input: Expression, other: Expression) -> Expression:
    return _extreme("min", as_number(input), as_number(other))


@operation("maximum", "max", "fmax")
def maximum(input: Expression, other: Expression) -> Expression:
    return _extreme("max", as_number(input), as_number(other))


def _extreme(function: str, left: Expression, right: Expression) -> Expression:
    for wide, other in ((left, right), (right, left)):
        if is_wide(wide) and other.type == "int":  # an end that is none
            assert wide.low is not None
            if (wide.low > 0) == (function == "min"):
                return other
            _refuse_wide(wide, other)
    left, right = same_type(left, right)
    return call(function, left, right, of_type=left.type)


@operation("clamp", "clip")
def _clamp(input: Expression, min: Expression | None = None, max: Expression | None = None) -> Expression:
    if min is not None:
        input = maximum(input, min)
    return input if max is None else minimum(input, max)


@operation("clamp_min")
def _clamp_min(input: Expression, min: Expression) -> Expression:
    return maximum(input, min)


@operation("clamp_max")
def _clamp_max(input: Expression, max: Expression) -> Expression:
    return minimum(input, max)


@operation("square")
def square(input: Expression) -> Expression:
    return mul(input, input)


@operation("reciprocal")
def reciprocal(input: Expression) -> Expression:
    return div(literal(1.0), input)


@operation("pow")
def pow(input: Expression, exponent: Expression) -> Expression:
    power = value_of(exponent)
    if power is not None and power == int(power) and abs(power) <= _MAX_POWER:
        return _product(input, exponent, int(power))
    base = value_of(input)
    if base is not None and base > 0:
        return call("exp2", mul(as_float(exponent), literal(math.log2(base))))
    if "float" not in (input.type, exponent.type):
        raise Untranslatable("`pow` of ints with an exponent that is not small and constant")
    return call("pow", as_float(input), as_float(exponent))


def _product(input: Expression, exponent: Expression, power: int) -> Expression:
    base = as_float(input) if exponent.type == "float" else as_number(input)
    product = literal(1.0) if base.type == "float" else literal(1)
    for factor in range(abs(power)):
        product = mul(product, base) if factor else base
    return product if power >= 0 else reciprocal(product)
