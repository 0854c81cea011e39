"""torch's comparisons and conditions of scalars."""

from __future__ import annotations

from attune.torch._expression import Expression, as_bool, as_float, as_number, binary, conditional, negation
from attune.torch._table import OPERATIONS, Translator, operation


def same_type(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    """Both as torch promotes them."""
    if left.type == right.type:
        return left, right
    if "float" in (left.type, right.type):
        return as_float(left), as_float(right)
    return as_number(left), as_number(right)


def compare(operator: str, left: Expression, right: Expression) -> Expression:
    if left.type == right.type == "bool" and operator in ("==", "!="):
        return binary(operator, left, right, "bool")
    return binary(operator, as_number(left), as_number(right), "bool")


def _comparison(operator: str) -> Translator:
    def function(input: Expression, other: Expression) -> Expression:
        return compare(operator, input, other)

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


@operation("where")
def _where(condition: Expression, input: Expression, other: Expression) -> Expression:
    return conditional(as_bool(condition), *same_type(input, other))


@operation("masked_fill")
def _masked_fill(input: Expression, mask: Expression, value: Expression) -> Expression:
    return conditional(as_bool(mask), *same_type(value, input))


@operation("logical_and")
def logical_and(input: Expression, other: Expression) -> Expression:
    return binary("and", as_bool(input), as_bool(other), "bool")


@operation("logical_or")
def logical_or(input: Expression, other: Expression) -> Expression:
    return binary("or", as_bool(input), as_bool(other), "bool")


@operation("logical_xor")
def logical_xor(input: Expression, other: Expression) -> Expression:
    return compare("!=", as_bool(input), as_bool(other))


@operation("logical_not")
def _logical_not(input: Expression) -> Expression:
    return negation(as_bool(input))
