"""attune.attention of torch's tensors: with gradients, and in compiled code an operator of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attune import _advice
from attune._dims import guess_dims
from attune._errors import AttuneError, BadInputError
from attune._launch import shape_of
from attune._recent import Recent
from attune._structs import DTYPE_BY_ARRAY_NAME, Layout
from attune._yaml import write_spec
from attune.spec import Spec
from attune.torch import _autocast, _bound, _dropout, _operators, _precision, _varied  # noqa: F401
from attune.torch._auxiliary import OF_16_BITS
from attune.torch._function import Launch, attend
from attune.torch._graph_constants import constant_in_graphs
from attune.torch._numbers import constant, plain
from attune.torch._operator_call import is_plain
from attune.torch._launch_plan import key_of, view_of
from attune.torch._plans import ForwardPlan, Variant, in_one_line, variant_of
from attune.torch._sizes import Sizes, is_symbolic
from attune.torch._transforms import refuse_unlearned, run_operator, wants_gradient

_KEY_WORDS = ("mask", "score", "sink", "layout", "v_in_k", "batch_invariant")
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_AUXILIARY = {torch.int32: "int32", torch.float32: "float32", torch.bool: "bool"}

_calls: Recent[tuple[Any, ...], tuple[Variant, ForwardPlan]] = Recent(1024)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: Spec | str | None,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    seed: int | None,
    offset: int,
    return_lse: bool,
    key: Any = None,
) -> Any:
    """As attune.attention has it, `words` being mask, score, sink, dims, layout and precision. `key`: all that the
    caller said beside tensors, where the call may be found by it."""
    given = q, k, v
    q, k, v = _autocast.cast(q, k, v)
    if not torch.compiler.is_dynamo_compiling():
        scalars, dropout, scale = {name: plain(x) for name, x in scalars.items()}, plain(dropout), plain(scale)
    if torch.compiler.is_dynamo_compiling() or not is_plain(q, k, v):
        scalars, dropout, scale = {name: constant(x) for name, x in scalars.items()}, constant(dropout), constant(scale)
        if spec is None:
            # What the graph leaves open its launches bring.
            brought = {name: value for name, value in scalars.items() if not _has_value(value)}
            constants = [(name, int if name in brought else value) for name, value in scalars.items()]
            text = _text(q, k, v, words, tensors, tuple(constants), dropout, scale)
            scalars, dropout_at_launch, scale = brought, None, None
        else:
            text = spec if isinstance(spec, str) else spec.reference
            dropout_at_launch = dropout
            if not torch.compiler.is_dynamo_compiling():
                check_tensors(variant_of(text), tensors, torch.is_grad_enabled())
        # Slots are in the order of names, those of ints and floats among themselves too.
        ints = [scalars[name] for name in sorted(scalars) if isinstance(scalars[name], int)]
        floats = [scalars[name] for name in sorted(scalars) if not isinstance(scalars[name], int)]
        state = None
        if has_dropout(text):
            state = _dropout.state_in_a_graph(q.device, seed, offset)
        o, lse = run_operator(
            q,
            k,
            v,
            [tensors[name] for name in sorted(tensors)],
            (in_one_line(text), ints, floats, scale, dropout_at_launch),
            state,
        )
        return (o, lse) if return_lse else o
    records = torch.is_grad_enabled()
    call = (
        spec if spec is not None else tuple([words[name] for name in _KEY_WORDS]),
        None if words["dims"] is None else tuple(words["dims"].items()),
        *key_of((q, k, v)),
    )
    if tensors:
        call += tuple((name, x.dtype, x.shape, records and x.requires_grad) for name, x in tensors.items())
    family, left = None, ()
    if spec is None:
        precision = _precision.of_call(words["precision"], q.device.type, q.dtype)
        call += (precision,)
        numbers = _varied.numbers_of(scalars, dropout, scale)
        if numbers:
            family = _varied.family_of(call[:2], numbers)
            left = family.left_to_launch(numbers)
            call += _varied.key_of(numbers, left)
    known = _calls.recall(call)
    is_new = known is None
    if known is None:
        if spec is None:
            try:
                variant = variant_of(_text(q, k, v, words, tensors, *_varied.declared(scalars, dropout, scale, left)))
            except AttuneError as error:
                if family is None or not left:
                    raise _advice.explained(error, (*tensors, *scalars)) from None
                family.is_fixed = True  # a number of these is a constant or nothing
                try:
                    return attention(q, k, v, spec, words, tensors, scalars, dropout, scale, seed, offset, return_lse)
                except AttuneError:
                    family.is_fixed = False  # it was not the numbers
                    raise
        else:
            variant = variant_of(spec if isinstance(spec, str) else spec.reference)
        if spec is None and words["layout"] is None:
            _advice.warn_of_layout(q.shape, k.shape)
        if spec is None and tensors:
            sizes = {name: x.shape for name, x in tensors.items() if name not in (words["dims"] or {})}
            lengths = dense_sizes(words["layout"] or "bshd", q, k)
            _advice.warn_of_short((words["mask"], words["score"], words["sink"]), sizes, lengths.q_len, lengths.kv_len)
        check_tensors(variant, tensors, records)
        known = variant, variant.forward_plan(q, k, v, tuple(tensors.values()))
        _calls.put(call, known)
    variant, plan = known
    if family is not None and left:
        is_new = not family.has_met(numbers)
    launch = Launch([], [])
    if variant.spec.dropout != 0:
        launch.seed, launch.offset = _dropout.state_of(variant.spec, q.device, seed, offset)
    if tensors:
        launch.tensors = [tensors[tensor.name] for tensor in variant.spec.tensors]
        launch.given = variant.auxiliaries(launch.tensors, q.device)
    if spec is not None:
        launch.scale, launch.dropout = scale, dropout
        if scalars or variant.scalar_slots:
            launch.scalars = _scalars(variant, scalars)
    elif left:
        launch.scale, launch.dropout = (numbers[x] if x in left else None for x in (_varied.SCALE, _varied.DROPOUT))
        launch.scalars = tuple([scalars[name] for name in variant.spec.launch_scalar_slots])
    o, lse = attend(variant, plan, launch, q, k, v, return_lse)
    if key is not None and not is_new and not isinstance(spec, str):
        _bind(key, plan, given, (q, k, v), spec, words, tensors, scalars, dropout, scale, launch, seed is not None)
    return (o, lse) if return_lse else o


def _bind(
    key: Any,
    plan: ForwardPlan,
    given: tuple[torch.Tensor, ...],
    operands: tuple[torch.Tensor, ...],
    spec: Spec | None,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    launch: Launch,
    is_seeded: bool,
) -> None:
    """A call that was made twice."""
    arrays, own = tuple(tensors.values()), plan.variant.spec
    constants = (dropout, scale, *(scalars.values() if spec is None else ()))
    if not _bound.can_be_bound(given, operands, arrays, constants):
        return
    names = list(tensors)
    slots = [names.index(tensor.name) for tensor in own.tensors]
    # Scalars of a spec each call brings by name, those of words are known by the key.
    numbers = (launch.scalars if spec is None else (), launch.scale, launch.dropout)
    holds = _bound.holds_of(operands[0], spec is None and words["precision"] is None)
    names = () if spec is None else tuple(own.launch_scalar_slots)
    bound = _bound.Bound(
        plan, operands, arrays, slots, numbers, own.dropout != 0, holds, kept=spec, names=names, is_seeded=is_seeded
    )
    _bound.keep(key, bound)


def _text(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: tuple[tuple[str, Any], ...],
    dropout: float | None,
    scale: float | None,
) -> str:
    """The spec's YAML. Traced by Dynamo, to which lengths may be symbols."""
    layout = words["layout"] or "bshd"
    if layout not in ("bshd", "bhsd"):
        raise BadInputError(f"there is no layout `{layout}`", 'layouts are "bshd" and "bhsd"')
    if words["v_in_k"] is not None:
        raise BadInputError("both `v` and `v_in_k` are given", "V is an array, or the first columns of K")
    # Sizes that are symbols, as of torch.export, would become numbers by it.
    has_symbols = any([is_symbolic(n) for x in (q, k, v) for n in x.shape])
    if not (torch.compiler.is_dynamo_compiling() or q.is_meta or has_symbols):
        shape_of(Layout[layout.upper()], *(view_of(x) for x in (q, k, v)))
    return text_of(layout, dense_sizes(layout, q, k), q, v.shape[-1], words, tensors, scalars, dropout, scale)


