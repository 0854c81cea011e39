"""attune.torch.enable: code that imports FlexAttention's names from torch runs on Attune."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import flex_attention as torch_flex

from attune.torch._compiled import mark_of_torch
from attune.torch.block_mask import create_block_mask
from attune.torch.flex_attention import flex_attention

_originals: dict[str, Any] = {}


def _apply_kernel_options(*args: Any, **kwargs: Any) -> Any:
    return {**_originals["_apply_kernel_options"](*args, **kwargs), **mark_of_torch()}


def _validate_device(*args: Any) -> None:
    """torch refuses gradients on CPUs; whether there is a backward pass is found out where the call is made."""


def enable() -> None:
    """Makes torch's FlexAttention run on Attune, until `disable`.

    What was imported from torch.nn.attention.flex_attention before goes there too: its operator is swapped. What is
    looked up there from now on is Attune's own function, whose eager calls are much cheaper, and block masks are no
    longer computed. What has been compiled is compiled anew, as after torch.compiler.reset(). What cannot be translated
    stays torch's, with one warning a reason. Calling it twice does nothing more. Not thread-safe.
    """
    if _originals:
        return
    swapped = {
        "flex_attention": flex_attention,
        "create_block_mask": create_block_mask,
        "_apply_kernel_options": _apply_kernel_options,
        "_validate_device": _validate_device,
    }
    for name, function in swapped.items():
        _originals[name] = getattr(torch_flex, name)
        setattr(torch_flex, name, function)
    torch.compiler.reset()


def disable() -> None:
    """Gives torch its own back. Without `enable` before it does nothing."""
    if not _originals:
        return
    for name, function in _originals.items():
        setattr(torch_flex, name, function)
    _originals.clear()
    torch.compiler.reset()
