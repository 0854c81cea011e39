"""Head dims that no kernel has, those that are no multiple of 8: columns of zeros are appended, which add nothing to a
product, and those of O are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 256


def _missing(x: torch.Tensor) -> int:
    """Columns up to the next width of a kernel: multiples of 8, on GPUs from 16 on."""
    width: int = x.shape[-1]
    return max(-width % 8, 0 if x.device.type == "cpu" else 16 - width)


def is_odd(q: Any, k: Any, v: Any) -> bool:
    """Whether columns are missing, and nothing else is in the way."""
    if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        return False
    if q.is_nested or not (q.dtype == k.dtype == v.dtype and q.dtype in _DTYPES) or not (q.dim() == k.dim() == v.dim()):
        return False
    if q.dim() < 3 or k.shape[-1] != q.shape[-1] or not (_missing(q) or _missing(v)):
        return False
    return 0 < q.shape[-1] <= _WIDEST and 0 < v.shape[-1] <= _WIDEST


def attend(
    function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: Any, **rest: Any
) -> Any:
    """What the function gives of operands as wide as kernels have them; of a pair the first one is O."""
    width = v.shape[-1]
    wider = [_padded(x) for x in (q, k, v)]
    found = function(*wider, scale=q.shape[-1] ** -0.5 if scale is None else scale, **rest)
    if isinstance(found, tuple):
        return _narrowed(found[0], width), *found[1:]
    return _narrowed(found, width)


def _padded(x: torch.Tensor) -> torch.Tensor:
    """With the columns that are missing, its axes in memory in the order in which they were: O follows q's."""
    missing = _missing(x)
    if missing == 0:
        return x
    order = _order_in_memory(x)
    back = [order.index(dim) for dim in range(len(order))]
    return pad(x.permute(order), (0, missing)).permute(back)


def _narrowed(o: torch.Tensor, width: int) -> torch.Tensor:
    """Its first columns, dense, the other axes in memory in O's order."""
    return o if o.shape[-1] == width else o[..., :width].clone()


def _order_in_memory(x: torch.Tensor) -> list[int]:
    """The dims, the outermost one first and the last one last. Dynamo, to which strides may be symbols, does not sort
    by them, and compares them."""
    order: list[int] = []
    for dim in range(x.dim() - 1):
        place = len(order)
        while place > 0 and x.stride(order[place - 1]) < x.stride(dim):
            place -= 1
        order.insert(place, dim)
    return [*order, x.dim() - 1]
