"""Sizes of a launch, which are numbers, or symbols while torch traces a graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor


class Sizes(NamedTuple):
    """As att_shape has them; each an int, or a torch.SymInt."""

    batch: Any
    heads: Any
    kv_heads: Any
    q_len: Any
    kv_len: Any


def sizes_of(query: torch.Tensor, key: torch.Tensor) -> Sizes:
    """Of operands in layout bhsd."""
    batch, heads, q_len, _ = query.shape
    return Sizes(batch, heads, key.shape[1], q_len, key.shape[2])


def is_symbolic(value: Any) -> bool:
    """Whether it is a tensor without values, or a number that is not known."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, FakeTensor, FunctionalTensor)) or (
        isinstance(value, torch.Tensor) and value.device.type == "meta"
    )
