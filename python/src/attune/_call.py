"""What the arguments of attune.attention say: a spec, a shape, and views of the arrays."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from attune import _advice, _launch, _packed, _paged
from attune._dims import guess_dims
from attune._errors import AttuneError, BadInputError
from attune._frameworks import Framework, framework_of, is_torch_there
from attune._launch import Launch, Sequences
from attune._packed import Offsets
from attune._structs import DTYPE_BY_ARRAY_NAME, FP8_ARRAY_NAMES, DType, Layout, Shape
from attune._view import View
from attune._yaml import ScalarValue, write_spec
from attune.spec import Spec, spec_of_name, spec_of_text

# With words: what is said of the variant beside expressions.
SWITCHES = ("shared_prefixes", "batch_invariant")
NO_SCALES: Mapping[str, Any] = {"k_scales": None, "v_scales": None}
_OPERAND_DTYPES = (DType.FP16, DType.BF16, DType.FP32)


@dataclasses.dataclass(slots=True)
class Call:
    """Of any layout. `arrays` and `views` are q, k and v as they were given, of q's `framework`, v None where it is in
    the columns of k; there are `sequences` in layouts thd and paged."""

    framework: Framework
    spec: Spec
    shape: Shape
    sequences: Sequences | None
    arrays: tuple[Any, Any, Any]
    views: list[Any]
    launch: Launch


def describe(
    operands: Mapping[str, Any],
    tensors: Mapping[str, Any],
    offsets: Offsets,
    spec: Spec | str | os.PathLike[str] | None,
    words: dict[str, Any],
    learned: Sequence[str],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    seed: int | None,
    offset: int,
    scales: Mapping[str, Any] | None = None,
) -> Call:
    """`operands` are q, k and v; `words` mask, score, sink, dims, layout, precision, v_in_k and SWITCHES; `learned`
    names the tensors that a spec of words gives gradients of; `scales` are k_scales and v_scales.

    Raises:
        BadInputError: what does not fit, and why.
    """
    q, k, v = operands.values()
    framework = framework_of("q", q)
    views: list[Any] = [optional_view(name, array) for name, array in operands.items()]
    auxiliary = {name: _contiguous_view(name, array) for name, array in tensors.items()}
    torch: Any = None
    if is_torch_there():
        import torch
    layout, sequences, shape = words["layout"], None, None
    if offsets.page_table is not None or layout == "paged":
        sequences, batch = _paged.sequences_of(_packed.offset_views(offsets, views[0].device), views[1])
        shape = _paged.shape_of(batch, sequences, *views)
        words["layout"] = layout or (None if spec is not None else "paged")
    elif offsets.is_given or layout == "thd":
        sequences, batch = _packed.sequences_of(_packed.offset_views(offsets, views[0].device))
        shape = _packed.shape_of(batch, *views)
        words["layout"] = layout or (None if spec is not None else "thd")
    if spec is None:
        layout_id = _layout(words["layout"] or "bshd")
        if sequences is not None and layout_id != sequences.layout:
            raise BadInputError(
                f"offsets of sequences are given, and layout `{layout}`",
                f'they are of layout "{sequences.layout.name.lower()}"',
            )
        if torch is not None and isinstance(q, torch.Tensor):
            from attune.torch import _precision

            words["precision"] = _precision.of_call(words["precision"], q.device.type, q.dtype)
        of_words = shape or _launch.shape_of(layout_id, *views)
        found = _spec_of_words(words, layout_id, views, of_words, auxiliary, learned, scalars, dropout, scale)
        launch = Launch(auxiliary, {}, seed=seed or 0, offset=offset)
    else:
        named = named_spec(spec, words)
        found = named if isinstance(named, Spec) else spec_of_name(named)
        launch = Launch(auxiliary, scalars, scale, dropout, seed or 0, offset)
    if found.dropout != 0 and torch is not None and isinstance(q, torch.Tensor):
        from attune.torch import _dropout

        launch.seed, launch.offset = _dropout.state_of(found, q.device, seed, offset)
        if isinstance(launch.seed, torch.Tensor):
            found = found.with_device_seed
    if shape is None:
        shape = _launch.shape_of(found.layout_id, *views)
    _launch.check_operands(found, *views)
    if sequences is not None:
        _packed.check_layout(found, sequences)
    of_k, of_v = (optional_view(name, array) for name, array in (scales or NO_SCALES).items())
    launch.scales = _launch.check_scales(found, shape, sequences, of_k, of_v, views[0].device)
    return Call(framework, found, shape, sequences, (q, k, v), views, launch)


def named_spec(spec: Spec | str | os.PathLike[str], words: Mapping[str, Any], is_traced: bool = False) -> Spec | str:
    """A Spec, or a name of the library of specs, which never changes; a file may change between two calls, though not
    in a graph."""
    for name, value in words.items():
        if value is not None:
            raise BadInputError(f"both `spec` and `{name}` are given", "a spec says it all; change the spec")
    if isinstance(spec, Spec):
        return spec
    name = os.fspath(spec)
    return name if is_traced or not os.path.exists(name) else Spec.from_file(name)


def optional_view(name: str, array: Any) -> View | None:
    return None if array is None else framework_of(name, array).view(array)


def _layout(name: str) -> Layout:
    if name.upper() not in Layout.__members__:
        raise BadInputError(f"there is no layout `{name}`", 'layouts are "bshd", "bhsd", "thd" and "paged"')
    return Layout[name.upper()]


def _spec_of_words(
    words: Mapping[str, Any],
    layout: Layout,
    views: list[Any],
    shape: Shape,
    tensors: Mapping[str, View],
    learned: Sequence[str],
    scalars: Mapping[str, ScalarValue],
    dropout: float | None,
    scale: float | None,
) -> Spec:
    q, k, v = views
    text = write_spec(
        name="attention",
        dtype=_operand_dtype(q.dtype),
        head_dim=(q.sizes[-1], width_of_v(None if v is None else v.sizes[-1], words["v_in_k"])),
        layout=layout.name.lower(),
        mask=words["mask"],
        score=words["score"],
        sink=words["sink"],
        scalars=scalars,
        tensors=_declarations(tensors, learned, words["dims"] or {}, shape),
        dropout=dropout or 0.0,
        scale=scale,
        passes=("forward",),
        precision=words["precision"],
        **kind_of_cache(k.dtype, words),
    )
    if layout == Layout.BSHD and words["layout"] is None:
        _advice.warn_of_layout(q.sizes, k.sizes)
    try:
        return spec_of_text(text)
    except AttuneError as error:
        raise _advice.explained(error, (*tensors, *scalars)) from None


def width_of_v(own: Any, v_in_k: int | None) -> Any:
    """Of v, or of so many columns of k.

    Raises:
        BadInputError: neither is given, or both.
    """
    if own is None and v_in_k is None:
        raise BadInputError("`v` is None", "v_in_k says how many columns of K are V")
    if own is not None and v_in_k is not None:
        raise BadInputError("both `v` and `v_in_k` are given", "V is an array, or the first columns of K")
    return v_in_k if own is None else own


def kind_of_cache(k_dtype: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec of words says of k, v and the switches."""
    switches = {name: bool(words[name]) for name in SWITCHES}
    kv_dtype = "fp8_e4m3" if k_dtype in FP8_ARRAY_NAMES else None
    return {"kv_dtype": kv_dtype, "v_in_k": words["v_in_k"] is not None, **switches}


