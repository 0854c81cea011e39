"""Which of a spec's dims an auxiliary tensor has, where nobody said."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

# Tensors begin with a batch or heads, and end with positions. Where several dims have one size any of them is right
# for this launch: a spec's dims say sizes, and an index is clamped where it is not proven to lie inside.
_FIRST = ("batch", "heads", "kv_heads", "q_len", "kv_len")
_LATER = ("kv_len", "q_len", "heads", "kv_heads", "batch")
_ALONE = ("heads", "kv_len", "q_len", "batch", "kv_heads")

# What a spec takes: docs/spec.md.
_MAX_FACTOR = 4
_MAX_TERM = 1 << 20


@dataclasses.dataclass(frozen=True)
class ComputedDim:
    """(size * factor + offset) // divisor of the size by a name; a plain dim as it stands."""

    name: str
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    def __post_init__(self) -> None:
        common = math.gcd(self.factor, self.divisor)
        for name in ("factor", "offset", "divisor"):
            object.__setattr__(self, name, getattr(self, name) // common)

    def is_allowed(self) -> bool:
        """Whether a spec may say it."""
        return 1 <= self.factor <= _MAX_FACTOR and abs(self.offset) <= _MAX_TERM and 1 <= self.divisor <= _MAX_TERM

    def elements(self, shape: Any) -> Any:
        """Of a launch of sizes that are ints or symbols. A spec has 1 where this is less."""
        return (getattr(shape, self.name) * self.factor + self.offset) // self.divisor

    def __str__(self) -> str:
        text = self.name if self.factor == 1 else f"{self.factor} * {self.name}"
        if self.offset:
            text += f" {'-' if self.offset < 0 else '+'} {abs(self.offset)}"
        if self.divisor == 1:
            return text
        return f"({text}) // {self.divisor}" if self.offset else f"{text} // {self.divisor}"


# Of tables by distance, and by the borders between positions. Their sizes tell, where they are not such that a table
# may have them anyhow.
COMMON_DIMS = tuple(
    ComputedDim(name, factor, offset) for factor, offset in ((2, -1), (1, 1)) for name in ("kv_len", "q_len")
)
_LEAST_TELLING = 64


def common_dim(size: int, shape: Any) -> ComputedDim | None:
    """The common dim of that size. `shape` has att_shape's."""
    if size > _LEAST_TELLING:
        for dim in COMMON_DIMS:
            if dim.elements(shape) == size:
                return dim
    return None


def guess_dims(sizes: tuple[int, ...], shape: Any, learned: bool = False) -> str:
    """ "batch, kv_len" for the sizes of such a tensor; a number for a size that no dim has. `shape` has att_shape's.
    `learned`: the tensor wants a gradient, which is summed in a faster way where the number of elements is fixed."""
    if len(sizes) == 1:
        return _name(sizes[0], _ALONE, shape, learned)
    return ", ".join([_name(size, _LATER if at else _FIRST, shape, learned) for at, size in enumerate(sizes)])


def _name(size: int, candidates: tuple[str, ...], shape: Any, learned: bool) -> str:
    for dim in candidates:
        if getattr(shape, dim) == size:
            return dim
    computed = None if learned else common_dim(size, shape)
    return str(int(size)) if computed is None else str(computed)
