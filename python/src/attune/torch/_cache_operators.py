"""The operators `torch.ops.attune.append` and `attention_over_cache`: what a compiled graph of a serving loop holds.

Append says what it writes, so that a compiler keeps the order of a launch that fills a cache and one that reads it. The
spec travels as text, as it does with `torch.ops.attune.attention`. _packed_operators.py has the gradient of sequences
that are packed.
"""

from __future__ import annotations

from typing import Any

import torch

from attune._append import NAMES as APPENDED
from attune._append import WRITTEN
from attune._launch import Launch, refuse
from attune._structs import Layout
from attune._view import axes
from attune.torch import _append
from attune.torch._cache_plan import NAMES, plan_of
from attune.torch._operators import _TAGS, _library, _scalars
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
    f"attention_over_cache({', '.join(_argument(name, ('q', 'k')) for name in NAMES)}, Tensor[] tensors, str spec, "
    "SymInt[] ints, float[] floats, float? scale) -> (Tensor, Tensor)",
    tags=_TAGS,
)


def _append_impl(*arguments: Any) -> None:
    _append.launch(arguments[: len(APPENDED)], *arguments[len(APPENDED) :])


def _append_fake(*arguments: Any) -> None:
    """Nothing is made, and what is written keeps its sizes."""


def _attention(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = arguments[: len(NAMES)]
    tensors, text, ints, floats, scale = arguments[len(NAMES) :]
    refuse_tangents(*arrays, *tensors)
    variant = variant_of(text)
    spec = variant.spec
    if spec.dropout != 0:
        refuse("dropout", f"is the spec `{spec.name}`'s, and a graph has none of attention over a cache")
    if len(tensors) != len(spec.tensors):
        refuse("tensors", f"are {len(tensors)}, and the spec `{spec.name}` has {len(spec.tensors)}")
    scalars = dict(zip(spec.launch_scalar_slots, _scalars(variant, ints, floats), strict=True))
    launch = Launch({}, scalars, scale)
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
