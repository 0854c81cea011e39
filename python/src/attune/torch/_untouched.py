"""Rows of new tensors that a launch leaves as they are, for they are no sequence's: what is written there."""

from __future__ import annotations

import math

import torch

# att_untouched_args: outer, rows, inner words of four bytes, 0 where the launch writes every row; the word that is
# written; the place of the offsets among the tensors behind the spec's, -1 where all rows are written; sequences.
Untouched = tuple[int, int, int, int, int, int]

NONE: Untouched = (0, 0, 0, 0, -1, 0)
ZERO, LEAST = 0, 0xFF800000  # of any type; of float32: -inf


def untouched(
    sizes: tuple[int, ...], dtype: torch.dtype, word: int, axis: int, ends: tuple[int, int] | None
) -> Untouched:
    """Of a contiguous tensor whose `axis` is that of tokens. `ends`: the places of the offsets and of the last of them,
    where all rows between the first and the last one are a sequence's; None: any row may be none's, and all are
    written."""
    inner_bytes = math.prod(sizes[axis + 1 :]) * dtype.itemsize
    assert inner_bytes % 4 == 0, "rows are of 16 bytes, and LSE is float32"
    offsets, sequences = (-1, 0) if ends is None else ends
    return math.prod(sizes[:axis]), sizes[axis], inner_bytes // 4, word, offsets, sequences
