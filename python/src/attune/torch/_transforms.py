"""The operator under the transforms of torch.func, and what forward-mode differentiation is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from attune._errors import BadInputError, UnsupportedError
from attune._structs import Layout
from attune.spec import Spec
from attune.torch._graph_constants import constant_in_graphs
from attune.torch._plans import variant_of

_FORWARD_MODE = "attune: attention has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad)"

transforms: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
# Whether a tensor stands for another one, as a transform has it: it lies nowhere.
is_transformed: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


def wants_gradient(x: torch.Tensor) -> bool:
    """Whether torch would differentiate by it. Under vmap a tensor does not say so for the one for which it stands."""
    if x.requires_grad or torch.compiler.is_dynamo_compiling():
        return x.requires_grad
    while is_transformed(x):
        x = torch._C._functorch.get_unwrapped(x)
        if x.requires_grad:
            return True
    return False


# The spec's text, ints, floats, scale and dropout, as the operator takes them.
Call: TypeAlias = tuple[str, Sequence[Any], Sequence[Any], "float | None", "float | None"]


def refuse_tangents(*tensors: torch.Tensor | None) -> None:
    """torch drops what an operator says nothing of, and a derivative of 0 is no answer.

    Raises:
        NotImplementedError: a tensor carries a tangent.
    """
    if forward_ad._current_level >= 0:
        # Compiled code calls operators with this key left out, without which torch does not tell.
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            tangents = [forward_ad.unpack_dual(x).tangent for x in tensors if x is not None]
        if any([x is not None for x in tangents]):
            raise NotImplementedError(_FORWARD_MODE)


@constant_in_graphs
def refuse_tangents_of_a_graph() -> None:
    """What makes tangents is there while Dynamo traces it; of the graph's tensors nothing tells of them."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError(_FORWARD_MODE)


def refuse_jit() -> None:
    """Raises UnsupportedError where torch.jit.trace records: it sees no launch, and gives sizes as tensors."""
    if torch._C._get_tracing_state() is not None:
        raise UnsupportedError(
            "attention under torch.jit.trace", "torch.compile and torch.export take it into their graphs"
        )


def refuse_unlearned(spec: Spec, tensors: Sequence[torch.Tensor]) -> None:
    """Raises BadInputError where a tensor, of those of the spec by slot, wants a gradient that the spec does not make:
    torch would take it for a constant. A graph that is made, or run, where its tensors learn nothing has such a spec,
    too."""
    for declared, tensor in zip(spec.tensors, tensors, strict=True):
        if not declared.grad and isinstance(tensor, torch.Tensor) and wants_gradient(tensor):
            raise BadInputError(
                f"`{declared.name}` requires a gradient, and the spec `{spec.name}` makes none",
                "declare it with `grad`, or detach it; a graph makes those that were wanted where it was traced",
            )


def run_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    call: Call,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE by the operator, which torch.func may transform: grad, vjp, jacrev, vmap."""
    if torch.compiler.is_dynamo_compiling():
        refuse_tangents_of_a_graph()
    if torch.compiler.is_dynamo_compiling() or not _is_differentiated():
        found: tuple[torch.Tensor, torch.Tensor] = torch.ops.attune.attention(q, k, v, tensors, *call, seed)
        return found
    return _Attention.apply(call, seed, q, k, v, *tensors)


def _is_differentiated() -> bool:
    """Whether torch.func transforms what is called, and not only keeps it from writing: the operator writes nothing, and
    a Function is nothing that torch.func.functionalize takes."""
    innermost = transforms()
    return innermost is not None and innermost.key() != torch._C._functorch.TransformType.Functionalize


class ForwardFunction(torch.autograd.Function):
    """What forward passes share, whose inputs are a call and what it is given."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call, *given = inputs
        ctx.save_for_backward(*given, *output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(_FORWARD_MODE)


class GradientFunction(torch.autograd.Function):
    """What passes that give gradients share."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *of_gradients: Any) -> Any:
        raise NotImplementedError("attune: attention has no second derivative")


class _Attention(ForwardFunction):
    @staticmethod
    def forward(call: Call, seed: Any, q: Any, k: Any, v: Any, *tensors: Any) -> Any:
        return torch.ops.attune.attention(q, k, v, tensors, *call, seed)

    @staticmethod
    def backward(ctx: Any, d_o: torch.Tensor, d_lse: torch.Tensor) -> Any:
        seed, q, k, v, *tensors, o, lse = ctx.saved_tensors
        found = _Backward.apply(ctx.call, seed, d_o, d_lse, q, k, v, o, lse, *tensors)
        of_tensors: list[Any] = [None] * len(tensors)
        for slot, gradient in zip(variant_of(ctx.call[0]).learned, found[3:], strict=True):
            of_tensors[slot] = gradient
        return None, None, *found[:3], *of_tensors

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *given: Any) -> Any:
        return _mapped(_Attention.apply, info.batch_size, in_dims[1:], call, given)


class _Backward(GradientFunction):
    @staticmethod
    def forward(
        call: Call, seed: Any, d_o: Any, d_lse: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *tensors: Any
    ) -> Any:
        return tuple(torch.ops.attune.attention_backward(d_o, d_lse, q, k, v, o, lse, tensors, *call, seed))

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *given: Any) -> Any:
        return _mapped(_Backward.apply, info.batch_size, in_dims[1:], call, given)


def _mapped(apply: Callable[..., Any], count: int, dims: Sequence[int | None], call: Call, given: Sequence[Any]) -> Any:
    """`count` calls, as torch's vmap wants them: their results stacked, and along which dims. One launch where the
    mapped dim may be a part of the batch."""
    _check_count(count)
    given = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(given, dims, strict=True)]
    if _may_be_batch(call, given):
        flat = [None if x is None else _in_batch(x, dim is not None, count) for x, dim in zip(given, dims, strict=True)]
        found = tuple(x.unflatten(0, (count, -1)) for x in apply(call, *flat))
        return found, (0,) * len(found)
    return mapped_one_by_one(apply, count, [None if dim is None else 0 for dim in dims], call, given)


def mapped_one_by_one(
    apply: Callable[..., Any], count: int, dims: Sequence[int | None], call: Any, given: Sequence[Any]
) -> Any:
    """The same with a launch for each."""
    _check_count(count)
    each = [
        apply(call, *(x if dim is None else x.select(dim, at) for x, dim in zip(given, dims, strict=True)))
        for at in range(count)
    ]
    found = tuple(torch.stack(x) for x in zip(*each, strict=True))
    return found, (0,) * len(found)


def _check_count(count: int) -> None:
    """Raises BadInputError of a dim without elements: there is no call whose results have the sizes."""
    if count == 0:
        raise BadInputError("torch.func.vmap over a dim of 0 elements")


def _in_batch(x: torch.Tensor, is_mapped: bool, count: int) -> torch.Tensor:
    return (x if is_mapped else x.expand(count, *x.shape)).flatten(0, 1)


def _may_be_batch(call: Call, given: Sequence[Any]) -> bool:
    """Whether nothing tells one element of the batch from another: no tensor, no dropout, no `b` in the spec."""
    spec = variant_of(call[0]).spec
    return (
        spec.layout_id in (Layout.BSHD, Layout.BHSD)
        and not spec.tensors
        and spec.dropout == 0
        and spec.yaml is not None
        and re.search(r"\b(b|batch)\b", spec.yaml) is None
    )
