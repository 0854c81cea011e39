"""Packed sequences of torch's tensors, layout thd, with their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attune import _launch, _packed
from attune._errors import UnsupportedError
from attune._frameworks import framework_of
from attune._launch import Launch, Sequences
from attune._packed import OFFSETS, Offsets
from attune._structs import Shape
from attune._view import View
from attune.runtime import Kernel, Runtime, default_runtime
from attune.spec import Spec
from attune.torch._gradients import once
from attune.torch._plans import backward_kernel
from attune.torch._transforms import refuse_tangents, refuse_unlearned


_OFFSETS = [name for name in OFFSETS if name != "page_table"]


def needing_gradients(arrays: Mapping[str, Any]) -> list[str]:
    """Names of those whose gradient torch would want."""
    if not torch.is_grad_enabled():
        return []
    return [name for name, x in arrays.items() if isinstance(x, torch.Tensor) and x.requires_grad]


def refuse_hidden(*given: Mapping[str, Any]) -> None:
    """Raises NotImplementedError where a tensor carries a tangent, of which nothing that reads memory knows."""
    refuse_tangents(*[x for arrays in given for x in arrays.values() if isinstance(x, torch.Tensor)])


def detached(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in arrays.items()}


def refuse_gradients(*given: Mapping[str, Any]) -> None:
    """Raises UnsupportedError where torch would want a backward pass of keys in pages, which there is not."""
    if wanted := [name for arrays in given for name in needing_gradients(arrays)]:
        raise UnsupportedError(
            f"`{wanted[0]}` requires a gradient, and keys in a cache have no backward pass",
            "call under torch.no_grad(), or detach it",
        )


def detached_view(x: torch.Tensor) -> View:
    return framework_of("a tensor", x).view(x.detach())


@dataclasses.dataclass(slots=True)
class Call:
    """What a call brings beside q, k and v. `tensors` are the spec's, by name."""

    spec: Spec
    shape: Shape
    sequences: Sequences
    tensors: Mapping[str, torch.Tensor]
    launch: Launch
    runtime: Runtime | None

    @property
    def learned(self) -> list[str]:
        return [tensor.name for tensor in self.spec.tensors if tensor.grad]


def attend(
    call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """O and LSE, recorded for a backward pass.

    Raises:
        BadInputError: a tensor requires a gradient that the spec does not make.
        UnsupportedError: the device has no backward pass for it.
    """
    if torch.is_grad_enabled():
        refuse_unlearned(call.spec, [call.tensors[tensor.name] for tensor in call.spec.tensors])
    found = _Attention.apply((call, return_lse), q, k, v, *(call.tensors[name] for name in call.learned))
    return found if return_lse else (found, None)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        given: tuple[Call, bool],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *learned: torch.Tensor,
    ) -> Any:
        call, return_lse = given
        if _packed.has_work(call.shape):  # where there is no backward pass it is said now
            kernel_of_backward(call, q)
        arrays = q.detach(), k.detach(), v.detach()
        views = [detached_view(x) for x in arrays]
        o, lse = _packed.run(
            framework_of("q", q), call.spec, call.shape, call.sequences, views, arrays, call.launch, True, call.runtime
        )
        ctx.call = call, [(x.shape, x.dtype) for x in learned]
        ctx.set_materialize_grads(False)
        # Saved, those that are looked up too: torch notices where one was changed in between.
        ctx.save_for_backward(q, k, v, o, lse, *[x for x in call.tensors.values() if isinstance(x, torch.Tensor)])
        return (o, lse) if return_lse else o

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> tuple[Any, ...]:
        return None, *_gradients_once(ctx, d_o, d_lse)


@once
def _gradients_once(
    told: tuple[Call, Any], saved: tuple[Any, ...], d_o: torch.Tensor | None, d_lse: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    (call, sizes), (q, k, v, o, lse, *_) = told, saved
    # A launch leaves rows alone that are no sequence's: nothing depends on them.
    of_operands = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    of_learned = [torch.zeros(shape, dtype=torch.float32, device=q.device) for shape, _ in sizes]
    if _packed.has_work(call.shape) and (d_o is not None or d_lse is not None):
        launch_backward(call, (q, k, v), o, lse, d_o, d_lse, of_operands, of_learned)
    learned = [x.to(dtype) for x, (_, dtype) in zip(of_learned, sizes, strict=True)]
    return *of_operands, *learned


def gradients_of(
    spec: Spec,
    arrays: Sequence[torch.Tensor | None],
    tensors: Sequence[torch.Tensor],
    o: torch.Tensor,
    lse: torch.Tensor,
    d_o: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    launch: Launch,
) -> list[torch.Tensor]:
    """Of q, k, v and the tensors that learn, float32; 0 in rows of no sequence. `arrays` are q, k, v, cu_q, cu_kv,
    used_q, used_kv, and what may stand behind them is not there; `tensors` are the spec's, by slot."""
    q, k, v, *rest = arrays
    assert q is not None and k is not None and v is not None
    offsets = rest[: len(_OFFSETS)]
    views = {
        name: None if x is None else detached_view(x.contiguous()) for name, x in zip(_OFFSETS, offsets, strict=True)
    }
    sequences, batch = _packed.sequences_of(Offsets(**views, page_table=None))
    shape = _packed.shape_of(batch, *(detached_view(x) for x in (q, k, v)))
    named = {declared.name: x.contiguous() for declared, x in zip(spec.tensors, tensors, strict=True)}
    own = dataclasses.replace(launch, tensors={name: detached_view(x) for name, x in named.items()})
    call = Call(spec, shape, sequences, named, own, None)
    of_operands = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    of_learned = [torch.zeros_like(named[name], dtype=torch.float32) for name in call.learned]
    if _packed.has_work(shape) and (d_o is not None or d_lse is not None):
        launch_backward(call, (q, k, v), o, lse, d_o, d_lse, of_operands, of_learned)
    return [*of_operands, *of_learned]


def kernel_of_backward(call: Call, q: torch.Tensor) -> Kernel:
    device = framework_of("q", q).view(q.detach()).device
    return backward_kernel(call.spec, call.shape, device, call.runtime or default_runtime(device))


def launch_backward(
    call: Call,
    operands: tuple[torch.Tensor, ...],
    o: torch.Tensor,
    lse: torch.Tensor,
    d_o: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    of_operands: list[torch.Tensor],
    of_learned: list[torch.Tensor],
) -> None:
    framework = framework_of("q", o)
    if d_o is None:
        d_o = torch.zeros_like(o)
    # A copy stays alive until the launch is enqueued.
    given = [x.detach() for x in (*operands, d_o)]
    given = [x if detached_view(x).is_operand(call.spec.dtype_id) else framework.contiguous(x) for x in given]
    q, k, v, of_output = (detached_view(x) for x in given)
    if d_lse is not None:
        d_lse = d_lse.to(torch.float32).contiguous()
    d_q, d_k, d_v = (detached_view(x) for x in of_operands)
    gradients = _launch.Gradients(
        of_output,
        None if d_lse is None else detached_view(d_lse),
        d_q,
        d_k,
        d_v,
        {name: detached_view(x) for name, x in zip(call.learned, of_learned, strict=True)},
    )
    _launch.backward(
        call.spec,
        call.shape,
        (q, k, v),
        detached_view(o),
        detached_view(lse),
        gradients,
        call.launch,
        _packed.allocator(framework, q.device),
        framework.stream(q.device),
        kernel_of_backward(call, o),
        call.sequences,
    )
