"""What flex_attention asks of its arguments before it does anything with them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

_OF_SLICED: Any = getattr(torch_flex, "_sliced_mask_mod_error", None)  # of newer torch than 2.9


def check_functions(score_mod: Any, block_mask: Any, mask_mod: Any) -> None:
    """Raises TypeError where one of them is no such thing."""
    for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if function is not None and not callable(function):
            advice = "; expressions in words are attune.attention's" if isinstance(function, str) else ""
            raise TypeError(f"{name} is a {type(function).__name__}, not a function{advice}")
        _check_arguments(name, function)
    if block_mask is not None and not hasattr(block_mask, "BLOCK_SIZE"):
        advice = ": look it up in a function, mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"
        raise TypeError(
            f"block_mask is a {type(block_mask).__name__}, no BlockMask"
            + (advice if isinstance(block_mask, torch.Tensor) else ": create_block_mask makes one")
        )


_ARGUMENTS = {"score_mod": "score, b, h, q_idx, kv_idx", "mask_mod": "b, h, q_idx, kv_idx"}


def _check_arguments(name: str, function: Any) -> None:
    """Raises TypeError where it does not take what it is given."""
    if function is None or _takes(function, _ARGUMENTS[name]):
        return
    other = "mask_mod" if name == "score_mod" else "score_mod"
    takes = f"what a {other} does: say {other}=" if _takes(function, _ARGUMENTS[other]) else str(_signature(function))
    raise TypeError(f"{name} is called with ({_ARGUMENTS[name]}), and this one takes {takes}")


def _signature(function: Any) -> inspect.Signature:
    """Of what is called: a wrapper's own."""
    return inspect.signature(function, follow_wrapped=False)


def _takes(function: Any, arguments: str) -> bool:
    try:
        _signature(function).bind(*arguments.split(","))
    except TypeError:
        return False
    except Exception:  # it does not say, or its own `__getattr__` fails
        return True
    return True


def check_operands(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_mask: torch_flex.BlockMask | None,
    enable_gqa: bool,
    scale: Any,
) -> None:
    """What torch refuses is refused here, in its words, and what it fails at."""
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if not isinstance(operand, torch.Tensor):
            raise TypeError(
                f"{name} is a {type(operand).__name__}, no torch tensor; attune.attention takes other arrays"
            )
    if isinstance(scale, str):
        raise TypeError("scale is a str, no number")
    if query.is_nested or key.is_nested or value.is_nested:
        raise NotImplementedError("flex_attention does not support NestedTensor inputs; attune.attention takes them")
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("query, key, and value must be 4D tensors")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"Expected one dtype, but got {query.dtype}, {key.dtype} and {value.dtype}")
    if not query.device == key.device == value.device:
        raise ValueError(f"Expected one device, but got {query.device}, {key.device} and {value.device}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"Expect query and key to have one head_dim, but got {query.shape[-1]} and {key.shape[-1]}")
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and Hkv={kv_heads}. "
            "Try setting enable_gqa=True for GQA."
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"Expect Hq to be a multiple of Hkv, but got Hq={heads} and Hkv={kv_heads}.")
    if (key.shape[1], key.shape[2]) != (value.shape[1], value.shape[2]):
        raise ValueError(
            f"Expect one number of heads and one length of key and value, but got {tuple(key.shape[1:3])} and "
            f"{tuple(value.shape[1:3])}."
        )
    if key.shape[0] not in (1, query.shape[0]):
        raise ValueError(f"Expect one batch, or 1 of key/value, but got Bq={query.shape[0]} and Bkv={key.shape[0]}.")
    if value.shape[0] not in (1, query.shape[0]):
        raise ValueError(f"Expect one batch, or 1 of key/value, but got Bq={query.shape[0]} and Bv={value.shape[0]}.")
    if block_mask is None:
        return
    of_all = torch_flex._LARGE_SPARSE_BLOCK_SIZE
    lengths = (query.shape[-2], key.shape[-2])
    if tuple(block_mask.BLOCK_SIZE) != (of_all, of_all) and tuple(block_mask.shape[-2:]) != lengths:
        raise ValueError(
            f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={lengths[0]} and "
            f"kv_len={lengths[1]}. Create one of these lengths, or cut it to them: block_mask._adjust{lengths}."
        )
    if _OF_SLICED is not None and block_mask.mask_mod is _OF_SLICED:
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")


def of_one_batch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value of the query's batch."""
    batch = query.shape[0]
    if batch == key.shape[0] == value.shape[0]:
        return key, value
    return key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
