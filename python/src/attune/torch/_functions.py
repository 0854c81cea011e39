"""torch's elementary functions, activations and the like of scalars."""

from __future__ import annotations

import math

from attune.torch._arithmetic import add, div, maximum, minimum, mul, pow, reciprocal, sub
from attune.torch._conditions import compare
from attune.torch._expression import (
    Expression,
    as_float,
    as_number,
    call,
    conditional,
    defined,
    literal,
    negative,
    value_of,
)
from attune.torch._table import OPERATIONS, Translator, operation


def _elementary(name: str) -> Translator:
    def function(input: Expression) -> Expression:
        return call(name, as_float(input))

    return function


for _name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf"):
    OPERATIONS[_name] = _elementary(_name)
OPERATIONS["expit"] = OPERATIONS["sigmoid"]


@operation("erfc")
def _erfc(input: Expression) -> Expression:
    return sub(literal(1.0), call("erf", as_float(input)))


@operation("logit")
def _logit(input: Expression, eps: Expression | None = None) -> Expression:
    input = as_float(input)
    if eps is not None:
        input = minimum(maximum(input, eps), sub(literal(1.0), eps))
    return call("log", div(input, sub(literal(1.0), input)))


@operation("rsqrt")
def _rsqrt(input: Expression) -> Expression:
    return reciprocal(call("sqrt", as_float(input)))


@operation("silu")
def _silu(input: Expression, inplace: object = None) -> Expression:
    return call("silu", as_float(input))


@operation("relu")
def _relu(input: Expression, inplace: object = None) -> Expression:
    return maximum(input, literal(0))


@operation("gelu")
def _gelu(input: Expression, *, approximate: str = "none") -> Expression:
    if approximate != "tanh":
        return call("gelu", as_float(input))
    cubic = add(input, mul(literal(0.044715), pow(input, literal(3))))
    bent = call("tanh", mul(literal(math.sqrt(2 / math.pi)), cubic))
    return mul(mul(literal(0.5), input), add(literal(1.0), bent))


@operation("softplus")
def _softplus(input: Expression, beta: Expression | None = None, threshold: object = None) -> Expression:
    """Without the threshold, above which torch takes the input itself: there they differ by 2e-9."""
    if beta is None or value_of(beta) == 1:
        return call("softplus", as_float(input))
    return div(call("softplus", mul(as_float(input), beta)), beta)


@operation("sign")
def _sign(input: Expression) -> Expression:
    input = as_number(input)
    one, zero, less = (literal(x) if input.type == "int" else literal(float(x)) for x in (1, 0, -1))
    return conditional(compare(">", input, zero), one, conditional(compare("<", input, zero), less, zero))


@operation("log1p")
def _log1p(input: Expression) -> Expression:
    """Absolute errors of 2^-24, which is what a score takes."""
    return call("log", add(literal(1.0), input))


@operation("expm1")
def expm1(input: Expression) -> Expression:
    return sub(call("exp", as_float(input)), literal(1.0))


@operation("log10")
def _log10(input: Expression) -> Expression:
    return mul(call("log2", as_float(input)), literal(math.log10(2)))


@operation("sinh")
def _sinh(input: Expression) -> Expression:
    return mul(literal(0.5), sub(call("exp", as_float(input)), call("exp", negative(as_float(input)))))


@operation("cosh")
def _cosh(input: Expression) -> Expression:
    return mul(literal(0.5), add(call("exp", as_float(input)), call("exp", negative(as_float(input)))))


@operation("logsigmoid", "log_sigmoid")
def _logsigmoid(input: Expression) -> Expression:
    return negative(call("softplus", negative(as_float(input))))


@operation("logaddexp")
def logaddexp(input: Expression, other: Expression) -> Expression:
    input, other = as_float(input), as_float(other)
    larger = maximum(input, other)
    found = add(larger, call("softplus", negative(call("abs", sub(input, other)))))
    is_alike = compare("==", input, other)  # of two infinities, too, whose difference is NaN
    return conditional(is_alike, add(larger, literal(math.log(2))), found)


@operation("hypot")
def _hypot(input: Expression, other: Expression) -> Expression:
    return call("sqrt", add(mul(as_float(input), input), mul(as_float(other), other)))


@operation("lerp")
def _lerp(input: Expression, end: Expression, weight: Expression) -> Expression:
    return add(input, mul(weight, sub(end, input)))


@operation("addcmul")
def _addcmul(
    input: Expression, tensor1: Expression, tensor2: Expression, *, value: Expression | None = None
) -> Expression:
    return _add_scaled(input, mul(tensor1, tensor2), value)


