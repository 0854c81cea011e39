"""The precision of fp32's products on GPUs, as torch has it for its own."""

from __future__ import annotations

import torch

_matmul = torch.backends.cuda.matmul


def _is_tf32() -> bool:
    """What torch.set_float32_matmul_precision and torch.backends.cuda.matmul were told."""
    try:
        # The older question raises where the newer setting was used.
        return _matmul.fp32_precision == "tf32"
    except AttributeError:  # before torch 2.9
        return torch.get_float32_matmul_precision() != "highest"


def of_call(precision: str | None, device: str, dtype: torch.dtype) -> str | None:
    """The spec's `precision`: the caller's word, or torch's own for fp32 on a GPU. None: nothing need be said."""
    if precision is None and dtype is torch.float32 and device == "cuda" and _is_tf32():
        return "tf32"
    return precision
