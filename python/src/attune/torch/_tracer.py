"""Runs a score_mod or mask_mod on symbolic scalars, and keeps what it computes as an expression.

The function sees objects that answer to operators, methods and torch's functions as scalar tensors do. Captured
tensors stay tensors: a TorchFunctionMode notices where one is looked up by a symbolic index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attune.torch import _rows
from attune.torch._captured import CapturedTensors
from attune.torch._expression import (
    Expression,
    Untranslatable,
    as_bool,
    as_float,
    call,
    conditional,
    literal,
    name,
    negative,
)
from attune.torch._numbers import constants, is_number
from attune.torch._operations import OPERATIONS, canonical_name
from attune.torch._sizes import Sizes, is_symbolic
from attune.torch._traced import PartialLookUp, Row, Traced, holds_traced

_CREATORS = {
    "new_ones": 1, "new_zeros": 0, "ones_like": 1, "zeros_like": 0, "new_full": None, "full_like": None,
}  # fmt: skip
# What a function may ask a captured tensor without depending on its values.
_METADATA = frozenset(
    "size dim numel stride nelement ndimension is_contiguous is_floating_point is_complex __len__ shape dtype device ndim "
    "requires_grad is_cuda is_cpu is_meta layout itemsize nbytes".split()
)
# Where a captured number stays a constant of the kernel: another value is another algorithm, or divisions that constants
# turn into products and shifts.
_BY_CONSTANTS = frozenset(
    "remainder floor_divide pow bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
)
_FACTORS = frozenset(("mul", "multiply", "div", "divide", "true_divide"))


def _asked(func: Any) -> str:
    """The name of a function of torch; of a property, the property's."""
    return func.__self__.__name__ if func.__name__ == "__get__" else func.__name__


