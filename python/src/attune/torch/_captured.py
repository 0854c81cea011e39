"""Tensors that a traced function looks up, as auxiliary tensors of a spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

from attune._structs import Shape
from attune.torch._expression import Expression, Type, Untranslatable, binary, conditional, literal, name

_INT32 = torch.iinfo(torch.int32)
_MAX_DIMS = 4
# What the language takes as it is; other types are converted to the one of these that holds them.
_TYPES: dict[torch.dtype, Type] = {torch.bool: "bool", torch.int32: "int", torch.float32: "float"}
_DTYPE_NAMES: dict[Type, str] = {"bool": "bool", "int": "int32", "float": "float32"}
# The dim of a spec that an index by this name runs over.
_DIM_OF_INDEX = {"b": "batch", "h": "heads", "q_idx": "q_len", "kv_idx": "kv_len"}

# A CUDA tensor's converted copy, with the version that was converted: the check of its values waits for the device.
_converted: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _tells_its_changes(tensor: torch.Tensor) -> bool:
    """Whether a change in its values is a new version: NumPy may share a CPU tensor's memory and change it unseen."""
    return tensor.is_cuda and not tensor.is_inference()


def _convert(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float32)
    if tensor.dtype.is_complex:
        raise Untranslatable(f"a captured tensor of {tensor.dtype}")
    is_wider = torch.iinfo(tensor.dtype).max > _INT32.max
    if is_wider and tensor.numel() and not _INT32.min <= int(tensor.min()) <= int(tensor.max()) <= _INT32.max:
        raise Untranslatable(f"a captured tensor of {tensor.dtype} with values beyond int32")
    return tensor.to(torch.int32)


def as_auxiliary(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and of a type that a spec has: int32, float32 or bool."""
    if tensor.dtype in _TYPES and tensor.is_contiguous():
        return tensor
    known = _converted.get(tensor) if _tells_its_changes(tensor) else None
    if known is None or known[0] != tensor._version:
        plain = tensor.detach()
        copy = (plain if plain.dtype in _TYPES else _convert(plain)).contiguous()
        if not _tells_its_changes(tensor):
            return copy
        known = _converted[tensor] = tensor._version, copy
    return known[1]


@dataclasses.dataclass
class _Captured:
    original: torch.Tensor
    auxiliary: torch.Tensor
    name: str
    indices: list[set[str]]  # of each dim, what it was looked up by


class CapturedTensors:
    """The tensors that one trace looks up, named `t0`, `t1`, ... in the order in which it meets them."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._shape, self._device = shape, device
        self._by_memory: dict[tuple[object, ...], _Captured] = {}

    def look_up(self, tensor: torch.Tensor, indices: Sequence[Expression]) -> Expression:
        """tensor[indices...], one index a dim. A negative index counts from the end, as torch's does."""
        captured = self._capture(tensor)
        written = []
        for dim, index in enumerate(indices):
            index = _from_the_start(index, tensor.shape[dim])
            captured.indices[dim].add(index.text)
            written.append(index.text)
        return name(f"{captured.name}[{', '.join(written)}]", _TYPES[captured.auxiliary.dtype])

    def scalar(self, tensor: torch.Tensor) -> Expression:
        """A tensor without dims: what changes it is no new kernel."""
        if tensor.dim() != 0:
            raise Untranslatable(f"a captured tensor of shape {tuple(tensor.shape)} that is not looked up")
        if tensor.device != self._device or (tensor.device.type == "cpu" and not torch.isfinite(tensor)):
            return literal(tensor.item())
        captured = self._capture(tensor)
        return name(f"{captured.name}[0]", _TYPES[captured.auxiliary.dtype])

    def _capture(self, tensor: torch.Tensor) -> _Captured:
        if tensor.device != self._device:
            raise Untranslatable(f"a captured tensor on {tensor.device}, beside operands on {self._device}")
        if tensor.dim() > _MAX_DIMS or 0 in tensor.shape:
            raise Untranslatable(f"a captured tensor of shape {tuple(tensor.shape)}")
        # What is captured stays alive, so no other tensor comes to lie there.
        memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad)
        known = self._by_memory.get(memory)
        if known is None:
            auxiliary = as_auxiliary(tensor)
            if not auxiliary.dim():
                auxiliary = auxiliary.reshape(1)
            known = _Captured(tensor, auxiliary, f"t{len(self._by_memory)}", [set() for _ in auxiliary.shape])
            self._by_memory[memory] = known
        return known

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a launch hands over."""
        return {captured.name: captured.auxiliary.detach() for captured in self._by_memory.values()}

    def learned(self) -> dict[str, torch.Tensor]:
        """Those that want a gradient, as they were captured; none where torch records none."""
        if not torch.is_grad_enabled():
            return {}
        return {
            captured.name: captured.original for captured in self._by_memory.values() if captured.original.requires_grad
        }

    def declarations(self) -> dict[str, str]:
        """What a spec says of them."""
        learned = self.learned()
        return {
            captured.name: f"{_DTYPE_NAMES[_TYPES[captured.auxiliary.dtype]]}[{self._dims(captured)}]"
            + (" grad" if captured.name in learned else "")
            for captured in self._by_memory.values()
        }

    def _dims(self, captured: _Captured) -> str:
        """A dim that positions run over is called by them, so that another length is no other spec."""
        names = []
        for size, indices in zip(captured.auxiliary.shape, captured.indices, strict=True):
            candidates = [_DIM_OF_INDEX[index] for index in ("kv_idx", "q_idx", "h", "b") if index in indices]
            names.append(next((dim for dim in candidates if getattr(self._shape, dim) == size), str(size)))
        return ", ".join(names)


def _from_the_start(index: Expression, size: int) -> Expression:
    if index.type != "int":
        raise Untranslatable(f"an index that is a {index.type}")
    if index.low is not None and index.low >= 0:
        return index
    from_the_end = binary("+", index, literal(size), "int")
    if index.high is not None and index.high < 0:
        return from_the_end
    return conditional(binary("<", index, literal(0), "bool"), from_the_end, index)
