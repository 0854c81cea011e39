"""torch's scaled_dot_product_attention on Attune's kernels, through torch's registry of flash implementations.

torch asks its own rules first whether a call is one for a fused kernel, and for which; all of them come here. What no
kernel of Attune's takes goes on to torch's own.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch.nn import attention as torch_attention

from attune._errors import BadInputError, UnsupportedError
from attune._yaml import write_spec
from attune.torch import _precision
from attune.torch._auxiliary import OF_16_BITS
from attune.torch._plans import Variant, variant_of

NAME = "ATTUNE"

# torch's fused operators by the key of their devices: on GPUs those of FlashAttention-2, of "memory-efficient
# attention" and of cuDNN. The backward pass of each has the same name with "_backward".
_OPERATORS = (
    ("_scaled_dot_product_flash_attention_for_cpu", "CPU"),
    ("_scaled_dot_product_flash_attention", "CUDA"),
    ("_scaled_dot_product_efficient_attention", "CUDA"),
    ("_scaled_dot_product_cudnn_attention", "CUDA"),
)
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_REFUSALS = (UnsupportedError, BadInputError)


def activate_sdpa() -> None:
    """Makes torch.nn.functional.scaled_dot_product_attention run on Attune, until `deactivate_sdpa`.

    That is torch.nn.attention.activate_flash_attention_impl("ATTUNE"), which takes the place of another implementation.
    It holds for eager and compiled code, for gradients, and for graphs that were compiled before. torch's own rules
    say which calls are for a fused kernel: those with dropout, or with a mask that requires a gradient, are not.
    float64 and head dims without a kernel stay torch's too. Not thread-safe.

    Raises:
        NotImplementedError: torch is older than 2.10.
    """
    if not hasattr(torch_attention, "activate_flash_attention_impl"):
        raise NotImplementedError("torch has a registry of attention implementations from 2.10 on")
    torch_attention.activate_flash_attention_impl(NAME)


def deactivate_sdpa() -> None:
    """Gives torch its own back. Where another implementation is active it does nothing."""
    current = getattr(torch_attention, "current_flash_attention_impl", lambda: None)
    if current() == NAME:
        torch_attention.restore_flash_attention_impl()


class _Active:
    """All operators, replaced for as long as this lives."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # That torch's own are overridden is what was asked for.
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            self._override()

    def _override(self) -> None:
        for name, key in _OPERATORS:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                continue  # torch was built without CUDA
            for function, of_pass in ((_forward, name), (_backward, f"{name}_backward")):
                operator = getattr(torch.ops.aten, of_pass).default
                of_torch = torch.library.get_kernel(operator.name(), key)
                self._library.impl(of_pass, functools.partial(function, operator, of_torch), key, with_keyset=True)

    def remove(self) -> None:
        """For torch's registry."""
        self._library._destroy()


@functools.lru_cache(maxsize=256)
def _variant(
    dtype: str,
    head_dim: tuple[int, int],
    is_causal: bool,
    mask_dims: tuple[str, ...] | None,
    mask_dtype: str,
    scale: float | None,
    precision: str | None,
) -> Variant:
    """mask_dims, mask_dtype: of the tensor that is added to scores, by a spec's names; None: there is none."""
    mask, score, tensors = ["causal_top_left"] if is_causal else [], None, {}
    if mask_dims is not None:
        names = {"batch": "b", "heads": "h", "q_len": "q_idx", "kv_len": "kv_idx", "1": "0"}
        added = f"added[{', '.join(names[dim] for dim in mask_dims)}]"
        mask.append(f"{added} > log(0.0)")  # -inf: a tile of dead keys is left out
        score = f"score + {added}"
        tensors["added"] = f"{mask_dtype}[{', '.join(mask_dims)}]"
    return variant_of(
        write_spec(
            name="scaled_dot_product_attention",
            dtype=dtype,
            head_dim=head_dim,
            layout="bhsd",
            mask=" and ".join(mask) or None,
            score=score,
            sink=None,
            scalars={},
            tensors=tensors,
            dropout=0.0,
            scale=scale,
            passes=("forward",),
            precision=precision,
        )
    )


def _prepare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> tuple[Variant, list[torch.Tensor]]:
    """Raises UnsupportedError, BadInputError where there is no spec for it."""
    if q.dtype not in _DTYPES or q.dim() != 4:
        raise UnsupportedError(f"attention of {q.dim()} dims in {q.dtype}")
    dims, kind, given = None, "float32", []
    if mask is not None:
        kind = OF_16_BITS.get(mask.dtype, kind)
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])[-mask.dim() :]
        for dim, size in enumerate(sizes):
            if mask.stride(dim) == 0 and size > 1:
                mask = mask.narrow(dim, 0, 1)  # what was expanded
        names = ("batch", "heads", "q_len", "kv_len")[-mask.dim() :]
        dims = tuple("1" if mask.shape[dim] == 1 else name for dim, name in enumerate(names))
        given = [mask]
    precision = _precision.of_call(None, q.device.type, q.dtype)
    variant = _variant(_DTYPES[q.dtype], (q.shape[-1], v.shape[-1]), is_causal, dims, kind, scale, precision)
    return variant, variant.auxiliaries(given, q.device)


