"""Attune's C interface (runtime/include/attune/attune.h) through ctypes. Device memory comes from the caller."""

import ctypes
import glob
import json
import os

_STATUS = {1: "failed", 2: "bad input", 3: "unsupported", 4: "unavailable"}


class AttuneError(RuntimeError):
    pass


class _RuntimeOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("cache_file", ctypes.c_char_p)]


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len")]


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "seq", "head")]


class ForwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("shape", Shape),
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("o_strides", Strides),
        ("softmax_scale", ctypes.c_float),
        ("dropout", ctypes.c_float),
        ("dropout_seed", ctypes.c_uint64),
        ("dropout_offset", ctypes.c_uint64),
        ("scalars", ctypes.c_void_p),
        ("tensors", ctypes.POINTER(ctypes.c_void_p)),
        ("tensor_views", ctypes.c_void_p),
        ("tensor_view_count", ctypes.c_int),
        ("workspace_bytes", ctypes.c_size_t),
    ] + [(name, ctypes.c_void_p) for name in ("cu_q", "cu_kv", "used_q", "used_kv", "page_table")] + [
        (name, ctypes.c_int64) for name in ("pages_per_sequence", "page_size", "pages")
    ]


class TensorView(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32)]


class BackwardArgs(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_size_t), ("shape", Shape)]
        + [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "d_o", "d_lse", "d_q", "d_k", "d_v",
                                                "workspace")]
        + [("workspace_bytes", ctypes.c_size_t)]
        + [(name + "_strides", Strides) for name in ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v")]
        + [("softmax_scale", ctypes.c_float), ("dropout", ctypes.c_float), ("dropout_seed", ctypes.c_uint64),
           ("dropout_offset", ctypes.c_uint64), ("scalars", ctypes.c_void_p), ("tensor_views", ctypes.c_void_p),
           ("tensor_view_count", ctypes.c_int), ("d_tensor_count", ctypes.c_int), ("d_tensors", ctypes.c_void_p),
           ("d_sink", ctypes.c_void_p)]
        + [(name, ctypes.c_void_p) for name in ("cu_q", "cu_kv", "used_q", "used_kv")])


PASS_FORWARD, PASS_BACKWARD = 0, 1
INT32 = 16  # att_dtype


def find_library(root):
    """The shared library of the newest build below `root`, or None."""
    found = glob.glob(os.path.join(root, "build", "*", "**", "libattune.so*"), recursive=True)
    return max(found, key=os.path.getmtime) if found else None


class Library:
    def __init__(self, path):
        self._c = ctypes.CDLL(path)
        self._c.att_version.restype = ctypes.c_char_p
        self._c.att_last_error.restype = ctypes.c_char_p
        for name in ("att_kernel_plan", "att_kernel_source"):
            getattr(self._c, name).restype = ctypes.c_char_p
            getattr(self._c, name).argtypes = [ctypes.c_void_p]
        self._c.att_kernel_workspace_bytes.restype = ctypes.c_size_t
        self._c.att_kernel_workspace_bytes.argtypes = [ctypes.c_void_p, ctypes.POINTER(Shape)]
        self._c.att_runtime_status.restype = ctypes.c_size_t
        self._c.att_runtime_status.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        self._c.att_spec_tensor_slot.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._c.att_backward.argtypes = [ctypes.c_void_p, ctypes.POINTER(BackwardArgs), ctypes.c_void_p]
        self._c.att_kernel_get_for_pass.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Shape),
                                                    ctypes.c_int, ctypes.c_void_p]
        self._c.att_forward.argtypes = [ctypes.c_void_p, ctypes.POINTER(ForwardArgs), ctypes.c_void_p]

    @property
    def version(self):
        return self._c.att_version().decode()

    def _check(self, status):
        if status:
            message = self._c.att_last_error().decode(errors="replace")
            raise AttuneError(f"{_STATUS.get(status, status)}: {message}")

    def runtime(self, device, cache_file):
        return Runtime(self, device, cache_file)


