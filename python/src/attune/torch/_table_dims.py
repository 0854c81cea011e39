"""Dims of captured tensors whose sizes follow from a size of the launch without being one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from attune._dims import COMMON_DIMS, ComputedDim, common_dim
from attune.torch._expression import Expression, value_of
from attune.torch._sizes import Sizes

# The dim of a spec that an index by this name runs over.
DIM_OF_INDEX = {"b": "batch", "h": "heads", "q_idx": "q_len", "kv_idx": "kv_len"}

# What a size, or an index, is of one name: a number where it is of none. None: it has another form.
_Form = ComputedDim | int | None


def _sum(left: _Form, right: _Form) -> _Form:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if isinstance(left, int):
        left, right = right, left
    if not isinstance(left, ComputedDim) or right is None:
        return None
    if isinstance(right, int):
        return ComputedDim(left.name, left.factor, left.offset + right * left.divisor, left.divisor)
    if left.name != right.name or left.divisor != 1 or right.divisor != 1:
        return None
    return ComputedDim(left.name, left.factor + right.factor, left.offset + right.offset)


def _product(left: _Form, right: _Form) -> _Form:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if isinstance(left, int):
        left, right = right, left
    if not isinstance(left, ComputedDim) or not isinstance(right, int) or left.divisor != 1:
        return None
    return ComputedDim(left.name, left.factor * right, left.offset * right)


def _quotient(left: _Form, right: _Form) -> _Form:
    if not isinstance(right, int) or right < 1 or left is None:
        return None
    if isinstance(left, int):
        return left // right
    return ComputedDim(left.name, left.factor, left.offset, left.divisor * right)


def _form_of_index(index: Expression) -> _Form:
    """Of the position: `q_idx // 128` is a quotient of "q_len" here."""
    if index.operation == "" and index.text in DIM_OF_INDEX:
        return ComputedDim(DIM_OF_INDEX[index.text])
    value = value_of(index)
    if isinstance(value, int):
        return value
    if index.operation not in ("+", "-", "*", "//"):
        return None
    left, right = (_form_of_index(each) for each in index.operands)
    if index.operation == "//":
        return _quotient(left, right)
    if index.operation == "*":
        return _product(left, right)
    return _sum(left, right if index.operation == "+" else _product(right, -1))


def _form_of_symbols(expression: Any, names: dict[Any, str]) -> _Form:
    """Of sympy's expression of a size, by the names of the symbols that are sizes of the launch."""
    if expression in names:
        return ComputedDim(names[expression])
    if expression.is_Integer:
        return int(expression)
    if not (expression.is_Add or expression.is_Mul or expression.func.__name__ in ("FloorDiv", "CleanDiv")):
        return None
    form, *rest = (_form_of_symbols(each, names) for each in expression.args)
    for each in rest:
        form = (_sum if expression.is_Add else _product if expression.is_Mul else _quotient)(form, each)
    return form


def _candidates(indices: Iterable[Expression]) -> Iterable[ComputedDim]:
    """Dims that the positions of a launch just fill, then those whose last element a rest of them finds."""
    forms = [form for form in map(_form_of_index, indices) if isinstance(form, ComputedDim) and form.factor > 0]
    for form in forms:
        last = form.offset - form.factor
        yield ComputedDim(form.name, form.factor, last + form.divisor, form.divisor)
    for form in forms:
        yield form


def _hint(size: Any) -> int | None:
    return size.node.hint if isinstance(size, torch.SymInt) else int(size)


def _is_as_large(dim: ComputedDim, size: Any, shape: Sizes) -> bool:
    """Of symbols: here, and in every launch of the graph, of which it becomes a condition."""
    named = getattr(shape, dim.name)
    if not dim.is_allowed() or isinstance(named, torch.SymInt) is not isinstance(size, torch.SymInt):
        return False
    hints = Sizes(*(_hint(each) for each in shape))
    if getattr(hints, dim.name) is None or not 0 < dim.elements(hints) == _hint(size):
        return False
    return bool(dim.elements(shape) == size)


def computed_dim(size: Any, indices: Iterable[Expression], shape: Sizes, learned: bool) -> ComputedDim | None:
    """The dim of that size which `indices` look up, or None: it is best called by its number. `learned`: the tensor
    wants a gradient."""
    indices = list(indices)
    is_symbol = isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None
    if is_symbol:
        # Names that run over the dim first: several may have one symbol.
        order = sorted(DIM_OF_INDEX, key=lambda name: not any(name in each.text for each in indices))
        names: dict[Any, str] = {}
        for name in map(DIM_OF_INDEX.__getitem__, order):
            named = getattr(shape, name)
            if isinstance(named, torch.SymInt) and named.node.expr.is_Symbol:
                names.setdefault(named.node.expr, name)
        form = _form_of_symbols(size.node.expr, names)
        if isinstance(form, ComputedDim) and form.is_allowed():
            return form
    elif learned:
        return None  # gradients of a fixed number of elements are summed in a faster way
    for dim in _candidates(indices):
        if _is_as_large(dim, size, shape):
            return dim
    if not any("q_idx" in each.text or "kv_idx" in each.text for each in indices):
        return None
    if not is_symbol:
        return common_dim(size, shape)
    return next((dim for dim in COMMON_DIMS if _is_as_large(dim, size, shape)), None)
