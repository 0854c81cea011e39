"""Where the elements of small tensors stand: torch's own operations, on numbers in the elements' place."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from attune.torch._expression import Untranslatable
from attune.torch._traced import Small, Traced, Tracer

JOINS = frozenset(("stack", "cat", "concat", "concatenate", "hstack", "vstack"))  # by torch's names
RESHAPINGS = frozenset(
    "unsqueeze squeeze view reshape view_as reshape_as flatten ravel unflatten expand expand_as broadcast_to repeat "
    "tile permute transpose t swapaxes swapdims movedim moveaxis flip roll narrow select unbind chunk split "
    "diagonal".split()
)
_BY_SHAPE = {"view_as": "view", "reshape_as": "reshape", "expand_as": "expand"}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _of_torch(function: _Function) -> _Function:
    """Nothing that traces a function or a graph sees what it does."""

    @functools.wraps(function)
    def hidden(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return function(*args, **kwargs)

    return hidden  # type: ignore[return-value]


def _of_places(trace: Tracer, elements: Sequence[Traced], places: Any) -> Any:
    """Of a tensor of places; of several, all of them."""
    if not isinstance(places, torch.Tensor):
        return tuple(_of_places(trace, elements, each) for each in places)
    return Small(trace, elements, places) if places.dim() else elements[int(places)]


@_of_torch
def of_shape(
    trace: Tracer, elements: Sequence[Traced], shape: Sequence[int], order: Sequence[int] | None = None
) -> Any:
    """Elements row by row; `order`: of the place of each, where it is not its own."""
    if order is None:
        order = range(len(elements))
    return _of_places(trace, elements, torch.tensor(list(order), dtype=torch.int64, device="cpu").reshape(tuple(shape)))


@_of_torch
def scalar(trace: Tracer, value: Traced) -> Small:
    return Small(trace, [value], torch.zeros((), dtype=torch.int64, device="cpu"))


@_of_torch
def item(small: Small, index: tuple[Any, ...]) -> Any:
    """Of an index without traced values."""
    return _of_places(small._trace, small._elements, small._places[index])


@_of_torch
def reshaped(small: Small, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values())):
        raise Untranslatable(f"`{operation}` of another type")
    name = _BY_SHAPE.get(operation, operation)
    return _of_places(small._trace, small._elements, getattr(small._places, name)(*args, **kwargs))


def _together(parts: Sequence[Small]) -> tuple[list[Traced], list[torch.Tensor]]:
    """The elements of all, and each one's places among them."""
    starts = [0, *itertools.accumulate(len(each._elements) for each in parts)]
    elements = [each for part in parts for each in part._elements]
    return elements, [each._places + start for each, start in zip(parts, starts, strict=False)]


@_of_torch
def joined(
    trace: Tracer, operation: str, parts: Sequence[Small], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    elements, places = _together(parts)
    return _of_places(trace, elements, getattr(torch, operation)(places, *args, **kwargs))


@_of_torch
def stacked(trace: Tracer, parts: Sequence[Small], shape: Sequence[int], front: int) -> Any:
    """Of equal shapes; dims of `shape`, over which they lie, stand behind the first `front` of the parts' own."""
    elements, places = _together(parts)
    whole = torch.stack(places).reshape(*shape, *places[0].shape)
    order = [*range(len(shape), len(shape) + front), *range(len(shape)), *range(len(shape) + front, whole.dim())]
    return _of_places(trace, elements, whole.permute(order))


@_of_torch
def broadcast(parts: Sequence[Small], most: int) -> tuple[Sequence[int], list[list[Traced]]]:
    """Their common shape, and the elements of each in it, row by row."""
    shape: torch.Size = torch.broadcast_shapes(*(each.shape for each in parts))  # type: ignore[no-untyped-call]
    if math.prod(shape) > most:
        raise Untranslatable(f"a tensor of shape {tuple(shape)} that the function makes")
    return shape, [
        [each._elements[place] for place in each._places.expand(shape).reshape(-1).tolist()] for each in parts
    ]


@_of_torch
def rows(small: Small, dim: Any, keepdim: bool) -> tuple[list[int], list[list[Traced]]]:
    """The elements along dims, None: of all; and the shape without these dims."""
    places = small._places
    count = places.dim()
    named = range(count) if dim is None or dim == () else (dim,) if isinstance(dim, int) else dim
    reduced = {each % max(count, 1) for each in named}
    rest = [each for each in range(count) if each not in reduced]
    shape = [places.shape[each] for each in range(count) if each not in reduced or keepdim]
    if keepdim:
        shape = [1 if at in reduced else size for at, size in enumerate(shape)]
    if count:
        length = math.prod(places.shape[each] for each in reduced)
        places = places.permute(*rest, *sorted(reduced)).reshape(math.prod(places.shape[each] for each in rest), length)
    else:
        places = places.reshape(1, 1)
    return shape, [[small._elements[place] for place in row] for row in places.tolist()]
