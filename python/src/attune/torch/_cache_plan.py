"""Launches over a cache, by plans: what follows from sizes, strides and types is worked out once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attune import _launch, _packed, _paged
from attune._dlpack import contiguous_strides
from attune._launch import Launch, Sequences, refuse
from attune._library import check
from attune._packed import OFFSETS, Offsets
from attune._recent import Recent
from attune._structs import Layout, Shape
from attune._view import View
from attune.runtime import default_runtime
from attune.spec import Spec
from attune.torch._launch_plan import (
    ADDRESSES, KEPT_WORKSPACE_BYTES, MISALIGNED, copy_of, forward_function, key_of, stream_of, view_of, write_addresses,
)  # fmt: skip
from attune.torch._memory import empty_on
from attune.torch._plans import build_backward_ahead

MAX_PLANS = 1024
# What a launch is given beside the tensors of the spec, in this order.
NAMES = ("q", "k", "v", *OFFSETS, "k_scales", "v_scales")

Arrays = tuple[Any, ...]  # tensors, or None


class CachePlan:
    """Launches of a spec on tensors of known sizes, strides, types and device: all but addresses is worked out.
    Thread-safe: each launch takes structs of its own from a pool.

    Raises:
        BadInputError, UnsupportedError: the tensors fit neither each other nor a kernel.
    """

    def __init__(self, spec: Spec, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch) -> None:
        views = {name: None if x is None else view_of(x) for name, x in zip(NAMES, arrays, strict=True)}
        q, k, v = operands = views["q"], views["k"], views["v"]
        assert q is not None and k is not None
        self.spec, self.device, self.is_on_cpu = spec, arrays[0].device, q.device == "cpu"
        self.copied: set[int] = set()  # of NAMES
        self.sequences, self.shape = self._sequences(views, q, k, v)
        _launch.check_operands(spec, q, k, v)
        if self.sequences is not None:
            _packed.check_layout(spec, self.sequences)
        self.in_pages = self.sequences is not None and self.sequences.page_table is not None
        for place, (name, view) in enumerate(zip("qkv", operands, strict=True)):
            if view is not None and not _launch.is_operand(spec, name, view):
                if self.in_pages and name != "q":
                    _launch.refuse_to_copy(name, view)
                self.copied.add(place)
                view.strides = contiguous_strides(view.sizes)
        self.operands = q, k, v
        launch.scales = _launch.check_scales(
            spec, self.shape, self.sequences, views["k_scales"], views["v_scales"], q.device
        )
        self.has_work = _packed.has_work(self.shape)
        width = spec.head_dim[1]
        if self.sequences is not None:
            self.o_sizes: tuple[int, ...] = (self.shape.q_len, self.shape.heads, width)
            self.lse_sizes: tuple[int, ...] = (self.shape.heads, self.shape.q_len)
        else:
            self.o_sizes = _launch.output_sizes(spec.layout_id, self.shape, width)
            self.lse_sizes = (self.shape.batch, self.shape.heads, self.shape.q_len)
        self.o_strides, self.lse_strides = contiguous_strides(self.o_sizes), contiguous_strides(self.lse_sizes)
        self.empty, self.dtype = empty_on(self.device), arrays[0].dtype
        # The members that hold addresses, each with its place among the tensors.
        self.members = tuple(
            (name, place) for place, name in enumerate(NAMES) if views[name] is not None and name not in ("q", "k", "v")
        )
        if self.sequences is not None and views["cu_kv"] is None and not self.in_pages:
            self.members += (("cu_kv", NAMES.index("cu_q")),)
        self.drops = spec.dropout != 0
        self.draws = self.drops and not spec.seed_on_device  # a seed that is the host's
        slots = spec.launch_scalar_slots.values()
        self.scalar_slots = tuple([(slot, spec.scalars[slot].dtype == "int32") for slot in slots])
        self.is_open = bool(spec.launch_scalar_slots or spec.scale is None or spec.dropout is None)
        self.pool: list[Any] = []
        self.key, self.backwards = key_of(arrays), {}
        self.workspace_bytes, self.keeps_workspace = 0, False
        self.declared = [view_of(x) for x in tensors]
        for view in self.declared:
            view.strides = contiguous_strides(view.sizes)
        if self.has_work:
            self.pool.append(self._arguments(launch))
            if spec.layout_id == Layout.THD:
                build_backward_ahead(spec, self.shape, self.device, (*arrays[:3], *tensors))
            self.kernel = default_runtime(q.device).kernel(spec, self.shape)
            self.workspace_bytes, self.handle = self.kernel.workspace_bytes, self.kernel.handle
            self.keeps_workspace = self.is_on_cpu and self.workspace_bytes <= KEPT_WORKSPACE_BYTES
            self.scales = launch.scales
            self.function = forward_function()

    def _sequences(
        self, views: Mapping[str, View | None], q: View, k: View, v: View | None
    ) -> tuple[Sequences | None, Shape]:
        given = Offsets(**{name: views[name] for name in OFFSETS})
        for name in OFFSETS:
            view = views[name]
            if view is not None:
                _packed.check_int32(name, view, q.device)
                if not view.is_contiguous:
                    self.copied.add(NAMES.index(name))
        if given.page_table is not None or self.spec.layout_id == Layout.PAGED:
            sequences, batch = _paged.sequences_of(given, k)
            return sequences, _paged.shape_of(batch, sequences, q, k, v)
        if given.is_given or self.spec.layout_id == Layout.THD:
            sequences, batch = _packed.sequences_of(given)
            return sequences, _packed.shape_of(batch, q, k, v)
        return None, _launch.shape_of(self.spec.layout_id, q, k, v)

    def _arguments(self, launch: Launch) -> Any:
        """att_forward_args, all but the addresses, their own address, and a workspace where they have one."""
        o = View(0, self.o_sizes, contiguous_strides(self.o_sizes), self.operands[0].dtype, "", None)
        launch.tensors = {tensor.name: view for tensor, view in zip(self.spec.tensors, self.declared, strict=True)}
        args = _launch.forward_args(self.spec, self.shape, self.operands, o, None, launch, self.sequences)
        return args, ctypes.addressof(args), None

    def run(
        self, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch, with_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """O and LSE; rows of no sequence are 0 and -inf."""
        if self.drops and isinstance(launch.seed, torch.Tensor) and not self.spec.seed_on_device:
            plan = plan_of(self.spec.with_device_seed, arrays, tensors, launch)
            return plan.run(arrays, tensors, launch, with_lse)
        is_whole = self.sequences is None and self.has_work
        q, k, v = arrays[:3]
        o = self.empty(self.o_sizes, self.o_strides, self.dtype)
        lse = self.empty(self.lse_sizes, self.lse_strides, torch.float32) if with_lse else None
        if not is_whole:
            o.zero_()
            if lse is not None:
                lse.fill_(-torch.inf)
        if not self.has_work:
            return o, lse
        if self.copied:
            arrays = tuple([copy_of(x) if place in self.copied else x for place, x in enumerate(arrays)])
            q, k, v = arrays[:3]
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), 0 if v is None else v.data_ptr()
        if (q_at | k_at | v_at) & MISALIGNED:
            return self._run_aligned(arrays, tensors, launch, with_lse)
        try:
            args, address, scratch = self.pool.pop()
        except IndexError:
            launch.scales = self.scales
            args, address, scratch = self._arguments(launch)
        if self.workspace_bytes:
            if scratch is None:
                # torch's allocations are aligned to 16 bytes, and on a GPU reused in the order of the stream.
                scratch = self.empty((self.workspace_bytes,), (1,), torch.uint8)
                args.workspace_bytes = self.workspace_bytes
            scratch_at = scratch.data_ptr()
        else:
            scratch_at = 0
        lse_at = 0 if lse is None else lse.data_ptr()
        write_addresses(args, ADDRESSES, q_at, k_at, v_at, o.data_ptr(), lse_at, scratch_at)
        for name, place in self.members:
            setattr(args, name, arrays[place].data_ptr())
        keep = []
        for slot, tensor in enumerate(tensors):
            keep.append(tensor.contiguous())
            args.tensor_views[slot].data = keep[-1].data_ptr()
        if self.is_open or launch.scale is not None or launch.dropout is not None or launch.scalars:
            _launch.fill_numbers(args, self.spec, launch)
        if self.drops:
            _launch.fill_seed(args, self.spec, launch.seed, launch.offset)
        status = self.function(self.handle, address, None if self.is_on_cpu else stream_of(self.device))
        if status:
            check(status)
        # A GPU may still be at work on the workspace: there the next launch has one of its own.
        self.pool.append((args, address, scratch if self.keeps_workspace else None))
        return o, lse

    def _run_aligned(self, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch, with_lse: bool) -> Any:
        """Of operands that begin between two multiples of 16 bytes: copies, which have other strides."""
        found = list(arrays)
        for place, name in enumerate("qkv"):
            x = arrays[place]
            if x is not None and x.data_ptr() & MISALIGNED:
                if self.in_pages and name != "q":
                    refuse(name, "does not begin at a multiple of 16 bytes", "a cache is not copied")
                found[place] = copy_of(x)
        return plan_of(self.spec, tuple(found), tensors, launch).run(tuple(found), tensors, launch, with_lse)


_plans: Recent[tuple[Any, ...], CachePlan] = Recent(MAX_PLANS)


def plan_of(spec: Spec, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch) -> CachePlan:
    key = spec, key_of(arrays), key_of(tensors)
    plan = _plans.recall(key)
    if plan is None:
        plan = CachePlan(spec, arrays, tensors, launch)
        _plans.put(key, plan)
    return plan


def by_slot(spec: Spec, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Raises BadInputError unless they are those of the spec."""
    if not tensors and not spec.tensors:
        return []
    _launch.check_names(spec, tensors)
    return [tensors[declared.name] for declared in spec.tensors]
