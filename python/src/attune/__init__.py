"""Attune for Python: attention variants as expressions, compiled to kernels for the device at hand.

    import attune
    o = attune.attention(q, k, v, mask="causal and document(doc)", tensors={"doc": doc})

`attention` takes arrays of NumPy, torch, CuPy, or anything that speaks DLPack; `append` writes new keys and values into
a cache; `Spec` is a variant by itself; errors carry line, caret and hint. `attune.torch` has FlexAttention's names.
Nothing here imports a framework that the program has not imported itself; to name `attune.torch` imports torch.
"""

import importlib
from typing import Any

from attune._errors import AttuneError, BadInputError, UnavailableError, UnsupportedError
from attune._explain import Explanation
from attune._library import version
from attune.append import append
from attune.attention import attention
from attune.runtime import Kernel, Runtime, default_runtime
from attune.spec import ScalarInfo, Spec, TensorInfo
from attune.tuning import Tuning, tune

_OF_TORCH = ("flex_attention", "create_block_mask", "and_masks", "or_masks")


def __getattr__(name: str) -> Any:
    if name == "torch":  # imported once it is asked for: it needs torch
        try:
            return importlib.import_module("attune.torch")
        except ModuleNotFoundError as reason:
            raise AttributeError(f"attune.torch needs torch: {reason}") from reason
    where = f": it is attune.torch.{name}" if name in _OF_TORCH else ""
    raise AttributeError(f"module 'attune' has no attribute '{name}'{where}")


__all__ = [
    "AttuneError",
    "BadInputError",
    "Explanation",
    "Kernel",
    "Runtime",
    "ScalarInfo",
    "Spec",
    "TensorInfo",
    "Tuning",
    "UnavailableError",
    "UnsupportedError",
    "append",
    "attention",
    "default_runtime",
    "tune",
    "version",
]
