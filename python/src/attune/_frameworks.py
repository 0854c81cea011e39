"""What is asked of each array framework: a View of an array, a contiguous copy, new arrays, its stream.

No framework is imported: an array's own module is there already.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Protocol

from attune import _dlpack
from attune._errors import BadInputError, UnavailableError, UnsupportedError
from attune._view import View


def is_torch_there() -> bool:
    """Whether the program has imported torch. None in its place says that nobody shall."""
    return sys.modules.get("torch") is not None


# torch.compile takes what it returns for a constant. Reading the body it would walk through sys.modules, into which
# other threads import meanwhile, and guard each graph by it.
is_torch_there._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Framework(Protocol):
    """One framework. Dtypes are NumPy's names ("float32"), devices "cpu" or "cuda:N"."""

    def view(self, array: Any) -> View:
        """Where the array lies."""

    def contiguous(self, array: Any) -> Any:
        """A row-major copy, aligned as new arrays are."""

    def empty(self, sizes: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new row-major array, its values undefined."""

    def finish(self, array: Any) -> Any:
        """What the caller gets for an array that `empty` made and a launch filled."""

    def stream(self, device: str) -> int | None:
        """The CUstream that the framework enqueues on; None: the legacy default stream."""


class _NumPy:
    def view(self, array: Any) -> View:
        item = array.itemsize
        if any(stride % item for stride in array.strides):
            return self.view(self.contiguous(array))  # a field of a record array
        strides = tuple(stride // item for stride in array.strides)
        dtype = array.dtype.name if array.dtype.isnative else array.dtype.str  # of bytes in another order
        return View(array.ctypes.data, array.shape, strides, dtype, "cpu", array)

    def contiguous(self, array: Any) -> Any:
        return array.copy(order="C")

    def empty(self, sizes: tuple[int, ...], dtype: str, device: str) -> Any:
        numpy = sys.modules["numpy"]
        if dtype == "bfloat16":  # NumPy has none of its own; whoever brought such an array has ml_dtypes
            return numpy.empty(sizes, sys.modules["ml_dtypes"].bfloat16)
        return numpy.empty(sizes, dtype)

    def finish(self, array: Any) -> Any:
        return array

    def stream(self, device: str) -> int | None:
        return None


class _Torch:
    def view(self, array: Any) -> View:
        if array.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise UnsupportedError(
                "a tensor requires a gradient, which attune.attention does not make",
                "attune.torch.flex_attention does where it can; or call under torch.no_grad()",
            )
        dtype = str(array.dtype).removeprefix("torch.")
        return View(array.data_ptr(), tuple(array.shape), array.stride(), dtype, self.device(array), array)

    def device(self, array: Any) -> str:
        """ "cpu" or "cuda:N"."""
        if array.device.type not in ("cpu", "cuda"):
            raise BadInputError(f"a tensor is on `{array.device}`", "Attune runs on CPUs and CUDA devices")
        return f"cuda:{array.device.index}" if array.device.type == "cuda" else "cpu"

    def contiguous(self, array: Any) -> Any:
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)

    def empty(self, sizes: tuple[int, ...], dtype: str, device: str) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(sizes, dtype=getattr(torch, dtype), device=device)

    def finish(self, array: Any) -> Any:
        """A tensor that was there before is a new version of itself, as after torch's own in-place operations."""
        if not array.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(array)
        return array

    def stream(self, device: str) -> int | None:
        if device == "cpu":
            return None
        return sys.modules["torch"].cuda.current_stream(device).cuda_stream


class _CuPy:
    def view(self, array: Any) -> View:
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return View(array.data.ptr, array.shape, strides, array.dtype.name, f"cuda:{array.device.id}", array)

    def contiguous(self, array: Any) -> Any:
        return array.copy(order="C")

    def empty(self, sizes: tuple[int, ...], dtype: str, device: str) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(int(device.removeprefix("cuda:"))):
            return cupy.empty(sizes, dtype)

    def finish(self, array: Any) -> Any:
        return array

    def stream(self, device: str) -> int | None:
        return sys.modules["cupy"].cuda.get_current_stream().ptr


class _DLPack:
    """Any other framework of the array API. On the CPU, NumPy makes what it then takes by its `from_dlpack`."""

    def __init__(self, array: Any) -> None:
        self._namespace = array.__array_namespace__ if hasattr(array, "__array_namespace__") else None

    def view(self, array: Any) -> View:
        return _dlpack.view(array)

    def contiguous(self, array: Any) -> Any:
        return self._numpy("a strided array").from_dlpack(array).copy(order="C")

    def empty(self, sizes: tuple[int, ...], dtype: str, device: str) -> Any:
        if device != "cpu":
            raise UnsupportedError(
                "an output on a CUDA device can be made for torch, CuPy and JAX only", "hand the arrays over as theirs"
            )
        if dtype == "bfloat16":
            raise UnsupportedError("NumPy hands no bfloat16 to this framework", "hand over arrays of torch or JAX")
        return self._numpy("an output").empty(sizes, dtype)

    def finish(self, array: Any) -> Any:
        if self._namespace is None:
            return array
        return self._namespace().from_dlpack(array)

    def stream(self, device: str) -> int | None:
        return None

    def _numpy(self, what: str) -> Any:
        try:
            import numpy
        except ImportError:
            raise UnsupportedError(f"{what} of this framework needs NumPy", "install numpy") from None
        return numpy


class _JAX(_DLPack):
    """JAX has no stream to enqueue on: its arrays are ready when it hands them over, and so are ours. Its types go
    through NumPy by ml_dtypes, which JAX needs itself and which NumPy hands to nobody by DLPack."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self._devices = array.devices()

    def empty(self, sizes: tuple[int, ...], dtype: str, device: str) -> Any:
        if device == "cpu":
            return self._numpy("an output").empty(sizes, dtype)
        jax = sys.modules["jax"]
        place = jax.devices("cuda")[int(device.removeprefix("cuda:"))]
        # A buffer that nobody else has seen yet may still be written.
        return jax.numpy.zeros(sizes, dtype, device=place).block_until_ready()

    def contiguous(self, array: Any) -> Any:
        return array.copy()  # row-major, as JAX's arrays are

    def finish(self, array: Any) -> Any:
        if isinstance(framework_of("an output", array), _NumPy):  # on the CPU
            (device,) = self._devices  # `view` took no array of several
            return sys.modules["jax"].device_put(array, device)
        _synchronize()
        return array


def _synchronize() -> None:
    """Waits for the current CUDA context, which a launch has made current."""
    if status := ctypes.CDLL("libcuda.so.1").cuCtxSynchronize():
        raise UnavailableError(f"the CUDA driver's cuCtxSynchronize failed with {status}")


_BY_MODULE: dict[str, Framework] = {"numpy": _NumPy(), "torch": _Torch(), "cupy": _CuPy()}


def is_writable(array: Any) -> bool:
    """Whether a launch may write into it: arrays of other frameworks are taken for what nobody changes."""
    framework = framework_of("an array", array)
    if isinstance(framework, _NumPy):
        return bool(array.flags.writeable)
    return isinstance(framework, (_Torch, _CuPy))


def framework_of(name: str, array: Any) -> Framework:
    """Of the argument called `name`.

    Raises:
        BadInputError: it is no array.
        UnsupportedError: it has no numbers, as in code that JAX compiles.
    """
    jax = sys.modules.get("jax")
    kind = getattr(jax, "Array", None)  # there is none while another thread imports it
    if kind is not None and isinstance(array, kind):
        if isinstance(array, jax.core.Tracer):
            raise UnsupportedError(
                f"`{name}` is traced by JAX, which has no numbers yet",
                "call attune.attention outside of jax.jit, jax.vmap and jax.grad",
            )
        if hasattr(array, "__dlpack_device__"):  # keys of random numbers have none
            return _JAX(array)
    for base in type(array).__mro__:  # a torch.nn.Parameter is torch's, a numpy.memmap NumPy's
        known = _BY_MODULE.get(base.__module__.partition(".")[0])
        if known is not None:
            if not hasattr(array, "shape") or not hasattr(array, "__dlpack__"):
                break
            return known
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _DLPack(array)
    raise BadInputError(
        f"`{name}` is a {type(array).__name__}, not an array", "hand over an array of NumPy, torch, CuPy, or of DLPack"
    )
