"""Which of a spec's dims an auxiliary tensor has, where nobody said."""

from __future__ import annotations

from typing import Any

# Tensors begin with a batch or heads, and end with positions. Where several dims have one size any of them is right
# for this launch: a spec's dims say sizes, and an index is clamped where it is not proven to lie inside.
_FIRST = ("batch", "heads", "kv_heads", "q_len", "kv_len")
_LATER = ("kv_len", "q_len", "heads", "kv_heads", "batch")
_ALONE = ("heads", "kv_len", "q_len", "batch", "kv_heads")


def guess_dims(sizes: tuple[int, ...], shape: Any) -> str:
    """ "batch, kv_len" for the sizes of such a tensor; a number for a size that no dim has. `shape` has att_shape's."""
    if len(sizes) == 1:
        return _name(sizes[0], _ALONE, shape)
    return ", ".join([_name(size, _LATER if at else _FIRST, shape) for at, size in enumerate(sizes)])


def _name(size: int, candidates: tuple[str, ...], shape: Any) -> str:
    for dim in candidates:
        if getattr(shape, dim) == size:
            return dim
    return str(int(size))
