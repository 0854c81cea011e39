"""Tensors with torch's negative bit, such as the imaginary part of a conjugate: what lies in memory is the negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def resolved(x: Any) -> Any:
    """The tensor as its memory is read; as it is where the bit is not set, and what is no tensor."""
    return x.resolve_neg() if isinstance(x, torch.Tensor) and x.is_neg() else x


def all_resolved(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: resolved(x) for name, x in arrays.items()}
