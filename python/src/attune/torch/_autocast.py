"""torch.autocast: what it makes of operands, as it does for torch's own attention."""

from __future__ import annotations

import torch

_is_any_enabled = torch._C._is_any_autocast_enabled
_DEVICES = ("cpu", "cuda")


def cast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operands in the dtype of the autocast that is on for q's device; as they are where none is.

    As elsewhere under autocast, float64 and tensors on other devices stay what they are. The conversions are torch's,
    so gradients come back in each operand's own dtype.
    """
    if not torch.compiler.is_dynamo_compiling() and not _is_any_enabled():
        return q, k, v
    device = q.device.type
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return _cast(q, device, dtype), _cast(k, device, dtype), _cast(v, device, dtype)


def _cast(tensor: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
    is_cast = tensor.is_floating_point() and tensor.device.type == device and tensor.dtype != torch.float64
    return tensor.to(dtype) if is_cast else tensor


def is_on(device: str) -> bool:
    """For tensors on a device of this type. Not for Dynamo."""
    return _is_any_enabled() and device in _DEVICES and torch.is_autocast_enabled(device)
