"""Runtime: a device with its compilers and caches; Kernel: code for one spec, pass and shape; AppendKernel: code that
writes new keys into a cache."""

from __future__ import annotations

import array
import ctypes
import functools
import json
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from attune import _nvrtc, _structs
from attune._errors import BadInputError, UnsupportedError
from attune._library import check, last_report, library
from attune._structs import Pass, Shape
from attune.spec import Spec

_MAX_KERNELS = 1024
_NO_LAUNCH = ctypes.c_size_t(-1).value


class Kernel:
    """Code for one spec and pass, the best known for the shape that it was asked for; right for every shape."""

    def __init__(self, handle: ctypes.c_void_p, runtime: Runtime, spec: Spec, shape: Shape) -> None:
        self._handle, self._runtime, self._spec = handle, runtime, spec
        weakref.finalize(self, library().att_kernel_destroy, handle)
        self.workspace_bytes: int = library().att_kernel_workspace_bytes(handle, ctypes.byref(shape))
        if self.workspace_bytes == _NO_LAUNCH:
            raise UnsupportedError.from_report(last_report())

    @property
    def handle(self) -> int:
        """The att_kernel's address."""
        return self._handle.value or 0

    @property
    def plan(self) -> str:
        """Of the code that a launch uses at this moment: "sm80 forward sm_80 q128 k64 s2 w4 qreg"."""
        return library().att_kernel_plan(self._handle).decode()

    @property
    def source(self) -> str:
        """ "measured": tuned for this shape, "nearest": for a similar one, "model": a cost model's choice,
        "stand-in": code that is there while better code is not."""
        return library().att_kernel_source(self._handle).decode()

    def tell_lengths(self, shape: Shape, kv_lengths: Sequence[int], page_size: int = 0) -> None:
        """Says how many keys each of shape.batch sequences has, of a spec with layout thd or paged: of plans that were
        tuned on several kinds of lengths the kernel takes that of the nearest kind. Cheap enough for every step.

        Args:
            page_size: as at a launch; 0 with thd.

        Raises:
            BadInputError: another number of lengths than sequences, or one that the shape has no room for.
        """
        if len(kv_lengths) != shape.batch:
            raise BadInputError(f"{len(kv_lengths)} lengths are given, and the shape has {shape.batch} sequences")
        try:
            kept = array.array("i", kv_lengths)  # ctypes would cut off what has too many bits
        except (TypeError, OverflowError) as error:
            raise BadInputError(f"kv_lengths: {error}") from None
        lengths = (ctypes.c_int32 * len(kept)).from_buffer(kept)
        check(
            library().att_runtime_tell_lengths(
                self._runtime.handle, self._handle, ctypes.byref(shape), lengths, page_size
            )
        )

    def tell_shares(self, live: float, full: float) -> None:
        """Says which share of the tiles of 128 queries by 128 keys has a live element, and which has no dead one,
        where tensors decide the mask.

        Raises:
            BadInputError: not 0 <= full <= live <= 1.
        """
        check(library().att_runtime_tell_shares(self._runtime.handle, self._handle, live, full))

    def forward(self, args: _structs.ForwardArgs, stream: int | None) -> None:
        """Enqueues a launch on a CUstream; on the CPU it returns when the launch is done."""
        check(library().att_forward(self._handle, ctypes.byref(args), stream))

    def backward(self, args: _structs.BackwardArgs, stream: int | None) -> None:
        """The same of a kernel of the backward pass."""
        check(library().att_backward(self._handle, ctypes.byref(args), stream))


class AppendKernel:
    """Code that writes new keys and values into a cache, for one kind of cache and rotation; right for every shape."""

    def __init__(self, handle: ctypes.c_void_p, runtime: Runtime) -> None:
        self._handle, self._runtime = handle, runtime
        weakref.finalize(self, library().att_append_kernel_destroy, handle)

    @property
    def handle(self) -> int:
        """The att_append_kernel's address."""
        return self._handle.value or 0


def _created(options: _structs.RuntimeOptions) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    check(library().att_runtime_create(ctypes.byref(options), ctypes.byref(handle)))
    return handle


