"""A captured tensor as a launch takes it: contiguous, and of a type that a spec has."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

from attune.torch._dropout import is_captured
from attune.torch._expression import Type, Untranslatable

_INT32 = torch.iinfo(torch.int32)
# What the language takes as it is; other types are converted to the one of these that holds them.
_TYPES: dict[torch.dtype, Type] = {torch.bool: "bool", torch.int32: "int", torch.float32: "float"}

# The version of a CUDA tensor whose values were looked at, and where it lay, which `tensor.data = other` changes alone:
# to look waits for the device. Copies are not kept: what collectives, replays of graphs and `tensor.data.copy_` write
# is no new version.
_looked_at: WeakIdKeyDictionary = WeakIdKeyDictionary()


def type_of(dtype: torch.dtype) -> Type:
    """What elements of a captured tensor are in the language."""
    if dtype == torch.bool:
        return "bool"
    if dtype.is_complex:
        raise Untranslatable(f"a captured tensor of {dtype}")
    return "float" if dtype.is_floating_point else "int"


def _tells_its_changes(tensor: torch.Tensor) -> bool:
    """Whether most changes in its values are a new version: NumPy may share a CPU tensor's memory."""
    return tensor.is_cuda and not tensor.is_inference()


def _check_values(tensor: torch.Tensor) -> None:
    """Raises Untranslatable where int32 does not hold an element. While a graph is captured nobody looks."""
    if is_captured(tensor.device):
        return
    version = (tensor._version, tensor.data_ptr()) if _tells_its_changes(tensor) else None
    if version is not None and _looked_at.get(tensor) == version:
        return
    plain = tensor.detach()
    if plain.numel() and not _INT32.min <= int(plain.min()) <= int(plain.max()) <= _INT32.max:
        raise Untranslatable(f"a captured tensor of {tensor.dtype} with values beyond int32")
    if version is not None:
        _looked_at[tensor] = version


def as_auxiliary(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and of a type that a spec has: int32, float32 or bool.

    Raises:
        Untranslatable: it holds values beyond int32.
    """
    if tensor.dtype in _TYPES:
        return tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    if type_of(tensor.dtype) == "float":
        return tensor.detach().to(torch.float32).contiguous()
    if torch.iinfo(tensor.dtype).max > _INT32.max:
        _check_values(tensor)
    return tensor.detach().to(torch.int32).contiguous()
