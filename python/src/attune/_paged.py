"""Layout paged: packed queries, and keys in pages of a cache. docs/paged.md has the rules."""

from __future__ import annotations

from attune import _launch
from attune._errors import BadInputError
from attune._launch import Sequences, refuse
from attune._packed import Offsets, check_list, query_offsets
from attune._structs import Shape
from attune._view import View

_PAGES = "[pages, page_size, kv_heads, head_dim]"


def sequences_of(offsets: Offsets, k: View) -> tuple[Sequences, int]:
    """What a launch is given, and the number of sequences.

    Raises:
        BadInputError: what is missing or does not fit.
    """
    cu_q, batch = query_offsets(offsets, "paged")
    if offsets.cu_kv is not None:
        refuse("cu_kv", "is given, and keys lie in pages", "used_kv says how many each sequence has")
    table, used_kv = offsets.page_table, offsets.used_kv
    if table is None:
        raise BadInputError(
            "layout paged wants `page_table`", "which pages each sequence has: int32 [sequences, pages]"
        )
    if used_kv is None:
        raise BadInputError("layout paged wants `used_kv`", "how many keys each sequence has: int32 [sequences]")
    if len(table.sizes) != 2 or table.sizes[0] != batch:
        refuse("page_table", f"is {table.sizes}, not [{batch}, pages of a sequence]")
    check_list("used_q", offsets.used_q, batch)
    check_list("used_kv", used_kv, batch)
    if len(k.sizes) != 4:
        refuse("k", f"has {len(k.sizes)} dims, not the 4 of layout paged: {_PAGES}")
    return Sequences(cu_q, None, offsets.used_q, used_kv, table, page_size=k.sizes[1], pages=k.sizes[0]), batch


def shape_of(batch: int, sequences: Sequences, q: View, k: View, v: View | None) -> Shape:
    """The problem's sizes: tokens of all sequences together, and the keys that one has room for.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    _launch.check_ndim("q", q, 3, "paged: [tokens, heads, head_dim]")
    for name, view in (("k", k), ("v", v)):
        if view is not None:
            _launch.check_ndim(name, view, 4, f"paged: {_PAGES}")
    _launch.check_kinds(q, k, v)
    (q_len, heads, _), kv_heads = q.sizes, k.sizes[2]
    _launch.check_heads("paged", q, heads, kv_heads, k, v)
    of_sequence = 0 if sequences.page_table is None else sequences.page_table.sizes[1]
    return Shape(batch, heads, kv_heads, q_len, of_sequence * sequences.page_size)
