"""attune.attention of torch's tensors over a cache: packed sequences, pages, fp8, V in the columns of K.

Without gradients; in compiled code an operator of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attune._launch import Launch
from attune._packed import Offsets
from attune.spec import Spec
from attune.torch import _cache_bound, _dropout, _packed_plan
from attune.torch._cache_plan import Arrays, CachePlan, by_slot, plan_of
from attune.torch._cache_words import FP8, plan_of_words, text_of_words
from attune.torch._numbers import constant, plain
from attune.torch._packed_transforms import refuse_dropout, run_operator
from attune.torch._plain import attention as of_dense  # noqa: F401
from attune.torch._plain import check_tensors, has_dropout
from attune.torch._plans import in_one_line, variant_of
from attune.torch._transforms import refuse_tangents, refuse_unlearned, transforms

_OWN_TYPES = {torch.Tensor, torch.nn.Parameter, type(None)}
_dispatch_modes = torch._C._len_torch_dispatch_stack


def is_cache(k: torch.Tensor, v: Any, scales: Mapping[str, Any], words: Mapping[str, Any]) -> bool:
    """Whether a call without offsets is one over a cache all the same."""
    return (
        v is None
        or scales["k_scales"] is not None
        or scales["v_scales"] is not None
        or words["layout"] in ("thd", "paged")
        or bool(words["shared_prefixes"])
        or k.dtype in FP8
    )


def takes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    offsets: Offsets,
    scales: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None,
) -> bool:
    """Whether all is torch's, and nothing wants a gradient but in a graph that packed sequences are part of."""
    given = (
        offsets.cu_q, offsets.cu_kv, offsets.used_q, offsets.used_kv, offsets.page_table, scales["k_scales"],
        scales["v_scales"],
    )  # fmt: skip
    if not are_tensors(given):
        return False
    if torch.is_grad_enabled():
        of_gradients = (q, k, v, scales["k_scales"], scales["v_scales"], *(tensors or {}).values())
        if any([x is not None and x.requires_grad for x in of_gradients]):
            is_packed = offsets.cu_q is not None and offsets.page_table is None and v is not None
            if torch.compiler.is_dynamo_compiling():
                return is_packed
            if transforms() is not None:  # of a cache it is said where the gradient is asked for
                return True
            is_scaled = scales["k_scales"] is not None or scales["v_scales"] is not None or k.dtype in FP8
            if not is_packed or is_scaled:
                return False
            return _dispatch_modes() > 0 or is_plain((q, k, v, *given, *(tensors or {}).values()))
    return True


def are_tensors(arrays: Sequence[Any]) -> bool:
    """Whether all are torch's, or None."""
    if not torch.compiler.is_dynamo_compiling() and {type(x) for x in arrays} <= _OWN_TYPES:
        return True
    return all([x is None or isinstance(x, torch.Tensor) for x in arrays])


def is_plain(arrays: Sequence[torch.Tensor | None]) -> bool:
    """Whether they are nothing but memory, and no mode of torch's wants to see what is done with them."""
    return not _dispatch_modes() and transforms() is None and {type(x) for x in arrays} <= _OWN_TYPES


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    spec: Spec | str | None,
    words: Mapping[str, Any],
    offsets: Offsets,
    scales: Mapping[str, torch.Tensor | None],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    seed: int | None,
    offset: int,
    return_lse: bool,
    key: Any = None,
) -> Any:
    """As attune.attention has it, `words` being all that stands for a spec. `key`: all that the caller said beside
    tensors, where the call may be found by it."""
    if not torch.compiler.is_dynamo_compiling():
        scalars, dropout, scale = {name: plain(x) for name, x in scalars.items()}, plain(dropout), plain(scale)
    arrays = (
        q, k, v, offsets.cu_q, offsets.cu_kv, offsets.used_q, offsets.used_kv, offsets.page_table,
        scales["k_scales"], scales["v_scales"],
    )  # fmt: skip
    if not torch.compiler.is_dynamo_compiling():
        refuse_tangents(*arrays, *tensors.values())
    if torch.compiler.is_dynamo_compiling() or not is_plain(arrays):
        scalars, dropout, scale = {name: constant(x) for name, x in scalars.items()}, constant(dropout), constant(scale)
        if spec is None:
            text = text_of_words(arrays, words, tensors, tuple(scalars.items()), dropout, scale)
            scalars, scale, dropout = {}, None, None
        else:
            text = spec if isinstance(spec, str) else spec.reference
            if not torch.compiler.is_dynamo_compiling():
                check_tensors(variant_of(text), tensors, torch.is_grad_enabled())
        # Slots are in the order of names, those of ints and floats among themselves too.
        ints = [scalars[name] for name in sorted(scalars) if isinstance(scalars[name], int)]
        floats = [scalars[name] for name in sorted(scalars) if not isinstance(scalars[name], int)]
        state = None
        if has_dropout(text):
            refuse_dropout()
            state = _dropout.state_in_a_graph(q.device, seed, offset)
        call = in_one_line(text), ints, floats, scale, dropout, state
        o, lse = run_operator(arrays, [tensors[name] for name in sorted(tensors)], call)
        return (o, lse) if return_lse else o
    launch, is_new = Launch({}, {}), False
    if spec is None:
        plan, is_new = plan_of_words(arrays, words, tensors, scalars, dropout, scale, launch)
        given = by_slot(plan.spec, tensors)
    else:
        found = variant_of(spec).spec if isinstance(spec, str) else spec
        launch.scalars, launch.scale, launch.dropout = scalars, scale, dropout
        given = by_slot(found, tensors)
        plan = plan_of(found, arrays, given, launch)
    is_bound = key is not None and not isinstance(spec, str) and not is_new
    if plan.drops:
        launch.seed, launch.offset = _dropout.state_of(plan.spec, q.device, seed, offset)
    records = torch.is_grad_enabled() and any([x.requires_grad for x in (*arrays, *given) if x is not None])
    if records:
        refuse_unlearned(plan.spec, given)
    o, lse = run(plan, arrays, given, launch, return_lse, records)
    if is_bound:
        asks_precision = spec is None and words["precision"] is None
        numbers = (dropout, scale, *scalars.values())
        is_seeded = seed is not None
        _cache_bound.bind(key, plan, arrays, tensors, launch, numbers, asks_precision, spec, records, run, is_seeded)
    return (o, lse) if return_lse else o


def run(
    plan: CachePlan, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch, with_lse: bool, records: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not records:
        return plan.run(arrays, tensors, launch, with_lse)
    if plan.drops and isinstance(launch.seed, torch.Tensor) and not plan.spec.seed_on_device:
        plan = plan_of(plan.spec.with_device_seed, arrays, tensors, launch)
    return _packed_plan.record(plan, arrays, tensors, launch, with_lse)
