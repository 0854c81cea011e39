"""Launches on torch tensors. What follows from sizes, strides and types alone is worked out once and kept as a plan."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

import torch

from attune import _launch, _structs
from attune._dlpack import contiguous_strides
from attune._errors import AttuneError, BadInputError, UnsupportedError
from attune._library import check, library
from attune._structs import DTYPE_BY_ARRAY_NAME, Pass, Shape, Strides
from attune._view import ALIGNMENT_BYTES, View, axes, operand_strides
from attune.runtime import Kernel, Runtime, default_runtime
from attune.spec import Spec, spec_of_name, spec_of_text
from attune.torch._auxiliary import as_auxiliary
from attune.torch._determinism import of_backward
from attune.torch._dropout import State
from attune.torch._memory import empty_on

_MAX_PLANS = 1024  # of a variant; a plan is quickly made again
_KEPT_WORKSPACE_BYTES = 1 << 20  # on the CPU; a larger one is allocated for each launch
MISALIGNED = ALIGNMENT_BYTES - 1

Scalars = tuple[float, ...]
# What a launch brings beside tensors: scalars, scale, dropout, seed, offset; of a variant with its seed on the device a
# tensor of both in the seed's place.
Numbers = tuple[Scalars, float | None, float | None, State, int]

# The members that change with each launch lie beside each other in att_forward_args: q, k, v, o, lse and workspace, at
# ADDRESSES of the struct. One call writes them all; 0 is null.
write_addresses = struct.Struct("6Q").pack_into
ADDRESSES = _structs.ForwardArgs.q.offset


@functools.cache
def _forward_function() -> Any:
    """att_forward on addresses: without the checks of argtypes, which cost as much as the call."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return prototype(("att_forward", library()))


def device_name(device: torch.device) -> str:
    """ "cpu" or "cuda:N"."""
    if device.type not in ("cpu", "cuda"):
        raise BadInputError(f"a tensor is on `{device}`", "Attune runs on CPUs and CUDA devices")
    return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"


# torch.cuda.current_stream makes an object of what this says.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _stream(device: torch.device) -> int | None:
    if device.type == "cpu":
        return None
    if raw_stream is None:
        return torch.cuda.current_stream(device).cuda_stream
    return raw_stream(device.index or 0)


def dense_like(tensor: torch.Tensor, width: Any) -> tuple[list[Any], list[Any]]:
    """Sizes and strides of a dense tensor of the last dim `width`, its other axes in the order in which those of
    `tensor` lie."""
    last = tensor.dim() - 1
    sizes, strides = [*tensor.shape[:-1], width], [1] * tensor.dim()
    step = width
    for dim in sorted(range(last), key=lambda dim: (tensor.stride(dim), -dim)):
        strides[dim] = step
        step = step * sizes[dim]
    return sizes, strides


