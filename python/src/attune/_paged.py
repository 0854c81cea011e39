"""Layout paged: packed queries, and keys in pages of a cache. docs/paged.md has the rules."""

from __future__ import annotations

from attune import _launch
from attune._errors import BadInputError
from attune._launch import Sequences, refuse
from attune._packed import Offsets, int32_view, list_view, query_offsets
from attune._structs import Shape
from attune._view import View


def sequences_of(offsets: Offsets, k: View, device: str) -> tuple[Sequences, int]:
    """What a launch is given, and the number of sequences.

    Raises:
        BadInputError: what is missing or does not fit.
    """
    cu_q, batch = query_offsets(offsets, device, "paged")
    if offsets.cu_kv is not None:
        refuse("cu_kv", "is given, and keys lie in pages", "used_kv says how many each sequence has")
    if offsets.page_table is None:
        raise BadInputError(
            "layout paged wants `page_table`", "which pages each sequence has: int32 [sequences, pages]"
        )
    if offsets.used_kv is None:
        raise BadInputError("layout paged wants `used_kv`", "how many keys each sequence has: int32 [sequences]")
    table = int32_view("page_table", offsets.page_table, device)
    if len(table.sizes) != 2 or table.sizes[0] != batch:
        refuse("page_table", f"is {table.sizes}, not [{batch}, pages of a sequence]")
    used_q = list_view("used_q", offsets.used_q, batch, device)
    used_kv = list_view("used_kv", offsets.used_kv, batch, device)
    if len(k.sizes) != 4:
        refuse("k", f"has {len(k.sizes)} dims, not the 4 of layout paged: [pages, page_size, kv_heads, head_dim]")
    return Sequences(cu_q, None, used_q, used_kv, table, page_size=k.sizes[1], pages=k.sizes[0]), batch


def shape_of(batch: int, sequences: Sequences, q: View, k: View, v: View) -> Shape:
    """The problem's sizes: tokens of all sequences together, and the keys that one has room for.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    if len(q.sizes) != 3:
        refuse("q", f"has {len(q.sizes)} dims, not the 3 of layout paged: [tokens, heads, head_dim]")
    _launch.check_alike(k, k, v, 4, "paged: [pages, page_size, kv_heads, head_dim]")
    if k.device != q.device:
        refuse("k", f"is on {k.device}, and `q` on {q.device}")
    if k.dtype != q.dtype:
        refuse("k", f"is {k.dtype}, and `q` is {q.dtype}")
    (q_len, heads, dim), kv_heads = q.sizes, k.sizes[2]
    if k.sizes[3] != dim:
        refuse("k", f"has head_dim {k.sizes[3]}, and `q` {dim}")
    if v.sizes[:3] != k.sizes[:3]:
        refuse("v", f"is {v.sizes}, and `k` {k.sizes}, in layout paged")
    if kv_heads == 0 or heads % kv_heads:
        refuse("q", f"has {heads} heads, no multiple of the {kv_heads} of `k`, in layout paged")
    of_sequence = 0 if sequences.page_table is None else sequences.page_table.sizes[1]
    return Shape(batch, heads, kv_heads, q_len, of_sequence * sequences.page_size)
