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
    """The arrays that say where sequences lie, as the caller has them."""

    cu_q: Any = None
    cu_kv: Any = None
    used_q: Any = None
    used_kv: Any = None
    page_table: Any = None

    @property
    def is_given(self) -> bool:
        given = (self.cu_q, self.cu_kv, self.used_q, self.used_kv, self.page_table)
        return any(each is not None for each in given)


def int32_view(name: str, array: Any, device: str) -> View:
    """Of an array that a launch is given as it is, contiguous."""
    framework = framework_of(name, array)
    view = framework.view(array)
    if view.dtype != "int32":
        refuse(name, f"is {view.dtype}, not int32", f"{name}.astype('int32'), in torch {name}.to(torch.int32)")
    if view.device != device:
        refuse(name, f"is on {view.device}, and `q` on {device}")
    return view if view.is_contiguous else framework.view(framework.contiguous(array))


def list_view(name: str, array: Any, count: int | None, device: str) -> View | None:
    """Of int32 [count], or of any count; None of None."""
    if array is None:
        return None
    view = int32_view(name, array, device)
    if len(view.sizes) != 1 or (count is not None and view.sizes[0] != count):
        refuse(name, f"is {view.sizes}, not [{'sequences + 1' if count is None else count}]")
    return view


def query_offsets(offsets: Offsets, device: str, layout: str) -> tuple[View, int]:
    """cu_q, and the number of sequences."""
    cu_q = list_view("cu_q", offsets.cu_q, None, device)
    if cu_q is None:
        hint = "where each sequence begins, and the last one ends: int32 [sequences + 1]"
        raise BadInputError(f"layout {layout} wants `cu_q`", hint)
    if not cu_q.sizes[0]:
        refuse("cu_q", "is empty", "no sequences at all are [0]")
    return cu_q, cu_q.sizes[0] - 1


def sequences_of(offsets: Offsets, device: str) -> tuple[Sequences, int]:
    """What a launch is given, and the number of sequences."""
    cu_q, batch = query_offsets(offsets, device, "thd")
    cu_kv = list_view("cu_kv", offsets.cu_kv, batch + 1, device) or cu_q
    used_q = list_view("used_q", offsets.used_q, batch, device)
    used_kv = list_view("used_kv", offsets.used_kv, batch, device)
    return Sequences(cu_q, cu_kv, used_q, used_kv), batch


def shape_of(batch: int, q: View, k: View, v: View) -> Shape:
    """The problem's sizes: tokens of all sequences together.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    _launch.check_alike(q, k, v, 3, "thd: [tokens, heads, head_dim]")
    (q_len, heads, dim), (kv_len, kv_heads, k_dim) = q.sizes, k.sizes
    if k_dim != dim:
        refuse("k", f"has head_dim {k_dim}, and `q` {dim}")
    if v.sizes[:2] != (kv_len, kv_heads):
        refuse("v", f"is {v.sizes}, and `k` {k.sizes}, in layout thd")
    if kv_heads == 0 or heads % kv_heads:
        refuse("q", f"has {heads} heads, no multiple of the {kv_heads} of `k`, in layout thd")
    return Shape(batch, heads, kv_heads, q_len, kv_len)


def run(
    framework: Framework,
    spec: Spec,
    shape: Shape,
    sequences: Sequences,
    views: list[View],
    arrays: tuple[Any, Any, Any],
    launch: Launch,
    return_lse: bool,
    runtime: Runtime | None,
) -> tuple[Any, Any]:
    """O [tokens, heads, head_dim of v] and LSE [heads, tokens] as the framework's arrays."""
    q, _, v = views
    check_sequences(spec, views, sequences)
    o = framework.empty((shape.q_len, shape.heads, v.sizes[-1]), q.dtype, q.device)
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


def check_sequences(spec: Spec, views: list[View], sequences: Sequences) -> None:
    """Raises BadInputError unless operands and sequences are such as the spec has."""
    q, _, v = views
    _launch.check_operands(spec, q, v)
    if spec.layout_id != sequences.layout:
        given = "offsets of sequences are" if sequences.layout == Layout.THD else "a table of pages is"
        raise BadInputError(
            f"the spec `{spec.name}` is of layout {spec.layout}, and {given} given",
            f"layout: {sequences.layout.name.lower()}",
        )
