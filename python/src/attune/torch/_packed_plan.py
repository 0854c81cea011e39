"""Packed sequences whose gradients are wanted, by plans: what follows from sizes, strides and types is worked out
once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from attune import _launch
from attune._dlpack import contiguous_strides
from attune._launch import Launch
from attune._library import check, library
from attune._view import View
from attune.torch import _packed
from attune.torch._gradients import once
from attune.torch._launch_plan import KEPT_WORKSPACE_BYTES, MISALIGNED, copy_of, key_of, stream_of, view_of
from attune.torch._plans import backward_kernel

if TYPE_CHECKING:
    from attune.torch._cache_plan import Arrays, CachePlan

_MAX_PLANS = 16  # of one forward plan: strides that gradients of o have
_FIRST = ("q", "k", "v", "o", "lse", "d_o", "d_q", "d_k", "d_v")  # what each launch has

_Tensors = Sequence[torch.Tensor]


def learned_slots(plan: CachePlan) -> tuple[int, ...]:
    return tuple(slot for slot, tensor in enumerate(plan.spec.tensors) if tensor.grad)


class PackedBackward:
    """Launches that belong to those of a CachePlan, of gradients of o with known strides. Thread-safe: each launch
    takes structs of its own from a pool.

    Raises:
        UnsupportedError: the device has no backward pass for it.
    """

    def __init__(self, plan: CachePlan, d_o_strides: tuple[int, ...]) -> None:
        dtype, device = plan.operands[0].dtype, plan.operands[0].device
        self.plan = plan
        self.spec, self.scalar_slots = plan.spec, plan.scalar_slots
        self.device, self.is_on_cpu, self.draws = plan.device, plan.is_on_cpu, plan.draws
        self.kernel = backward_kernel(plan.spec, plan.shape, device)
        self.learned = learned_slots(plan)
        self.workspace_bytes = self.kernel.workspace_bytes
        self.keeps_workspace = plan.is_on_cpu and self.workspace_bytes <= KEPT_WORKSPACE_BYTES
        self.pool: list[Any] = []
        operands = [view for view in plan.operands if view is not None]
        self.dense = [(tuple(view.sizes), contiguous_strides(tuple(view.sizes))) for view in operands]
        self._gradients = [View(0, *each, dtype, device, None) for each in self.dense]
        self._d_o = View(0, plan.o_sizes, d_o_strides, dtype, device, None)

    def _arguments(self, launch: Launch) -> Any:
        """att_backward_args, all but the addresses, where gradients of tensors go, and a workspace where they have
        one."""
        plan = self.plan
        views = plan.declared
        launch.tensors = {tensor.name: view for tensor, view in zip(plan.spec.tensors, views, strict=True)}
        o = View(0, plan.o_sizes, plan.o_strides, self._d_o.dtype, "", None)
        lse = View(0, plan.lse_sizes, plan.lse_strides, "float32", "", None)
        of_launch = _launch.Gradients(self._d_o, None, *self._gradients, {})
        args = _launch.backward_args(plan.spec, plan.shape, plan.operands, o, lse, of_launch, launch, plan.sequences)
        pointers = (ctypes.c_void_p * max(len(views), 1))()
        if self.learned:
            args.d_tensors, args.d_tensor_count = pointers, len(views)
        args.workspace_bytes = self.workspace_bytes
        return args, pointers, None

    def run(
        self,
        arrays: Arrays,
        tensors: _Tensors,
        o: torch.Tensor,
        lse: torch.Tensor,
        d_o: torch.Tensor,
        d_lse: torch.Tensor | None,
        launch: Launch,
    ) -> list[torch.Tensor] | None:
        """Of q, k, v and learned tensors, 0 in rows of no sequence. None: an operand begins where no launch takes
        it."""
        plan = self.plan
        if plan.copied:
            arrays = tuple([copy_of(x) if place in plan.copied else x for place, x in enumerate(arrays)])
        tensors = [x.contiguous() for x in tensors]
        given = [x.data_ptr() for x in (*arrays[:3], o, lse, d_o)]
        if any([address & MISALIGNED for address in given]):
            return None
        found = [plan.empty(*each, plan.dtype).zero_() for each in self.dense]
        found += [torch.zeros_like(tensors[slot]) for slot in self.learned]
        try:
            args, pointers, scratch = self.pool.pop()
        except IndexError:
            args, pointers, scratch = self._arguments(launch)
        if self.workspace_bytes:
            if scratch is None:
                scratch = plan.empty((self.workspace_bytes,), (1,), torch.uint8)
            args.workspace = scratch.data_ptr()
        for name, address in zip(_FIRST, (*given, *[x.data_ptr() for x in found[:3]]), strict=True):
            setattr(args, name, address)
        args.d_lse = None if d_lse is None else d_lse.data_ptr()
        for name, place in plan.members:
            setattr(args, name, arrays[place].data_ptr())
        for slot, tensor in enumerate(tensors):
            args.tensor_views[slot].data = tensor.data_ptr()
        for slot, gradient in zip(self.learned, found[3:], strict=True):
            pointers[slot] = gradient.data_ptr()
        if plan.is_open or launch.scale is not None or launch.dropout is not None or launch.scalars:
            _launch.fill_numbers(args, plan.spec, launch)
        if plan.drops:
            _launch.fill_seed(args, plan.spec, launch.seed, launch.offset)
        check(library().att_backward(self.kernel.handle, ctypes.byref(args), stream_of(plan.device)))
        # A GPU may still be at work on the workspace: there the next launch has one of its own.
        self.pool.append((args, pointers, scratch if self.keeps_workspace else None))
        return found


def _backward_of(plan: CachePlan, d_o_strides: tuple[int, ...]) -> PackedBackward:
    key = d_o_strides, torch.get_deterministic_debug_mode()
    found = plan.backwards.get(key)
    if found is None:
        if len(plan.backwards) >= _MAX_PLANS:
            plan.backwards.clear()
        found = plan.backwards[key] = PackedBackward(plan, d_o_strides)
    return found


def record(
    plan: CachePlan, arrays: Arrays, tensors: _Tensors, launch: Launch, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """O and LSE of tensors that are nothing but memory, recorded for a backward pass.

    Raises:
        UnsupportedError: the device has no backward pass for it.
    """
    learned = [tensors[slot] for slot in learned_slots(plan)]
    found = _apply((plan, arrays[3:], tensors, launch, with_lse), *arrays[:3], *learned)
    return found if with_lse else (found, None)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: tuple[CachePlan, Arrays, _Tensors, Launch, bool],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *learned: torch.Tensor,
    ) -> Any:
        plan, others, tensors, launch, with_lse = call
        if plan.has_work:  # where there is no backward pass it is said now
            _backward_of(plan, plan.o_strides)
        o, lse = plan.run((q, k, v, *others), tensors, launch, True)
        ctx.call = plan, launch, [(x.shape, x.dtype) for x in learned]
        ctx.set_materialize_grads(False)
        # Saved, those that are looked up too: torch notices where one was changed in between.
        ctx.save_for_backward(q, k, v, o, lse, *others, *tensors)
        return (o, lse) if with_lse else o

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> tuple[Any, ...]:
        return None, *_gradients_once(ctx, d_o, d_lse)


@once
def _gradients_once(
    call: tuple[CachePlan, Launch, Any],
    saved: tuple[Any, ...],
    d_o: torch.Tensor | None,
    d_lse: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    plan, launch, sizes = call
    q, k, v, o, lse, *rest = saved
    others = len(rest) - len(plan.spec.tensors)
    return gradients(plan, (q, k, v, *rest[:others]), rest[others:], o, lse, d_o, d_lse, launch, sizes)


def gradients(
    plan: CachePlan,
    arrays: Arrays,
    tensors: _Tensors,
    o: torch.Tensor,
    lse: torch.Tensor,
    d_o: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    launch: Launch,
    sizes: Sequence[tuple[torch.Size, torch.dtype]],
) -> tuple[torch.Tensor, ...]:
    """Of q, k, v and learned tensors, whose sizes and types are those of the caller's."""
    lse, found = lse.contiguous(), None
    if plan.has_work and (d_o is not None or d_lse is not None):
        d_o = torch.zeros_like(o) if d_o is None else d_o
        is_known = (d_o.stride(), torch.get_deterministic_debug_mode()) in plan.backwards  # strides that a launch took
        if not (is_known or view_of(d_o).is_operand(plan.spec.dtype_id)) or d_o.data_ptr() & MISALIGNED:
            d_o = copy_of(d_o)
        d_lse = None if d_lse is None else d_lse.to(torch.float32).contiguous()
        # Hooks on what is saved may give it back with other strides.
        if key_of(arrays) == plan.key and o.stride() == tuple(plan.o_strides):
            found = _backward_of(plan, d_o.stride()).run(arrays, tensors, o, lse, d_o, d_lse, launch)
    if found is None:
        found = _packed.gradients_of(plan.spec, arrays, tensors, o, lse, d_o, d_lse, launch)
    learned = [x.to(dtype).reshape(shape) for x, (shape, dtype) in zip(found[3:], sizes, strict=True)]
    return *found[:3], *learned


_apply: Any = super(torch.autograd.Function, _Attention).apply  # as attune.torch._function's `record`
