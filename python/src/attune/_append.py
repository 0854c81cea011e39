"""New keys and values into a cache: what a launch of att_append is given, checked and filled in."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping
from typing import Any

from attune import _scales
from attune._dlpack import contiguous_strides
from attune._errors import BadInputError
from attune._launch import refuse, refuse_to_copy
from attune._library import check, library
from attune._packed import check_int32, check_list
from attune._structs import DTYPE_BY_ARRAY_NAME, FP8_ARRAY_NAMES, AppendArgs, DType, Layout, Rope, Shape
from attune._view import View, axes, operand_strides
from attune.runtime import Runtime

# The arrays of a launch, as members of att_append_args.
NAMES = (
    "q", "k", "v", "q_out", "k_cache", "v_cache", "cu_q", "used_q", "cu_kv", "used_kv", "page_table", "positions",
    "cosines", "sines", "k_scales", "v_scales",
)  # fmt: skip
WRITTEN = ("q_out", "k_cache", "v_cache")
_INT32 = ("cu_q", "used_q", "cu_kv", "used_kv", "page_table", "positions")
_LARGEST_HEAD_DIM = 256
_SIZES_OF_CACHE = {
    Layout.BSHD: "[batch, length, kv_heads, head_dim]",
    Layout.BHSD: "[batch, kv_heads, length, head_dim]",
    Layout.THD: "[rows, kv_heads, head_dim]",
    Layout.PAGED: "[pages, page_size, kv_heads, head_dim]",
}

Views = Mapping[str, "View | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What a launch is told in numbers and words, as attune.append has it. Hashable."""

    rope: str | None = None
    rotary_dim: int | None = None
    rope_base: float | None = None
    rope_factor: float | None = None
    layout: str | None = None