class Runtime:
    """A device, its compilers and its caches. Thread-safe.

    Args:
        device: "cpu", "cuda:0"; None: the current CUDA context's device, else cuda:0, else the CPU.
        cache_file: of measurements and code; None: the user's default; "": none.
        background: whether a first use goes on with other code of the spec while better code is compiled.
        check: whether launches look at offsets, lengths and tables of pages first, and wrong ones raise: for who looks
            for a mistake, as it waits for the device; not while a graph is captured. So it is with ATTUNE_CHECK=1.

    Raises:
        UnavailableError: no such device, or its driver is missing.
    """

    def __init__(
        self,
        device: str | None = None,
        cache_file: str | os.PathLike[str] | None = None,
        *,
        background: bool = False,
        check: bool = False,
    ) -> None:
        if device is None or device.startswith("cuda"):
            _nvrtc.preload()
        options = _structs.RuntimeOptions(
            device=None if device is None else device.encode(),
            cache_file=None if cache_file is None else os.fsencode(cache_file),
            background=int(background),
            check=int(check),
        )
        self._handle = _created(options)
        weakref.finalize(self, library().att_runtime_destroy, self._handle)
        self._kernels: dict[tuple[Any, ...], Kernel] = {}
        self._append_kernels: dict[tuple[Any, ...], AppendKernel] = {}
        self._lock = threading.Lock()

    @property
    def handle(self) -> int:
        """The att_runtime's address."""
        return self._handle.value or 0

    @property
    def device(self) -> str:
        """ "NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159"."""
        return library().att_runtime_device(self._handle).decode()

    def status(self) -> dict[str, Any]:
        """Device, compiler, cache files, counters and kernels; docs/runtime.md has the keys."""
        c, size = library(), 0
        while True:  # it may grow between two calls
            text = ctypes.create_string_buffer(max(size, 1))
            needed = c.att_runtime_status(self._handle, text, size)
            if needed <= size:
                return json.loads(text.value) if needed else {}
            size = needed

    def refresh(self) -> None:
        """Takes up what was tuned since; kernels at hand stay valid and get the better code."""
        check(library().att_runtime_refresh(self._handle))

    def wait(self) -> None:
        """Returns when nothing is compiled in the background any more."""
        library().att_runtime_wait(self._handle)

    def kernel(self, spec: Spec, shape: Shape, of_pass: Pass = Pass.FORWARD) -> Kernel:
        """The best kernel known. Compiles at first use, well under a second.

        Raises:
            UnsupportedError: no kernel of the device can do it.
        """
        key = (spec.hash, of_pass, shape.batch, shape.heads, shape.kv_heads, shape.q_len, shape.kv_len)
        found = self._kernels.get(key)
        if found is None:
            handle = ctypes.c_void_p()
            check(
                library().att_kernel_get_for_pass(
                    self._handle, spec.handle, ctypes.byref(shape), of_pass, ctypes.byref(handle)
                )
            )
            found = Kernel(handle, self, spec, shape)
            with self._lock:
                if len(self._kernels) >= _MAX_KERNELS:  # the library keeps the code; only handles go
                    self._kernels.clear()
                self._kernels[key] = found
        return found

    def append_kernel(self, **options: Any) -> AppendKernel:
        """Of att_append_options. Compiles at first use, a third of a second.

        Raises:
            BadInputError, UnsupportedError: there is none of such dtypes, head dims or rotation.
        """
        key = tuple(sorted(options.items()))
        found = self._append_kernels.get(key)
        if found is None:
            handle, given = ctypes.c_void_p(), _structs.AppendOptions(**options)
            check(library().att_append_kernel_get(self._handle, ctypes.byref(given), ctypes.byref(handle)))
            found = AppendKernel(handle, self)
            with self._lock:
                if len(self._append_kernels) >= _MAX_KERNELS:
                    self._append_kernels.clear()
                self._append_kernels[key] = found
        return found

    def __repr__(self) -> str:
        return f"<attune.Runtime {self.device}>"


_creating = threading.Lock()


@functools.cache
def _create_default(device: str) -> Runtime:
    return Runtime(device)


def default_runtime(device: str) -> Runtime:
    """The process' own runtime of "cpu" or "cuda:N", with the user's cache file; made at first use."""
    with _creating:
        return _create_default(device)
