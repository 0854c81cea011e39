"""A captured tensor as a launch takes it: contiguous, and of a type that a spec has."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

from attune.torch._expression import Type, Untranslatable

_INT32 = torch.iinfo(torch.int32)
# What the language takes as it is; other types are converted to the one of these that holds them.
_TYPES: dict[torch.dtype, Type] = {torch.bool: "bool", torch.int32: "int", torch.float32: "float"}

# A CUDA tensor's converted copy, with the version that was converted and where it lay, which `tensor.data = other`
# changes alone: the check of its values waits for the device.
_converted: WeakIdKeyDictionary = WeakIdKeyDictionary()


def type_of(dtype: torch.dtype) -> Type:
    """What elements of a captured tensor are in the language."""
    if dtype == torch.bool:
        return "bool"
    if dtype.is_complex:
        raise Untranslatable(f"a captured tensor of {dtype}")
    return "float" if dtype.is_floating_point else "int"


def _tells_its_changes(tensor: torch.Tensor) -> bool:
    """Whether a change in its values is a new version: NumPy may share a CPU tensor's memory and change it unseen."""
    return tensor.is_cuda and not tensor.is_inference()


def _convert(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float32)
    type_of(tensor.dtype)
    is_wider = torch.iinfo(tensor.dtype).max > _INT32.max
    if is_wider and tensor.numel() and not _INT32.min <= int(tensor.min()) <= int(tensor.max()) <= _INT32.max:
        raise Untranslatable(f"a captured tensor of {tensor.dtype} with values beyond int32")
    return tensor.to(torch.int32)


def as_auxiliary(tensor: torch.Tensor, keeps: bool = True) -> torch.Tensor:
    """Contiguous, and of a type that a spec has: int32, float32 or bool. `keeps`: a copy may outlive the call, for the
    next one; a compiled graph's may lie in the memory of a CUDA graph, where nothing may be left.

    Raises:
        Untranslatable: it holds values beyond int32.
    """
    if tensor.dtype in _TYPES:
        if tensor.is_contiguous():
            return tensor
        if not keeps:
            return tensor.detach().contiguous()
    known = _converted.get(tensor) if _tells_its_changes(tensor) else None
    if known is None or known[:2] != (tensor._version, tensor.data_ptr()):
        plain = tensor.detach()
        copy = (plain if plain.dtype in _TYPES else _convert(plain)).contiguous()
        if not _tells_its_changes(tensor):
            return copy
        known = _converted[tensor] = tensor._version, tensor.data_ptr(), copy
    return known[2]
