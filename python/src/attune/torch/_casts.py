"""Conversions of scalars, and constants that a traced function makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from attune.torch._expression import (
    Expression,
    Untranslatable,
    as_bool,
    as_float,
    call,
    conditional,
    literal,
    negative,
)
from attune.torch._traced import Symbolic

_CREATORS = {
    "new_ones": 1, "new_zeros": 0, "ones_like": 1, "zeros_like": 0, "new_full": None, "full_like": None,
    "new_tensor": None,
}  # fmt: skip
CREATORS = frozenset(_CREATORS)  # by torch's names; each takes a tensor first, of which only the dtype counts


class Expressions(Protocol):
    """What is asked of a trace here."""

    def expression_of(self, value: Any) -> Expression: ...


def cast(operand: Expression, dtype: torch.dtype) -> Expression:
    """Of one kind to another. Narrower floats and ints stay as wide as the language's: torch's compiler, too, computes
    scores in float32."""
    if dtype == torch.bool:
        return as_bool(operand)
    if dtype.is_floating_point:
        return as_float(operand)
    if dtype.is_complex:
        raise Untranslatable(f"a conversion to {dtype}")
    if operand.type == "float":  # towards zero
        floored = call("floor", operand, of_type="int")
        raised = call("floor", negative(operand), of_type="int")
        return conditional(
            Expression(f"({operand.text} >= 0.0)", "bool"), floored, Expression(f"(-{raised.text})", "int")
        )
    return conditional(operand, literal(1), literal(0)) if operand.type == "bool" else operand


def created(
    trace: Expressions, operation: str, model: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any
) -> Expression:
    """A constant of no dims, such as `b.new_ones((), dtype=torch.bool)`. `model` has the dtype where none is named."""
    value = _CREATORS[operation]
    if value is None:
        value = kwargs.get("fill_value", args[-1] if args else None)
    sizes = ()
    if operation.startswith("new") and operation != "new_tensor":
        sizes = kwargs.get("size", args[0] if args else ())
    if tuple(sizes if isinstance(sizes, (tuple, list)) else (sizes,)):
        raise Untranslatable(f"`{operation}` of a shape")
    constant = trace.expression_of(value)
    if dtype is None and operation != "new_tensor":
        dtype = model.dtype
    return constant if dtype is None else cast(constant, dtype)


def _cast_to(trace: Expressions, operand: Any, *targets: Any, dtype: torch.dtype | None = None, **_: Any) -> Expression:
    """Tensor.to and its relatives: a dtype, another tensor's, or a device, which is no conversion."""
    expression = trace.expression_of(operand)
    for target in (*targets, dtype):
        if isinstance(target, (Symbolic, torch.Tensor)):
            target = target.dtype
        if isinstance(target, torch.dtype):
            return cast(expression, target)
    return expression


def _fixed_cast(dtype: torch.dtype) -> Callable[..., Expression]:
    return lambda trace, operand, **_: cast(trace.expression_of(operand), dtype)


CASTS: dict[str, Callable[..., Expression]] = {
    "to": _cast_to,
    "type": _cast_to,
    "type_as": _cast_to,
    "float": _fixed_cast(torch.float32),
    "half": _fixed_cast(torch.float16),
    "bfloat16": _fixed_cast(torch.bfloat16),
    "double": _fixed_cast(torch.float64),
    "int": _fixed_cast(torch.int32),
    "long": _fixed_cast(torch.int64),
    "bool": _fixed_cast(torch.bool),
}
