"""The structs and enums of attune.h, field by field. Lengths are in elements, sizes of memory in bytes."""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any


class DType(enum.IntEnum):
    """att_dtype."""

    FP16 = 0
    BF16 = 1
    FP32 = 2
    FP8_E4M3 = 3
    INT32 = 16
    BOOL = 17

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _ITEMSIZE[self]

    @property
    def array_name(self) -> str:
        """What NumPy and its relatives call it: `float32`."""
        return _ARRAY_NAME[self]


_ITEMSIZE = {DType.FP16: 2, DType.BF16: 2, DType.FP32: 4, DType.FP8_E4M3: 1, DType.INT32: 4, DType.BOOL: 1}
_ARRAY_NAME = {
    DType.FP16: "float16",
    DType.BF16: "bfloat16",
    DType.FP32: "float32",
    DType.FP8_E4M3: "float8_e4m3fn",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}
DTYPE_BY_ARRAY_NAME = {name: dtype for dtype, name in _ARRAY_NAME.items()}
# What arrays of fp8 are called: frameworks that have no such type hold the same bytes.
FP8_ARRAY_NAMES = (DType.FP8_E4M3.array_name, "uint8")


class Layout(enum.IntEnum):
    """att_layout: the order of an operand's axes."""

    BSHD = 0
    BHSD = 1
    THD = 2
    PAGED = 3


class Pass(enum.IntEnum):
    """att_pass."""

    FORWARD = 0
    BACKWARD = 1


class Rope(enum.IntEnum):
    """att_rope: which elements of a head turn together."""

    NONE = 0
    HALF = 1
    INTERLEAVED = 2


class Sized(ctypes.Structure):
    """A struct whose first field says how long it is, so that it can grow; the rest begins as zeros."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class RuntimeOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_char_p),
        ("cache_file", c_char_p),
        ("background", c_int),
        ("log", c_void_p),
        ("log_context", c_void_p),
        ("check", c_int64),
    ]


class SpecInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int),
        ("layout", c_int),
        ("head_dim_qk", c_int),
        ("head_dim_v", c_int),
        ("scalar_count", c_int),
        ("tensor_count", c_int),
        ("softmax_scale_at_launch", c_int),
        ("dropout_at_launch", c_int),
        ("name", c_char_p),
        ("hash", c_char_p),
        ("softmax_scale", c_double),
        ("dropout", c_double),
        ("passes", c_int),
        ("has_mask", c_int),
        ("has_score", c_int),
        ("has_sink", c_int),
        ("deterministic", c_int),
        ("kv_dtype", c_int64),
        ("v_in_k", c_int64),
        ("dropout_seed_on_device", c_int64),
        ("yaml", c_char_p),
    ]


class ScalarInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_int),
        ("is_constant", c_int),
        ("value", c_double),
    ]


class TensorInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_int),
        ("ndim", c_int),
        ("grad", c_int),
        ("dims", c_char_p),
    ]


class Shape(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len")]


class Strides(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("batch", "seq", "head")]


class Scalar(ctypes.Union):
    _fields_ = [("i", c_int32), ("f", c_float)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("dtype", c_int32),
        ("ndim", c_int32),
    ]


class ForwardArgs(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("shape", Shape),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("workspace", c_void_p),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("o_strides", Strides),
        ("softmax_scale", c_float),
        ("dropout", c_float),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("scalars", POINTER(Scalar)),
        ("tensors", c_void_p),
        ("tensor_views", POINTER(Tensor)),
        ("tensor_view_count", c_int),
        ("workspace_bytes", c_size_t),
        ("cu_q", c_void_p),
        ("cu_kv", c_void_p),
        ("used_q", c_void_p),
        ("used_kv", c_void_p),
        ("page_table", c_void_p),
        ("pages_per_sequence", c_int64),
        ("page_size", c_int64),
        ("pages", c_int64),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("k_scale_page_stride", c_int64),
        ("k_scale_head_stride", c_int64),
        ("v_scale_page_stride", c_int64),
        ("v_scale_head_stride", c_int64),
        ("dropout_state", c_void_p),
    ]


class BackwardArgs(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("shape", Shape),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("d_o", c_void_p),
        ("d_lse", c_void_p),
        ("d_q", c_void_p),
        ("d_k", c_void_p),
        ("d_v", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("o_strides", Strides),
        ("d_o_strides", Strides),
        ("d_q_strides", Strides),
        ("d_k_strides", Strides),
        ("d_v_strides", Strides),
        ("softmax_scale", c_float),
        ("dropout", c_float),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("scalars", POINTER(Scalar)),
        ("tensor_views", POINTER(Tensor)),
        ("tensor_view_count", c_int),
        ("d_tensor_count", c_int),
        ("d_tensors", POINTER(c_void_p)),
        ("d_sink", c_void_p),
        ("cu_q", c_void_p),
        ("cu_kv", c_void_p),
        ("used_q", c_void_p),
        ("used_kv", c_void_p),
        ("dropout_state", c_void_p),
    ]


class AppendOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int),
        ("cache_dtype", c_int),
        ("head_dim_qk", c_int),
        ("head_dim_v", c_int),
        ("rope", c_int),
        ("rotary_dim", c_int),
        ("rope_base", c_double),
        ("rope_factor", c_double),
    ]


class AppendArgs(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layout", c_int),
        ("shape", Shape),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("q_out", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("q_out_strides", Strides),
        ("k_cache_strides", Strides),
        ("v_cache_strides", Strides),
        ("cu_q", c_void_p),
        ("used_q", c_void_p),
        ("cu_kv", c_void_p),
        ("used_kv", c_void_p),
        ("positions", c_void_p),
        ("page_table", c_void_p),
        ("pages_per_sequence", c_int64),
        ("page_size", c_int64),
        ("pages", c_int64),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("table_positions", c_int64),
        ("table_stride", c_int64),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("k_scale_page_stride", c_int64),
        ("k_scale_head_stride", c_int64),
        ("v_scale_page_stride", c_int64),
        ("v_scale_head_stride", c_int64),
    ]


class TuneProgress(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("done", c_int),
        ("total", c_int),
        ("seconds", c_double),
        ("best_us", c_double),
        ("best_plan", c_char_p),
    ]


TuneFunction = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(TuneProgress))


class TuneOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("budget_ms", c_double),
        ("background", c_int),
        ("max_candidates", c_int),
        ("compile_threads", c_int),
        ("command", c_char_p),
        ("progress", TuneFunction),
        ("progress_context", c_void_p),
    ]


class TuneResult(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("state", c_int),
        ("measured", c_int),
        ("rejected", c_int),
        ("from_cache", c_int),
        ("seconds", c_double),
        ("best_us", c_double),
        ("before_us", c_double),
        ("live_share", c_double),
        ("full_share", c_double),
        ("plan", c_char_p),
        ("compiler", c_char_p),
    ]
