"""torch's activations that few scores have, and relatives of its elementary functions."""

from __future__ import annotations

import math

from attune.torch._arithmetic import add, div, maximum, minimum, mul, sub
from attune.torch._conditions import compare
from attune.torch._expression import Expression, as_float, call, conditional, literal, negative
from attune.torch._functions import elu, expm1, logaddexp
from attune.torch._table import operation


@operation("hardsigmoid")
def _hardsigmoid(input: Expression, inplace: object = None) -> Expression:
    return minimum(maximum(add(div(input, literal(6.0)), literal(0.5)), literal(0.0)), literal(1.0))


@operation("hardswish")
def _hardswish(input: Expression, inplace: object = None) -> Expression:
    return mul(input, _hardsigmoid(input))


@operation("celu")
def _celu(input: Expression, alpha: Expression | None = None, inplace: object = None) -> Expression:
    size = literal(1.0) if alpha is None else alpha
    below = mul(size, expm1(div(minimum(input, literal(0.0)), size)))
    return conditional(compare(">", input, literal(0)), as_float(input), below)


@operation("selu")
def _selu(input: Expression, inplace: object = None) -> Expression:
    return mul(literal(1.0507009873554805), elu(input, literal(1.6732632423543772)))


@operation("tanhshrink")
def _tanhshrink(input: Expression) -> Expression:
    return sub(input, call("tanh", as_float(input)))


@operation("softshrink")
def _softshrink(input: Expression, lambd: Expression | None = None) -> Expression:
    size = literal(0.5) if lambd is None else lambd
    return sub(input, minimum(maximum(input, negative(as_float(size))), size))


@operation("hardshrink")
def _hardshrink(input: Expression, lambd: Expression | None = None) -> Expression:
    is_far = compare(">", call("abs", as_float(input)), literal(0.5) if lambd is None else lambd)
    return conditional(is_far, as_float(input), literal(0.0))


@operation("threshold", "_threshold")
def _threshold(input: Expression, threshold: Expression, value: Expression, inplace: object = None) -> Expression:
    return conditional(compare(">", input, threshold), as_float(input), as_float(value))


@operation("heaviside")
def _heaviside(input: Expression, values: Expression) -> Expression:
    of_others = conditional(compare("<", input, literal(0)), literal(0.0), as_float(values))
    return conditional(compare(">", input, literal(0)), literal(1.0), of_others)


@operation("logaddexp2")
def _logaddexp2(input: Expression, other: Expression) -> Expression:
    of_two = literal(math.log(2))
    return div(logaddexp(mul(as_float(input), of_two), mul(as_float(other), of_two)), of_two)


@operation("ldexp")
def _ldexp(input: Expression, other: Expression) -> Expression:
    return mul(as_float(input), call("exp2", as_float(other)))


@operation("rad2deg")
def _rad2deg(input: Expression) -> Expression:
    return mul(as_float(input), literal(180 / math.pi))
