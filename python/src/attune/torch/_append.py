"""attune.append of torch's tensors. In compiled code an operator of the graph, which says what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attune._append import NAMES, WRITTEN, AppendPlan, Options
from attune._errors import BadInputError, UnsupportedError
from attune.runtime import default_runtime
from attune.torch._cached import are_tensors, is_plain  # noqa: F401
from attune.torch._launch_plan import MISALIGNED, copy_of, device_name, key_of, stream_of, view_of

_MAX_PLANS = 1024
_COPIED = ("q", "k", "v")
_PLACES = {name: place for place, name in enumerate(NAMES)}
_WRITTEN_PLACES = tuple(_PLACES[name] for name in WRITTEN)
_Q, _Q_OUT = _PLACES["q"], _PLACES["q_out"]
# torch.autograd.graph's does the same at five times the cost.
_increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)

Arrays = Sequence[torch.Tensor | None]

_plans: dict[tuple[Any, ...], AppendPlan] = {}


def append(
    arrays: Arrays,
    rope: str | None,
    rotary_dim: int | None,
    rope_base: float | None,
    rope_factor: float | None,
    layout: str | None,
) -> torch.Tensor | None:
    """As attune.append has it, `arrays` in the order of NAMES."""
    given = list(arrays)
    q, q_out = given[_Q], given[_Q_OUT]
    if torch.is_grad_enabled():
        for name, x in zip(NAMES, arrays, strict=True):
            if x is not None and x.requires_grad:
                raise UnsupportedError(
                    f"`{name}` requires a gradient, and what goes into a cache has none",
                    "call under torch.no_grad(), or detach it",
                )
    if q is None:
        if q_out is not None:
            raise BadInputError("`q_out` is given, and `q` is None")
    elif q_out is None:
        q_out = given[_Q_OUT] = torch.zeros_like(q, memory_format=torch.contiguous_format)
    elif q_out is q:
        given[_Q] = None  # in place
    if torch.compiler.is_dynamo_compiling() or not is_plain(given):
        torch.ops.attune.append(*given, rope, rotary_dim, rope_base, rope_factor, layout)
    else:
        launch(given, rope, rotary_dim, rope_base, rope_factor, layout)
    return q_out


def launch(
    arrays: Arrays,
    rope: str | None,
    rotary_dim: int | None,
    rope_base: float | None,
    rope_factor: float | None,
    layout: str | None,
) -> None:
    """The same of tensors that are nothing but memory, in the order of NAMES; q_out without q is turned in place."""
    key = rope, rotary_dim, rope_base, rope_factor, layout, key_of(arrays)
    plan = _plans.get(key)
    if plan is None:
        views = {name: None if x is None else view_of(x) for name, x in zip(NAMES, arrays, strict=True)}
        device = arrays[_PLACES["k"]].device  # type: ignore[union-attr]
        plan = AppendPlan(
            Options(rope, rotary_dim, rope_base, rope_factor, layout), views, default_runtime(device_name(device))
        )
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    if not plan.has_work:
        return
    keep = None
    addresses = {name: arrays[_PLACES[name]].data_ptr() for name in plan.members}  # type: ignore[union-attr]
    if plan.copied:
        keep = {name: copy_of(arrays[_PLACES[name]]) for name in plan.copied}  # type: ignore[arg-type]
        addresses |= {name: x.data_ptr() for name, x in keep.items()}
    for name in _COPIED:
        if addresses.get(name, 0) & MISALIGNED:
            # A copy has other strides, and so another plan.
            found = list(arrays)
            found[_PLACES[name]] = copy_of(arrays[_PLACES[name]])  # type: ignore[arg-type]
            return launch(found, rope, rotary_dim, rope_base, rope_factor, layout)
    if "q_out" in addresses and "q" not in addresses:
        addresses["q"] = addresses["q_out"]
    plan.run(addresses, None if plan.is_on_cpu else stream_of(arrays[_PLACES["k"]].device))  # type: ignore[union-attr]
    del keep
    of_all = [arrays[place] for place in _WRITTEN_PLACES]
    written = [x for x in of_all if x is not None and not x.is_inference()]
    if written:
        _increment_version(written)
    return None
