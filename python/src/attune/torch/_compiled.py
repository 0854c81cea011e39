"""Attune in graphs that torch compiles.

Dynamo knows how to trace FlexAttention's functions: it makes graphs of them, and operands of what they capture, so that
another value or another length needs no new graph. Its `flex_attention` operator is therefore what Dynamo is shown,
with a mark among its options; where a marked operator is then called, by whatever traces or runs the graph, the
functions' graphs are translated and `attune::attention` is called instead.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

from attune import _advice
from attune._errors import BadInputError, UnsupportedError
from attune._library import version
from attune._structs import Pass, Shape
from attune.runtime import default_runtime
from attune.torch import _autocast
from attune.torch._call_checks import of_one_batch
from attune.torch._expression import Untranslatable
from attune.torch._max_scores import max_scores
from attune.torch._operator_call import call_operator, spec_text
from attune.torch._launch_plan import device_name
from attune.torch._plans import backward_kernel, build_backward_ahead, variant_of
from attune.torch._sizes import sizes_of
from attune.torch.block_mask import mask_mod_of_blocks

_hops: Any = importlib.import_module("torch._higher_order_ops.flex_attention")
_LN2 = math.log(2.0)
_ANY_LENGTH = 1024  # of a problem whose lengths are symbols: whether there is a kernel does not depend on them

# In the operator's options. The mark bears the version: graphs that torch keeps on disk are looked up by the options.
_MARK, _OWN, _STRICT, _DROPOUT, _SEED = "ATTUNE", "ATTUNE_OWN", "ATTUNE_STRICT", "ATTUNE_DROPOUT", "ATTUNE_SEED"
_SINK, _PRECISION = "ATTUNE_SINK", "ATTUNE_PRECISION"
_VERSION = version()

_warned: set[str] = set()


def warn_of_fallback(reason: str) -> None:
    """Once a reason."""
    if reason not in _warned:
        _warned.add(reason)
        _advice.warn(f"attune falls back to torch's flex_attention: {reason}")


def mark_of_torch() -> dict[str, Any]:
    """Options that make a call of torch's own function one of Attune's."""
    return {_MARK: _VERSION}


def trace_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    scale: float | None,
    kernel_options: Any,
    wants_lse: bool,
    strict: bool,
    dropout: float,
    seed: torch.Tensor | None,
    sink: torch.Tensor | None,
    precision: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE, as Dynamo is to see it."""
    of_torch = torch_flex._apply_kernel_options(
        query, key, value, wants_lse, kernel_options, torch_flex.AuxRequest(lse=wants_lse)
    )
    options: dict[str, Any] = {**of_torch, _MARK: _VERSION, _OWN: True, _STRICT: strict, _DROPOUT: dropout}
    if seed is not None:
        options[_SEED] = seed
    if sink is not None:
        options[_SINK] = sink
    if precision is not None:
        options[_PRECISION] = precision
    # One block, which the mask_mod is asked about: should the call fall back, it means what it says.
    blocks = torch_flex._create_empty_block_mask(query, key).as_tuple()[:-1]
    out, lse, _ = _hops.flex_attention(
        query,
        key,
        value,
        torch_flex._identity if score_mod is None else score_mod,
        (*blocks, torch_flex.noop_mask if mask_mod is None else mask_mod),
        scale,
        options,
    )
    return out, lse


def _with_operands(function: Any, operands: tuple[Any, ...]) -> Any:
    """A function of scalars, of a graph whose last inputs are what the function captured."""
    return function if not operands else lambda *scalars: function(*scalars, *operands)


def _whole_mask(block_mask: tuple[Any, ...], own: Any) -> Any:
    """What the operator's blocks and its mask_mod say together."""
    of_all = torch_flex._LARGE_SPARSE_BLOCK_SIZE
    _, _, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, *_ = block_mask
    # Where lengths are symbols these are, too; a block's size is a constant of the kernel.
    q_size, kv_size = (int(size) for size in block_mask[-3:-1])
    if q_size == kv_size == of_all:
        return own
    return mask_mod_of_blocks(own, (q_size, kv_size), kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices)