def _operand_dtype(name: str) -> str:
    """ "fp32" for "float32"."""
    dtype = DTYPE_BY_ARRAY_NAME.get(name)
    if dtype not in _OPERAND_DTYPES:
        raise BadInputError(f"`q` is {name}", "attention is computed in float16, bfloat16 or float32")
    return dtype.name.lower()


def _declarations(
    tensors: Mapping[str, View], learned: Sequence[str], dims: Mapping[str, str], shape: Shape
) -> dict[str, str]:
    for name in dims:
        if name not in tensors:
            raise BadInputError(f"`dims` names `{name}`, which is none of the tensors")
    declared = {}
    for name, view in tensors.items():
        if view.dtype not in ("int32", "float32", "bool"):
            kept = "float32" if view.dtype.startswith(("float", "bfloat")) else "int32"
            hint = f"int32, float32 and bool are: {name}.astype('{kept}'), in torch {name}.to(torch.{kept})"
            raise BadInputError(f"`{name}` is {view.dtype}, which no auxiliary tensor can be", hint)
        grad = " grad" if name in learned else ""
        declared[name] = f"{view.dtype}[{dims.get(name) or guess_dims(view.sizes, shape, bool(grad))}]{grad}"
    return declared


def _contiguous_view(name: str, array: Any) -> View:
    framework = framework_of(name, array)
    view = framework.view(array)
    return view if view.is_contiguous else framework.view(framework.contiguous(array))
