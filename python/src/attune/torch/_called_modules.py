"""Which of torch's modules a trace calls: only of those does a translation depend on all that they are."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as _of_torch

# Classes of modules that a traced function has called. Most modules only lend a function their attributes, and what
# their forward sees is much, and changes.
_called: weakref.WeakSet[type] = weakref.WeakSet()
_CONTAINERS = (
    torch.nn.Sequential,
    torch.nn.ModuleList,
    torch.nn.ModuleDict,
    torch.nn.ParameterList,
    torch.nn.ParameterDict,
)
# What every module has.
OF_ALL = frozenset(vars(torch.nn.Module())) - {"training"}
# Methods that read the tables of a module by names that stand nowhere in the code.
READERS = frozenset(
    "parameters named_parameters buffers named_buffers modules named_modules children named_children get_parameter "
    "get_buffer get_submodule state_dict get_extra_state extra_repr _parameters _buffers _modules".split()
)


def is_whole(kind: type) -> bool:
    """Whether functions may see all of a module of this class."""
    return issubclass(kind, _CONTAINERS) or kind in _called


def has_hooks(module: torch.nn.Module) -> bool:
    of_all = _of_torch._global_forward_hooks or _of_torch._global_forward_pre_hooks
    return bool(of_all or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


@contextlib.contextmanager
def watched(is_needed: bool) -> Iterator[set[type]]:
    """Notes the classes of modules that are called meanwhile by this thread."""
    met: set[type] = set()
    if not is_needed:
        yield met
        return
    thread = threading.get_ident()

    def note(module: torch.nn.Module, _: Any) -> None:
        if threading.get_ident() == thread:
            met.add(type(module))

    handle = _of_torch.register_module_forward_pre_hook(note)
    try:
        yield met
    finally:
        handle.remove()
        _called.update(met)