@operation("addcdiv")
def _addcdiv(
    input: Expression, tensor1: Expression, tensor2: Expression, *, value: Expression | None = None
) -> Expression:
    return _add_scaled(input, div(tensor1, tensor2), value)


def _add_scaled(input: Expression, term: Expression, value: Expression | None) -> Expression:
    return add(input, term if value is None else mul(value, term))


@operation("leaky_relu")
def _leaky_relu(input: Expression, negative_slope: Expression | None = None, inplace: object = None) -> Expression:
    slope = literal(0.01) if negative_slope is None else negative_slope
    return conditional(compare(">", input, literal(0)), as_float(input), mul(as_float(input), slope))


@operation("elu")
def elu(input: Expression, alpha: Expression | None = None, inplace: object = None) -> Expression:
    below = expm1(minimum(input, literal(0.0)))
    return conditional(compare(">", input, literal(0)), as_float(input), below if alpha is None else mul(alpha, below))


@operation("relu6")
def _relu6(input: Expression, inplace: object = None) -> Expression:
    return minimum(maximum(input, literal(0)), literal(6))


@operation("mish")
def _mish(input: Expression, inplace: object = None) -> Expression:
    return mul(input, call("tanh", call("softplus", as_float(input))))


@operation("hardtanh")
def _hardtanh(
    input: Expression, min_val: Expression | None = None, max_val: Expression | None = None, inplace: object = None
) -> Expression:
    low, high = (literal(at) if each is None else each for each, at in ((min_val, -1.0), (max_val, 1.0)))
    return minimum(maximum(input, low), high)


@operation("copysign")
def _copysign(input: Expression, other: Expression) -> Expression:
    size = call("abs", as_float(input))
    return conditional(compare("<", other, literal(0)), negative(size), size)


@operation("softsign")
def _softsign(input: Expression) -> Expression:
    return div(input, add(literal(1.0), call("abs", as_float(input))))


@operation("isinf")
def _isinf(input: Expression) -> Expression:
    return compare(">", call("abs", as_float(input)), literal(3.4028234e38))


@operation("isnan")
def _isnan(input: Expression) -> Expression:
    return compare("!=", as_float(input), as_float(input))


@operation("isfinite")
def _isfinite(input: Expression) -> Expression:
    return compare("<=", call("abs", as_float(input)), literal(3.4028234e38))


# atan(t) / t on [0, 1], by powers of t squared from the second on: minimax, errors of 2^-26.
_ARCTANGENT = (
    -0.33333093, 0.19993055, -0.14207135, 0.10654684, -0.07533688, 0.04303949, -0.016283073, 0.0029035672,
)  # fmt: skip


@operation("atan2", "arctan2")
def _atan2(input: Expression, other: Expression) -> Expression:
    """Absolute errors of 2^-22; 0 of two zeros."""
    y, of_y = defined("y", as_float(input), other)
    x, of_x = defined("x", as_float(other), y)
    high, low = call("max", call("abs", y), call("abs", x)), call("min", call("abs", y), call("abs", x))
    ratio, of_ratio = defined("r", div(low, call("max", high, literal(1e-37))))
    square, of_square = defined("s", mul(ratio, ratio), ratio)
    series = literal(_ARCTANGENT[-1])
    for coefficient in _ARCTANGENT[-2::-1]:
        series = add(mul(series, square), literal(coefficient))
    angle = of_ratio(of_square(add(ratio, mul(ratio, mul(square, series)))))
    # Each has the angle in it once: definitions count as often as they are used.
    for condition, turn in (
        (compare(">", call("abs", y), call("abs", x)), math.pi / 2),
        (compare("<", x, literal(0.0)), math.pi),
        (compare("<", y, literal(0.0)), 0.0),
    ):
        angle = mul(angle, conditional(condition, literal(-1.0), literal(1.0)))
        if turn:
            angle = add(angle, conditional(condition, literal(turn), literal(0.0)))
    return of_y(of_x(angle))


@operation("atan", "arctan")
def _atan(input: Expression) -> Expression:
    return _atan2(input, literal(1.0))


@operation("asin", "arcsin")
def _asin(input: Expression) -> Expression:
    return _atan2(input, call("sqrt", sub(literal(1.0), mul(as_float(input), input))))


@operation("acos", "arccos")
def _acos(input: Expression) -> Expression:
    return _atan2(call("sqrt", sub(literal(1.0), mul(as_float(input), input))), input)


@operation("deg2rad")
def _deg2rad(input: Expression) -> Expression:
    return mul(as_float(input), literal(math.pi / 180))
