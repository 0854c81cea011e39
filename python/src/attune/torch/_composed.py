"""Operations on small tensors that are made of simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from attune.torch._expression import Untranslatable
from attune.torch._numbers import constants
from attune.torch._traced import Tracer


def _of(trace: Tracer, operation: str, *args: Any, **kwargs: Any) -> Any:
    return trace.apply(operation, args, kwargs)


def _rank(value: Any) -> int:
    return len(value.shape)


def _search(trace: Tracer, values: Any, boundaries: Any, right: bool) -> Any:
    """How many boundaries, which ascend, lie below a value."""
    if _rank(boundaries) != 1:
        raise Untranslatable(f"boundaries of shape {tuple(boundaries.shape)}")
    return _of(trace, "sum", _of(trace, "le" if right else "lt", boundaries, _of(trace, "unsqueeze", values, -1)), -1)


def _bucketize(trace: Tracer, input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _search(trace, input, boundaries, right)


def _searchsorted(
    trace: Tracer,
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
) -> Any:
    return _search(trace, input, sorted_sequence, right or side == "right")


def _isin(
    trace: Tracer, elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    values, tested = _of(trace, "unsqueeze", elements, -1), _of(trace, "flatten", test_elements)
    found = _of(trace, "any", _of(trace, "eq", values, tested), -1)
    return _of(trace, "logical_not", found) if invert else found


def _looked_up(trace: Tracer, table: Any, index: tuple[Any, ...]) -> Any:
    if isinstance(table, torch.Tensor):
        return trace.look_up(table, index, (None,) * table.dim())
    return table[index]


def _embedding(trace: Tracer, input: Any, weight: Any, *options: Any, max_norm: Any = None, **_: Any) -> Any:
    """F.embedding; torch.embedding has the weight first."""
    if isinstance(input, torch.Tensor):
        input, weight = weight, input
    if max_norm is not None:
        raise Untranslatable("`embedding` with max_norm")
    return _looked_up(trace, weight, (input,))


def _index(trace: Tracer, input: Any, indices: Sequence[Any]) -> Any:
    """aten's."""
    return _looked_up(trace, input, tuple(slice(None) if each is None else each for each in indices))


def _index_select(trace: Tracer, input: Any, dim: int, index: Any) -> Any:
    ahead = [slice(None)] * (dim % _rank(input))
    return _looked_up(trace, input, (*ahead, _of(trace, "reshape", index, -1)))


def _take(trace: Tracer, input: Any, index: Any) -> Any:
    if _rank(input) != 1:
        raise Untranslatable("`take` from more than one dim")
    return _looked_up(trace, input, (index,))


def _gather(trace: Tracer, input: Any, dim: int, index: Any, **_: Any) -> Any:
    if _rank(input) != 1:
        raise Untranslatable("`gather` from more than one dim")
    return _looked_up(trace, input, (index,))


def _product(trace: Tracer, left: Any, right: Any) -> Any:
    """matmul."""
    dims = _rank(left), _rank(right)
    inner = right.shape[-2 if dims[1] > 1 else 0] if dims[1] else 0
    if 0 in dims or left.shape[-1] != inner:
        raise Untranslatable(f"a product of shapes {tuple(left.shape)} and {tuple(right.shape)}")
    left = _of(trace, "unsqueeze", left if dims[0] > 1 else _of(trace, "unsqueeze", left, 0), -1)
    right = _of(trace, "unsqueeze", right if dims[1] > 1 else _of(trace, "unsqueeze", right, -1), -3)
    found = _of(trace, "sum", _of(trace, "mul", left, right), -2)
    found = found if dims[1] > 1 else _of(trace, "squeeze", found, -1)
    return found if dims[0] > 1 else _of(trace, "squeeze", found, -1 if dims[1] == 1 else -2)


def _dot(trace: Tracer, input: Any, other: Any) -> Any:
    if (_rank(input), _rank(other)) != (1, 1):
        raise Untranslatable(f"a product of shapes {tuple(input.shape)} and {tuple(other.shape)}")
    return _product(trace, input, other)


def _linear(trace: Tracer, input: Any, weight: Any, bias: Any = None) -> Any:
    found = _product(trace, input, _of(trace, "t", weight))
    return found if bias is None else _of(trace, "add", found, bias)


def _norm(
    trace: Tracer, input: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, out: None = None
) -> Any:
    p = constants(p)
    if p == "fro" or p is None:
        p = 2
    sizes = _of(trace, "abs", input)
    if p in (float("inf"), float("-inf")):
        return _of(trace, "amax" if p > 0 else "amin", sizes, dim, keepdim)
    if p == 1:
        return _of(trace, "sum", sizes, dim, keepdim)
    if p != 2:
        raise Untranslatable(f"a norm of order {p}")
    return _of(trace, "sqrt", _of(trace, "sum", _of(trace, "mul", input, input), dim, keepdim))


def _norm_of_order(
    trace: Tracer, input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """torch.linalg's."""
    if ord is not None and dim is None and _rank(input) > 1:
        raise Untranslatable("a norm of a matrix")
    return _norm(trace, input, 2 if ord is None else ord, dim, keepdim)


def _logsumexp(trace: Tracer, input: Any, dim: Any, keepdim: bool = False) -> Any:
    top = _of(trace, "amax", input, dim, True)
    total = _of(trace, "log", _of(trace, "sum", _of(trace, "exp", _of(trace, "sub", input, top)), dim, True))
    found = _of(trace, "add", total, top)
    return found if keepdim else _of(trace, "sum", found, dim)


def _softmax(trace: Tracer, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    exponentials = _of(trace, "exp", _of(trace, "sub", input, _of(trace, "amax", input, dim, True)))
    return _of(trace, "div", exponentials, _of(trace, "sum", exponentials, dim, True))


# By torch's names.
COMPOSED: dict[str, Callable[..., Any]] = {
    "bucketize": _bucketize,
    "searchsorted": _searchsorted,
    "isin": _isin,
    "embedding": _embedding,
    "index": _index,
    "index_select": _index_select,
    "take": _take,
    "gather": _gather,
    "dot": _dot,
    "vdot": _dot,
    "inner": _dot,
    "matmul": _product,
    "mv": _product,
    "mm": _product,
    "bmm": _product,
    "linear": _linear,
    "norm": _norm,
    "linalg_norm": _norm_of_order,
    "linalg_vector_norm": _norm_of_order,
    "logsumexp": _logsumexp,
    "softmax": _softmax,
}
