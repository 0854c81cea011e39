"""Gradients that are the same to the bit at every launch, where torch.use_deterministic_algorithms asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from attune import _advice
from attune._errors import UnsupportedError
from attune.spec import Spec

T = TypeVar("T")


def of_backward(spec: Spec, make: Callable[[Spec], T]) -> T:
    """What `make` gives of the spec as torch wants its backward pass now.

    Raises:
        UnsupportedError: torch wants an order of sums, and no plan has one.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return make(spec)
    try:
        return make(spec.in_order)
    except UnsupportedError as reason:
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise
        _advice.warn(f"gradients may differ in their last bits from launch to launch: {reason.message}")
        return make(spec)
