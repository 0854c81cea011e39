"""New tensors at the least cost: what a call makes, it makes each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Sizes, strides, type. All three must be what they are by class: tuples, no torch.Size.
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]

_own: Any = getattr(torch._C._dynamo, "guards", None)  # Inductor allocates by these
_on_cpu: Empty | None = getattr(_own, "_empty_strided_cpu", None)
_on_gpu: Empty | None = getattr(_own, "_empty_strided_cuda", None)
_current_gpu: Callable[[], int] | None = getattr(torch._C, "_cuda_getDevice", None)


def empty_on(device: torch.device) -> Empty:
    """torch.empty_strided on the device, without the dispatcher where that is half of it: what it makes is memory that
    is about to be written, and no mode of torch's is asked."""

    def empty(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)

    if device.type == "cpu" and _on_cpu is not None:
        return _on_cpu
    if device.type != "cuda" or _on_gpu is None or _current_gpu is None:
        return empty
    on_gpu, current, index = _on_gpu, _current_gpu, device.index or 0

    def on_current(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if current() == index:
            return on_gpu(sizes, strides, dtype)
        return empty(sizes, strides, dtype)

    return on_current
