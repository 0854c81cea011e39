"""A launch from Views: sizes, dtypes and devices checked, the C structs filled, the kernel asked for and run."""

from __future__ import annotations

import ctypes
import dataclasses
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from attune import _scales, _structs
from attune._errors import BadInputError, UnsupportedError
from attune._frameworks import framework_of
from attune._scales import Scales
from attune._structs import DTYPE_BY_ARRAY_NAME, FP8_ARRAY_NAMES, BackwardArgs, ForwardArgs, Layout, Pass, Shape
from attune._view import View, axes, operand_strides
from attune.runtime import Kernel, Runtime, default_runtime
from attune.spec import Spec

# Bytes on the launch's device, aligned to 16 and valid until the launch has ended: (pointer, what keeps them).
Allocator = Callable[[int], tuple[int, Any]]


@dataclasses.dataclass(slots=True)
class Launch:
    """What a launch brings beside q, k and v.

    Attributes:
        tensors: each auxiliary tensor of the spec, by name.
        scalars: each scalar that the spec leaves to the launch, by name.
        scale, dropout: where the spec leaves them to the launch.
        seed, offset: dropout is a pure function of these and an element's place. With a spec's seed_on_device the seed
            is torch's tensor of both, int64, on the launch's device.
        scales: of k and v of fp8.
    """

    tensors: Mapping[str, View]
    scalars: Mapping[str, float]
    scale: float | None = None
    dropout: float | None = None
    seed: Any = 0
    offset: int = 0
    scales: Scales | None = None


@dataclasses.dataclass(slots=True)
class Sequences:
    """Where packed sequences lie: int32 on the launch's device, as att_forward_args has them. Those with a
    `page_table` [sequences, pages of one] have their keys in `pages` pages of `page_size` rows, and no cu_kv."""

    cu_q: View
    cu_kv: View | None
    used_q: View | None = None
    used_kv: View | None = None
    page_table: View | None = None
    page_size: int = 0
    pages: int = 0

    @property
    def layout(self) -> Layout:
        return Layout.THD if self.page_table is None else Layout.PAGED


def refuse(what: str, problem: str, hint: str = "") -> NoReturn:
    raise BadInputError(f"`{what}` {problem}", hint)


def check_ndim(name: str, view: View, ndim: int, layout: str) -> None:
    if len(view.sizes) != ndim:
        refuse(name, f"has {len(view.sizes)} dims, not the {ndim} of layout {layout}")


def check_kinds(q: View, k: View, v: View | None) -> None:
    """That all three are on one device, and of one dtype, or k and v of fp8.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    for name, view in (("k", k), ("v", v)):
        if view is None:
            continue
        if view.device != q.device:
            refuse(name, f"is on {view.device}, and `q` on {q.device}")
        if view.dtype != q.dtype and k.dtype not in FP8_ARRAY_NAMES:
            refuse(name, f"is {view.dtype}, and `q` is {q.dtype}")
        if view.dtype != k.dtype:
            refuse(name, f"is {view.dtype}, and `k` is {k.dtype}")


def check_alike(q: View, k: View, v: View | None, ndim: int, layout: str) -> None:
    """That all three have the dims of the layout, too.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    for name, view in (("q", q), ("k", k), ("v", v)):
        if view is not None:
            check_ndim(name, view, ndim, layout)
    check_kinds(q, k, v)


def check_heads(layout: str, q: View, heads: int, kv_heads: int, k: View, v: View | None) -> None:
    """That widths and numbers of heads fit together, and v's other sizes, all but the last, are those of k."""
    if k.sizes[-1] != q.sizes[-1]:
        refuse("k", f"has head_dim {k.sizes[-1]}, and `q` {q.sizes[-1]}")
    if v is not None and v.sizes[:-1] != k.sizes[:-1]:
        refuse("v", f"is {v.sizes}, and `k` {k.sizes}, in layout {layout}")
    if kv_heads == 0 or heads % kv_heads:
        refuse("q", f"has {heads} heads, no multiple of the {kv_heads} of `k`, in layout {layout}")


def shape_of(layout: Layout, q: View, k: View, v: View | None) -> Shape:
    """The problem's sizes, of operands that fit together.

    Raises:
        BadInputError: which operand does not fit, and why.
    """
    if layout in (Layout.THD, Layout.PAGED):
        hint = "where each sequence begins: attune.attention(..., cu_q=...)"
        raise BadInputError(f"layout {layout.name.lower()} wants `cu_q`", hint)
    name = layout.name.lower()
    check_alike(q, k, v, 4, name)
    batch, q_len, heads, _ = axes(layout, q.sizes)
    k_batch, kv_len, kv_heads, _ = axes(layout, k.sizes)
    if k_batch != batch:
        hint = "one for all is expanded, which copies nothing: k.expand(batch, -1, -1, -1)" if k_batch == 1 else ""
        refuse("k", f"has batch {k_batch}, and `q` {batch}, in layout {name}", hint)
    check_heads(name, q, heads, kv_heads, k, v)
    return Shape(batch, heads, kv_heads, q_len, kv_len)


