"""Launches on torch tensors. What follows from sizes, strides and types alone is worked out once and kept as a plan."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Sequence
from typing import Any

import torch

from attune import _structs
from attune._dlpack import contiguous_strides
from attune._errors import AttuneError, BadInputError, UnsupportedError
from attune._library import check
from attune._recent import Recent
from attune._structs import Pass, Shape, Strides
from attune._view import axes, operand_strides
from attune.runtime import Kernel, Runtime, default_runtime
from attune.spec import Spec, spec_of_name, spec_of_text
from attune.torch._auxiliary import as_auxiliary
from attune.torch._determinism import of_backward
from attune.torch._dropout import State, is_captured
from attune.torch._launch_plan import (
    ADDRESSES, KEPT_WORKSPACE_BYTES, MISALIGNED, Arguments, Plan, Scalars, aligned, copy_of, dense_like, device_name,
    forward_function, key_of, stream_of, view_of, write_addresses,
)  # fmt: skip
from attune.torch._negative import resolved

_MAX_PLANS = 1024  # of a variant; a plan is quickly made again


class Variant:
    """A spec, and the plans of the launches that it had.

    Attributes:
        learned: slots of the tensors whose gradients a backward launch gives.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.dtypes = tuple(getattr(torch, tensor.dtype) for tensor in spec.tensors)
        self.learned = tuple(slot for slot, tensor in enumerate(spec.tensors) if tensor.grad)
        slots = spec.launch_scalar_slots.values()
        self.scalar_slots = tuple((slot, spec.scalars[slot].dtype == "int32") for slot in slots)
        self._forward: Recent[tuple[Any, ...], ForwardPlan] = Recent(_MAX_PLANS)
        self._backward: Recent[tuple[Any, ...], BackwardPlan] = Recent(_MAX_PLANS)

    def forward_plan(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: Sequence[torch.Tensor] = ()
    ) -> ForwardPlan:
        """`tensors`: those of the first launch, as they were captured.

        Raises BadInputError, UnsupportedError where the operands fit neither each other nor a kernel."""
        key = key_of((q, k, v))
        plan = self._forward.recall(key)
        if plan is None:
            plan = ForwardPlan(self, q, k, v, tensors)
            self._forward.put(key, plan)
        return plan

    def backward_plan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> BackwardPlan:
        """Raises UnsupportedError where the device has no backward pass for it."""
        key = *key_of((q, k, v)), torch.get_deterministic_debug_mode()
        plan = self._backward.recall(key)
        if plan is None:
            plan = BackwardPlan(self, q, k, v)
            self._backward.put(key, plan)
        return plan

    def for_seed(self, seed: State) -> Variant:
        """Whose launches take such a seed."""
        if self.spec.seed_on_device or not isinstance(seed, torch.Tensor):
            return self
        return variant_of(self.spec.with_device_seed.reference)

    def auxiliaries(self, tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """The captured tensors as a launch takes them, by slot.

        Raises:
            BadInputError: there are more or fewer than the spec has, or one cannot be converted.
        """
        if len(tensors) != len(self.dtypes):
            raise BadInputError(
                f"{len(tensors)} tensors are given, and the spec `{self.spec.name}` has {len(self.dtypes)}"
            )
        found = []
        for slot, (tensor, dtype) in enumerate(zip(tensors, self.dtypes, strict=True)):
            tensor = resolved(tensor)
            if tensor.dtype is not dtype or not tensor.is_contiguous():
                tensor = as_auxiliary(tensor, dtype)
                if tensor.dtype is not dtype:
                    declared = self.spec.tensors[slot]
                    raise BadInputError(f"`{declared.name}` is {tensor.dtype}, and the spec has {declared.dtype}")
            if tensor.device != device:
                if tensor.dim():
                    name = self.spec.tensors[slot].name
                    raise BadInputError(f"`{name}` is on {tensor.device}, and the operands on {device}")
                if tensor.is_cpu:  # by a kernel that fills: a copy waits for all that the device has yet to do
                    tensor = torch.full((), tensor.item(), dtype=dtype, device=device)
                tensor = tensor.to(device)
            found.append(tensor)
        return found


_LINE_ENDS = {"n": "\n", "r": "\r"}


def in_one_line(text: str) -> str:
    """A spec as a graph has it: Inductor (torch 2.11) puts operands into comments of the code that it writes, where the
    second line of a text would be code."""
    if "\n" not in text:
        return text  # a name
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


@functools.lru_cache(maxsize=1024)
def variant_of(text: str) -> Variant:
    """Of a spec's YAML, also in_one_line(), or of a name of the library of specs."""
    if "\n" not in text and "\\n" in text:
        return variant_of(re.sub(r"\\(.)", lambda found: _LINE_ENDS.get(found[1], found[1]), text))
    return Variant(spec_of_text(text) if "\n" in text else spec_of_name(text))


class ForwardPlan(Plan):
    def __init__(
        self, variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tensors: Sequence[torch.Tensor]
    ) -> None:
        super().__init__(variant, q, k, v)
        self.backward: BackwardPlan | None = None  # of the same operands, once it was asked for
        sizes, strides = dense_like(q, v.shape[-1])
        self.o_sizes, self.o_strides = tuple(sizes), tuple(strides)
        self.lse_strides = contiguous_strides(self.lse_sizes)
        if self.has_work:
            build_backward_ahead(variant.spec, self.shape, q.device, (q, k, v, *tensors))
            self.kernel = default_runtime(device_name(q.device)).kernel(variant.spec, self.shape)
            self.handle, self.workspace_bytes = self.kernel.handle, self.kernel.workspace_bytes
            self.keeps_workspace = self.is_on_cpu and self.workspace_bytes <= KEPT_WORKSPACE_BYTES
            self.function = forward_function()

    def _arguments(self) -> Arguments:
        args = _structs.ForwardArgs()
        args.q_strides, args.k_strides, args.v_strides = self.strides
        batch, seq, head, _ = axes(self.variant.spec.layout_id, self.o_strides)
        args.o_strides = Strides(batch, seq, head)
        return Arguments(args, self)

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        with_lse: bool,
        scalars: Scalars = (),
        scale: float | None = None,
        dropout: float | None = None,
        seed: State = 0,
        offset: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """O, dense, its axes in q's order, and LSE, float32 [batch, heads, q_len]. `tensors` are such as
        Variant.auxiliaries gives."""
        o = self.empty(self.o_sizes, self.o_strides, self.dtype)
        lse = self.empty(self.lse_sizes, self.lse_strides, torch.float32) if with_lse else None
        if not self.has_work:
            return o.zero_(), None if lse is None else lse.fill_(-torch.inf)
        if self.copies_any:
            q, k, v = self.operands(q, k, v)
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (q_at | k_at | v_at) & MISALIGNED:
            # A copy has other strides, and so another plan.
            q, k, v = aligned(q), aligned(k), aligned(v)
            plan = self.variant.forward_plan(q, k, v)
            found, lse = plan.run(q, k, v, tensors, with_lse, scalars, scale, dropout, seed, offset)
            return o.copy_(found), lse
        try:
            arguments = self.pool.pop()
        except IndexError:
            arguments = self._arguments()
        if not (self.draws_or_scales or arguments.tensors or tensors) and scale is None and dropout is None:
            if scalars is not arguments.brought:
                self.fill_scalars(arguments, scalars)
        else:
            self.fill(arguments, tensors, scalars, scale, dropout, seed, offset)
        lse_at, scratch_at = 0 if lse is None else lse.data_ptr(), self.workspace_at(arguments)
        write_addresses(arguments.args, ADDRESSES, q_at, k_at, v_at, o.data_ptr(), lse_at, scratch_at)
        stream = None if self.is_on_cpu else stream_of(self.device)
        status = self.function(self.handle, arguments.address, stream)
        if status:
            check(status)
        self.give_back(arguments)
        return o, lse


class NoGradientError(UnsupportedError):
    """A gradient is wanted, and the device's family has no backward pass for the spec."""


def backward_kernel(spec: Spec, shape: Shape, device: str, runtime: Runtime | None = None) -> Kernel:
    """In the order of sums that torch asks for now. Raises NoGradientError where the device's family has no backward
    pass for the spec, or none in an order."""
    runtime = runtime or default_runtime(device)
    try:
        return of_backward(spec, lambda spec: runtime.kernel(spec, shape, Pass.BACKWARD))
    except UnsupportedError as reason:
        raise NoGradientError(
            f"a gradient is wanted, and attune cannot make it on {device}: {reason.message}",
            "call under torch.no_grad(), or detach what needs none",
        ) from reason


def build_backward_ahead(spec: Spec, shape: Shape, device: torch.device, given: Sequence[torch.Tensor | None]) -> None:
    """Has the backward kernel built on a thread of its own where one of the given tensors wants a gradient, while the
    caller builds the forward one: a first step then waits for one compile, not two. What fails there fails again where
    the gradient is asked for."""
    learns = torch.is_grad_enabled() and any([x is not None and x.requires_grad for x in given])
    # Not while a graph is captured: that would be another thread's calls of the driver in its midst.
    if not learns or is_captured(device):
        return
    name = device_name(device)
    runtime = default_runtime(name)

    def build() -> None:
        with contextlib.suppress(AttuneError):
            backward_kernel(spec, shape, name, runtime)

    threading.Thread(target=build, name="attune-backward").start()


class BackwardPlan(Plan):
    def __init__(self, variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().__init__(variant, q, k, v)
        of_operands = [dense_like(x, x.shape[-1]) for x in (q, k, v)]
        self.dense = [(tuple(sizes), tuple(strides)) for sizes, strides in of_operands]
        if self.has_work:
            self.kernel = backward_kernel(variant.spec, self.shape, device_name(q.device))
            self.workspace_bytes = self.kernel.workspace_bytes
            self.keeps_workspace = self.is_on_cpu and self.workspace_bytes <= KEPT_WORKSPACE_BYTES
        # Of o or its gradient, by strides such as a launch takes.
        self._known_strides: dict[tuple[int, ...], Strides] = {}
        self._made_under = torch.get_deterministic_debug_mode()  # which decides the kernel

    def _arguments(self) -> Arguments:
        layout = self.variant.spec.layout_id
        args = _structs.BackwardArgs()
        args.q_strides, args.k_strides, args.v_strides = self.strides
        for name, (_, strides) in zip("qkv", self.dense, strict=True):
            batch, seq, head, _ = axes(layout, strides)
            setattr(args, f"d_{name}_strides", Strides(batch, seq, head))
        return Arguments(args, self)

    def _walked(self, x: torch.Tensor) -> tuple[torch.Tensor, Strides]:
        """o or its gradient as a launch takes it, and its strides."""
        strides = x.stride()
        found = self._known_strides.get(strides)
        if found is None or x.data_ptr() & MISALIGNED:
            layout, view = self.variant.spec.layout_id, view_of(x)
            if not view.is_operand(self.variant.spec.dtype_id) or x.data_ptr() & MISALIGNED:
                x = copy_of(x)
                return x, operand_strides(layout, view_of(x))
            if len(self._known_strides) >= _MAX_PLANS:
                self._known_strides.clear()
            found = self._known_strides[strides] = operand_strides(layout, view)
        return x, found

    def empty_gradients(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of q, k and v, dense in the order of their axes, then of each learned tensor, float32."""
        found = [self.empty(sizes, strides, self.dtype) for sizes, strides in self.dense]
        return found + [torch.empty_like(tensors[slot]) for slot in self.variant.learned]

    def run(
        self,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        o: torch.Tensor,
        lse: torch.Tensor,
        d_o: torch.Tensor | None,
        d_lse: torch.Tensor | None,
        tensors: Sequence[torch.Tensor],
        scalars: Scalars = (),
        scale: float | None = None,
        dropout: float | None = None,
        seed: State = 0,
        offset: int = 0,
    ) -> list[torch.Tensor]:
        """The gradients that `empty_gradients` makes, of operands and tensors as the forward launch had them."""
        if torch.get_deterministic_debug_mode() != self._made_under:
            plan = self.variant.backward_plan(*operands)
            return plan.run(operands, o, lse, d_o, d_lse, tensors, scalars, scale, dropout, seed, offset)
        gradients = self.empty_gradients(tensors)
        if not self.has_work:
            return [each.zero_() for each in gradients]
        q, k, v = self.operands(*operands)
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & MISALIGNED:
            q, k, v = aligned(q), aligned(k), aligned(v)
            plan = self.variant.backward_plan(q, k, v)
            found = plan.run((q, k, v), o, lse, d_o, d_lse, tensors, scalars, scale, dropout, seed, offset)
            return [mine.copy_(each) for mine, each in zip(gradients, found, strict=True)]
        if d_o is None:
            d_o = torch.zeros_like(o)
        o, o_strides = self._walked(o)
        d_o, d_o_strides = self._walked(d_o)
        try:
            arguments = self.pool.pop()
        except IndexError:
            arguments = self._arguments()
        self.fill(arguments, tensors, scalars, scale, dropout, seed, offset)
        args = arguments.args
        args.q, args.k, args.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        args.o, args.o_strides = o.data_ptr(), o_strides
        args.d_o, args.d_o_strides = d_o.data_ptr(), d_o_strides
        d_q, d_k, d_v, *_ = gradients
        args.d_q, args.d_k, args.d_v = d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr()
        args.lse = lse.data_ptr()
        args.workspace = self.workspace_at(arguments) or None
        if d_lse is not None:
            d_lse = d_lse.to(torch.float32).contiguous()
        args.d_lse = None if d_lse is None else d_lse.data_ptr()
        if self.variant.learned:
            pointers = (ctypes.c_void_p * len(tensors))()
            for slot, gradient in zip(self.variant.learned, gradients[3:], strict=True):
                pointers[slot] = gradient.data_ptr()
            args.d_tensors, args.d_tensor_count = pointers, len(tensors)
        self.kernel.backward(args, stream_of(self.device))
        self.give_back(arguments)
        return gradients