class Runtime:
    def __init__(self, library, device, cache_file):
        self.library = library
        self._c = library._c
        self._handle = ctypes.c_void_p()
        options = _RuntimeOptions(ctypes.sizeof(_RuntimeOptions), device.encode(),
                                  None if cache_file is None else cache_file.encode())
        library._check(self._c.att_runtime_create(ctypes.byref(options), ctypes.byref(self._handle)))

    def status(self):
        """What docs/runtime.md says that a runtime tells of itself."""
        size = self._c.att_runtime_status(self._handle, None, 0)
        text = ctypes.create_string_buffer(size)
        self._c.att_runtime_status(self._handle, text, size)
        return json.loads(text.value)

    def compiles(self):
        """How many kernels were compiled, not taken from the cache."""
        return self.status()["counters"]["compiles"]

    def kernel(self, spec_path, shape, of_pass=PASS_FORWARD):
        """The kernel for a spec (path or library name) and a Shape."""
        return self.kernel_of(self._spec(self._c.att_spec_from_file, spec_path), shape, of_pass)

    def kernel_from_yaml(self, text, shape, of_pass=PASS_FORWARD):
        return self.kernel_of(self.spec_from_yaml(text), shape, of_pass)

    def spec_from_yaml(self, text):
        return self._spec(self._c.att_spec_from_yaml, text)

    def _spec(self, parse, source):
        spec = ctypes.c_void_p()
        self.library._check(parse(source.encode(), ctypes.byref(spec)))
        return spec

    def kernel_of(self, spec, shape, of_pass):
        handle = ctypes.c_void_p()
        self.library._check(
            self._c.att_kernel_get_for_pass(self._handle, spec, ctypes.byref(shape), of_pass, ctypes.byref(handle)))
        return Kernel(self.library, spec, handle, shape)


class Kernel:
    def __init__(self, library, spec, handle, shape):
        self._library, self._c, self._spec, self._handle, self.shape = library, library._c, spec, handle, shape
        self.plan = self._c.att_kernel_plan(handle).decode()
        self.source = self._c.att_kernel_source(handle).decode()
        self.workspace_bytes = self._c.att_kernel_workspace_bytes(handle, ctypes.byref(shape))

    def tensor_slot(self, name):
        slot = self._c.att_spec_tensor_slot(self._spec, name.encode())
        if slot < 0:
            raise AttuneError(f"the spec has no tensor `{name}`")
        return slot

    def at(self, shape):
        """The same code for another shape: any plan computes any of them."""
        return Kernel(self._library, self._spec, self._handle, shape)

    def bind(self, q, k, v, o, lse, workspace, tensors, dropout_seed=0, **sequences):
        """A callable(stream) that launches on these device pointers; contiguous in the spec's layout. `sequences`:
        those of packed ones, cu_q, cu_kv, used_q and used_kv, and of a cache in pages its table and their numbers."""
        args = ForwardArgs(struct_size=ctypes.sizeof(ForwardArgs), shape=self.shape, q=q, k=k, v=v, o=o, lse=lse,
                           workspace=workspace, dropout_seed=dropout_seed, **sequences)
        slots = {self.tensor_slot(name): pointer for name, pointer in tensors.items()}
        array = (ctypes.c_void_p * max(len(slots), 1))(*[slots[i] for i in sorted(slots)])
        args.tensors = ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p)) if slots else None
        reference, forward, handle, check = ctypes.byref(args), self._c.att_forward, self._handle, self._library._check

        def launch(stream):
            status = forward(handle, reference, stream)
            if status:
                check(status)

        launch.keep = (args, array)  # the pointers live as long as the callable
        return launch

    def bind_backward(self, pointers, tensors, dropout_seed=0):
        """The same of a backward kernel. `pointers`: BackwardArgs' fields by name; `tensors`: name -> (device
        pointer, sizes, att_dtype)."""
        args = BackwardArgs(struct_size=ctypes.sizeof(BackwardArgs), shape=self.shape, dropout_seed=dropout_seed,
                            **pointers)
        views = (TensorView * max(len(tensors), 1))()
        keep = []
        for name, (pointer, sizes, dtype) in tensors.items():
            keep.append((ctypes.c_int64 * len(sizes))(*sizes))
            views[self.tensor_slot(name)] = TensorView(pointer, keep[-1], None, dtype, len(sizes))
        if tensors:
            args.tensor_views, args.tensor_view_count = ctypes.cast(views, ctypes.c_void_p), len(tensors)
        reference, backward, handle, check = ctypes.byref(args), self._c.att_backward, self._handle, self._library._check

        def launch(stream):
            status = backward(handle, reference, stream)
            if status:
                check(status)

        launch.keep = (args, views, keep)
        return launch
