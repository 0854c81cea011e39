"""Operations on tensors of a few scalars: element by element, their sums and the like, and what only changes a shape.

Such a tensor is a part of a captured one, or made of scalars. Each element is an expression of its own, for the
language has no loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from attune.torch import _places
from attune.torch._casts import CASTS, CREATORS
from attune.torch._composed import COMPOSED
from attune.torch._expression import Expression, Untranslatable
from attune.torch._numbers import constants
from attune.torch._sizes import is_symbolic
from attune.torch._table import OPERATIONS
from attune.torch._traced import PartialLookUp, Small, Symbolic, Traced, Tracer

_MAX_ELEMENTS = 128  # of a captured tensor
_MAX_BROADCAST = 1024

# What elements are combined by.
_REDUCTIONS = {
    "any": "logical_or",
    "all": "logical_and",
    "sum": "add",
    "mean": "add",
    "prod": "mul",
    "count_nonzero": "add",
    "amax": "maximum",
    "amin": "minimum",
    "max": "maximum",
    "min": "minimum",
}
REDUCTIONS = frozenset(_REDUCTIONS)  # by torch's names


def is_small(value: Any) -> bool:
    """Whether it has elements, of which each is to be an expression."""
    return isinstance(value, (Small, PartialLookUp)) or (isinstance(value, torch.Tensor) and value.dim() > 0)


def concerns(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `apply` does it."""
    if operation == "getitem" or operation in COMPOSED or operation in _places.JOINS or operation in _places.RESHAPINGS:
        return True
    if operation in _REDUCTIONS and (operation not in ("max", "min") or len(args) + len(kwargs) == 1):
        return True
    return any(map(is_small, (*args, *kwargs.values())))


