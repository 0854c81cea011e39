"""A launch on torch tensors, with its gradient where the device's family has a backward pass."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import torch

from attune import _launch, _structs
from attune._errors import UnsupportedError
from attune._frameworks import framework_of
from attune._launch import Launch
from attune._structs import Pass, Shape
from attune._view import View, axes, operand_strides
from attune.runtime import Kernel, default_runtime
from attune.spec import Spec

_TORCH: Any = framework_of("q", torch.empty(0))


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a launch is beside its operands.

    Attributes:
        tensors: the spec's, by name.
        learned: those of them that want a gradient, as they were captured: of any float type, any strides.
        seed, offset: dropout's, where the spec has any.
    """

    spec: Spec
    tensors: dict[str, torch.Tensor]
    learned: dict[str, torch.Tensor]
    seed: int = 0
    offset: int = 0

    def launch(self) -> Launch:
        views = {name: _TORCH.view(tensor) for name, tensor in self.tensors.items()}
        return Launch(views, {}, seed=self.seed, offset=self.offset)


def _operand(spec: Spec, tensor: torch.Tensor) -> View:
    """As a launch takes it: of the tensor, or of a copy."""
    view = _TORCH.view(tensor)
    return view if view.is_operand(spec.dtype_id) else _TORCH.view(_TORCH.contiguous(tensor))


def _empty_like(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """A dense tensor of the last dim `width`, its other axes in the order in which those of `tensor` lie."""
    order = sorted(range(tensor.dim() - 1), key=tensor.stride, reverse=True)
    sizes = [tensor.shape[dim] for dim in order] + [width]
    dense = torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)
    return dense.permute(*(order.index(dim) for dim in range(tensor.dim() - 1)), tensor.dim() - 1)


def _allocate_on(device: torch.device) -> _launch.Allocator:
    """torch's allocations are aligned to 16 bytes, and reused in the order of the stream."""

    def allocate(count: int) -> tuple[int, Any]:
        scratch = torch.empty(count, dtype=torch.uint8, device=device)
        return scratch.data_ptr(), scratch

    return allocate


def run_forward(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """O, dense, its axes in q's order, and LSE, float32 [batch, heads, q_len]. Operands are 4-dimensional."""
    spec = problem.spec
    views = _operand(spec, q), _operand(spec, k), _operand(spec, v)
    shape = _launch.shape_of(spec.layout_id, *views)
    _launch.check_operands(spec, views[0], views[2])
    o = _empty_like(q, v.shape[-1])
    lse = torch.empty((shape.batch, shape.heads, shape.q_len), dtype=torch.float32, device=q.device)
    if shape.kv_len == 0:
        return o.zero_(), lse.fill_(-torch.inf)
    if shape.batch and shape.q_len:
        stream = _TORCH.stream(views[0].device)
        written = _TORCH.view(o), _TORCH.view(lse) if with_lse else None
        _launch.forward(spec, shape, views, *written, problem.launch(), _allocate_on(q.device), stream)
    return o, lse if with_lse else None


def check_kernel(spec: Spec, shape: Shape, like: torch.Tensor) -> None:
    """Raises UnsupportedError where the device of `like` has no kernel for the spec."""
    if shape.batch and shape.q_len and shape.kv_len:
        default_runtime(_TORCH.device(like)).kernel(spec, shape)


def backward_kernel(problem: Problem, q: torch.Tensor, k: torch.Tensor) -> Kernel:
    """Raises NotImplementedError (UnsupportedError) where the device's family has no backward pass for the spec."""
    batch, q_len, heads, _ = axes(problem.spec.layout_id, tuple(q.shape))
    _, kv_len, kv_heads, _ = axes(problem.spec.layout_id, tuple(k.shape))
    device = _TORCH.device(q)
    try:
        return default_runtime(device).kernel(problem.spec, Shape(batch, heads, kv_heads, q_len, kv_len), Pass.BACKWARD)
    except UnsupportedError as problem_there:
        raise UnsupportedError(
            f"a gradient is wanted, and attune cannot make it on {device}: {problem_there.message}",
            "call under torch.no_grad(), or detach what needs none",
        ) from problem_there


class Attention(torch.autograd.Function):
    """O and LSE of (problem, q, k, v, *problem.learned.values()), both differentiable."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *learned: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.kernel = backward_kernel(problem, q, k)  # said now, not when the loss is there
        o, lse = run_forward(problem, q, k, v, with_lse=True)
        assert lse is not None
        ctx.problem = dataclasses.replace(problem, tensors={}, learned={})
        ctx.names = tuple(problem.tensors)
        ctx.learned = {name: (each.shape, each.dtype) for name, each in problem.learned.items()}
        ctx.set_materialize_grads(False)
        # Saved, captured tensors too: torch notices where one was changed in between.
        ctx.save_for_backward(q, k, v, o, lse, *problem.tensors.values())
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[Any, ...]:
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        problem = dataclasses.replace(ctx.problem, tensors=dict(zip(ctx.names, tensors, strict=True)))
        gradients = [_empty_like(each, each.shape[-1]) for each in (q, k, v)]
        learned = {name: torch.empty_like(problem.tensors[name]) for name in ctx.learned}
        if q.numel() == 0 or k.numel() == 0:
            for gradient in (*gradients, *learned.values()):
                gradient.zero_()
        else:
            d_o = torch.zeros_like(o) if d_o is None else d_o
            _run_backward(ctx.kernel, problem, (q, k, v), (o, lse, d_o, d_lse), gradients, learned)
        as_captured = (learned[name].reshape(shape).to(dtype) for name, (shape, dtype) in ctx.learned.items())
        return None, *gradients, *as_captured


def _run_backward(
    kernel: Kernel,
    problem: Problem,
    operands: tuple[torch.Tensor, ...],
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    gradients: list[torch.Tensor],
    learned: dict[str, torch.Tensor],
) -> None:
    """Fills gradients, of the operands, and learned, of tensors of the spec."""
    spec = problem.spec
    o, lse, d_o, d_lse = results
    named = dict(zip(("q", "k", "v", "o", "d_o"), (*operands, o, d_o), strict=True))
    views = {name: _operand(spec, tensor) for name, tensor in named.items()}
    views |= {f"d_{name}": _TORCH.view(gradient) for name, gradient in zip("qkv", gradients, strict=True)}
    args = _structs.BackwardArgs(lse=lse.data_ptr())
    if d_lse is not None:
        d_lse = d_lse.to(torch.float32).contiguous()
        args.d_lse = d_lse.data_ptr()
    for name, view in views.items():
        setattr(args, name, view.pointer)
        setattr(args, f"{name}_strides", operand_strides(spec.layout_id, view))
    shape = _launch.shape_of(spec.layout_id, views["q"], views["k"], views["v"])
    _launch.fill_common(args, spec, shape, problem.launch(), views["q"].device)
    if learned:
        pointers = [learned[tensor.name].data_ptr() if tensor.name in learned else None for tensor in spec.tensors]
        args.d_tensors = (ctypes.c_void_p * len(pointers))(*pointers)
        args.d_tensor_count = len(pointers)
    scratch = _launch.give_workspace(args, kernel, _allocate_on(o.device))
    kernel.backward(args, _TORCH.stream(views["q"].device))
    del scratch