def _hint(size: Any) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    known = size.node.maybe_as_int()
    return _ANY_LENGTH if known is None else known


def _check_kernels(
    text: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tensors: Iterable[torch.Tensor],
    seed: torch.Tensor | None,
) -> None:
    """Raises UnsupportedError where the device has no kernel, before the graph is one with it."""
    variant = variant_of(text)
    if seed is not None and seed.device.type != "cpu":
        variant = variant.for_seed(seed)
    spec = variant.spec
    sizes = sizes_of(query, key)
    # Heads are numbers to a graph; should they be symbols, one is as good as another.
    heads, kv_heads = (_hint(sizes.heads), _hint(sizes.kv_heads))
    if heads % kv_heads:
        heads = kv_heads
    shape = Shape(_hint(sizes.batch), heads, kv_heads, _hint(sizes.q_len), _hint(sizes.kv_len))
    if not (shape.batch and shape.q_len and shape.kv_len):
        return
    device = device_name(query.device)
    given = query, key, value, *tensors
    build_backward_ahead(spec, shape, query.device, given)
    default_runtime(device).kernel(spec, shape, Pass.FORWARD)
    if torch.is_grad_enabled() and any([x.requires_grad for x in given]):
        backward_kernel(spec, shape, device)


@torch._disable_dynamo  # where a graph breaks at the operator Dynamo would go on within
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    scale: float | None,
    dropout: float,
    seed: torch.Tensor | None,
    sink: torch.Tensor | None,
    precision: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = of_one_batch(query, key, value)
    text, captured = spec_text(query, key, value, score_mod, mask_mod, scale, dropout, sink, precision)
    _check_kernels(text, query, key, value, captured.tensors().values(), seed)
    return call_operator(query, key, value, text, captured, seed)


def _call(
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: tuple[Any, ...],
    scale: float | None,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlexAttention's operator: Attune's where it is marked, torch's elsewhere."""
    rest = score_mod_other_buffers, mask_mod_other_buffers
    if _MARK not in kernel_options:
        return _call_of_torch(self, query, key, value, score_mod, block_mask, scale, kernel_options, *rest)
    is_own = _OWN in kernel_options
    # torch's function expects logarithms to base 2 of its own kernels, and of its eager one.
    is_natural = is_own or (kernel_options.get("BACKEND") == "FLASH" and isinstance(score_mod, torch.fx.GraphModule))
    try:
        own = _with_operands(block_mask[-1], mask_mod_other_buffers)
        mod, whole = _with_operands(score_mod, score_mod_other_buffers), _whole_mask(block_mask, own)
        operands = _autocast.cast(query, key, value)
        out, lse = _attend(
            *operands,
            mod,
            whole,
            scale,
            kernel_options.get(_DROPOUT, 0.0),
            kernel_options.get(_SEED),
            kernel_options.get(_SINK),
            kernel_options.get(_PRECISION),
        )
        if kernel_options.get("OUTPUT_MAX"):
            top = max_scores(lambda *given: _attend(*given, whole, scale, 0.0, None, None, None), *operands, mod)
        else:
            top = query.new_empty((0,), dtype=torch.float32)
        return (out, lse, top) if is_natural else (out, lse / _LN2, top / _LN2)
    except (Untranslatable, UnsupportedError, BadInputError) as reason:
        if kernel_options.get(_STRICT) or kernel_options.get(_DROPOUT) or _SINK in kernel_options:
            raise
        warn_of_fallback(str(reason))
    options = {name: option for name, option in kernel_options.items() if not name.startswith(_MARK)}
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out, lse, top = _call_of_torch(self, query, key, value, score_mod, block_mask, scale, options, *rest)
    return out, lse * _LN2 if is_own and options.get("BACKEND") != "FLASH" else lse, top


_call_of_torch = _hops.FlexAttentionHOP.__call__
_hops.FlexAttentionHOP.__call__ = _call