def apply(trace: Tracer, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """torch's operation, some operands of which are no scalars, or whose result is none."""
    if operation in COMPOSED:
        return COMPOSED[operation](trace, *args, **kwargs)
    if operation in _places.JOINS:
        parts, *rest = args
        parts = [_small(trace, each) for each in parts]
        return _places.joined(trace, operation, parts, constants(tuple(rest)), constants(dict(kwargs)))
    if operation in _places.RESHAPINGS:
        given = [each.shape if isinstance(each, (Symbolic, torch.Tensor)) else each for each in args[1:]]
        return _places.reshaped(_small(trace, args[0]), operation, constants(tuple(given)), constants(dict(kwargs)))
    if operation == "getitem":
        return _item(trace, *args)
    is_of_two = operation in ("max", "min") and any(map(is_small, (*args[1:], *kwargs.values())))
    if operation in _REDUCTIONS and not is_of_two:
        return _reduced(trace, operation, *args, **kwargs)
    return _by_element(trace, operation, args, kwargs)


class _Extremes(NamedTuple):
    """What max and min along a dim give."""

    values: Any
    indices: Any


class _Unknown(Symbolic):
    """The places of what is largest or smallest: to have them is no harm."""

    def __init__(self) -> None:
        self._trace: Any = self

    def apply(self, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
        raise Untranslatable("the place of a largest or smallest element")

    @property
    def shape(self) -> torch.Size:
        return self.apply("shape", (), {})


def _small(trace: Tracer, value: Any) -> Small:
    if isinstance(value, Small):
        return value
    if isinstance(value, PartialLookUp):
        free = value._indices.count(None)
        return _as_small(trace, part_of(trace, value._tensor, [slice(None)] * free, value._indices))
    if isinstance(value, torch.Tensor) and value.dim():
        return _as_small(trace, part_of(trace, value, [slice(None)] * value.dim(), (None,) * value.dim()))
    return _places.scalar(trace, value if isinstance(value, Traced) else trace.apply("clone", (value,), {}))


def _as_small(trace: Tracer, value: Any) -> Small:
    return value if isinstance(value, Small) else _places.scalar(trace, value)


def part_of(trace: Tracer, tensor: torch.Tensor, given: Sequence[Any], known: Sequence[Expression | None]) -> Any:
    """tensor[given], where `known` has the indices that earlier brackets brought. Of given are scalars, small tensors,
    slices, None for a new axis; dims that it says nothing of are taken whole."""
    items = [*given, *[slice(None)] * (list(known).count(None) - sum(each is not None for each in given))]
    several = [each for each in items if is_small(each)]
    if several:
        return _by_small_indices(trace, tensor, items, known)
    free = iter([dim for dim, each in enumerate(known) if each is None])
    axes: list[tuple[int | None, Sequence[Any]]] = []
    sizes: list[int] = []
    for each in items:
        if each is None:
            axes.append((None, [None]))
            sizes.append(1)
            continue
        dim = next(free)
        size = tensor.shape[dim]
        if isinstance(each, slice):
            if is_symbolic(size) or (size > _MAX_ELEMENTS and each == slice(None)):
                raise _too_large(tensor)
            axes.append((dim, range(size)[constants(each)]))
            sizes.append(len(axes[-1][1]))
        else:
            axes.append((dim, [each]))
    if math.prod(sizes) > _MAX_ELEMENTS:
        raise _too_large(tensor)
    elements = []
    for places in itertools.product(*(positions for _, positions in axes)):
        at = {dim: place for (dim, _), place in zip(axes, places, strict=True) if dim is not None}
        index = tuple(at[dim] for dim in sorted(at))
        elements.append(trace.look_up(tensor, index, known))
    return _places.of_shape(trace, elements, sizes)


def _too_large(tensor: torch.Tensor) -> Untranslatable:
    return Untranslatable(
        f"a part of a captured tensor of shape {tuple(tensor.shape)} that is no row of at most {_MAX_ELEMENTS} elements"
    )


def _by_small_indices(trace: Tracer, tensor: torch.Tensor, items: list[Any], known: Sequence[Expression | None]) -> Any:
    """Where they stand among the dims of the result is torch's rule: in front, unless they stand side by side."""
    at = [place for place, each in enumerate(items) if is_small(each)]
    shape, flat = _places.broadcast([_small(trace, items[place]) for place in at], _MAX_BROADCAST)
    parts = []
    for scalars in zip(*flat, strict=True):
        inner = list(items)
        for place, scalar in zip(at, scalars, strict=True):
            inner[place] = scalar
        whole = all(not isinstance(each, slice) and each is not None for each in inner)
        parts.append(trace.look_up(tensor, tuple(inner), known) if whole else part_of(trace, tensor, inner, known))
    # Scalars leave no dim behind.
    kept = [each is None or isinstance(each, slice) for each in items]
    front = 0 if any(kept[at[0] : at[-1]]) else sum(kept[: at[0]])
    return _places.stacked(trace, [_as_small(trace, each) for each in parts], shape, front)


def _item(trace: Tracer, value: Any, index: Any) -> Any:
    """value[index]. A traced index chooses among elements."""
    small = _small(trace, value)
    given = list(index) if isinstance(index, tuple) else [index]
    at = next((place for place, each in enumerate(given) if isinstance(each, Symbolic)), None)
    if at is None:
        return _places.item(small, constants(tuple(given)))
    if not isinstance(given[at], Traced):
        raise Untranslatable("several traced indices into a tensor that the function makes")
    ahead = given[:at]
    if any(each is Ellipsis for each in ahead):
        raise Untranslatable("a traced index behind an ellipsis")
    size = small.shape[sum(each is not None for each in ahead)]
    chosen = _item(trace, small, (*ahead, size - 1, *given[at + 1 :]))
    for place in range(size - 2, -1, -1):
        here = _item(trace, small, (*ahead, place, *given[at + 1 :]))
        is_here = trace.apply("eq", (given[at], place), {})
        is_here = trace.apply("logical_or", (is_here, trace.apply("eq", (given[at], place - size), {})), {})
        chosen = trace.apply("where", (is_here, here, chosen), {})
    return chosen


def _by_element(trace: Tracer, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if operation not in OPERATIONS and operation not in CASTS and operation not in CREATORS:
        raise Untranslatable(f"`{operation}`")
    names = list(kwargs)
    values = [*args, *kwargs.values()]
    at = [place for place, each in enumerate(values) if is_small(each)]
    shape, flat = _places.broadcast([_small(trace, values[place]) for place in at], _MAX_BROADCAST)
    made: dict[tuple[int, ...], int] = {}
    elements: list[Any] = []
    order: list[int] = []
    for scalars in zip(*flat, strict=True):
        key = tuple(map(id, scalars))
        if key not in made:
            inner = list(values)
            for place, scalar in zip(at, scalars, strict=True):
                inner[place] = scalar
            made[key] = len(elements)
            named = dict(zip(names, inner[len(args) :], strict=True))
            elements.append(trace.apply(operation, inner[: len(args)], named))
        order.append(made[key])
    return _places.of_shape(trace, elements, shape, order)


def _folded(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """By halves: an expression that is nested as little as may be."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return combine(_folded(combine, values[:half]), _folded(combine, values[half:]))


def _reduced(
    trace: Tracer,
    operation: str,
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    dtype: torch.dtype | None = None,
) -> Any:
    small, dim = _small(trace, input), constants(axis if dim is None else dim)
    if operation in ("max", "min") and dim is not None:
        return _Extremes(_reduced(trace, f"a{operation}", small, dim, keepdim), _Unknown())
    if operation == "count_nonzero":
        small = _small(trace, trace.apply("ne", (small, 0), {}))
    shape, rows = _places.rows(small, dim, keepdim)
    if any(not row for row in rows):
        raise Untranslatable(f"`{operation}` of an empty row")
    combine, found = _REDUCTIONS[operation], []
    for row in rows:
        each = _folded(lambda left, right: trace.apply(combine, (left, right), {}), row)
        if operation in ("any", "all"):  # of one number, too, a truth
            each = trace.apply("bool", (each,), {})
        elif each.dtype == torch.bool and combine in ("add", "mul"):
            each = trace.apply("int", (each,), {})
        if operation == "mean":
            each = trace.apply("div", (each, len(row)), {})
        found.append(each if dtype is None else trace.apply("to", (each, dtype), {}))
    return _places.of_shape(trace, found, shape)