def _view(tensor: torch.Tensor) -> View:
    """Where it lies, but for the address."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(0, tuple(tensor.shape), tensor.stride(), dtype, device_name(tensor.device), None)


def key_of(arrays: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """All that a plan depends on. A torch.device takes a microsecond to hash."""
    found: list[Any] = []
    for x in arrays:
        if x is None:
            found.append(None)
        else:
            device = -1 if x.is_cpu else x.get_device() if x.is_cuda else x.device.type
            found += (x.shape, x.stride(), x.dtype, device)
    return tuple(found)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return _copy(tensor) if tensor.data_ptr() & MISALIGNED else tensor


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
        self._forward: dict[tuple[Any, ...], ForwardPlan] = {}
        self._backward: dict[tuple[Any, ...], BackwardPlan] = {}

    def forward_plan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> ForwardPlan:
        """Raises BadInputError, UnsupportedError where the operands fit neither each other nor a kernel."""
        key = key_of((q, k, v))
        plan = self._forward.get(key)
        if plan is None:
            if len(self._forward) >= _MAX_PLANS:
                self._forward.clear()
            plan = self._forward[key] = ForwardPlan(self, q, k, v)
        return plan

    def backward_plan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> BackwardPlan:
        """Raises UnsupportedError where the device has no backward pass for it."""
        key = key_of((q, k, v))
        plan = self._backward.get(key)
        if plan is None:
            if len(self._backward) >= _MAX_PLANS:
                self._backward.clear()
            plan = self._backward[key] = BackwardPlan(self, q, k, v)
        return plan

    def for_seed(self, seed: State) -> Variant:
        """Whose launches take such a seed."""
        if self.spec.seed_on_device or not isinstance(seed, torch.Tensor):
            return self
        return variant_of(self.spec.with_device_seed.reference)

    def auxiliaries(
        self, tensors: Sequence[torch.Tensor], device: torch.device, keeps: bool = True
    ) -> list[torch.Tensor]:
        """The captured tensors as a launch takes them, by slot. `keeps`: as_auxiliary()'s.

        Raises:
            BadInputError: there are more or fewer than the spec has, or one cannot be converted.
        """
        if len(tensors) != len(self.dtypes):
            raise BadInputError(
                f"{len(tensors)} tensors are given, and the spec `{self.spec.name}` has {len(self.dtypes)}"
            )
        found = []
        for slot, (tensor, dtype) in enumerate(zip(tensors, self.dtypes, strict=True)):
            if tensor.dtype is not dtype or not tensor.is_contiguous():
                tensor = as_auxiliary(tensor, keeps)
                if tensor.dtype is not dtype:
                    declared = self.spec.tensors[slot]
                    raise BadInputError(f"`{declared.name}` is {tensor.dtype}, and the spec has {declared.dtype}")
            if tensor.device != device:
                if tensor.dim():
                    name = self.spec.tensors[slot].name
                    raise BadInputError(f"`{name}` is on {tensor.device}, and the operands on {device}")
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


class _Arguments:
    """A launch's structs, filled in as far as they do not change from launch to launch of a plan."""

    __slots__ = ("address", "args", "brought", "keep", "scalars", "tensors", "workspace")

    def __init__(self, args: Any, plan: _Plan) -> None:
        spec = plan.variant.spec
        args.shape = plan.shape
        self.args, self.address = args, ctypes.addressof(args)
        self.workspace: torch.Tensor | None = None
        self.scalars = (_structs.Scalar * max(len(spec.scalars), 1))()
        args.scalars = self.scalars
        self.brought: Scalars | None = None  # what stands in `scalars`
        views = (_structs.Tensor * max(len(spec.tensors), 1))()
        self.keep: list[Any] = [views]
        for slot, declared in enumerate(spec.tensors):
            sizes = plan.tensor_sizes[slot]
            view = _structs.Tensor(
                None, (ctypes.c_int64 * len(sizes))(*sizes), None, DTYPE_BY_ARRAY_NAME[declared.dtype], len(sizes)
            )
            views[slot] = view
            self.keep.append(view)
        self.tensors = [views[slot] for slot in range(len(spec.tensors))]
        if spec.tensors:
            args.tensor_views, args.tensor_view_count = views, len(spec.tensors)
        if plan.workspace_bytes:
            args.workspace_bytes = plan.workspace_bytes


