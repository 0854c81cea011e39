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
    wider = [pad(x, (0, _missing(x))) for x in (q, k, v)]
    found = function(*wider, scale=q.shape[-1] ** -0.5 if scale is None else scale, **rest)
    if isinstance(found, tuple):
        return found[0][..., :width].contiguous(), *found[1:]
    return found[..., :width].contiguous()
