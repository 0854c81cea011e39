"""What a launch's plan has, of either pass: where tensors lie, and a launch's structs as far as they do not change."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from attune import _launch, _structs
from attune._dlpack import contiguous_strides
from attune._errors import BadInputError
from attune._library import library
from attune._structs import DTYPE_BY_ARRAY_NAME
from attune._view import ALIGNMENT_BYTES, View, operand_strides
from attune.torch._dropout import State
from attune.torch._memory import empty_on

if TYPE_CHECKING:
    from attune.torch._plans import Variant

KEPT_WORKSPACE_BYTES = 1 << 20  # on the CPU; a larger one is allocated for each launch
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
def forward_function() -> Any:
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


def stream_of(device: torch.device) -> int | None:
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


def view_of(tensor: torch.Tensor) -> View:
    """Where it lies, but for the address.

    Raises BadInputError of a tensor that does not lie by strides."""
    if tensor.layout is not torch.strided:
        raise BadInputError(f"a tensor is of layout {tensor.layout}", "attention takes dense ones: x.to_dense()")
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


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    return copy_of(tensor) if tensor.data_ptr() & MISALIGNED else tensor


class Arguments:
    """A launch's structs, filled in as far as they do not change from launch to launch of a plan."""

    __slots__ = ("address", "args", "brought", "keep", "scalars", "tensors", "workspace")

    def __init__(self, args: Any, plan: Plan) -> None:
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


class Plan:
    """What the plans of both passes share. Thread-safe: each launch takes structs of its own from a pool."""

    def __init__(self, variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        spec = variant.spec
        self.variant, self.spec, self.scalar_slots = variant, spec, variant.scalar_slots
        self.device, self.dtype = q.device, q.dtype
        self.empty = empty_on(q.device)
        views = [view_of(x) for x in (q, k, v)]
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
        # Whether all that it brings beside scalars is a seed, which is the host's.
        self.draws = spec.dropout != 0 and not (self.leaves_scale or self.leaves_dropout or spec.seed_on_device)
        self.is_on_cpu = q.device.type == "cpu"
        self.pool: list[Arguments] = []
        if self.has_work:
            self.tensor_sizes = tuple(spec.tensor_sizes_at(slot, self.shape) for slot in range(len(spec.tensors)))

    def operands(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As a launch takes them."""
        if self.copies_any:
            q, k, v = (copy_of(x) if copied else x for x, copied in zip((q, k, v), self.copies, strict=True))
        return q, k, v

    def fill(
        self,
        arguments: Arguments,
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

    def workspace_at(self, arguments: Arguments) -> int:
        """Where a launch's scratch memory is; 0: it takes none."""
        if not self.workspace_bytes:
            return 0
        scratch = arguments.workspace
        if scratch is None:
            # torch's allocations are aligned to 16 bytes, and on a GPU reused in the order of the stream.
            scratch = arguments.workspace = self.empty((self.workspace_bytes,), (1,), torch.uint8)
        return scratch.data_ptr()

    def fill_scalars(self, arguments: Arguments, scalars: Scalars) -> None:
        """A remembered call brings the same tuple each time, which then stands there already."""
        slots, spec = self.variant.scalar_slots, self.variant.spec
        if len(scalars) != len(slots):
            raise BadInputError(
                f"{len(scalars)} scalars are given, and the spec `{spec.name}` leaves {len(slots)} to the launch"
            )
        for (slot, is_int), given in zip(slots, scalars, strict=True):
            value = _launch.constant(spec.scalars[slot].name, given)
            if not is_int:
                arguments.scalars[slot].f = value
            elif -(2**31) <= value < 2**31:
                arguments.scalars[slot].i = int(value)
            else:
                raise BadInputError(f"a scalar is {value}, and the spec has an int of 32 bits")
        arguments.brought = scalars

    def give_back(self, arguments: Arguments) -> None:
        """For the next launch. A GPU may still be at work on the workspace: there the next has one of its own."""
        if not self.keeps_workspace:
            arguments.workspace = None
        self.pool.append(arguments)