class _Plan:
    """What the plans of both passes share. Thread-safe: each launch takes structs of its own from a pool."""

    def __init__(self, variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        spec = variant.spec
        self.variant, self.device, self.dtype = variant, q.device, q.dtype
        self.empty = empty_on(q.device)
        views = [_view(x) for x in (q, k, v)]
        self.shape = _launch.shape_of(spec.layout_id, *views)
        _launch.check_operands(spec, *views)
        _launch.check_scales(spec, self.shape, None, None, None, views[0].device)
        self.has_work = bool(self.shape.batch and self.shape.q_len and self.shape.kv_len)
        # An operand that no launch takes as it lies is copied, and the copy is contiguous.
        self.copies = tuple(not view.is_operand(spec.dtype_id) for view in views)
        self.copies_any = any(self.copies)
        for view, copied in zip(views, self.copies, strict=True):
            if copied:
                view.strides = contiguous_strides(view.sizes)
        self.strides = [operand_strides(spec.layout_id, view) for view in views]
        self.lse_sizes = (self.shape.batch, self.shape.heads, self.shape.q_len)
        self.tensor_sizes: tuple[tuple[int, ...], ...] = ()
        self.workspace_bytes = 0
        self.keeps_workspace = False
        # Whether a launch brings numbers beside scalars.
        self.draws_or_scales = spec.dropout != 0 or spec.scale is None
        self.leaves_scale, self.leaves_dropout = spec.scale is None, spec.dropout is None
        self.is_on_cpu = q.device.type == "cpu"
        self.pool: list[_Arguments] = []
        if self.has_work:
            self.tensor_sizes = tuple(spec.tensor_sizes_at(slot, self.shape) for slot in range(len(spec.tensors)))

    def operands(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As a launch takes them."""
        if self.copies_any:
            q, k, v = (_copy(x) if copied else x for x, copied in zip((q, k, v), self.copies, strict=True))
        return q, k, v

    def fill(
        self,
        arguments: _Arguments,
        tensors: Sequence[torch.Tensor],
        scalars: Scalars,
        scale: float | None,
        dropout: float | None,
        seed: State,
        offset: int,
    ) -> None:
        """What a launch brings beside operands."""
        args = arguments.args
        if scalars is not arguments.brought:
            self.fill_scalars(arguments, scalars)
        for slot, (view, tensor) in enumerate(zip(arguments.tensors, tensors, strict=True)):
            sizes = self.tensor_sizes[slot]
            if tensor.shape != sizes and (tensor.dim() or sizes != (1,)):
                declared = self.variant.spec.tensors[slot]
                raise BadInputError(
                    f"`{declared.name}` is {tuple(tensor.shape)}, and the spec wants [{declared.dims}] = {sizes}"
                )
            view.data = tensor.data_ptr()
        spec = self.variant.spec
        if scale is not None or self.leaves_scale:
            args.softmax_scale = _launch.at_launch(spec, "scale", spec.scale, scale)
        if dropout is not None or self.leaves_dropout:
            args.dropout = _launch.at_launch(spec, "dropout", spec.dropout, dropout)
        _launch.fill_seed(args, spec, seed, offset)

    def workspace_at(self, arguments: _Arguments) -> int:
        """Where a launch's scratch memory is; 0: it takes none."""
        if not self.workspace_bytes:
            return 0
        scratch = arguments.workspace
        if scratch is None:
            # torch's allocations are aligned to 16 bytes, and on a GPU reused in the order of the stream.
            scratch = arguments.workspace = self.empty((self.workspace_bytes,), (1,), torch.uint8)
        return scratch.data_ptr()

    def fill_scalars(self, arguments: _Arguments, scalars: Scalars) -> None:
        """A remembered call brings the same tuple each time, which then stands there already."""
        slots = self.variant.scalar_slots
        if len(scalars) != len(slots):
            raise BadInputError(
                f"{len(scalars)} scalars are given, and the spec `{self.variant.spec.name}` leaves {len(slots)} to the "
                "launch"
            )
        for (slot, is_int), value in zip(slots, scalars, strict=True):
            if not is_int:
                arguments.scalars[slot].f = value
            elif -(2**31) <= value < 2**31:
                arguments.scalars[slot].i = int(value)
            else:
                raise BadInputError(f"a scalar is {value}, and the spec has an int of 32 bits")
        arguments.brought = scalars

    def give_back(self, arguments: _Arguments) -> None:
        """For the next launch. A GPU may still be at work on the workspace: there the next has one of its own."""
        if not self.keeps_workspace:
            arguments.workspace = None
        self.pool.append(arguments)


class ForwardPlan(_Plan):
    def __init__(self, variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().__init__(variant, q, k, v)
        self.backward: BackwardPlan | None = None  # of the same operands, once it was asked for
        sizes, strides = dense_like(q, v.shape[-1])
        self.o_sizes, self.o_strides = tuple(sizes), tuple(strides)
        self.lse_strides = contiguous_strides(self.lse_sizes)
        if self.has_work:
            if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
                build_backward_ahead(variant.spec, self.shape, device_name(q.device))
            self.kernel = default_runtime(device_name(q.device)).kernel(variant.spec, self.shape)
            self.handle, self.workspace_bytes = self.kernel.handle, self.kernel.workspace_bytes
            self.keeps_workspace = self.is_on_cpu and self.workspace_bytes <= _KEPT_WORKSPACE_BYTES
            self.function = _forward_function()

    def _arguments(self) -> _Arguments:
        args = _structs.ForwardArgs()
        args.q_strides, args.k_strides, args.v_strides = self.strides
        batch, seq, head, _ = axes(self.variant.spec.layout_id, self.o_strides)
        args.o_strides = Strides(batch, seq, head)
        return _Arguments(args, self)

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
            q, k, v = _aligned(q), _aligned(k), _aligned(v)
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
        stream = None if self.is_on_cpu else _stream(self.device)
        status = self.function(self.handle, arguments.address, stream)
        if status:
            check(status)
        self.give_back(arguments)
        return o, lse


class NoGradientError(UnsupportedError):
    """A gradient is wanted, and the device's family has no backward pass for the spec."""


def backward_kernel(spec: Spec, shape: Shape, device: str, runtime: Runtime | None = None) -> Kernel:
    """Raises NoGradientError where the device's family has no backward pass for the spec."""
    try:
        return (runtime or default_runtime(device)).kernel(spec, shape, Pass.BACKWARD)
    except UnsupportedError as reason:
        raise NoGradientError(
            f"a gradient is wanted, and attune cannot make it on {device}: {reason.message}",
            "call under torch.no_grad(), or detach what needs none",
        ) from reason


def build_backward_ahead(spec: Spec, shape: Shape, device: str) -> None:
    """Has the backward kernel built on a thread of its own, while the caller builds the forward one: a first step then
    waits for one compile, not two. What fails there fails again where the gradient is wanted."""
    runtime = default_runtime(device)

    def build() -> None:
        with contextlib.suppress(AttuneError):
            backward_kernel(spec, shape, device, runtime)

    threading.Thread(target=build, name="attune-backward").start()


class BackwardPlan(_Plan):
    def __init__(self, variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().__init__(variant, q, k, v)
        of_operands = [dense_like(x, x.shape[-1]) for x in (q, k, v)]
        self.dense = [(tuple(sizes), tuple(strides)) for sizes, strides in of_operands]
        if self.has_work:
            self.kernel = backward_kernel(variant.spec, self.shape, device_name(q.device))
            self.workspace_bytes = self.kernel.workspace_bytes
            self.keeps_workspace = self.is_on_cpu and self.workspace_bytes <= _KEPT_WORKSPACE_BYTES
        # Of o or its gradient, by strides such as a launch takes.
        self._known_strides: dict[tuple[int, ...], Strides] = {}
        self._in_order: BackwardPlan | None = self if variant.spec.deterministic else None

    def _arguments(self) -> _Arguments:
        layout = self.variant.spec.layout_id
        args = _structs.BackwardArgs()
        args.q_strides, args.k_strides, args.v_strides = self.strides
        for name, (_, strides) in zip("qkv", self.dense, strict=True):
            batch, seq, head, _ = axes(layout, strides)
            setattr(args, f"d_{name}_strides", Strides(batch, seq, head))
        return _Arguments(args, self)

    def _walked(self, x: torch.Tensor) -> tuple[torch.Tensor, Strides]:
        """o or its gradient as a launch takes it, and its strides."""
        strides = x.stride()
        found = self._known_strides.get(strides)
        if found is None or x.data_ptr() & MISALIGNED:
            layout, view = self.variant.spec.layout_id, _view(x)
            if not view.is_operand(self.variant.spec.dtype_id) or x.data_ptr() & MISALIGNED:
                x = _copy(x)
                return x, operand_strides(layout, _view(x))
            if len(self._known_strides) >= _MAX_PLANS:
                self._known_strides.clear()
            found = self._known_strides[strides] = operand_strides(layout, view)
        return x, found

    def _ordered(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> BackwardPlan:
        """What torch.use_deterministic_algorithms() asks for; this one where there is none, and torch only warns."""
        if self._in_order is None:
            make = lambda spec: variant_of(spec.reference).backward_plan(q, k, v) if spec.deterministic else None  # noqa: E731
            self._in_order = of_backward(self.variant.spec, make)
        return self._in_order or self

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
        if torch.are_deterministic_algorithms_enabled() and (plan := self._ordered(*operands)) is not self:
            return plan.run(operands, o, lse, d_o, d_lse, tensors, scalars, scale, dropout, seed, offset)
        gradients = self.empty_gradients(tensors)
        if not self.has_work:
            return [each.zero_() for each in gradients]
        q, k, v = self.operands(*operands)
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & MISALIGNED:
            q, k, v = _aligned(q), _aligned(k), _aligned(v)
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
        self.kernel.backward(args, _stream(self.device))
        self.give_back(arguments)
        return gradients
