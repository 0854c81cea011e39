"""What torch.utils.flop_counter counts of Attune's operators: as of torch's own attention all pairs of a query and a
key of one sequence, those that a mask leaves out, too. A compiler that asks what an operator costs gets the same."""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from attune._structs import Layout
from attune._view import axes
from attune.torch import _packed_operators  # noqa: F401
from attune.torch._cache_plan import NAMES
from attune.torch._packed import _OFFSETS
from attune.torch._plans import variant_of

_COUNTER = "torch.utils.flop_counter"  # whose import takes longer than all of Attune's


def _lengths(begins: torch.Tensor, used: torch.Tensor | None, tokens: int) -> list[int]:
    """Of each sequence; of tensors without numbers the mean."""
    numbers = begins if used is None else used
    if type(numbers) is not torch.Tensor or numbers.is_meta:
        count = int(begins.shape[0]) - 1
        return [tokens // max(count, 1)] * count
    return (begins.diff() if used is None else used).tolist()


def _pairs(layout: Layout, arrays: dict[str, Any]) -> int:
    """Of queries and keys, of all heads."""
    q, k, cu_q = arrays["q"], arrays["k"], arrays.get("cu_q")
    if cu_q is None:
        batch, q_len, heads, _ = axes(layout, tuple(q.shape))
        return batch * heads * q_len * axes(layout, tuple(k.shape))[1]
    queries = _lengths(cu_q, arrays.get("used_q"), q.shape[0])
    table, begins = arrays.get("page_table"), arrays.get("cu_kv")
    tokens = k.shape[0] if table is None else k.shape[0] * k.shape[1]
    keys = _lengths(cu_q if begins is None else begins, arrays.get("used_kv"), tokens)
    return q.shape[1] * sum(of_q * of_kv for of_q, of_kv in zip(queries, keys, strict=True))


def _products(text: str, arrays: dict[str, Any], of_keys: int, of_values: int) -> int:
    """So many products of head_dim columns of keys and of values."""
    spec = variant_of(text).spec
    of_qk, of_v = spec.head_dim
    return 2 * _pairs(spec.layout_id, arrays) * (of_keys * of_qk + of_values * of_v)


def _forward(q: Any, k: Any, v: Any, tensors: Any, spec: str, *_: Any, **_out: Any) -> int:
    return _products(spec, {"q": q, "k": k}, 1, 1)


def _backward(
    d_o: Any, d_lse: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, tensors: Any, spec: str, *_: Any, **_out: Any
) -> int:
    return _products(spec, {"q": q, "k": k}, 3, 2)


def _over_cache(*given: Any, **_out: Any) -> int:
    return _products(given[len(NAMES) + 1], dict(zip(NAMES, given[: len(NAMES)], strict=True)), 1, 1)


def _packed_backward(d_o: Any, d_lse: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *given: Any, **_out: Any) -> int:
    offsets = dict(zip(_OFFSETS, given[: len(_OFFSETS)], strict=True))
    return _products(given[len(_OFFSETS) + 1], {"q": q, "k": k, **offsets}, 3, 2)


def _register(counter: ModuleType) -> None:
    operators = torch.ops.attune
    for operator, formula in (
        (operators.attention, _forward),
        (operators.attention_backward, _backward),
        (operators.attention_over_cache, _over_cache),
        (operators.attention_packed_backward, _packed_backward),
    ):
        counter.register_flop_formula(operator, get_raw=True)(formula)


class _Registering(importlib.abc.Loader):
    """The counter's loader, and registers when the module has run, a reload too."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name: str) -> Any:  # get_source and others that a kind of loader may have
        return getattr(self._loader, name)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds the counter's module as the finders behind it do, at every look: who looks need not load."""

    def __init__(self) -> None:
        self._here = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != _COUNTER or getattr(self._here, "asks", False):
            return None
        self._here.asks = True
        try:
            for finder in list(sys.meta_path):
                found = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
                if found is not None:
                    if hasattr(found.loader, "exec_module"):
                        found.loader = _Registering(found.loader)
                    return found
            return None
        finally:
            self._here.asks = False


if _COUNTER in sys.modules:
    _register(sys.modules[_COUNTER])
sys.meta_path.insert(0, _WhenImported())
