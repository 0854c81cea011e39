"""FlexAttention's names on Attune's kernels: `from attune.torch import flex_attention, create_block_mask`.

The functions of `torch.nn.attention.flex_attention`, with its signatures. docs/python.md says what is translated.
"""

from typing import Any

from torch.nn.attention import flex_attention as _torch_flex
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    FlexKernelOptions,
    and_masks,
    create_mask,
    noop_mask,
    or_masks,
)

from attune.torch import _cache_operators, _flops, _operators, _packed_operators  # noqa: F401
from attune.torch._expression import Untranslatable
from attune.torch._sdpa import activate_sdpa, deactivate_sdpa
from attune.torch._swap import disable, enable
from attune.torch.block_mask import BlockMask, create_block_mask
from attune.torch.flex_attention import flex_attention

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "Untranslatable",
    "activate_sdpa",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "deactivate_sdpa",
    "disable",
    "enable",
    "flex_attention",
    "noop_mask",
    "or_masks",
]


def __getattr__(name: str) -> Any:
    """What code takes from torch's module beside the names above, `_mask_mod_signature` for one, is torch's."""
    is_private = name.startswith("_") and not name.startswith("__")
    if not (is_private or name in _torch_flex.__all__) or not hasattr(_torch_flex, name):
        raise AttributeError(f"module 'attune.torch' has no attribute '{name}'")
    return getattr(_torch_flex, name)
