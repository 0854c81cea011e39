"""Operations on rows of captured tensors: element by element, and their sums, products and the like.

A row is as many look-ups as it has elements, so short ones are translated: an expression has no loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attune.torch._expression import Untranslatable
from attune.torch._sizes import is_symbolic
from attune.torch._traced import PartialLookUp, Row, Traced, Tracer

_MAX_ELEMENTS = 128

# What a row's elements are combined by.
_REDUCTIONS = {
    "any": "logical_or",
    "all": "logical_and",
    "sum": "add",
    "mean": "add",
    "amax": "maximum",
    "amin": "minimum",
    "max": "maximum",
    "min": "minimum",
}
_PRODUCTS = ("dot", "vdot", "inner", "matmul")
REDUCTIONS = frozenset((*_REDUCTIONS, *_PRODUCTS))  # by torch's names


def holds_row(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(each, (PartialLookUp, Row)) for each in (*args, *kwargs.values()))


def _row(trace: Tracer, value: PartialLookUp | Row) -> Row:
    """The elements of a look-up that lacks the index of one dim."""
    if isinstance(value, Row):
        return value
    free = [dim for dim, index in enumerate(value._indices) if index is None]
    size = value._tensor.shape[free[0]]
    if len(free) > 1 or is_symbolic(size) or size > _MAX_ELEMENTS:
        raise Untranslatable(f"a part of a captured tensor that is no row of at most {_MAX_ELEMENTS} elements")
    return Row(trace, [value[at] for at in range(size)])


def apply(trace: Tracer, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced | Row:
    """torch's operation, some operands of which are rows."""
    args = [_row(trace, each) if isinstance(each, (PartialLookUp, Row)) else each for each in args]
    kwargs = {key: _row(trace, each) if isinstance(each, PartialLookUp) else each for key, each in kwargs.items()}
    if operation in _PRODUCTS:
        return _dot(trace, operation, *args, **kwargs)
    if operation in _REDUCTIONS and not (operation in ("max", "min") and holds_row(args[1:], kwargs)):
        return _reduced(trace, operation, *args, **kwargs)
    rows = [each for each in (*args, *kwargs.values()) if isinstance(each, Row)]
    sizes = {len(each) for each in rows} - {1}
    if len(sizes) > 1:
        raise Untranslatable(f"`{operation}` of rows of {' and '.join(map(str, sorted(sizes)))} elements")

    def at(value: Any, place: int) -> Any:
        return value[place if len(value) > 1 else 0] if isinstance(value, Row) else value

    return Row(
        trace,
        [
            trace.apply(operation, [at(each, place) for each in args], {key: at(x, place) for key, x in kwargs.items()})
            for place in range(max(len(each) for each in rows))
        ],
    )


def _folded(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    """By halves: an expression that is nested as little as may be."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return combine(_folded(combine, values[:half]), _folded(combine, values[half:]))


def _reduced(trace: Tracer, operation: str, row: Row, dim: Any = None, keepdim: bool = False, **options: Any) -> Traced:
    if dim not in (None, 0, -1, (0,), (-1,), [0], [-1]) or keepdim or set(options) - {"axis"}:
        raise Untranslatable(f"`{operation}` of a row with options")
    if operation in ("max", "min") and dim is not None:
        raise Untranslatable(f"`{operation}` of a row with its place: write torch.a{operation}")
    if not len(row):
        raise Untranslatable(f"`{operation}` of an empty row")
    combine = _REDUCTIONS[operation]
    found = _folded(lambda left, right: trace.apply(combine, (left, right), {}), row._elements)
    if operation in ("any", "all"):  # of one number, too, a truth
        found = trace.apply("bool", (found,), {})
    return trace.apply("div", (found, len(row)), {}) if operation == "mean" else found


def _dot(trace: Tracer, operation: str, left: Any, right: Any) -> Traced:
    if not (isinstance(left, Row) and isinstance(right, Row) and len(left) == len(right)):
        raise Untranslatable(f"`{operation}` of what are no rows of one length")
    products = apply(trace, "mul", (left, right), {})
    assert isinstance(products, Row)
    return _reduced(trace, "sum", products)
