"""torch.nn.attention.flex_attention's function on Attune's kernels."""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad
from torch.nn.attention import flex_attention as torch_flex

from attune._errors import BadInputError, UnsupportedError
from attune._met import sizes_of
from attune.torch import _autocast, _dropout, _precision, _widths
from attune.torch._bound import Bound, can_be_bound, holds_of, keep_in
from attune.torch._called_modules import watched
from attune.torch._call_checks import check_functions, check_operands, of_one_batch
from attune.torch._captured import CapturedTensors
from attune.torch._compiled import trace_call, warn_of_fallback
from attune.torch._expression import Untranslatable
from attune.torch._function import Launch, attend
from attune.torch._graph_constants import constant_in_graphs
from attune.torch._max_scores import max_scores
from attune.torch._negative import resolved
from attune.torch._numbers import constant
from attune.torch._operator_call import call_operator, is_plain, spec_text
from attune.torch._plans import ForwardPlan, NoGradientError, Variant, variant_of
from attune.torch._recall import Known, Look, Met, Seen, recall, look_at
from attune.torch._transforms import refuse_jit
from attune.torch.block_mask import BlockMask, MaskMod, mask_mod_of

_of_torch = torch_flex.flex_attention  # whatever stands under the name later


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: torch_flex.BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: torch_flex.AuxRequest | None = None,
    mask_mod: MaskMod | None = None,
    dropout: float = 0,
    sink: torch.Tensor | None = None,
    precision: str | None = None,
    strict: bool = False,
) -> Any:
    """torch's flex_attention; `mask_mod`, `dropout`, `sink`, `precision` and `strict` are Attune's.

    The functions are traced into expressions of Attune's language. What they see is looked at in every call, so it may
    change between calls. Captured tensors become tensors of the launch; captured numbers its scalars, or constants of
    the kernel (docs/python.md). Under torch.compile the call is an operator of the graph, and numbers that the graph
    leaves open are the launch's.

    Args:
        query: [batch, heads, q_len, head_dim]; float16, bfloat16 or float32. Under torch.autocast it, key
            and value may be of any float types, and out is of autocast's.
        key: [batch or 1, kv_heads, kv_len, head_dim].
        value: [batch or 1, kv_heads, kv_len, any head_dim].
        score_mod: score_mod(score, b, h, q_idx, kv_idx) -> score, of scalars. -inf leaves a key out.
        block_mask: of this package's create_block_mask, which costs nothing, or torch's.
        scale: of the product; None: 1 / sqrt(head_dim).
        enable_gqa: whether heads may be a multiple of kv_heads.
        return_lse: whether to return (out, lse).
        kernel_options: torch's, for its own kernels; used where a call falls back to them.
        return_aux: torch's AuxRequest; `max_scores` costs another forward pass, of narrow values.
        mask_mod: mask_mod(b, h, q_idx, kv_idx) -> bool, instead of a block mask or beside it.
        dropout: probability, in steps of 1/256, by which elements of the softmax are left out and others made larger.
            Seed and offset are drawn from torch's default generator of the device.
        sink: [heads], a logit a head that joins the softmax's denominator and no more, and lse with it.
        precision: of float32's products on GPUs: "strict" or "tf32", as attune.Spec has it. None: what torch has for
            its own (torch.set_float32_matmul_precision) at the time of the call, or when it is traced. An error with
            other dtypes.
        strict: whether what cannot be translated raises; else it falls back to torch's own, with one warning a reason.

    Returns:
        out: [batch, heads, q_len, head_dim of value], its axes in memory in query's order. lse: float32
        [batch, heads, q_len], natural logarithm. A row without live keys is 0, its lse -inf.

    Raises:
        Untranslatable, UnsupportedError: under `strict`, or with dropout or a sink, which torch has not: what is in the
            way.
        NotImplementedError: a gradient is wanted, and there is no backward pass for it.
        ValueError: sizes that do not fit.
    """
    if return_aux is not None and not (return_lse or torch.compiler.is_dynamo_compiling()):
        asked = (block_mask, scale, enable_gqa)
        rest: dict[str, Any] = {"mask_mod": mask_mod, "precision": precision, "strict": strict}
        found = flex_attention(
            query, key, value, score_mod, *asked, return_aux.lse, kernel_options, dropout=dropout, sink=sink, **rest
        )
        out, lse = found if return_aux.lse else (found, None)
        top = None
        if return_aux.max_scores:
            top = max_scores(
                lambda q, k, v, mod: flex_attention(q, k, v, mod, *asked, True, kernel_options, **rest),
                *(query, key, value, score_mod),
            )
        return out, torch_flex.AuxOutput(lse=lse, max_scores=top)
    if isinstance(scale, torch.Tensor):
        if scale.requires_grad and torch.is_grad_enabled():
            _refuse_scale()
        if not torch.compiler.is_dynamo_compiling():
            scale = scale.item()  # a call is found by what it says; a tensor is the same with another value
    met: Met | None = None
    says: tuple[Any, ...] = ()
    if (
        return_aux is None
        and sink is None
        and not torch.compiler.is_dynamo_compiling()
        and forward_ad._current_level < 0
    ):
        met = _meet(score_mod, block_mask, mask_mod)
        if met is not None:
            says = (
                scale, enable_gqa, dropout, precision, torch.is_grad_enabled(),
                None if block_mask is None else (block_mask.seq_lengths, block_mask.BLOCK_SIZE),
            )  # fmt: skip
            seen, tensors = met
            try:
                for bound in _bound_of(seen, says, query, key, value):
                    captured = tensors if bound.kept is None else [tensors[at] for at in bound.kept]
                    if bound.go is not None:
                        found = bound.go(query, key, value, captured, return_lse)
                        if found is not None:
                            return found
                    elif bound.check(query, key, value, *captured) and (bound.holds is None or bound.holds()):
                        return bound.run((query, key, value), captured, return_lse)
            except Untranslatable:  # a tensor's values of today: what becomes of them is said below
                pass
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    given = query, key, value
    query, key, value = _autocast.cast(query, key, value)
    if _widths.is_odd(query, key, value):
        return _widths.attend(
            flex_attention, query, key, value, scale, score_mod=score_mod, block_mask=block_mask,
            enable_gqa=enable_gqa, return_lse=return_lse, kernel_options=kernel_options, return_aux=return_aux,
            mask_mod=mask_mod, dropout=dropout, sink=sink, precision=precision, strict=strict,
        )  # fmt: skip
    if not torch.compiler.is_dynamo_compiling():
        refuse_jit()
        query, key, value = resolved(query), resolved(key), resolved(value)
    look, call = None, ()
    if return_aux is None and not torch.compiler.is_dynamo_compiling():
        was_met = met is not None and met[0].last is not None
        look, call, known = _look(
            query, key, value, score_mod, block_mask, mask_mod, scale, enable_gqa, dropout, sink, precision, met
        )
        if look is not None and known is not None:
            key, value = of_one_batch(query, key, value)
            launch = known.launch
            try:
                if known.sources or dropout:
                    tensors = look.tensors(known)
                    launch = Launch(tensors, known.variant.auxiliaries(tensors, query.device), known.scalars)
            except Untranslatable:
                look = known = None
        if look is not None and known is not None:
            if dropout:
                launch.seed, launch.offset = _dropout.state_of(known.variant.spec, query.device)
            out, lse = attend(known.variant, known.plan, launch, query, key, value, return_lse)
            if was_met:
                _bind(look, known, says, given, (query, key, value))
            return (out, lse) if return_lse else out
    if not torch.compiler.is_dynamo_compiling():
        check_functions(score_mod, block_mask, mask_mod)
    check_operands(query, key, value, block_mask, enable_gqa, scale)
    dropout = constant(dropout)
    _dropout.check(dropout)
    if sink is not None and tuple(sink.shape) != (query.shape[1],):
        raise ValueError(f"Expect a sink of {query.shape[1]} heads, but got one of shape {tuple(sink.shape)}.")
    if return_lse and return_aux is not None:
        raise ValueError("Cannot specify both return_lse and return_aux.")
    whole_mask = _whole_mask(block_mask, mask_mod)
    if torch.compiler.is_dynamo_compiling():
        seed = _dropout.draw_tensor(query.device) if dropout else None
        out, lse = trace_call(
            *(query, key, value, score_mod, whole_mask, scale, kernel_options, wants_lse),
            *(strict, dropout, seed, sink, precision),
        )
        if return_aux is not None:
            top = None
            if return_aux.max_scores:
                top = max_scores(
                    lambda *given: trace_call(
                        *given, whole_mask, scale, kernel_options, True, strict, 0.0, None, None, precision
                    ),
                    *(query, key, value, score_mod),
                )
            return out, torch_flex.AuxOutput(lse=lse if wants_lse else None, max_scores=top)
        return (out, lse) if return_lse else out
    try:
        if look is not None:
            of_blocks = None if block_mask is None else block_mask.mask_mod
            functions = (score_mod, of_blocks, mask_mod)
            out, lse = _run_seen(query, key, value, functions, scale, dropout, sink, precision, wants_lse, look, call)
        else:
            out, lse = _run(query, key, value, score_mod, whole_mask, scale, dropout, sink, precision, wants_lse)
    except (Untranslatable, UnsupportedError, BadInputError) as reason:
        if strict or dropout or sink is not None or isinstance(reason, NoGradientError):
            raise
        warn_of_fallback(str(reason))
        if mask_mod is not None:
            sizes = (*query.shape[:2], query.shape[2], key.shape[2])
            block_mask = BlockMask.of_mask_mod(whole_mask, sizes, query.device, (128, 128))
        # torch has deprecated `return_lse`, and Attune has not.
        aux = torch_flex.AuxRequest(lse=True) if return_lse else None
        try:
            operands = (query, key, value, score_mod, block_mask, scale, enable_gqa)
            result: Any = _of_torch(*operands, kernel_options=kernel_options, return_aux=aux)
        except NotImplementedError as of_torch:  # on CPUs it has no backward pass
            raise NotImplementedError(
                f"{of_torch}\nThis is torch's own flex_attention, which was called as attune cannot do it: {reason}"
            ) from reason
        return (result[0], result[1].lse) if return_lse else result
    return (out, lse) if return_lse else out


