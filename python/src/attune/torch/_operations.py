"""All that can be translated of scalars: importing this fills the table. Operations on tensors of a few scalars are in
_small.py and _composed.py, conversions in _casts.py."""

from attune.torch import _activations, _arithmetic, _bits, _conditions, _functions  # noqa: F401
from attune.torch._table import OPERATIONS, canonical_name

__all__ = ["OPERATIONS", "canonical_name"]
