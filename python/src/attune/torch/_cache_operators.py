"""The operators `torch.ops.attune.append` and `attention_over_cache`: what a compiled graph of a serving loop holds.

Append says what it writes, so that a compiler keeps the order of a launch that fills a cache and one that reads it. The
spec travels as text, as it does with `torch.ops.attune.attention`. _packed_operators.py has the gradient of sequences
that are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attune._append import NAMES as APPENDED
from attune._append import WRITTEN
from attune._launch import Launch, refuse
from attune._structs import Layout
from attune._view import axes
from attune.spec import Spec
from attune.torch import _append
from attune.torch._cache_plan import NAMES, plan_of
from attune.torch._operators import _TAGS, LAUNCH, _library, _scalars, _state
from attune.torch._plans import variant_of
from attune.torch._transforms import refuse_tangents


def _argument(name: str, needed: tuple[str, ...]) -> str:
    alias = f"({'abc'[WRITTEN.index(name)]}!)" if name in WRITTEN else ""
    return f"Tensor{alias}{'' if name in needed else '?'} {name}"


_library.define(
    f"append({', '.join(_argument(name, ('k', 'k_cache')) for name in APPENDED)}, str? rope, int? rotary_dim, "
    "float? rope_base, float? rope_factor, str? layout) -> ()",
    tags=_TAGS,
)
_library.define(
    f"attention_over_cache({', '.join(_argument(name, ('q', 'k')) for name in NAMES)}, {LAUNCH}) -> (Tensor, Tensor)",
    tags=_TAGS,
)


def _append_impl(*arguments: Any) -> None:
    _append.launch(arguments[: len(APPENDED)], *arguments[len(APPENDED) :])


def _append_fake(*arguments: Any) -> None:
    """Nothing is made, and what is written keeps its sizes."""


def launch_of(
    text: str, numbers: Sequence[Any], seed: torch.Tensor | None, device: torch.device
) -> tuple[Spec, Launch]:
    """Of what the operator is given: the spec, that with its seed on the device where the seed lies there, and what the
    launch brings beside tensors. `numbers` are ints, floats, scale and dropout."""
    ints, floats, scale, dropout = numbers
    variant, *state = _state(variant_of(text), seed, device)
    spec = variant.spec
    scalars = dict(zip(spec.launch_scalar_slots, _scalars(variant, ints, floats), strict=True))
    return spec, Launch({}, scalars, scale, dropout, *state)


def _attention(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = arguments[: len(NAMES)]
    tensors, text, *numbers, seed = arguments[len(NAMES) :]
    tensors = tensors or ()
    refuse_tangents(*arrays, *tensors)
    spec, launch = launch_of(text, numbers, seed, arrays[0].device)
    if len(tensors) != len(spec.tensors):
        refuse("tensors", f"are {len(tensors)}, and the spec `{spec.name}` has {len(spec.tensors)}")
    o, lse = plan_of(spec, arrays, tensors, launch).run(arrays, tensors, launch, True)
    assert lse is not None
    return o, lse


def _attention_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, text = arguments[0], arguments[len(NAMES) + 1]
    spec = variant_of(text).spec
    if spec.layout_id in (Layout.THD, Layout.PAGED):
        lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    else:
        batch, q_len, heads, _ = axes(spec.layout_id, tuple(q.shape))
        lse = q.new_empty((batch, heads, q_len), dtype=torch.float32)
    return q.new_empty((*q.shape[:-1], spec.head_dim[1])), lse


for _device in ("CPU", "CUDA"):
    _library.impl("append", _append_impl, _device)
    _library.impl("attention_over_cache", _attention, _device)
torch.library.register_fake("attune::append", _append_fake, lib=_library)
torch.library.register_fake("attune::attention_over_cache", _attention_fake, lib=_library)