def output_sizes(layout: Layout, shape: Shape, head_dim: int) -> tuple[int, int, int, int]:
    """Of o."""
    if layout == Layout.BSHD:
        return shape.batch, shape.q_len, shape.heads, head_dim
    return shape.batch, shape.heads, shape.q_len, head_dim


def check_operands(spec: Spec, q: View, k: View, v: View | None) -> None:
    """Raises BadInputError unless operands are of the spec's dtypes and widths."""
    if q.dtype != spec.dtype:
        refuse("q", f"is {q.dtype}, and the spec `{spec.name}` is of {spec.dtype}")
    if k.dtype not in (FP8_ARRAY_NAMES if spec.is_scaled else (spec.kv_dtype,)):
        refuse("k", f"is {k.dtype}, and the spec `{spec.name}` has k and v of {spec.kv_dtype}")
    if spec.v_in_k:
        if v is not None:
            hint = f"hand over None: V is the first {spec.head_dim[1]} columns of `k`"
            refuse("v", f"is given, and the spec `{spec.name}` has v_in_k", hint)
        if q.sizes[-1] != spec.head_dim[0]:
            refuse("q", f"has head_dim {q.sizes[-1]}, and the spec `{spec.name}` {spec.head_dim[0]}")
        return
    if v is None:
        refuse("v", f"is None, and the spec `{spec.name}` has no v_in_k", "v_in_k says that V is in the columns of K")
    head_dims = (q.sizes[-1], v.sizes[-1])
    if head_dims != spec.head_dim:
        refuse("q", f"and `v` have head_dim {head_dims}, and the spec `{spec.name}` {spec.head_dim}")


def slices_of(layout: Layout, shape: Shape, sequences: Sequences | None) -> int:
    """How many parts of k and v have scales of their own: pages, sequences, or all packed ones together."""
    if layout == Layout.PAGED:
        return sequences.pages if sequences is not None else 0
    return 1 if layout == Layout.THD else shape.batch


def check_scales(
    spec: Spec, shape: Shape, sequences: Sequences | None, k: View | None, v: View | None, device: str
) -> Scales | None:
    """Raises BadInputError unless the scales are those of the spec's cache."""
    slices = slices_of(spec.layout_id, shape, sequences)
    return _scales.scales_of(spec.is_scaled, k, v, not spec.v_in_k, slices, shape.kv_heads, device)


Operands = tuple[View, View, View | None]


def is_operand(spec: Spec, name: str, view: View) -> bool:
    return view.is_operand(spec.dtype_id if name == "q" else spec.kv_dtype_id)


def refuse_to_copy(name: str, view: View) -> NoReturn:
    hint = "a last dim without gaps, all else in steps of 16 bytes; a cache is not copied"
    refuse(name, f"has strides {view.strides}, which no kernel walks", hint)


def operand_views(spec: Spec, views: Sequence[View | None], arrays: Sequence[Any], in_pages: bool = False) -> Operands:
    """Of q, k and v such as kernels walk, copied where their strides are none. A cache `in_pages` is not copied.

    Raises:
        BadInputError: it would have to be.
    """
    found: list[Any] = []
    for name, view, array in zip("qkv", views, arrays, strict=True):
        if view is not None and not is_operand(spec, name, view):
            if in_pages and name != "q":
                refuse_to_copy(name, view)
            framework = framework_of(name, array)
            view = framework.view(framework.contiguous(array))
        found.append(view)
    q, k, v = found
    return q, k, v


def check_names(spec: Spec, tensors: Mapping[str, Any]) -> None:
    """Raises BadInputError unless they are the tensors that the spec has."""
    unknown = sorted(set(tensors) - set(spec.tensor_slots))
    missing = sorted(set(spec.tensor_slots) - set(tensors))
    if unknown or missing:
        problem = f"has no tensor `{unknown[0]}`" if unknown else f"needs the tensor `{missing[0]}`"
        raise BadInputError(
            f"the spec `{spec.name}` {problem}", f"its tensors: {', '.join(spec.tensor_slots) or 'none'}"
        )


