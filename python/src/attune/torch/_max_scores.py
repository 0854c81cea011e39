"""Each row's largest score, which torch's AuxRequest asks for. Kernels keep none; it is what LSE becomes, over a factor,
as the factor of all scores grows: another forward pass finds it, of values that are as narrow as any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# The factor is 2^24: the second largest score counts for nothing unless float32 has next to nothing in between, and as
# many largest ones as there may be add 1e-6. Written out, for a float that a module holds is open to Dynamo.
_WIDTH = 16  # of values on a GPU; on CPUs 8 would do


def _sharpened(score_mod: Any) -> Callable[..., Any]:
    if score_mod is None:
        return lambda score, b, h, q_idx, kv_idx: score * 2.0**24
    return lambda score, b, h, q_idx, kv_idx: score_mod(score, b, h, q_idx, kv_idx) * 2.0**24


def max_scores(
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor | None]],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
) -> torch.Tensor:
    """float32 [batch, heads, q_len], -inf of a row without live keys; no gradient comes through it. `attend` gives O and
    LSE of query, key, value and score_mod."""
    with torch.no_grad():
        nothing = value.new_zeros((*value.shape[:-1], _WIDTH))
        lse = attend(query, key, nothing, _sharpened(score_mod))[1]
        assert lse is not None
        return lse / 2.0**24
