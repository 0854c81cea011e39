"""Queries that are the last of the keys' sequence, as in a step of generation: their positions without a number that
another step changes."""

from __future__ import annotations

from typing import Any

from attune.torch._traced import Traced


class FromTheEnd:
    """A query's position among the keys, where both sequences end together.

    A mask_mod that calls it with its q_idx is one kernel for all lengths, whereas a captured offset would be a constant
    of the kernel. The launch's own lengths count: those that the mask is for must be its.
    """

    def __init__(self, q_len: int, kv_len: int) -> None:
        self.offset = kv_len - q_len

    def __call__(self, q_idx: Any) -> Any:
        return q_idx.from_the_end(self.offset) if type(q_idx) is Traced else q_idx + self.offset