@functools.cache
def _arguments(operator: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of an operator's arguments, and what they are where a call leaves them out."""
    arguments = operator._schema.arguments
    return tuple(each.name for each in arguments), {
        each.name: each.default_value for each in arguments if each.has_default_value()
    }


def _call(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name."""
    names, defaults = _arguments(operator)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _added(call: dict[str, Any]) -> torch.Tensor | None:
    """What is added to the scores."""
    return call.get("attn_mask", call.get("attn_bias"))


Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides


def _layout(tensor: torch.Tensor | None) -> Layout | None:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


@functools.lru_cache(maxsize=1024)
def _results(operator: Any, **given: Any) -> tuple[Any, ...]:
    """What torch's operator gives: a Layout for each tensor. Compiled code counts on it."""

    def bare(value: Any) -> Any:
        if isinstance(value, tuple) and isinstance(value[-1], torch.dtype):
            return torch.empty_strided(*value[:2], dtype=value[2], device="meta")
        return value

    found = operator(**{name: bare(value) for name, value in given.items()})
    return tuple(_layout(each) if torch.is_tensor(each) else each for each in found)


def _like_torchs(operator: Any, call: dict[str, Any]) -> tuple[Any, ...]:
    given = {
        name: _layout(value) if torch.is_tensor(value) else tuple(value) if isinstance(value, list) else value
        for name, value in call.items()
    }
    return _results(operator, **given)


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _lse_of_torch(lse: torch.Tensor, layout: Layout) -> torch.Tensor:
    """[batch, heads, q_len], in the operator's own sizes: with an axis of 1 behind it, with rows up to a multiple of
    32, or, where it was not asked for, without any."""
    sizes, strides, dtype = layout
    if len(sizes) > lse.dim():
        lse = lse.unsqueeze(-1)
    if lse.shape != sizes:
        found = torch.full(sizes, torch.inf, dtype=dtype, device=lse.device)
        rows = min(sizes[2], lse.shape[2])
        found[:, :, :rows] = lse[:, :, :rows]
        return found
    return _with_strides(lse, strides)


def _lse_of_ours(lse: torch.Tensor, q_len: int) -> torch.Tensor:
    return (lse.squeeze(-1) if lse.dim() > 3 else lse[:, :, :q_len]).contiguous()


def _forward(operator: Any, of_torch: Any, keys: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    call = _call(operator, args, kwargs)
    q, k, v, added = call["query"], call["key"], call["value"], _added(call)
    try:
        if call["dropout_p"]:
            raise UnsupportedError("dropout, which torch draws itself")
        if added is not None and added.requires_grad:
            raise UnsupportedError("a mask that learns")
        variant, given = _prepare(q, k, v, call["is_causal"], added, call["scale"])
        o, lse = variant.forward_plan(q, k, v).run(q, k, v, given, with_lse=True)
    except _REFUSALS:
        return of_torch.call_boxed(keys, *args, **kwargs)
    assert lse is not None
    if added is not None:  # rows without keys have 0 there, which torch's own backward pass expects
        lse.masked_fill_(lse == -torch.inf, 0)
    of_o, of_lse, *others = _like_torchs(operator, call)
    # What else torch gives is of dropout, or of lengths that are all alike.
    rest = (
        torch.zeros(each[0], dtype=each[2], device=q.device) if isinstance(each, tuple) else each for each in others
    )
    return _with_strides(o, of_o[1]), _lse_of_torch(lse, of_lse), *rest


def _backward(operator: Any, of_torch: Any, keys: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    call = _call(operator, args, kwargs)
    q, k, v = call["query"], call["key"], call["value"]
    d_o = call["grad_out"] if "grad_out" in call else call["grad_out_"]
    try:
        if call["dropout_p"]:
            raise UnsupportedError("dropout, which torch draws itself")
        if len(call.get("grad_input_mask", ())) == 4 and call["grad_input_mask"][3]:
            raise UnsupportedError("a mask that learns")
        variant, given = _prepare(q, k, v, call["is_causal"], _added(call), call["scale"])
        lse = _lse_of_ours(call["logsumexp"], q.shape[2])
        found = variant.backward_plan(q, k, v).run((q, k, v), call["out"], lse, d_o, None, given)
    except _REFUSALS:
        return of_torch.call_boxed(keys, *args, **kwargs)
    wanted = _like_torchs(operator, call)
    return *(_with_strides(mine, each[1]) for mine, each in zip(found[:3], wanted, strict=False)), *[None] * len(
        wanted[3:]
    )


if hasattr(torch_attention, "register_flash_attention_impl"):
    torch_attention.register_flash_attention_impl(NAME, register_fn=_Active)
