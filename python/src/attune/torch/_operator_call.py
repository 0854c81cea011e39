"""From FlexAttention's functions to a spec's text, and to a call of the operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from attune._errors import UnsupportedError
from attune._structs import DTYPE_BY_ARRAY_NAME
from attune._yaml import write_spec
from attune.torch import _precision
from attune.torch._captured import CapturedTensors, is_int
from attune.torch._numbers import Captured
from attune.torch._plans import in_one_line, variant_of
from attune.torch._sizes import sizes_of
from attune.torch._transforms import run_operator, transforms
from attune.torch._translate import translate

_dispatch_modes = torch._C._len_torch_dispatch_stack
_OWN_TYPES = (torch.Tensor, torch.nn.Parameter)


def is_plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether they are nothing but memory, and nothing of torch's wants to see what is done with them."""
    return (
        type(query) in _OWN_TYPES
        and type(key) in _OWN_TYPES
        and type(value) in _OWN_TYPES
        and not query.is_meta
        and not _dispatch_modes()
        and transforms() is None
        and forward_ad._current_level < 0
    )


def spec_text(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    scale: float | None,
    dropout: float = 0.0,
    sink: torch.Tensor | None = None,
    precision: str | None = None,
    numbers: Captured | None = None,
) -> tuple[str, CapturedTensors]:
    """The spec of functions with torch's signatures, and what they captured. `numbers`: those of which it is known.

    Raises:
        Untranslatable: naming the operation.
        UnsupportedError: no spec has operands of this dtype.
    """
    factor = 1.0
    if scale is not None and scale <= 0:  # a spec's own is above 0
        scale, factor = 1.0, float(scale)
    sizes = sizes_of(query, key)
    translation = translate(score_mod, mask_mod, sizes, query.device, factor=factor, sink=sink, numbers=numbers)
    dtype = DTYPE_BY_ARRAY_NAME.get(str(query.dtype).removeprefix("torch."))
    if dtype is None:
        raise UnsupportedError(f"attention in {query.dtype}")
    captured = translation.captured
    text = write_spec(
        name="flex_attention",
        dtype=dtype.name.lower(),
        head_dim=(int(query.shape[-1]), int(value.shape[-1])),
        layout="bhsd",
        mask=translation.mask,
        score=translation.score,
        sink=translation.sink,
        scalars=captured.scalars(),
        tensors=translation.declarations(),
        dropout=dropout,
        scale=None if scale is None else float(scale),
        passes=("forward",),
        precision=_precision.of_call(precision, query.device.type, query.dtype),
    )
    return text, captured


def call_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    text: str,
    captured: CapturedTensors,
    seed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE by the operator: what torch traces, and what its modes see."""
    spec = variant_of(text).spec
    tensors = captured.tensors()
    ordered = [tensors[tensor.name] for tensor in spec.tensors]
    # Scalars go by slot, too: each name's number where the spec has it.
    numbers = [captured.numbers()[scalar.name] for scalar in spec.scalars]
    ints = [number for number in numbers if is_int(number)]
    floats = [number for number in numbers if not is_int(number)]
    line = in_one_line(text)
    return run_operator(query, key, value, ordered, (line, ints, floats, None, None), seed)