class AppendPlan:
    """Launches on arrays of known sizes, strides, dtypes and device: all but addresses is worked out. Thread-safe: each
    launch takes structs of its own from a pool.

    Attributes:
        copied: names of the arrays that no launch takes as they lie, and that are to be copied, contiguous.

    Raises:
        BadInputError, UnsupportedError: the arrays fit neither each other nor a kernel.
    """

    def __init__(self, options: Options, views: Views, runtime: Runtime) -> None:
        k, k_cache = views["k"], views["k_cache"]
        if k is None or k_cache is None:
            raise BadInputError(f"`{'k' if k is None else 'k_cache'}` is None", "new keys, and where they go")
        self.copied: list[str] = []
        self._check_kinds(views, k, k_cache)
        self.layout = _layout(options.layout, views)
        tokens, kv_heads, dim = k.sizes
        batch = self._check_lists(views, k)
        slices, kv_len = self._check_caches(views, k, k_cache, batch)
        self._check_queries(views, k)
        self.scales = _scales.scales_of(
            k_cache.dtype in FP8_ARRAY_NAMES, views["k_scales"], views["v_scales"], views["v"] is not None, slices,
            kv_heads, k.device,
        )  # fmt: skip
        rotary_dim = _check_rotation(options, views, dim)
        heads = kv_heads if (q := views["q"] or views["q_out"]) is None else q.sizes[1]
        self.shape = Shape(batch, heads, kv_heads, tokens, kv_len)
        self.slices, self.views = slices, views
        self.is_on_cpu, self.has_work = k.device == "cpu", bool(batch and tokens)
        self.members = tuple(name for name in NAMES if views[name] is not None)
        self.function, self.handle = _function(), 0
        self.pool: list[tuple[AppendArgs, int]] = []
        if self.has_work:
            v = views["v"]
            self.kernel = runtime.append_kernel(
                dtype=DTYPE_BY_ARRAY_NAME[k.dtype],
                cache_dtype=_cache_dtype(k_cache),
                head_dim_qk=dim,
                head_dim_v=dim if v is None else v.sizes[2],
                rope=Rope[(options.rope or "none").upper()],
                rotary_dim=rotary_dim,
                rope_base=options.rope_base or 0.0,
                rope_factor=options.rope_factor or 0.0,
            )
            self.handle = self.kernel.handle
            self.pool.append(self._arguments())

    def run(self, addresses: Mapping[str, int], stream: int | None) -> None:
        """Enqueues a launch on arrays at these addresses, those of `members`."""
        try:
            args, address = self.pool.pop()
        except IndexError:
            args, address = self._arguments()
        for name, pointer in addresses.items():
            setattr(args, name, pointer)
        status = self.function(self.handle, address, stream)
        if status:
            check(status)
        self.pool.append((args, address))

    def _check_kinds(self, views: Views, k: View, k_cache: View) -> None:
        """Dtypes, devices, and the dims of new tokens."""
        if DTYPE_BY_ARRAY_NAME.get(k.dtype) not in (DType.FP16, DType.BF16, DType.FP32):
            refuse("k", f"is {k.dtype}", "new keys are float16, bfloat16 or float32")
        for name in ("q", "k", "v", "q_out"):
            view = views[name]
            if view is None:
                continue
            if len(view.sizes) != 3:
                refuse(name, f"has {len(view.sizes)} dims, not the 3 of new tokens: [tokens, heads, head_dim]")
            if view.dtype != k.dtype:
                refuse(name, f"is {view.dtype}, and `k` is {k.dtype}")
            if view.sizes[0] != k.sizes[0]:
                refuse(name, f"has {view.sizes[0]} tokens, and `k` {k.sizes[0]}")
        for name, view in views.items():
            if view is not None and view.device != k.device:
                refuse(name, f"is on {view.device}, and `k` on {k.device}")
        if k_cache.dtype != k.dtype and k_cache.dtype not in FP8_ARRAY_NAMES:
            refuse("k_cache", f"is {k_cache.dtype}, and `k` is {k.dtype}", "they are of one dtype, or the cache of fp8")
        v, v_cache = views["v"], views["v_cache"]
        if (v is None) != (v_cache is None):
            given, missing = ("v", "v_cache") if v_cache is None else ("v_cache", "v")
            refuse(given, f"is given, and `{missing}` is None", "both, or with V in the columns of K none")
        if v_cache is not None and v_cache.dtype != k_cache.dtype:
            refuse("v_cache", f"is {v_cache.dtype}, and `k_cache` is {k_cache.dtype}")

    def _check_lists(self, views: Views, k: View) -> int:
        """Those of int32; returns the number of sequences."""
        for name in _INT32:
            view = views[name]
            if view is not None:
                check_int32(name, view, k.device, "k")
                self._copy_unless(name, view, view.is_contiguous)
        cu_q, table = views["cu_q"], views["page_table"]
        check_list("cu_q", cu_q, None)
        if cu_q is None or not cu_q.sizes[0]:
            hint = "where the new tokens of each sequence begin, and the last ones end: int32 [sequences + 1]"
            raise BadInputError("`cu_q` is missing" if cu_q is None else "`cu_q` is empty", hint)
        batch = cu_q.sizes[0] - 1
        check_list("used_q", views["used_q"], batch)
        check_list("used_kv", views["used_kv"], batch)
        check_list("cu_kv", views["cu_kv"], batch + 1)
        check_list("positions", views["positions"], k.sizes[0])
        if self.layout == Layout.PAGED:
            assert table is not None
            if len(table.sizes) != 2 or table.sizes[0] != batch:
                refuse("page_table", f"is {table.sizes}, not [{batch}, pages of a sequence]")
            if views["used_kv"] is None:
                hint = "how many keys each sequence has, the new ones too: int32 [sequences]"
                raise BadInputError("a paged cache wants `used_kv`", hint)
        return batch

    def _check_caches(self, views: Views, k: View, k_cache: View, batch: int) -> tuple[int, int]:
        """Returns how many parts have scales of their own, and the most keys that a sequence may have."""
        wanted = _SIZES_OF_CACHE[self.layout]
        for name, new in (("k", k), ("v", views["v"])):
            cache = views[f"{name}_cache"]
            if new is None or cache is None:
                continue
            if len(cache.sizes) != wanted.count(",") + 1:
                refuse(f"{name}_cache", f"is {cache.sizes}, not {wanted}")
            if _axes(self.layout, cache.sizes)[2:] != (k.sizes[1], new.sizes[2]):
                refuse(f"{name}_cache", f"is {cache.sizes}, not {wanted}, and `{name}` is {new.sizes}")
            if not cache.is_operand(_cache_dtype(cache)):
                refuse_to_copy(f"{name}_cache", cache)
            self._copy_unless(name, new, new.is_operand(DTYPE_BY_ARRAY_NAME[k.dtype]))
        v, v_cache = views["v"], views["v_cache"]
        slices, rows, _, _ = _axes(self.layout, k_cache.sizes)
        if v is not None and v_cache is not None:
            if v.sizes[:2] != k.sizes[:2]:
                refuse("v", f"is {v.sizes}, and `k` {k.sizes}")
            if _axes(self.layout, v_cache.sizes)[:2] != (slices, rows):
                refuse("v_cache", f"is {v_cache.sizes}, and `k_cache` {k_cache.sizes}")
        for name, view in (("k", k), ("v", v)):
            if view is not None and view.sizes[2] > _LARGEST_HEAD_DIM:
                hint = "append it in several heads' columns: k.unflatten(-1, (2, -1)), and the cache likewise"
                refuse(name, f"has head_dim {view.sizes[2]}, and one launch at most {_LARGEST_HEAD_DIM}", hint)
        if self.layout == Layout.PAGED:
            table = views["page_table"]
            assert table is not None
            return slices, table.sizes[1] * rows
        if self.layout != Layout.THD and slices != batch:
            refuse("k_cache", f"has batch {slices}, and `cu_q` is of {batch} sequences")
        return slices, rows

    def _check_queries(self, views: Views, k: View) -> None:
        q, q_out = views["q"], views["q_out"]
        for name, view in (("q", q), ("q_out", q_out)):
            if view is None:
                continue
            _, heads, dim = view.sizes
            if dim != k.sizes[2]:
                refuse(name, f"has head_dim {dim}, and `k` {k.sizes[2]}")
            if k.sizes[1] == 0 or heads % k.sizes[1]:
                refuse(name, f"has {heads} heads, no multiple of the {k.sizes[1]} of `k`")
        dtype = DTYPE_BY_ARRAY_NAME[k.dtype]
        if q_out is not None and not q_out.is_operand(dtype):
            refuse("q_out", f"has strides {q_out.strides}, which no kernel walks", "it is written, and not copied")
        if q is not None:
            if q_out is None:
                raise BadInputError("`q` is given, and `q_out` is None")
            if q_out.sizes != q.sizes:
                refuse("q_out", f"is {q_out.sizes}, and `q` {q.sizes}")
            self._copy_unless("q", q, q.is_operand(dtype))

    def _copy_unless(self, name: str, view: View, fits: bool) -> None:
        if not fits:
            self.copied.append(name)
            view.strides = contiguous_strides(view.sizes)

    def _arguments(self) -> tuple[AppendArgs, int]:
        """All but the addresses, and where they lie themselves."""
        args = AppendArgs(layout=self.layout, shape=self.shape)
        for name in ("q", "k", "v", "q_out", "k_cache", "v_cache"):
            view = self.views[name]
            if view is None:
                continue
            of = self.layout if name.endswith("cache") else Layout.THD
            setattr(args, f"{name}_strides", operand_strides(of, view))
        if self.views["q"] is None and self.views["q_out"] is not None:
            args.q_out_strides = args.q_strides = operand_strides(Layout.THD, self.views["q_out"])
        if table := self.views["page_table"]:
            args.pages_per_sequence = table.sizes[1]
            k_cache = self.views["k_cache"]
            assert k_cache is not None
            args.pages, args.page_size = _axes(self.layout, k_cache.sizes)[:2]
        if cosines := self.views["cosines"]:
            args.table_positions = cosines.sizes[0]
            args.table_stride = cosines.strides[0] if cosines.sizes[0] != 1 else 0
        _scales.fill(args, self.scales, self.slices, self.shape.kv_heads)
        return args, ctypes.addressof(args)


