"""Spec: one variant of attention, validated."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import pathlib
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from attune import _structs
from attune._command import report
from attune._errors import AttuneError, BadInputError
from attune._explain import Explanation, explain
from attune._library import check, library
from attune._structs import DType, Layout, Pass, Shape
from attune._yaml import ScalarValue, write_spec

_MAX_DIMS = 4


@dataclasses.dataclass(frozen=True)
class ScalarInfo:
    """A scalar of a spec.

    Attributes:
        dtype: "int32", "float32", or "bool" of a constant.
        value: of a constant, which is folded into the kernel; None: the launch brings it.
    """

    name: str
    dtype: str
    value: float | None


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """An auxiliary tensor of a spec.

    Attributes:
        dtype: "int32", "float32" or "bool".
        dims: in their canonical form: "batch, kv_len", "heads, (q_len + 127) // 128".
        grad: whether a backward launch gives its gradient.
    """

    name: str
    dtype: str
    dims: str
    grad: bool


class Spec:
    """One variant of attention: its types, its head dim, and the expressions of its mask and score. Immutable.

    Made of keywords, or by `from_yaml` and `from_file`. docs/spec.md describes the keys, docs/language.md the
    expressions.

    Args:
        mask: bool expression, true where a key is live: "causal and document(doc)". None: every key is.
        score: float expression of `score`, the scaled product: "50 * tanh(score / 50)". None: `score`.
        sink: float expression of `b` and `h`: a logit that joins the softmax' denominator and no more.
        dtype: of q, k, v and o: "fp16", "bf16" or "fp32".
        head_dim: of q and k, and of v; or a pair where v has another. Multiples of 8, 8 to 256.
        layout: order of the axes of q, k, v and o: "bshd" is [batch, length, heads, head_dim], "bhsd"
            [batch, heads, length, head_dim], "thd" [tokens of all sequences, heads, head_dim]; "paged" is that of q
            and o, with k and v in pages [pages, page_size, kv_heads, head_dim].
        scalars: by name: a number is folded into the kernel, the type `int` or `float` leaves it to the launch.
        tensors: by name: dtype and dims, such as "int32[batch, kv_len]"; dims are `batch`, `heads`, `kv_heads`,
            `q_len`, `kv_len`, what is computed from one of them, such as "(q_len + 127) // 128", and numbers. A
            following "grad" asks the backward pass for its gradient.
        dropout: probability, in steps of 1/256; the type `float` leaves it to the launch.
        scale: what the product of q and k is multiplied by, above 0; None: 1 / sqrt(head_dim of q); the type
            `float` leaves it to the launch.
        passes: "forward", "backward" or both: what is tuned.
        precision: of fp32's products on GPUs: "strict", which None is too, or "tf32", faster and with errors of 2^-11
            an operand. An error with other dtypes; CPUs compute in fp32 whatever it says.
        kv_dtype: of k and v: "fp8_e4m3" with dtype "fp16" or "bf16": a cache of 8 bits, with scales that a launch
            brings. None: dtype.
        v_in_k: whether V is the first columns of K, as in latent attention (MLA), so that a launch brings K alone.
            head_dim is then up to (576, 512).
        shared_prefixes: whether pages that neighbouring sequences begin with alike are to be read once for several of
            them; of layout "paged".
        batch_invariant: whether a row of O and LSE is to be the same to the bit whatever else is in the batch.
        seed_on_device: whether kernels read dropout's seed and offset from the device's memory, as they do in a
            captured CUDA graph whatever the spec says.
        name: of the spec; kernels of equal specs are shared whatever they are called.

    Raises:
        BadInputError: what is wrong, with line, column and caret where it is in an expression.
    """

    def __init__(
        self,
        mask: str | None = None,
        score: str | None = None,
        *,
        sink: str | None = None,
        dtype: str,
        head_dim: int | tuple[int, int],
        layout: str = "bshd",
        scalars: Mapping[str, ScalarValue] | None = None,
        tensors: Mapping[str, str] | None = None,
        dropout: float | type[float] = 0.0,
        scale: float | type[float] | None = None,
        passes: Sequence[str] = ("forward",),
        precision: str | None = None,
        kv_dtype: str | None = None,
        v_in_k: bool = False,
        shared_prefixes: bool = False,
        batch_invariant: bool = False,
        seed_on_device: bool = False,
        name: str = "attention",
    ) -> None:
        text = write_spec(
            name=name,
            dtype=dtype,
            head_dim=head_dim,
            layout=layout,
            mask=mask,
            score=score,
            sink=sink,
            scalars=scalars or {},
            tensors=tensors or {},
            dropout=dropout,
            scale=scale,
            passes=passes,
            precision=precision,
            kv_dtype=kv_dtype,
            v_in_k=v_in_k,
            shared_prefixes=shared_prefixes,
            batch_invariant=batch_invariant,
            seed_on_device=seed_on_device,
        )
        self._take(_parse(text), text)

    @classmethod
    def from_yaml(cls, text: str) -> Spec:
        """Of a spec's YAML text."""
        spec = cls.__new__(cls)
        # Where a text or a name may stand, a text has an end of a line.
        spec._take(_parse(text), text if "\n" in text else text + "\n")
        return spec

    @classmethod
    def from_file(cls, path_or_name: str | os.PathLike[str]) -> Spec:
        """Of a file, or of a name of the library of specs: "causal", "models/llama3_8b"."""
        handle = ctypes.c_void_p()
        check(library().att_spec_from_file(os.fsencode(path_or_name), ctypes.byref(handle)))
        spec = cls.__new__(cls)
        name = os.fspath(path_or_name)
        # The text of a file is the spec's; a name of the library says the same everywhere.
        spec._take(handle, pathlib.Path(name).read_text() if os.path.isfile(name) else None, name)
        return spec

    def _take(self, handle: ctypes.c_void_p, text: str | None, name: Any = None) -> None:
        c = library()
        # What makes it again, in another process too: YAML, or a name of the library of specs.
        self.reference: str = text if text is not None else os.fsdecode(name)
        self.handle = handle
        weakref.finalize(self, c.att_spec_destroy, handle)
        self.yaml = text
        info = _structs.SpecInfo()
        check(c.att_spec_describe(handle, ctypes.byref(info)))
        self._info = info
        self.dtype_id = DType(info.dtype)
        self.kv_dtype_id = DType(info.kv_dtype)
        self.v_in_k = bool(info.v_in_k)
        self.layout_id = Layout(info.layout)
        self.scalars = tuple(self._scalar(slot) for slot in range(info.scalar_count))
        self.tensors = tuple(self._tensor(slot) for slot in range(info.tensor_count))
        self.tensor_slots = {tensor.name: slot for slot, tensor in enumerate(self.tensors)}
        self.launch_scalar_slots = {s.name: slot for slot, s in enumerate(self.scalars) if s.value is None}

    def _scalar(self, slot: int) -> ScalarInfo:
        info = _structs.ScalarInfo()
        check(library().att_spec_describe_scalar(self.handle, slot, ctypes.byref(info)))
        return ScalarInfo(info.name.decode(), DType(info.dtype).array_name, info.value if info.is_constant else None)

    def _tensor(self, slot: int) -> TensorInfo:
        info = _structs.TensorInfo()
        check(library().att_spec_describe_tensor(self.handle, slot, ctypes.byref(info)))
        return TensorInfo(info.name.decode(), DType(info.dtype).array_name, info.dims.decode(), bool(info.grad))

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self.reference,)

    def __copy__(self) -> Spec:
        return self

    def __deepcopy__(self, _: Any) -> Spec:
        return self  # nothing of it changes

    @property
    def name(self) -> str:
        """What messages call it; equal specs may have several."""
        return self._info.name.decode()

    @property
    def hash(self) -> str:
        """32 hex digits: equal for specs that mean the same."""
        return self._info.hash.decode()

    @property
    def dtype(self) -> str:
        """Of q and o: "float16", "bfloat16", "float32"."""
        return self.dtype_id.array_name

    @property
    def kv_dtype(self) -> str:
        """Of k and v: that of q, or "float8_e4m3fn"."""
        return self.kv_dtype_id.array_name

    @property
    def is_scaled(self) -> bool:
        """Whether a launch brings scales of k and v."""
        return self.kv_dtype_id == DType.FP8_E4M3

    @property
    def layout(self) -> str:
        """ "bshd", "bhsd", "thd" or "paged"."""
        return self.layout_id.name.lower()

    @property
    def head_dim(self) -> tuple[int, int]:
        """Of q and k, and of v and o."""
        return self._info.head_dim_qk, self._info.head_dim_v

    @property
    def scale(self) -> float | None:
        """None: the launch brings it."""
        return None if self._info.softmax_scale_at_launch else self._info.softmax_scale

    @property
    def dropout(self) -> float | None:
        """None: the launch brings it."""
        return None if self._info.dropout_at_launch else self._info.dropout

    @property
    def seed_on_device(self) -> bool:
        """Whether kernels read dropout's seed and offset from the device's memory."""
        return bool(self._info.dropout_seed_on_device)

    @functools.cached_property
    def with_device_seed(self) -> Spec:
        """The same, but with dropout's seed and offset in the device's memory.

        Raises:
            BadInputError: it has no dropout.
        """
        if self.seed_on_device:
            return self
        handle = ctypes.c_void_p()
        check(library().att_spec_with_device_seed(self.handle, ctypes.byref(handle)))
        spec = Spec.__new__(Spec)
        info = _structs.SpecInfo()
        check(library().att_spec_describe(handle, ctypes.byref(info)))
        spec._take(handle, info.yaml.decode())
        return spec

    @property
    def passes(self) -> tuple[str, ...]:
        """ "forward", "backward" or both: what is tuned."""
        return tuple(each.name.lower() for each in Pass if self._info.passes >> each & 1)

    @property
    def has_mask(self) -> bool:
        """Whether any key may be left out."""
        return bool(self._info.has_mask)

    @property
    def has_score(self) -> bool:
        """Whether the scaled product is bent."""
        return bool(self._info.has_score)

    @property
    def has_sink(self) -> bool:
        """Whether a logit joins the softmax' denominator."""
        return bool(self._info.has_sink)

    @property
    def deterministic(self) -> bool:
        """Whether results are the same to the bit at every launch."""
        return bool(self._info.deterministic)

    @functools.cached_property
    def in_order(self) -> Spec:
        """The same with `deterministic: true`."""
        if self.deterministic:
            return self
        text = re.sub(r"(?m)^deterministic[ \t]*:.*\n?", "", self._info.yaml.decode())
        return Spec.from_yaml(text.rstrip() + "\ndeterministic: true\n")

    def tensor_sizes(
        self, name: str, *, batch: int, heads: int, q_len: int, kv_heads: int | None = None, kv_len: int | None = None
    ) -> tuple[int, ...]:
        """The sizes that auxiliary tensor `name` must have at this shape. kv_heads: heads; kv_len: q_len."""
        if name not in self.tensor_slots:
            raise BadInputError(f"the spec has no tensor `{name}`", f"it has: {', '.join(self.tensor_slots) or 'none'}")
        shape = Shape(batch, heads, kv_heads or heads, q_len, kv_len or q_len)
        return self.tensor_sizes_at(self.tensor_slots[name], shape)

    def tensor_sizes_at(self, slot: int, shape: Shape) -> tuple[int, ...]:
        """The same of a slot and the library's own struct."""
        sizes = (ctypes.c_int64 * _MAX_DIMS)()
        check(library().att_spec_tensor_sizes(self.handle, slot, ctypes.byref(shape), sizes, _MAX_DIMS))
        dims = self.tensors[slot].dims
        return tuple(sizes[: dims.count(",") + 1]) if dims else ()

    def explain(
        self,
        *,
        batch: int = 1,
        heads: int = 1,
        kv_heads: int | None = None,
        q_len: int = 1024,
        kv_len: int | None = None,
        tensors: Mapping[str, Any] | None = None,
        target: str | None = None,
        batch_entry: int = 0,
        head: int = 0,
    ) -> Explanation:
        """The mask's picture, its tile classes, the plan and its cost at a shape, by the command `attune explain`.

        Args:
            kv_heads, kv_len: heads, q_len.
            tensors: arrays in the CPU's memory that the mask reads; others are drawn.
            target: such as "cpu", "sm_90a"; None: the first GPU, or the CPU.
            batch_entry, head: those of the picture.

        Raises:
            BadInputError: what is wrong.
            UnavailableError: the command is not there.
        """
        sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads or heads, "q_len": q_len}
        sizes["kv_len"] = kv_len or q_len
        return explain(self.reference, sizes, tensors or {}, target, batch_entry, head)

    def tune(
        self,
        shapes: Sequence[Mapping[str, int]],
        *,
        passes: str | None = None,
        tensors: Mapping[str, Any] | None = None,
        device: str | None = None,
        cache_file: str | os.PathLike[str] | None = None,
        max_candidates: int | None = None,
        shows: bool = True,
    ) -> list[dict[str, Any]]:
        """Searches the fastest plan for each shape, by the command `attune tune`; attune.tune does it on a call's data.

        What is found lies in the cache file. A Runtime of this process takes it up at `refresh`.

        Args:
            shapes: such as {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 4096}; what is left out is as
                `attune tune --shape` has it.
            passes: "forward", "backward" or "both"; None: the spec's.
            tensors: arrays in the CPU's memory, instead of drawn ones.
            device: "cpu", "cuda:0"; None: the first GPU, or the CPU.
            cache_file: None: the user's.
            shows: progress, on stderr.

        Returns:
            For each shape and pass what `attune tune --json` says: "plan", "median_us", "measured" and more.

        Raises:
            BadInputError: what is wrong.
            UnavailableError: there is no command, device or compiler.
        """
        options = [] if passes is None else ["--pass", passes]
        options += [] if device is None else ["--device", device]
        options += [] if cache_file is None else ["--cache", os.fspath(cache_file)]
        options += [] if max_candidates is None else ["--max-candidates", str(max_candidates)]
        found = []
        for shape in shapes:
            sizes = ",".join(f"{name}={size}" for name, size in shape.items())
            said = report("tune", self.reference, [*options, "--shape", sizes], tensors or {}, shows)
            found += said["results"]
        return found

    def _repr_svg_(self) -> str | None:
        """The mask at 1024 tokens, its tensors drawn; None, and so the text, where it cannot be."""
        try:
            return self.explain().svg
        except AttuneError:
            return None

    def __repr__(self) -> str:
        return f"<attune.Spec {self.name}: {self.dtype}, head_dim {self.head_dim}, {self.layout}, {self.hash}>"


def _parse(text: str) -> ctypes.c_void_p:
    if "\0" in text:
        raise BadInputError("a spec holds a character NUL")
    handle = ctypes.c_void_p()
    check(library().att_spec_from_yaml(text.encode(), ctypes.byref(handle)))
    return handle


@functools.lru_cache(maxsize=1024)
def spec_of_text(text: str) -> Spec:
    """Spec.from_yaml, once a text: a call that brings its variant as words costs a look-up from then on."""
    return Spec.from_yaml(text)


def _made_again(reference: str) -> Spec:
    """What `Spec.reference` says, in a process that may be another one."""
    return spec_of_text(reference) if "\n" in reference else spec_of_name(reference)


@functools.lru_cache(maxsize=256)
def spec_of_name(name: str) -> Spec:
    """Spec.from_file of a name of the library, which never changes."""
    return Spec.from_file(name)