def _tensor_structs(spec: Spec, shape: Shape, tensors: Mapping[str, View], device: str) -> Any:
    """By slot. The structs keep what they point at."""
    check_names(spec, tensors)
    structs = (_structs.Tensor * max(len(tensors), 1))()
    for slot, declared in enumerate(spec.tensors):
        name, view = declared.name, tensors[declared.name]
        if view.device != device:
            refuse(name, f"is on {view.device}, and `q` on {device}")
        if view.dtype != declared.dtype:
            hint = f"convert it: {name}.astype('{declared.dtype}'), in torch {name}.to(torch.{declared.dtype})"
            refuse(name, f"is {view.dtype}, and the spec has {declared.dtype}", hint)
        sizes = spec.tensor_sizes_at(slot, shape)
        if view.sizes != sizes:
            refuse(name, f"is {view.sizes}, and the spec wants [{declared.dims}] = {sizes}")
        structs[slot] = _structs.Tensor(
            view.pointer,
            (ctypes.c_int64 * len(sizes))(*sizes),
            None,
            DTYPE_BY_ARRAY_NAME[declared.dtype],
            len(sizes),
        )
    return structs


def constant(what: str, value: float) -> float:
    """A number of a launch. A tensor of one element passes for a number, too, and none learns by that."""
    if getattr(value, "requires_grad", False) and "torch" in sys.modules and sys.modules["torch"].is_grad_enabled():
        refuse(
            what, "requires a gradient, and a number of a launch has none", f"{what}.item(), or a tensor of the spec"
        )
    return value


def _scalar_structs(spec: Spec, scalars: Mapping[str, float]) -> Any:
    """By slot."""
    slots = spec.launch_scalar_slots
    if set(scalars) != set(slots):
        wanted = ", ".join(slots) or "none"
        raise BadInputError(
            f"the launch brings the scalars {sorted(scalars)}, and the spec `{spec.name}` leaves it {sorted(slots)}",
            f"its launch-time scalars: {wanted}",
        )
    structs = (_structs.Scalar * max(len(spec.scalars), 1))()
    for name, slot in slots.items():
        value = constant(name, scalars[name])
        if spec.scalars[slot].dtype == "int32":
            if not isinstance(value, numbers.Integral) or not -(2**31) <= value < 2**31:
                refuse(name, f"is {value!r}, and the spec has an int of 32 bits")
            structs[slot].i = int(value)
        else:
            structs[slot].f = value
    return structs


def at_launch(spec: Spec, what: str, declared: float | None, given: float | None) -> float:
    """What a launch says of scale or dropout."""
    if declared is None and given is None:
        refuse(what, f"is left to the launch by the spec `{spec.name}`", f"hand over {what}=")
    if declared is not None and given is not None:
        refuse(what, f"is given, and the spec `{spec.name}` fixes it at {declared}")
    return 0.0 if given is None else float(constant(what, given))


def fill_numbers(args: ForwardArgs | BackwardArgs, spec: Spec, launch: Launch) -> None:
    """What a spec leaves to the launch."""
    args.softmax_scale = at_launch(spec, "scale", spec.scale, launch.scale)
    args.dropout = at_launch(spec, "dropout", spec.dropout, launch.dropout)
    if spec.scalars or launch.scalars:
        args.scalars = _scalar_structs(spec, launch.scalars)


def fill_seed(args: ForwardArgs | BackwardArgs, spec: Spec, seed: Any, offset: int) -> None:
    """Dropout's, numbers or a tensor of them, as a Launch has it. What numbers stand in for a tensor is of the CPU, and
    kept with the struct."""
    if not spec.seed_on_device:
        args.dropout_seed, args.dropout_offset = seed, offset
    elif isinstance(seed, int):
        args.state = (ctypes.c_uint64 * 2)(seed, offset)
        args.dropout_state = ctypes.addressof(args.state)
    else:
        args.dropout_state = seed.data_ptr()


def fill_common(args: ForwardArgs | BackwardArgs, spec: Spec, shape: Shape, launch: Launch, device: str) -> None:
    """The fields that a forward and a backward launch share."""
    args.shape = shape
    if spec.seed_on_device and isinstance(launch.seed, int) and not device.startswith("cpu"):
        raise UnsupportedError(
            f"the spec `{spec.name}` has its dropout's seed on the device, and these arrays are no tensors of torch's",
            "leave `seed: device` out, or call attune.torch.attention",
        )
    fill_seed(args, spec, launch.seed, launch.offset)
    fill_numbers(args, spec, launch)
    if spec.tensors or launch.tensors:
        args.tensor_views = _tensor_structs(spec, shape, launch.tensors, device)
        args.tensor_view_count = len(spec.tensors)


def _fill_sequences(args: ForwardArgs | BackwardArgs, sequences: Sequences) -> None:
    for name in ("cu_q", "cu_kv", "used_q", "used_kv"):
        view = getattr(sequences, name)
        setattr(args, name, view.pointer if view else None)


