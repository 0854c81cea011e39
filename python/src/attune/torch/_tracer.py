"""Runs a score_mod or mask_mod on symbolic scalars, and keeps what it computes as an expression.

The function sees objects that answer to operators, methods and torch's functions as scalar tensors do. Captured
tensors stay tensors: a TorchFunctionMode notices where one is looked up by a symbolic index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from attune.torch._captured import CapturedTensors
from attune.torch._expression import (
    Expression,
    Type,
    Untranslatable,
    as_bool,
    as_float,
    call,
    conditional,
    literal,
    name,
    negative,
)
from attune.torch._operations import OPERATIONS, canonical_name
from attune.torch._sizes import Sizes, is_symbolic

_CREATORS = {
    "new_ones": 1, "new_zeros": 0, "ones_like": 1, "zeros_like": 0, "new_full": None, "full_like": None,
}  # fmt: skip
# What a function may ask a captured tensor without depending on its values.
_METADATA = frozenset(
    "size dim numel stride nelement ndimension is_contiguous is_floating_point is_complex __len__ shape dtype device ndim "
    "requires_grad is_cuda is_cpu is_meta layout itemsize nbytes".split()
)
_DTYPES: dict[Type, torch.dtype] = {"bool": torch.bool, "int": torch.int32, "float": torch.float32}
_BRANCH = (
    "a branch on a traced value (`if`, `and`, `or`, `not`, `min`, `max`): write torch.where, &, |, ~, torch.minimum"
)


class Traced:
    """A scalar of the traced function."""

    shape = torch.Size()
    ndim = 0
    requires_grad = False

    def __init__(self, trace: Trace, expression: Expression) -> None:
        self._trace, self._expression = trace, expression

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self._expression.type]

    @property
    def device(self) -> torch.device:
        return self._trace.device

    def dim(self) -> int:
        return 0

    def size(self, dim: int | None = None) -> torch.Size:
        return self.shape

    def from_the_end(self, offset: int) -> Traced:
        """This query's position among the keys, where both sequences end together; offset: kv_len - q_len."""
        text = f"({self._expression.text} + (kv_len - q_len))"
        return Traced(self._trace, Expression(text, "int", 0 if offset >= 0 else None))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return lambda *args, **kwargs: self._trace.apply(attribute, (self, *args), kwargs)

    def __getitem__(self, index: object) -> NoReturn:
        raise Untranslatable("an index into a scalar")

    def __bool__(self) -> NoReturn:
        raise Untranslatable(_BRANCH)

    def __index__(self) -> NoReturn:
        raise Untranslatable("a traced value as a Python int: `range`, or an index into a list")

    def __int__(self) -> NoReturn:
        raise Untranslatable("`int` of a traced value")

    def __float__(self) -> NoReturn:
        raise Untranslatable("`float` of a traced value, as functions of `math` take it")

    def __hash__(self) -> NoReturn:
        raise Untranslatable("a traced value as a key")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        # While a function is traced the mode below is asked first.
        raise Untranslatable(f"`{canonical_name(func.__name__)}` after the function was traced")


class PartialLookUp:
    """A captured tensor of which only some dims are indexed yet."""

    def __init__(self, trace: Trace, tensor: torch.Tensor, indices: Sequence[Expression | None]) -> None:
        self._trace, self._tensor, self._indices = trace, tensor, tuple(indices)

    def __getitem__(self, index: object) -> Any:
        return self._trace.look_up(self._tensor, index, self._indices)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise Untranslatable(f"`{attribute}` of a row of a captured tensor")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise Untranslatable(f"`{canonical_name(func.__name__)}` of a row of a captured tensor")


def _asked(func: Any) -> str:
    """The name of a function of torch; of a property, the property's."""
    return func.__self__.__name__ if func.__name__ == "__get__" else func.__name__


def _add_operators(cls: type[Traced] | type[PartialLookUp]) -> None:
    """Python's operators as torch's operations."""

    def add(dunder: str, swapped: bool = False) -> None:
        operation = canonical_name(f"__{dunder}__")

        def method(self: Any, *others: object) -> Traced:
            return self._trace.apply(operation, (*others, self) if swapped else (self, *others), {})

        setattr(cls, f"__r{dunder}__" if swapped else f"__{dunder}__", method)

    for dunder in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        add(dunder)
        add(dunder, swapped=True)
    for dunder in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
        add(dunder)


_add_operators(Traced)
_add_operators(PartialLookUp)


def _holds_traced(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_traced, value))
    if isinstance(value, dict):
        return any(map(_holds_traced, value.values()))
    return isinstance(value, (Traced, PartialLookUp))


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
        if not _holds_traced(args) and not _holds_traced(kwargs):
            if not self.captured.reads_values and _asked(func) not in _METADATA:
                self.captured.reads_values = True
            return func(*args, **kwargs)
        operation = canonical_name(func.__name__)
        if operation == "getitem" and isinstance(args[0], torch.Tensor):
            return self.look_up(args[0], args[1], (None,) * args[0].dim())
        return self.apply(operation, args, kwargs)

    def apply(self, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """torch's operation of scalars, some of them traced."""
        if operation in _CREATORS:
            return Traced(self, self._created(operation, *args[1:], **kwargs))
        if operation in _CASTS:
            return Traced(self, _CASTS[operation](self, *args, **kwargs))
        translate = OPERATIONS.get(canonical_name(operation))
        if translate is None:
            raise Untranslatable(f"`{operation}`")
        operands = [self._operand(each) for each in args]
        return Traced(self, translate(*operands, **{key: self._operand(value) for key, value in kwargs.items()}))

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
        if isinstance(value, (Traced, torch.Tensor, bool, int, float, torch.SymInt, torch.SymFloat)):
            return self._expression_of(value)
        if isinstance(value, PartialLookUp):
            raise Untranslatable("a row of a captured tensor, where a scalar is wanted")
        return value

    def _expression_of(self, value: Any) -> Expression:
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
