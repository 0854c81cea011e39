"""A captured tensor as a launch takes it: contiguous, and of a type that a spec has."""

from __future__ import annotations

import weakref

import torch

from attune.torch._dropout import is_captured
from attune.torch._expression import Type, Untranslatable

_INT32 = torch.iinfo(torch.int32)
# What the language takes as it is; other types are converted to the one of these that holds them.
_TYPES: dict[torch.dtype, Type] = {torch.bool: "bool", torch.int32: "int", torch.float32: "float"}
# What a kernel reads as it is where it has no gradient of it, which is float32; by a spec's names.
OF_16_BITS = {torch.float16: "fp16", torch.bfloat16: "bf16"}

# CUDA tensors whose values were looked at, by their addresses: to look waits for the device. With the version that they
# had, and where it lay, which `tensor.data = other` changes alone. Copies are not kept: what collectives, replays of
# graphs and `tensor.data.copy_` write is no new version.
_looked_at: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}


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
    place, tells = id(tensor), _tells_its_changes(tensor)
    if tells:
        known = _looked_at.get(place)
        if known is not None and known[0]() is tensor and known[1:] == (tensor._version, tensor.data_ptr()):
            return
    if is_captured(tensor.device):
        return
    if tensor.numel() and not _INT32.min <= int(tensor.min()) <= int(tensor.max()) <= _INT32.max:
        raise Untranslatable(f"a captured tensor of {tensor.dtype} with values beyond int32")
    if tells:
        reference = weakref.ref(tensor, lambda _: _looked_at.pop(place, None))
        _looked_at[place] = reference, tensor._version, tensor.data_ptr()


def as_auxiliary(
    tensor: torch.Tensor, wanted: torch.dtype | None = None, whole: torch.Tensor | None = None
) -> torch.Tensor:
    """Contiguous, and of a type that a spec has: of the one that is wanted, if it is of that; else int32, float32 or
    bool. `whole`: which it is a part of, and whose values are looked at; a part is another object each time.

    Raises:
        Untranslatable: it holds values beyond int32.
    """
    dtype = tensor.dtype
    if tensor.requires_grad:
        tensor = tensor.detach()
    if dtype is not wanted and dtype not in _TYPES:
        if type_of(dtype) == "float":
            tensor = tensor.to(torch.float32)
        else:
            if torch.iinfo(dtype).max > _INT32.max:
                _check_values(tensor if whole is None else whole)
            tensor = tensor.to(torch.int32)
    return tensor if tensor.is_contiguous() else tensor.contiguous()
