"""Masks of queries times keys that a caller brings, as functions that look them up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

Mod = Callable[..., Any]


def _at(table: torch.Tensor, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A table [batch or 1, heads or 1, q_len or 1, kv_len or 1]."""
    indices = (b, h, q_idx, kv_idx)
    return table[tuple(index if size > 1 else 0 for index, size in zip(indices, table.shape, strict=True))]


def add_dense(
    score_mod: Mod | None, mask: torch.Tensor | None, biases: Sequence[torch.Tensor] = ()
) -> tuple[Mod | None, Mod | None]:
    """score_mod and mask_mod.

    Args:
        score_mod: what bends the score before anything is added; or None.
        mask: [batch or 1, heads or 1, q_len or 1, kv_len or 1], bool, or numbers that are added to scores; or None.
        biases: what else is added.
    """
    mask_mod = None
    if mask is not None and mask.dtype == torch.bool:
        mask_mod = functools.partial(_at, mask)
        mask = None
    added = list(biases) if mask is None else [mask, *biases]
    if not added:
        return score_mod, mask_mod

    def with_tables(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if score_mod is not None:
            score = score_mod(score, b, h, q_idx, kv_idx)
        for table in added:
            score = score + _at(table, b, h, q_idx, kv_idx)
        return score

    return with_tables, mask_mod


def top_left_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """What `is_causal` means to torch: both sequences begin together."""
    return kv_idx <= q_idx
