"""Calls over a cache by words: what they say leads to a plan, and numbers that change from call to call to none of
their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attune._call import width_of_v
from attune._errors import AttuneError, BadInputError
from attune._launch import Launch
from attune._recent import Recent
from attune.torch import _precision, _varied
from attune.torch._cache_plan import MAX_PLANS, Arrays, CachePlan, by_slot, plan_of
from attune.torch._launch_plan import key_of
from attune.torch._plain import dense_sizes, text_of
from attune.torch._plans import variant_of
from attune.torch._sizes import Sizes

FP8 = (torch.float8_e4m3fn, torch.uint8)

_known: Recent[tuple[Any, ...], CachePlan] = Recent(MAX_PLANS)


def plan_of_words(
    arrays: Arrays,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    launch: Launch,
) -> tuple[CachePlan, bool]:
    """Tells the launch what it brings. Behind the plan: whether the call's numbers are ones that it brings for the
    first time."""
    q, dims = arrays[0], words["dims"]
    said = (
        *[value for name, value in words.items() if name != "dims"],
        None if dims is None else tuple(dims.items()),
    )
    numbers = _varied.numbers_of(scalars, dropout, scale)
    family = _varied.family_of(("over a cache", said), numbers) if numbers else None
    left = () if family is None else family.left_to_launch(numbers)
    key: tuple[Any, ...] = (
        said,
        q.dtype is torch.float32 and _precision.of_call(words["precision"], q.device.type, q.dtype),
        *key_of(arrays),
    )
    if numbers:
        key += _varied.key_of(numbers, left)
    if tensors:
        learned = [torch.is_grad_enabled() and x.requires_grad for x in tensors.values()]
        key += (*tensors, *learned, *key_of(tuple(tensors.values())))
    launch.scalars = {name: x for name, x in scalars.items() if name in left}
    launch.scale = scale if _varied.SCALE in left else None
    launch.dropout = dropout if _varied.DROPOUT in left else None
    plan = _known.recall(key)
    if plan is None:
        declared = _varied.declared(scalars, dropout, scale, left)
        try:
            spec = variant_of(text_of_words(arrays, words, tensors, *declared)).spec
        except AttuneError:
            if family is None or not left:
                raise
            family.is_fixed = True  # a number of these is a constant or nothing
            try:
                return plan_of_words(arrays, words, tensors, scalars, dropout, scale, launch)
            except AttuneError:
                family.is_fixed = False  # it was not the numbers
                raise
        plan = plan_of(spec, arrays, by_slot(spec, tensors), launch)
        _known.put(key, plan)
    return plan, family is not None and bool(left) and not family.has_met(numbers)


def text_of_words(
    arrays: Arrays,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: tuple[tuple[str, Any], ...],
    dropout: float | None,
    scale: float | None,
) -> str:
    """The spec's YAML. Traced by Dynamo, to which lengths may be symbols."""
    q, k, v, cu_q, cu_kv, used_q, used_kv, table, *_ = arrays
    assert q is not None and k is not None
    layout = words["layout"]
    is_packed = cu_q is not None or cu_kv is not None or used_q is not None or used_kv is not None
    if layout is None:
        layout = "paged" if table is not None else "thd" if is_packed else "bshd"
    _check_layout(layout, table is not None, is_packed)
    check_dims(layout, q, k, v)
    if layout in ("thd", "paged") and (cu_q is None or cu_q.dim() != 1 or cu_q.shape[0] == 0):
        hint = "where each sequence begins, and the last one ends: int32 [sequences + 1]"
        raise BadInputError(f"layout {layout} wants `cu_q`", hint)
    if layout == "paged":
        if table is None:
            raise BadInputError(
                "layout paged wants `page_table`", "which pages each sequence has: int32 [sequences, pages]"
            )
        sizes = Sizes(cu_q.shape[0] - 1, q.shape[1], k.shape[2], q.shape[0], table.shape[-1] * k.shape[1])
    elif layout == "thd":
        sizes = Sizes(cu_q.shape[0] - 1, q.shape[1], k.shape[1], q.shape[0], k.shape[0])
    else:
        sizes = dense_sizes(layout, q, k)
    width = width_of_v(None if v is None else v.shape[-1], words["v_in_k"])
    kind = (
        "fp8_e4m3" if k.dtype in FP8 else None,
        words["v_in_k"] is not None,
        bool(words["shared_prefixes"]),
        bool(words["batch_invariant"]),
    )
    return text_of(layout, sizes, q, width, words, tensors, scalars, dropout, scale, kind)


def _check_layout(layout: str, is_paged: bool, is_packed: bool) -> None:
    if layout not in _NDIM:
        raise BadInputError(f"there is no layout `{layout}`", 'layouts are "bshd", "bhsd", "thd" and "paged"')
    found = "paged" if is_paged else "thd" if is_packed and layout != "paged" else None
    if found is not None and layout != found:
        raise BadInputError(f"offsets of sequences are given, and layout `{layout}`", f'they are of layout "{found}"')


_NDIM = {"bshd": (4, 4), "bhsd": (4, 4), "thd": (3, 3), "paged": (3, 4)}


def check_dims(layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None) -> None:
    """Raises BadInputError unless q, k and v have as many dims as the layout."""
    of_q, of_keys = _NDIM[layout]
    for name, x, ndim in (("q", q, of_q), ("k", k, of_keys), ("v", v, of_keys)):
        if x is not None and x.dim() != ndim:
            raise BadInputError(f"`{name}` has {x.dim()} dims, not the {ndim} of layout {layout}")
