"""Reads DLPack's capsules (https://dmlc.github.io/dlpack) through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

from attune._errors import BadInputError
from attune._view import View

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_DEVICES = {_CPU: "cpu", _CUDA_HOST: "cpu", _CUDA: "cuda", _CUDA_MANAGED: "cuda"}
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool", 10: "float8_e4m3fn"}
_LEGACY_STREAM = 1


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def device_of(array: Any) -> str:
    """ "cpu" or "cuda:N"."""
    kind, index = array.__dlpack_device__()
    if int(kind) not in _DEVICES:
        raise BadInputError(f"an array is on DLPack's device type {int(kind)}", "Attune runs on CPUs and CUDA devices")
    name = _DEVICES[int(kind)]
    return f"{name}:{index}" if name == "cuda" else name


def _dtype_name(dtype: _DataType) -> str:
    kind = _KINDS.get(dtype.code)
    if kind is None or dtype.lanes != 1:
        raise BadInputError(f"an array has elements of DLPack's type code {dtype.code} in {dtype.lanes} lanes")
    return kind if kind in ("bool", "float8_e4m3fn") else f"{kind}{dtype.bits}"


def view(array: Any) -> View:
    """What `array.__dlpack__()` says. The producer's work is awaited by the legacy default stream of its device."""
    device = device_of(array)
    capsule = array.__dlpack__() if device == "cpu" else array.__dlpack__(stream=_LEGACY_STREAM)
    # The capsule is not consumed: it keeps its name, and frees what it holds when it goes.
    tensor = ctypes.cast(_get_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    sizes = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(sizes)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return View(pointer, sizes, strides, _dtype_name(tensor.dtype), device, capsule)


def contiguous_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
