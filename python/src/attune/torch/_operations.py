"""All that can be translated: importing this fills the table."""

from attune.torch import _arithmetic, _bits, _conditions, _functions  # noqa: F401
from attune.torch._table import OPERATIONS, canonical_name

__all__ = ["OPERATIONS", "canonical_name"]
