"""Packed sequences, layout thd: one behind the other and without padding. docs/packed.md has the rules."""

from __future__ import annotations

import dataclasses
from typing import Any

from attune import _launch
from attune._errors import BadInputError
from attune._frameworks import Framework, framework_of
from attune._launch import Allocator, Launch, Sequences, refuse
from attune._structs import Layout, Shape
from attune._view import ALIGNMENT_BYTES, View
from attune.runtime import Runtime
from attune.spec import Spec


@dataclasses.dataclass(slots=True)
class Offsets:
    """Where sequences lie, as arrays of the caller's or as views of these."""

    cu_q: Any = None
    cu_kv: Any = None
    used_q: Any = None
    used_kv: Any = None
    page_table: Any = None

    @property
    def is_given(self) -> bool:
        given = (self.cu_q, self.cu_kv, self.used_q, self.used_kv, self.page_table)
        return any(each is not None for each in given)


OFFSETS = tuple(field.name for field in dataclasses.fields(Offsets))


def check_int32(name: str, view: View, device: str, beside: str = "q") -> None:
    """Raises BadInputError unless a launch on the device may read it."""
    if view.dtype != "int32":
        refuse(name, f"is {view.dtype}, not int32", f"{name}.astype('int32'), in torch {name}.to(torch.int32)")
    if view.device != device:
        refuse(name, f"is on {view.device}, and `{beside}` on {device}")


def int32_view(name: str, array: Any, device: str, beside: str = "q") -> View | None:
    """Of an array that a launch is given as it is, contiguous; None of None."""
    if array is None:
        return None
    framework = framework_of(name, array)
    view = framework.view(array)
    check_int32(name, view, device, beside)
    return view if view.is_contiguous else framework.view(framework.contiguous(array))


def offset_views(offsets: Offsets, device: str) -> Offsets:
    return Offsets(**{name: int32_view(name, getattr(offsets, name), device) for name in OFFSETS})


def check_list(name: str, view: View | None, count: int | None) -> None:
    """Raises BadInputError unless it is [count], or of any count, or None."""
    if view is not None and (len(view.sizes) != 1 or (count is not None and view.sizes[0] != count)):
        refuse(name, f"is {view.sizes}, not [{'sequences + 1' if count is None else count}]")


def query_offsets(offsets: Offsets, layout: str) -> tuple[View, int]:
    """cu_q, and the number of sequences."""
    cu_q: View | None = offsets.cu_q
    check_list("cu_q", cu_q, None)
    if cu_q is None:
        hint = "where each sequence begins, and the last one ends: int32 [sequences + 1]"
        raise BadInputError(f"layout {layout} wants `cu_q`", hint)
    if not cu_q.sizes[0]:
        refuse("cu_q", "is empty", "no sequences at all are [0]")
    return cu_q, cu_q.sizes[0] - 1


def sequences_of(offsets: Offsets) -> tuple[Sequences, int]:
    """What a launch is given, of views, and the number of sequences."""
    cu_q, batch = query_offsets(offsets, "thd")
    check_list("cu_kv", offsets.cu_kv, batch + 1)
    check_list("used_q", offsets.used_q, batch)
    check_list("used_kv", offsets.used_kv, batch)
    return Sequences(cu_q, offsets.cu_kv or cu_q, offsets.used_q, offsets.used_kv), batch


def shape_of(batch: int, q: View, k: View, v: View | None) -> Shape:
    """The problem's sizes: tokens of all sequences together.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    _launch.check_alike(q, k, v, 3, "thd: [tokens, heads, head_dim]")
    (q_len, heads, _), (kv_len, kv_heads, _) = q.sizes, k.sizes
    _launch.check_heads("thd", q, heads, kv_heads, k, v)
    return Shape(batch, heads, kv_heads, q_len, kv_len)


def run(
    framework: Framework,
    spec: Spec,
    shape: Shape,
    sequences: Sequences,
    views: list[Any],
    arrays: tuple[Any, Any, Any],
    launch: Launch,
    return_lse: bool,
    runtime: Runtime | None,
) -> tuple[Any, Any]:
    """O [tokens, heads, head_dim of v] and LSE [heads, tokens] as the framework's arrays."""
    q = views[0]
    o = framework.empty((shape.q_len, shape.heads, spec.head_dim[1]), q.dtype, q.device)
    lse = framework.empty((shape.heads, shape.q_len), "float32", q.device) if return_lse else None
    # A launch leaves rows alone that are no sequence's.
    o[...] = 0
    if lse is not None:
        lse[...] = -float("inf")
    if has_work(shape):
        operands = _launch.operand_views(spec, views, arrays, sequences.page_table is not None)
        written = framework_of("o", o).view(o), None if lse is None else framework_of("lse", lse).view(lse)
        _launch.forward(
            spec, shape, operands, *written, launch, allocator(framework, q.device),
            framework.stream(q.device), runtime, sequences,
        )  # fmt: skip
    return framework.finish(o), None if lse is None else framework.finish(lse)


def has_work(shape: Shape) -> bool:
    return bool(shape.batch and shape.q_len and shape.kv_len)


def allocator(framework: Framework, device: str) -> Allocator:
    """Of a launch's scratch memory."""

    def allocate(count: int) -> tuple[int, Any]:
        scratch = framework.empty((count + ALIGNMENT_BYTES,), "uint8", device)
        pointer = framework_of("workspace", scratch).view(scratch).pointer
        return -(-pointer // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, scratch

    return allocate


def check_layout(spec: Spec, sequences: Sequences) -> None:
    """Raises BadInputError unless the spec's layout is that of the sequences."""
    if spec.layout_id != sequences.layout:
        given = "offsets of sequences are" if sequences.layout == Layout.THD else "a table of pages is"
        raise BadInputError(
            f"the spec `{spec.name}` is of layout {spec.layout}, and {given} given",
            f"layout: {sequences.layout.name.lower()}",
        )
