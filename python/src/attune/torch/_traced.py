"""What a traced function sees in place of tensors: scalars, and rows of captured tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import torch

from attune.torch._expression import Expression, Type, Untranslatable
from attune.torch._table import canonical_name

_DTYPES: dict[Type, torch.dtype] = {"bool": torch.bool, "int": torch.int32, "float": torch.float32}
_BRANCH = (
    "a branch on a traced value (`if`, `and`, `or`, `not`, `min`, `max`): write torch.where, &, |, ~, torch.minimum"
)


class Tracer(Protocol):
    """What the objects below ask of the trace that they are of."""

    device: torch.device

    def apply(self, operation: str, args: Sequence[Any], kwargs: Any) -> Any: ...
    def look_up(self, tensor: torch.Tensor, index: object, known: Sequence[Expression | None]) -> Any: ...


class Traced:
    """A scalar of the traced function."""

    shape = torch.Size()
    ndim = 0
    requires_grad = False

    def __init__(self, trace: Tracer, expression: Expression) -> None:
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

    def __init__(self, trace: Tracer, tensor: torch.Tensor, indices: Sequence[Expression | None]) -> None:
        self._trace, self._tensor, self._indices = trace, tensor, tuple(indices)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(
            [size for size, index in zip(self._tensor.shape, self._indices, strict=True) if index is None]
        )

    @property
    def dtype(self) -> torch.dtype:
        return self._tensor.dtype

    def dim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: object) -> Any:
        return self._trace.look_up(self._tensor, index, self._indices)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return lambda *args, **kwargs: self._trace.apply(attribute, (self, *args), kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise Untranslatable(f"`{canonical_name(func.__name__)}` of a row of a captured tensor")


class Row:
    """A few scalars in a row: what torch has as a tensor of one dim."""

    def __init__(self, trace: Tracer, elements: Sequence[Traced]) -> None:
        self._trace, self._elements = trace, tuple(elements)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self._elements),))

    def dim(self) -> int:
        return 1

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, slice):
            return Row(self._trace, self._elements[index])
        if isinstance(index, int) and not isinstance(index, bool):
            return self._elements[index]
        raise Untranslatable("an index into a row that is no number")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return lambda *args, **kwargs: self._trace.apply(attribute, (self, *args), kwargs)

    def __bool__(self) -> NoReturn:
        raise Untranslatable(_BRANCH)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise Untranslatable(f"`{canonical_name(func.__name__)}` after the function was traced")


def _add_operators(cls: type[Traced] | type[PartialLookUp] | type[Row]) -> None:
    """Python's operators as torch's operations."""

    def add(dunder: str, swapped: bool = False) -> None:
        operation = canonical_name(f"__{dunder}__")

        def method(self: Any, *others: object) -> Traced:
            return self._trace.apply(operation, (*others, self) if swapped else (self, *others), {})

        setattr(cls, f"__r{dunder}__" if swapped else f"__{dunder}__", method)

    for dunder in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul"):
        add(dunder)
        add(dunder, swapped=True)
    for dunder in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
        add(dunder)


for _cls in (Traced, PartialLookUp, Row):
    _add_operators(_cls)


def holds_traced(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(holds_traced, value))
    if isinstance(value, dict):
        return any(map(holds_traced, value.values()))
    return isinstance(value, (Traced, PartialLookUp, Row))