def give_workspace(args: Any, kernel: Kernel, allocate: Allocator) -> Any:
    """The kernel's scratch memory; what is returned keeps it until the launch is enqueued."""
    if not kernel.workspace_bytes:
        return None
    args.workspace, keep = allocate(kernel.workspace_bytes)
    args.workspace_bytes = kernel.workspace_bytes
    return keep


def forward_args(
    spec: Spec,
    shape: Shape,
    operands: Operands,
    o: View,
    lse: View | None,
    launch: Launch,
    sequences: Sequences | None = None,
) -> ForwardArgs:
    """All but the workspace."""
    q, k, v = operands
    args = ForwardArgs(lse=lse.pointer if lse else None)
    for name, view in (("q", q), ("k", k), ("v", v), ("o", o)):
        if view is not None:
            setattr(args, name, view.pointer)
            setattr(args, f"{name}_strides", operand_strides(spec.layout_id, view))
    fill_common(args, spec, shape, launch, q.device)
    _scales.fill(args, launch.scales, slices_of(spec.layout_id, shape, sequences), shape.kv_heads)
    if sequences is not None:
        _fill_sequences(args, sequences)
        if sequences.page_table is not None:
            args.page_table = sequences.page_table.pointer
            args.pages_per_sequence = sequences.page_table.sizes[1]
            args.page_size, args.pages = sequences.page_size, sequences.pages
    return args


def forward(
    spec: Spec,
    shape: Shape,
    operands: Operands,
    o: View,
    lse: View | None,
    launch: Launch,
    allocate: Allocator,
    stream: int | None,
    runtime: Runtime | None = None,
    sequences: Sequences | None = None,
) -> None:
    """Enqueues O, and LSE where it is asked for. Operands are such as `shape_of` and `check_operands` passed and
    `View.is_operand` takes, not empty; auxiliary tensors contiguous. On a CUDA device, what the stream has not run yet
    must stay alive."""
    args = forward_args(spec, shape, operands, o, lse, launch, sequences)
    device = operands[0].device
    kernel = (runtime or default_runtime(device)).kernel(spec, shape, Pass.FORWARD)
    keep = give_workspace(args, kernel, allocate)
    kernel.forward(args, stream)
    del keep


@dataclasses.dataclass(slots=True)
class Gradients:
    """What arrives at a forward launch's outputs, and where the gradients of its inputs go.

    Attributes:
        d_o, d_lse: as o and lse; no d_lse: nobody used it.
        d_q, d_k, d_v: as q, k and v.
        learned: float32, of tensors declared `grad`, by name.
    """

    d_o: View
    d_lse: View | None
    d_q: View
    d_k: View
    d_v: View
    learned: Mapping[str, View]


def backward_args(
    spec: Spec,
    shape: Shape,
    operands: tuple[View, View, View],
    o: View,
    lse: View,
    gradients: Gradients,
    launch: Launch,
    sequences: Sequences | None = None,
) -> BackwardArgs:
    """All but the workspace."""
    q, k, v = operands
    args = BackwardArgs(q=q.pointer, k=k.pointer, v=v.pointer, o=o.pointer, lse=lse.pointer)
    views = {"q": q, "k": k, "v": v, "o": o}
    for name in ("d_o", "d_q", "d_k", "d_v"):
        views[name] = getattr(gradients, name)
        setattr(args, name, views[name].pointer)
    for name, view in views.items():
        setattr(args, f"{name}_strides", operand_strides(spec.layout_id, view))
    args.d_lse = gradients.d_lse.pointer if gradients.d_lse else None
    fill_common(args, spec, shape, launch, q.device)
    if sequences is not None:
        _fill_sequences(args, sequences)
    if gradients.learned:
        pointers = (ctypes.c_void_p * len(spec.tensors))()
        for name, view in gradients.learned.items():
            pointers[spec.tensor_slots[name]] = view.pointer
        args.d_tensors, args.d_tensor_count = pointers, len(spec.tensors)
    return args


def backward(
    spec: Spec,
    shape: Shape,
    operands: tuple[View, View, View],
    o: View,
    lse: View,
    gradients: Gradients,
    launch: Launch,
    allocate: Allocator,
    stream: int | None,
    kernel: Kernel,
    sequences: Sequences,
) -> None:
    """Enqueues the gradients of packed sequences. All else is as the forward launch had it. Rows of d_q, d_k and d_v
    that are no sequence's are left as they are."""
    args = backward_args(spec, shape, operands, o, lse, gradients, launch, sequences)
    keep = give_workspace(args, kernel, allocate)
    kernel.backward(args, stream)
    del keep