def dense_sizes(layout: str, q: torch.Tensor, k: torch.Tensor) -> Sizes:
    """Of a layout without offsets."""
    if layout == "bshd":
        return Sizes(q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1])
    return Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])


def text_of(
    layout: str,
    sizes: Sizes,
    q: torch.Tensor,
    width_of_v: Any,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: tuple[tuple[str, Any], ...],
    dropout: float | None,
    scale: float | None,
    kind: tuple[Any, ...] | None = None,
) -> str:
    """The same of any layout. `kind` is kv_dtype, v_in_k, shared_prefixes, batch_invariant."""
    if q.dtype not in _DTYPES:
        raise BadInputError(f"`q` is {_name(q.dtype)}", "attention is computed in float16, bfloat16 or float32")
    dims = words["dims"] or {}
    for name in dims:
        if name not in tensors:
            raise BadInputError(f"`dims` names `{name}`, which is none of the tensors")
    declared = []
    for name, tensor in tensors.items():
        learned = torch.is_grad_enabled() and wants_gradient(tensor)
        dtype = _AUXILIARY.get(tensor.dtype) or (None if learned else OF_16_BITS.get(tensor.dtype))
        if dtype is None:
            kept = "float32" if tensor.dtype.is_floating_point else "int32"
            hint = f"int32, float32 and bool are: {name}.to(torch.{kept})"
            which = "auxiliary tensor that learns" if tensor.dtype in OF_16_BITS else "auxiliary tensor"
            raise BadInputError(f"`{name}` is {_name(tensor.dtype)}, which no {which} can be", hint)
        own = dims.get(name) or guess_dims(tuple(tensor.shape), sizes, learned)
        grad = " grad" if learned else ""
        declared.append((name, f"{dtype}[{own}]{grad}"))
    of_words = (words["mask"], words["score"], words["sink"])
    head_dim = (_width(q.shape[-1]), _width(width_of_v))
    precision = (words["precision"], q.device.type, q.dtype)
    kind = (None, False, False, bool(words["batch_invariant"])) if kind is None else kind
    return _write(precision, head_dim, layout, of_words, scalars, tuple(declared), dropout, scale, kind)


