"""Rows of new tensors that a launch leaves as they are, for they are no sequence's: what is written there, and by what."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import torch

from attune.torch._dropout import is_captured

# Words of four bytes in all, 0 where the launch writes every row; the word that is written; then of rows before the
# first sequence and behind the last one the place of the offsets among the tensors behind the spec's and of the last
# offset in them; and how the tensor is made up of rows: how many times so many of so many words.
Untouched = tuple[int, int, int, int, int, int, int]

NONE: Untouched = (0, 0, -1, 0, 0, 0, 0)
ZERO, LEAST = 0, 0xFF800000  # of any type; of float32: -inf

_MOST_WORDS = 1 << 31

# What fills [outer, rows, inner words] up to row offsets[0] and from row offsets[last] on. The driver compiles it, by
# its own library of PTX: one without that library, or older than PTX 7.0, refuses it, and then all is filled.
_PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry attune_rows_outside(
    .param .u64 at, .param .u64 offsets, .param .u32 last, .param .u32 outer, .param .u32 rows, .param .u32 inner,
    .param .u32 word)
{
    .reg .pred %done, %is_before;
    .reg .b32 %first, %end, %last, %outer, %rows, %inner, %word, %before, %outside, %total, %i, %step, %block, %thread;
    .reg .b32 %size, %whole, %between, %part, %skipped, %rest, %place;
    .reg .b64 %at, %offsets, %address;
    ld.param.u64 %at, [at];
    ld.param.u64 %offsets, [offsets];
    ld.param.u32 %last, [last];
    ld.param.u32 %outer, [outer];
    ld.param.u32 %rows, [rows];
    ld.param.u32 %inner, [inner];
    ld.param.u32 %word, [word];
    cvta.to.global.u64 %at, %at;
    cvta.to.global.u64 %offsets, %offsets;
    ld.global.b32 %first, [%offsets];
    mul.wide.u32 %address, %last, 4;
    add.s64 %address, %address, %offsets;
    ld.global.b32 %end, [%address];
    max.s32 %end, %end, 0;
    min.s32 %end, %end, %rows;
    max.s32 %first, %first, 0;
    min.s32 %first, %first, %end;
    mul.lo.u32 %before, %first, %inner;
    sub.s32 %between, %end, %first;
    sub.s32 %outside, %rows, %between;
    mul.lo.u32 %between, %between, %inner;
    mul.lo.u32 %outside, %outside, %inner;
    mul.lo.u32 %total, %outside, %outer;
    mul.lo.u32 %whole, %rows, %inner;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %size, %thread;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %size;
next:
    setp.ge.u32 %done, %i, %total;
    @%done bra last_one;
    div.u32 %part, %i, %outside;
    mul.lo.u32 %skipped, %part, %outside;
    sub.u32 %rest, %i, %skipped;
    mad.lo.u32 %place, %part, %whole, %rest;
    setp.lt.u32 %is_before, %rest, %before;
    @!%is_before add.u32 %place, %place, %between;
    mul.wide.u32 %address, %place, 4;
    add.s64 %address, %address, %at;
    st.global.b32 [%address], %word;
    add.u32 %i, %i, %step;
    bra next;
last_one:
    ret;
}
\0"""


def untouched(
    sizes: tuple[int, ...], dtype: torch.dtype, word: int, axis: int, ends: tuple[int, int] | None
) -> Untouched:
    """Of a contiguous tensor whose `axis` is that of tokens. `ends`: the places of the offsets and of the last of them,
    where all rows between the first and the last one are a sequence's; None: any row may be none's, and all are written."""
    inner_bytes = math.prod(sizes[axis + 1 :]) * dtype.itemsize
    assert inner_bytes % 4 == 0, "rows are of 16 bytes, and LSE is float32"
    outer, rows, inner = math.prod(sizes[:axis]), sizes[axis], inner_bytes // 4
    words = outer * rows * inner
    offsets, last = ends if ends is not None and words < _MOST_WORDS else (-1, 0)
    return words, word, offsets, last, outer, rows, inner


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_kernels: dict[int, int] = {}  # by device; 0 where the driver does not take it


def _kernel_on(driver: ctypes.CDLL, device: torch.device) -> int:
    """0: there is none, or none yet. torch has made a launch on this thread, and so the device's context is current."""
    index = device.index or 0
    if index not in _kernels:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(index):  # whose current stream it is that may be captured
            if is_captured(device):
                return 0
            is_loaded = driver.cuModuleLoadData(ctypes.byref(module), _PTX) == 0 and not driver.cuModuleGetFunction(
                ctypes.byref(function), module, b"attune_rows_outside"
            )
            _kernels[index] = (function.value or 0) if is_loaded else 0
    return _kernels.get(index, 0)


def writer_on(device: torch.device) -> tuple[int, int, int]:
    """Addresses of the driver's cuMemsetD32Async and cuLaunchKernel and the kernel that fills rows outside of
    all sequences; 0 where there is none, and on the CPU."""
    driver = _driver() if device.type == "cuda" else None
    if driver is None:
        return 0, 0, 0
    return _address(driver.cuMemsetD32Async), _address(driver.cuLaunchKernel), _kernel_on(driver, device)
