"""View: where an array's elements lie, whatever framework it is of."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from attune._structs import DType, Layout, Strides

ALIGNMENT_BYTES = 16  # of operands, and of the strides that are stepped


@dataclasses.dataclass(slots=True)
class View:
    """An array's memory.

    Attributes:
        pointer: of the first element, 0 when there is none.
        sizes, strides: in elements, one a dim.
        dtype: what the array's framework calls it: "float32".
        device: "cpu", "cuda:0".
        owner: keeps the memory alive.
    """

    pointer: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    owner: Any

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps."""
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return math.prod(self.sizes) == 0
            step *= size
        return True

    def is_operand(self, dtype: DType) -> bool:
        """Whether a launch takes it as it lies: a contiguous last dim, all else in steps of 16 bytes."""
        *outer, last = zip(self.sizes, self.strides, strict=True)
        if last[0] != 1 and last[1] != 1:
            return False
        stepped = [stride for size, stride in outer if size != 1]
        if any(stride * dtype.itemsize % ALIGNMENT_BYTES for stride in stepped):
            return False
        # The library reads strides that are all zero as contiguous, and a lone one as a mistake.
        return self.pointer % ALIGNMENT_BYTES == 0 and (not stepped or all(stepped))


def axes(layout: Layout, values: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(batch, seq, heads, dim) of an operand's sizes or strides."""
    batch, second, third, dim = values
    return (batch, third, second, dim) if layout == Layout.BHSD else (batch, second, third, dim)


def operand_strides(layout: Layout, view: View) -> Strides:
    if len(view.sizes) == 3:  # tokens of all sequences: the batch is never stepped
        seq, head, _ = view.strides
        return Strides(seq * max(view.sizes[0], 1), seq, head)
    batch, seq, head, _ = axes(layout, view.strides)
    return Strides(batch, seq, head)