def _has_value(value: Any) -> bool:
    """Whether a graph that is being made has the number for a constant."""
    if not torch.compiler.is_dynamo_compiling() or not isinstance(value, int):
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value  # of torch 2.8 and newer

    return has_static_value(value)


@constant_in_graphs
def has_dropout(text: str) -> bool:
    return variant_of(text).spec.dropout != 0


def _width(size: Any) -> int:
    """A number, where Dynamo has a symbol: comparing tells it which."""
    for width in range(8, 577, 8):
        if size == width:
            return width
    return int(size)


@constant_in_graphs
def _write(
    precision: tuple[str | None, str, torch.dtype],
    head_dim: tuple[int, int],
    layout: str,
    words: tuple[str | None, ...],
    scalars: tuple[tuple[str, Any], ...],
    tensors: tuple[tuple[str, str], ...],
    dropout: float | None,
    scale: float | None,
    kind: tuple[Any, ...],
) -> str:
    mask, score, sink = words
    kv_dtype, v_in_k, shared_prefixes, batch_invariant = kind
    return write_spec(
        name="attention",
        dtype=_DTYPES[precision[-1]],
        head_dim=head_dim,
        layout=layout,
        mask=mask,
        score=score,
        sink=sink,
        scalars=dict(scalars),
        tensors=dict(tensors),
        dropout=dropout or 0.0,
        scale=scale,
        passes=("forward",),
        precision=_precision.of_call(*precision),
        kv_dtype=kv_dtype,
        v_in_k=v_in_k,
        shared_prefixes=shared_prefixes,
        batch_invariant=batch_invariant,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_tensors(variant: Variant, tensors: Mapping[str, torch.Tensor], records: bool) -> None:
    """Raises BadInputError unless the tensors are the spec's."""
    spec = variant.spec
    unknown = sorted(set(tensors) - set(spec.tensor_slots))
    missing = sorted(set(spec.tensor_slots) - set(tensors))
    if unknown or missing:
        problem = f"has no tensor `{unknown[0]}`" if unknown else f"needs the tensor `{missing[0]}`"
        raise BadInputError(
            f"the spec `{spec.name}` {problem}", f"its tensors: {', '.join(spec.tensor_slots) or 'none'}"
        )
    for declared in spec.tensors:
        tensor = tensors[declared.name]
        if DTYPE_BY_ARRAY_NAME.get(_name(tensor.dtype)) != DTYPE_BY_ARRAY_NAME[declared.dtype]:
            raise BadInputError(f"`{declared.name}` is {_name(tensor.dtype)}, and the spec has {declared.dtype}")
    if records:
        refuse_unlearned(spec, [tensors[declared.name] for declared in spec.tensors])


def _scalars(variant: Variant, scalars: Mapping[str, Any]) -> tuple[float, ...]:
    slots = variant.spec.launch_scalar_slots
    if set(scalars) != set(slots):
        raise BadInputError(
            f"the launch brings the scalars {sorted(scalars)}, and the spec `{variant.spec.name}` leaves it "
            f"{sorted(slots)}",
            f"its launch-time scalars: {', '.join(slots) or 'none'}",
        )
    return tuple(scalars[name] for name in slots)
