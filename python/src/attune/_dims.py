"""Which of a spec's dims an auxiliary tensor has, where nobody said."""

from __future__ import annotations

from attune._structs import Shape

# Tensors begin with a batch or heads, and end with positions. Where several dims have one size any of them is right
# for this launch: a spec's dims say sizes, and an index is clamped where it is not proven to lie inside.
_FIRST = ("batch", "heads", "kv_heads", "q_len", "kv_len")
_LATER = ("kv_len", "q_len", "heads", "kv_heads", "batch")
_ALONE = ("heads", "kv_len", "q_len", "batch", "kv_heads")


def guess_dims(sizes: tuple[int, ...], shape: Shape) -> str:
    """ "batch, kv_len" for the sizes of such a tensor; a number for a size that no dim has."""

    def name(size: int, candidates: tuple[str, ...]) -> str:
        return next((dim for dim in candidates if getattr(shape, dim) == size), str(size))

    if len(sizes) == 1:
        return name(sizes[0], _ALONE)
    return ", ".join(name(size, _LATER if at else _FIRST) for at, size in enumerate(sizes))
