"""torch's elementary functions, activations and the like of scalars."""

from __future__ import annotations

import math

from attune.torch._arithmetic import add, div, maximum, mul, pow, reciprocal
from attune.torch._conditions import compare
from attune.torch._expression import Expression, as_float, as_number, call, conditional, literal, value_of
from attune.torch._table import OPERATIONS, Translator, operation


def _elementary(name: str) -> Translator:
    def function(input: Expression) -> Expression:
        return call(name, as_float(input))

    return function


for _name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf"):
    OPERATIONS[_name] = _elementary(_name)


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