class Trace(TorchFunctionMode):
    """One launch's functions, traced into expressions over the same captured tensors."""

    def __init__(self, shape: Sizes, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.captured = CapturedTensors(shape, device)
        self._indices = {
            index: name(index, "int", 0, None if is_symbolic(size) else size - 1)
            for index, size in (
                ("b", shape.batch), ("h", shape.heads), ("q_idx", shape.q_len), ("kv_idx", shape.kv_len),
            )
        }  # fmt: skip

    def run(self, what: str, function: Callable[..., Any], score: Expression | None = None) -> Expression:
        """The expression of function([score,] b, h, q_idx, kv_idx).

        Raises:
            Untranslatable: naming the operation.
        """
        arguments = ([score] if score is not None else []) + list(self._indices.values())
        try:
            with self:
                return self._expression_of(function(*(Traced(self, argument) for argument in arguments)))
        except Untranslatable as problem:
            raise Untranslatable(f"{what} uses {problem}") from None
        except Exception as problem:
            raise Untranslatable(f"{what} cannot be traced: {type(problem).__name__}: {problem}") from problem

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not holds_traced(args) and not holds_traced(kwargs):
            if not self.captured.reads_values and _asked(func) not in _METADATA:
                self.captured.reads_values = True
            return func(*constants(args), **constants(kwargs))
        operation = canonical_name(func.__name__)
        if operation == "getitem" and isinstance(args[0], torch.Tensor):
            return self.look_up(args[0], args[1], (None,) * args[0].dim())
        return self.apply(operation, args, kwargs)

    def apply(self, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """torch's operation of scalars, some of them traced, and of rows."""
        if operation == "unsqueeze" and isinstance(args[0], Traced):
            return Row(self, args[:1])
        if _rows.holds_row(args, kwargs):
            return _rows.apply(self, canonical_name(operation), args, kwargs)
        if operation in _CREATORS:
            return Traced(self, self._created(operation, *args[1:], **kwargs))
        if operation in _CASTS:
            return Traced(self, _CASTS[operation](self, *args, **kwargs))
        if canonical_name(operation) not in OPERATIONS:
            raise Untranslatable(f"`{operation}`")
        name = canonical_name(operation)
        if name in _BY_CONSTANTS:
            args, kwargs = constants(tuple(args)), constants(dict(kwargs))
        elif name in _FACTORS:
            args, name = self._factors(name, args, kwargs)
        operands = [self._operand(each) for each in args]
        keywords = {key: self._operand(value) for key, value in kwargs.items()}
        return Traced(self, OPERATIONS[name](*operands, **keywords))

    def _factors(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], str]:
        """Operands of a product or a quotient. A kernel folds constant ones: into the scale of its exponentials where they
        are the score's, into the steps of a position. So a captured number is a constant there, until it is seen to
        vary; a factor of ints, and a quotient that is rounded, always."""
        of_ints = all(self._operand(each).type != "float" for each in args if not is_number(each)) and not any(
            each.of_type() is float for each in args if is_number(each)
        )
        is_rounded = kwargs.get("rounding_mode") is not None
        is_divided = name in ("div", "divide", "true_divide")
        if is_rounded or (of_ints and not is_divided):
            return constants(tuple(args)), name
        args = [each.decide() if is_number(each) and not each.has_varied() else each for each in args]
        if is_divided and len(args) == 2 and is_number(args[1]):
            return [args[0], args[1].reciprocal()], "mul"
        return args, name

    def look_up(self, tensor: torch.Tensor, index: object, known: Sequence[Expression | None]) -> Any:
        """tensor[index], where `known` has the indices that earlier brackets brought, None where none did."""
        given = list(index) if isinstance(index, tuple) else [index]
        free = [dim for dim, each in enumerate(known) if each is None]
        if Ellipsis in [each for each in given if not isinstance(each, (Traced, torch.Tensor))]:
            at = next(place for place, each in enumerate(given) if each is Ellipsis)
            given[at : at + 1] = [slice(None)] * (len(free) - len(given) + 1)
        if len(given) > len(free):
            raise Untranslatable(f"{len(given)} indices into {len(free)} dims of a captured tensor")
        indices = list(known)
        for dim, each in zip(free, given, strict=False):
            if isinstance(each, slice):
                if each != slice(None):
                    raise Untranslatable("a slice beside a traced index")
            elif each is None:
                raise Untranslatable("a new axis beside a traced index")
            else:
                indices[dim] = self._operand(each)
        whole = [each for each in indices if each is not None]
        if len(whole) < len(indices):
            return PartialLookUp(self, tensor, indices)
        return Traced(self, self.captured.look_up(tensor, whole))

    def _operand(self, value: Any) -> Any:
        """What translations take: an Expression of numbers and tensors; anything else is an option."""
        if is_number(value):
            return self.captured.captured_number(value)
        if isinstance(value, (Traced, torch.Tensor, bool, int, float, torch.SymInt, torch.SymFloat)):
            return self._expression_of(value)
        if isinstance(value, (PartialLookUp, Row)):
            raise Untranslatable("a row of a captured tensor, where a scalar is wanted")
        return value

    def _expression_of(self, value: Any) -> Expression:
        if is_number(value):
            return self.captured.captured_number(value)
        if isinstance(value, Traced):
            return value._expression
        if isinstance(value, torch.Tensor):
            return self.captured.scalar(value)
        if isinstance(value, (bool, int, float)):
            return literal(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self.captured.number(value)
        raise Untranslatable(f"a {type(value).__name__} where a scalar is wanted")

    def _created(self, operation: str, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Expression:
        """A constant of no dims, such as `b.new_ones((), dtype=torch.bool)`."""
        value = _CREATORS[operation]
        if value is None:
            value = kwargs.get("fill_value", args[-1] if args else None)
        sizes = kwargs.get("size", args[0] if operation.startswith("new") and args else ())
        if tuple(sizes if isinstance(sizes, (tuple, list)) else (sizes,)):
            raise Untranslatable(f"`{operation}` of a shape")
        constant = self._expression_of(value)
        return constant if dtype is None else _cast(constant, dtype)


def _cast(operand: Expression, dtype: torch.dtype) -> Expression:
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


def _cast_to(trace: Trace, operand: Traced, *targets: Any, dtype: torch.dtype | None = None, **_: Any) -> Expression:
    """Tensor.to and its relatives: a dtype, another tensor's, or a device, which is no conversion."""
    expression = trace._expression_of(operand)
    for target in (*targets, dtype):
        if isinstance(target, (Traced, torch.Tensor)):
            target = target.dtype
        if isinstance(target, torch.dtype):
            return _cast(expression, target)
    return expression


def _fixed_cast(dtype: torch.dtype) -> Callable[..., Expression]:
    return lambda trace, operand, **_: _cast(trace._expression_of(operand), dtype)


_CASTS: dict[str, Callable[..., Expression]] = {
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
