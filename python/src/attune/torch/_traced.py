"""What a traced function sees in place of tensors: scalars, small tensors of scalars, and parts of captured tensors."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch

from attune.torch._expression import Expression, Type, Untranslatable
from attune.torch._table import canonical_name

_DTYPES: dict[Type, torch.dtype] = {"bool": torch.bool, "int": torch.int32, "float": torch.float32}
_BRANCH = (
    "a branch on a traced value (`if`, `and`, `or`, `not`, `min`, `max`): write torch.where, &, |, ~, torch.minimum"
)


def _names_tensor(frame: types.FrameType) -> bool:
    """By torch's name, or by another one: a global, a cell, an argument; also among several."""
    if "Tensor" in frame.f_code.co_names:
        return True
    return any([each is torch.Tensor for one in _seen(frame) for each in (one if type(one) is tuple else (one,))])


def _seen(frame: types.FrameType) -> list[Any]:
    """What its code may name: locals, cells, globals."""
    return [*frame.f_locals.values(), *[frame.f_globals.get(name) for name in frame.f_code.co_names]]


def is_cut(function: Any) -> bool:
    """Whether it is the `apply` of an autograd.Function."""
    owner = getattr(function, "__self__", None) if isinstance(function, _METHODS) else None
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def _may_cut(frame: types.FrameType) -> bool:
    """Whether an autograd.Function may be asking from it: from torch 2.14 on `apply` is C, and has no frame."""
    names = frame.f_code.co_names
    if "apply" in names:
        return True
    seen = _seen(frame)
    held = [vars(one).get(name) for one in seen if hasattr(one, "__dict__") for name in names]
    return any(map(is_cut, seen + held))


class Tracer(Protocol):
    """What the objects below ask of the trace that they are of."""

    device: torch.device

    def apply(self, operation: str, args: Sequence[Any], kwargs: Any) -> Any: ...
    def look_up(self, tensor: torch.Tensor, index: object, known: Sequence[Expression | None]) -> Any: ...
    def refuse_cut(self, cut: str, value: Any) -> None: ...


# The modules from which autograd.Function.apply asks in torch up to 2.13; later ones ask without a frame of their own.
_WHERE_FUNCTIONS_ASK = ("torch._functorch.utils", "torch.autograd.function")
_METHODS = (types.MethodType, types.BuiltinMethodType)


class Symbolic:
    """What answers as a tensor does. Operations on it are the trace's."""

    requires_grad = False
    __array_ufunc__ = None  # NumPy's numbers leave their operators to this
    _trace: Any  # a Tracer

    @property
    def __class__(self) -> Any:
        """What isinstance asks where the type is another one. A function that asks for a tensor would take the other
        branch, and torch's own code would take this for memory if it were told that it is one."""
        caller = sys._getframe(1)
        module = str(caller.f_globals.get("__name__")).split(".")[0]
        if module == "torch" and caller.f_code.co_name == "is_tensor":
            return torch.Tensor
        is_ours = module in ("attune", "torch")
        if caller.f_globals.get("__name__") in _WHERE_FUNCTIONS_ASK or (not is_ours and _may_cut(caller)):
            self._trace.refuse_cut("an autograd.Function", self)
        if not is_ours and _names_tensor(caller):
            raise Untranslatable(
                "`isinstance` of a traced value in a function that names `Tensor`, which may ask for it: say "
                "torch.is_tensor"
            )
        return type(self)

    @property
    def shape(self) -> torch.Size:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return self._trace.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> Any:
        return self._trace.apply("t", (self,), {})

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise Untranslatable("a scalar as a sequence")
        for at in range(len(self)):
            yield self[at]

    def __getitem__(self, index: object) -> Any:
        return self._trace.apply("getitem", (self, index), {})

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return lambda *args, **kwargs: self._trace.apply(attribute, (self, *args), kwargs)

    def __bool__(self) -> NoReturn:
        raise Untranslatable(_BRANCH)

    def __index__(self) -> NoReturn:
        raise Untranslatable("a traced value as a Python int: `range`, or an index into a list, of which make a tensor")

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


class Traced(Symbolic):
    """A scalar of the traced function."""

    def __init__(self, trace: Tracer, expression: Expression) -> None:
        self._trace, self._expression = trace, expression

    @property
    def shape(self) -> torch.Size:
        return torch.Size()

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self._expression.type]

    def __repr__(self) -> str:
        return f"traced({self._expression.text}, dtype={self.dtype})"

    def from_the_end(self, offset: int) -> Traced:
        """This query's position among the keys, where both sequences end together; offset: kv_len - q_len."""
        text = f"({self._expression.text} + (kv_len - q_len))"
        return Traced(self._trace, Expression(text, "int", 0 if offset >= 0 else None))


class Small(Symbolic):
    """A tensor of a few scalars.

    `places` has its shape, and says which of the elements stands where: what changes nothing but a shape is torch's own
    operation on them.
    """

    def __init__(self, trace: Tracer, elements: Sequence[Traced], places: torch.Tensor) -> None:
        self._trace, self._elements, self._places = trace, tuple(elements), places

    @property
    def shape(self) -> torch.Size:
        return self._places.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._elements[0].dtype if self._elements else torch.float32

    def __repr__(self) -> str:
        return f"traced(shape={tuple(self.shape)}, dtype={self.dtype})"


class PartialLookUp(Symbolic):
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

    def __getitem__(self, index: object) -> Any:
        return self._trace.look_up(self._tensor, index, self._indices)


def _add_operators() -> None:
    """Python's operators as torch's operations."""

    def add(dunder: str, swapped: bool = False) -> None:
        operation = canonical_name(f"__{dunder}__")

        def method(self: Any, *others: object) -> Any:
            return self._trace.apply(operation, (*others, self) if swapped else (self, *others), {})

        setattr(Symbolic, f"__r{dunder}__" if swapped else f"__{dunder}__", method)

    for dunder in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
        add(dunder)
        add(dunder, swapped=True)
    for dunder in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
        add(dunder)


_add_operators()


def holds_traced(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(holds_traced, value))
    if isinstance(value, dict):
        return any(map(holds_traced, value.values()))
    return isinstance(value, Symbolic)