def _function() -> Any:
    """att_append on addresses: without the checks of argtypes, which cost as much as the call."""
    global _of_addresses
    if _of_addresses is None:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        _of_addresses = prototype(("att_append", library()))
    return _of_addresses


_of_addresses: Any = None


def _cache_dtype(view: View) -> DType:
    return DType.FP8_E4M3 if view.dtype in FP8_ARRAY_NAMES else DTYPE_BY_ARRAY_NAME[view.dtype]


def _axes(layout: Layout, sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(slices, rows, heads, dim) of a cache."""
    return (1, *sizes) if layout == Layout.THD else axes(layout, sizes)  # type: ignore[arg-type, return-value]


def _layout(name: str | None, views: Views) -> Layout:
    """As it was said, or as the arrays tell it."""
    told = "paged" if views["page_table"] is not None else "thd" if views["cu_kv"] is not None else None
    if views["page_table"] is not None and views["cu_kv"] is not None:
        refuse("cu_kv", "is given, and keys lie in pages", "used_kv says how many each sequence has")
    if name is not None and name.upper() not in Layout.__members__:
        raise BadInputError(f"there is no layout `{name}`", 'layouts are "bshd", "bhsd", "thd" and "paged"')
    if told is not None and name is not None and name != told:
        given = "page_table" if told == "paged" else "cu_kv"
        refuse(given, f"is given, and the cache is of layout {name}", f'it is of layout "{told}"')
    if told is None and name in ("thd", "paged"):
        wanted = "page_table" if name == "paged" else "cu_kv"
        raise BadInputError(f"layout {name} wants `{wanted}`")
    return Layout[(told or name or "bshd").upper()]


def _check_rotation(options: Options, views: Views, dim: int) -> int:
    """How many elements of a head turn."""
    cosines, sines = views["cosines"], views["sines"]
    rope = options.rope
    if rope is None:
        for name in ("rotary_dim", "rope_base", "rope_factor"):
            if getattr(options, name) is not None:
                refuse(name, "is given, and nothing turns", 'rope="half" or rope="interleaved"')
        for name in ("cosines", "sines", "positions"):
            if views[name] is not None:
                refuse(name, "is given, and nothing turns", 'rope="half" or rope="interleaved"')
        return 0
    if rope not in ("half", "interleaved"):
        raise BadInputError(f"there is no rope `{rope}`", '"half" (GPT-NeoX, Llama) or "interleaved" (GPT-J)')
    rotary_dim = dim if options.rotary_dim is None else options.rotary_dim
    if rotary_dim < 2 or rotary_dim > dim or rotary_dim % 2:
        refuse("rotary_dim", f"is {rotary_dim}", f"an even number from 2 to head_dim = {dim}")
    for name in ("rope_base", "rope_factor"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            refuse(name, f"is {value}", "a number above 0")
    if (cosines is None) != (sines is None):
        refuse("cosines" if sines is None else "sines", "is given without the other", "both tables, or none")
    if cosines is None or sines is None:
        return rotary_dim
    for name, view in (("cosines", cosines), ("sines", sines)):
        if options.rope_base is not None or options.rope_factor is not None:
            refuse(name, "is given, and `rope_base` or `rope_factor` too", "tables say all of it")
        if view.dtype != "float32":
            refuse(name, f"is {view.dtype}, not float32")
        if len(view.sizes) != 2 or view.sizes[1] != rotary_dim // 2 or not view.sizes[0]:
            refuse(name, f"is {view.sizes}, not [positions, {rotary_dim // 2}]")
        if view.sizes != cosines.sizes or (view.sizes[0] != 1 and view.strides[0] != cosines.strides[0]):
            refuse(name, f"is {view.sizes} by {view.strides}, and `cosines` {cosines.sizes} by {cosines.strides}")
        # Rows may be columns of one matrix, cosines beside sines.
        if view.sizes[1] != 1 and view.strides[1] != 1:
            refuse(name, f"has strides {view.strides}, not 1 from pair to pair")
    return rotary_dim
