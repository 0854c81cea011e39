"""Whether tensors are as others were: all of it that a plan depends on, looked at in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from attune.torch import _autocast
from attune.torch._transforms import is_transformed, transforms

Check = Callable[..., bool]

_dispatch_modes = torch._C._len_torch_dispatch_stack
_OWN_TYPES = (torch.Tensor, torch.nn.Parameter)


def may_be_met(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether they are nothing but memory, and nothing of torch's wants to see what is done with them."""
    if _dispatch_modes() or transforms() is not None:
        return False
    return all([type(x) in _OWN_TYPES and not is_transformed(x) and not x.is_neg() for x in tensors])


def check_of(tensors: Sequence[torch.Tensor]) -> Check:
    """A function that tells of as many tensors whether they are as these: their classes, sizes, strides, types, devices
    and requires_grad, and what torch has switched on for such tensors (autocast, modes, transforms). It keeps none of
    them. One tensor in two places is not as two."""
    return _check_of(tensors)


def _by_torch(tensors: Sequence[torch.Tensor]) -> Check:
    """Dynamo's own guard: a third of a microsecond for three tensors, where reading as much takes two."""
    guards: Any = torch._C._dynamo.guards
    found: Check = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return found


def _by_reading(tensors: Sequence[torch.Tensor]) -> Check:
    """The same of what has names in every torch."""
    known = _state(tensors)

    def check(*given: Any) -> bool:
        if len(given) != len(known[0]):
            raise TypeError("wrong length")
        return may_be_met(given) and _state(given) == known

    return check


def _state(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    # A torch.device takes a microsecond to hash, and comparing two as long.
    found = [
        (type(x), x.shape, x.stride(), x.dtype, x.device.type, x.get_device(), x.requires_grad, x.is_inference())
        for x in tensors
    ]
    return found, _autocast.is_on(tensors[0].device.type), torch.is_inference_mode_enabled()


def _tells_all(make: Callable[[Sequence[torch.Tensor]], Check]) -> bool:
    """Whether it does here what `check_of` says: nobody promised that it does in the next torch."""
    try:
        x, turned = torch.empty(2, 4, 8, device="cpu"), torch.empty(4, 2, 8, device="cpu").transpose(0, 1)
        check = make((x, x[0]))
        others = (
            x[:1], x[0], turned, x.half(), x.detach().requires_grad_(), torch.nn.Parameter(x, requires_grad=False),
            torch.empty(2, 4, 8, device="meta"), torch._neg_view(x),
        )  # fmt: skip
        if not check(x, x[0]) or not check(x.clone(), x[1]) or any(check(other, x[0]) for other in others):
            return False
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return not check(x, x[0])
    except (AttributeError, TypeError, RuntimeError):
        return False


_check_of = _by_torch if _tells_all(_by_torch) else _by_reading
