"""torch's operations on bits."""

from __future__ import annotations

from attune.torch._arithmetic import sub
from attune.torch._conditions import logical_and, logical_or, logical_xor
from attune.torch._expression import Expression, Untranslatable, as_number, binary, literal, negation
from attune.torch._table import OPERATIONS, Translator, operation


def _integer(what: str, operand: Expression) -> Expression:
    if operand.type == "float":
        raise Untranslatable(f"`{what}` of a float")
    return as_number(operand)


def _operation(what: str, operator: str, of_bools: Translator | None = None) -> Translator:
    def function(input: Expression, other: Expression) -> Expression:
        if of_bools is not None and input.type == other.type == "bool":
            return of_bools(input, other)
        return binary(operator, _integer(what, input), _integer(what, other), "int")

    return function


for _name, _operator, _of_bools in (
    ("bitwise_and", "&", logical_and),
    ("bitwise_or", "|", logical_or),
    ("bitwise_xor", "^", logical_xor),
    ("bitwise_left_shift", "<<", None),
    ("bitwise_right_shift", ">>", None),
):
    OPERATIONS[_name] = _operation(_name, _operator, _of_bools)


@operation("bitwise_not")
def _bitwise_not(input: Expression) -> Expression:
    if input.type == "bool":
        return negation(input)
    return sub(literal(-1), _integer("bitwise_not", input))