@constant_in_graphs
def _refuse_scale() -> NoReturn:
    """By a call of its own: where Dynamo traces a `raise` it says nothing of the message."""
    raise BadInputError("`scale` requires a gradient, and has none", "multiply by it in score_mod, which gives one")


def _meet(score_mod: Any, block_mask: torch_flex.BlockMask | None, mask_mod: MaskMod | None) -> Met | None:
    """What was seen of the functions, where they see nothing new."""
    if block_mask is None:
        return recall(score_mod, None, mask_mod, None)
    if type(block_mask) is not BlockMask or not block_mask.is_its_mask_mod():
        return None
    return recall(score_mod, block_mask.mask_mod, mask_mod, None)


def _bound_of(
    seen: Seen, says: tuple[Any, ...], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[Bound, ...]:
    """Calls that were made before, of which one may be this."""
    try:
        found = seen.bound.recall(says)
        if found is None or found:
            return found or ()
        return seen.bound.recall((says, sizes_of((query, key, value)))) or ()
    except Exception:  # what is said has no hash, or is no tensor, or one without sizes
        return ()


def _bind(
    look: Look,
    known: Known,
    says: tuple[Any, ...],
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """A call that was recalled: the next one that says the same, of such tensors, is found at once."""
    if any(type(source) is not int for source in known.sources):
        return  # a view that is kept stays where it is when its tensor's memory is another's
    captured = tuple(look.tensors(known))
    scale, _, dropout, precision, *_ = says
    if can_be_bound(given, operands, captured, (scale, dropout)):
        numbers, slots = (known.scalars, None, None), range(len(captured))
        holds = holds_of(operands[0], precision is None)
        kept = None if look.sees_only(known) else known.sources
        sizes = sizes_of(operands)  # what is captured is alike
        bound = Bound(known.plan, operands, captured, slots, numbers, bool(dropout), holds, kept, sizes=sizes)
        with contextlib.suppress(TypeError):  # what is said has no hash
            keep_in(look.seen.bound, says, bound)


def _look(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: torch_flex.BlockMask | None,
    mask_mod: MaskMod | None,
    scale: float | None,
    enable_gqa: bool,
    dropout: float,
    sink: torch.Tensor | None,
    precision: str | None,
    met: Met | None,
) -> tuple[Look | None, tuple[Any, ...], Known | None]:
    """The functions, the call's key among those that they had, and the call where it is known. `met`: where they were
    recalled already."""
    of_blocks = None
    if block_mask is not None:
        if not isinstance(block_mask, BlockMask) or not block_mask.is_its_mask_mod():
            return None, (), None
        of_blocks = block_mask.mask_mod
    if not is_plain(query, key, value):
        return None, (), None
    # A tensor by itself would be remembered for as long as it lives, and keep itself alive.
    functions = score_mod, of_blocks, mask_mod, None if sink is None else (sink,)
    met = recall(*functions) if met is None else met
    look = look_at(*functions) if met is None else Look(met)
    if look is None:
        return None, (), None
    try:
        call = (
            *(query.shape, query.stride(), query.dtype, query.device),
            *(key.shape, key.stride(), key.dtype, key.device),
            *(value.shape, value.stride(), value.dtype, value.device),
            *(scale, enable_gqa, dropout, torch.is_grad_enabled()),
            _precision.of_call(precision, query.device.type, query.dtype),
            None if block_mask is None else (block_mask.seq_lengths, block_mask.BLOCK_SIZE),
        )
    except RuntimeError:  # a nested tensor, which has no sizes and is refused by name
        return None, (), None
    known = look.seen.find(call)
    if known is None and look.fingerprint is None:  # to translate it takes all that they see
        look = look_at(*functions)
        known = None if look is None else look.seen.find(call)
    return look, call, known


def _run_seen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    functions: tuple[Any, Any, Any],
    scale: float | None,
    dropout: float,
    sink: torch.Tensor | None,
    precision: str | None,
    wants_lse: bool,
    look: Look,
    call: tuple[Any, ...],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """O and LSE of a call that is not known yet, of functions that can be told again: a score_mod and two mask_mods. It
    is remembered."""
    key, value = of_one_batch(query, key, value)
    opened, numbers = look.open(functions)
    with watched(look.sees_modules) as called:
        try:
            both = _both(*opened[1:])
            text, captured = spec_text(query, key, value, opened[0], both, scale, dropout, sink, precision, numbers)
            variant = variant_of(text)
        except (Untranslatable, BadInputError):
            if opened is functions and (query.device.type == "cpu" or not numbers.of_tensors):
                raise
            # With constants it may do: scalars are few, and what takes a number may not take one without a value.
            numbers.decide_all()
            closed = functions[0], _both(*functions[1:])
            text, captured = spec_text(query, key, value, *closed, scale, dropout, sink, precision)
            variant = variant_of(text)
    plan, launch = _launch(variant, captured, query, key, value, dropout)
    found = attend(variant, plan, launch, query, key, value, wants_lse)
    look.remember(call, variant, plan, captured, numbers, called)
    return found


def _run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    mask_mod: MaskMod | None,
    scale: float | None,
    dropout: float,
    sink: torch.Tensor | None,
    precision: str | None,
    wants_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """O and LSE of any call. Raises where there is no translation, or no kernel for it."""
    key, value = of_one_batch(query, key, value)
    text, captured = spec_text(query, key, value, score_mod, mask_mod, scale, dropout, sink, precision)
    if not is_plain(query, key, value):
        return call_operator(query, key, value, text, captured, _dropout.draw_tensor(query.device) if dropout else None)
    variant = variant_of(text)
    plan, launch = _launch(variant, captured, query, key, value, dropout)
    return attend(variant, plan, launch, query, key, value, wants_lse)


def _launch(
    variant: Variant,
    captured: CapturedTensors,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
) -> tuple[ForwardPlan, Launch]:
    named, numbers = captured.tensors(), captured.numbers()
    tensors = [named[tensor.name] for tensor in variant.spec.tensors]
    plan = variant.forward_plan(query, key, value, tensors)
    scalars = tuple(numbers[variant.spec.scalars[slot].name] for slot, _ in variant.scalar_slots)
    launch = Launch(tensors, variant.auxiliaries(tensors, query.device), scalars)
    if dropout:
        launch.seed, launch.offset = _dropout.state_of(variant.spec, query.device)
    return plan, launch


def _both(of_blocks: MaskMod | None, mask_mod: MaskMod | None) -> MaskMod | None:
    if of_blocks is None:
        return mask_mod
    if mask_mod is None:
        return of_blocks
    return torch_flex.and_masks(of_blocks, mask_mod)


def _whole_mask(block_mask: torch_flex.BlockMask | None, mask_mod: MaskMod | None) -> MaskMod | None:
    if block_mask is None:
        return mask_mod
    return _both(mask_mod_of(block_mask), mask_mod)
