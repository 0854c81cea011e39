"""attune.attention: one call from arrays to O."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attune import _launch, _packed, _paged
from attune._dims import guess_dims
from attune._errors import BadInputError
from attune._frameworks import Framework, framework_of
from attune._launch import Launch
from attune._packed import Offsets
from attune._structs import DTYPE_BY_ARRAY_NAME, DType, Layout, Shape
from attune._view import ALIGNMENT_BYTES, View
from attune._yaml import ScalarValue, write_spec
from attune.runtime import Runtime
from attune.spec import Spec, spec_of_name, spec_of_text

_OPERAND_DTYPES = (DType.FP16, DType.BF16, DType.FP32)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    spec: Spec | str | os.PathLike[str] | None = None,
    mask: str | None = None,
    score: str | None = None,
    sink: str | None = None,
    tensors: Mapping[str, Any] | None = None,
    dims: Mapping[str, str] | None = None,
    scalars: Mapping[str, float] | None = None,
    dropout: float | None = None,
    scale: float | None = None,
    layout: str | None = None,
    precision: str | None = None,
    cu_q: Any = None,
    cu_kv: Any = None,
    used_q: Any = None,
    used_kv: Any = None,
    page_table: Any = None,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    runtime: Runtime | None = None,
) -> Any:
    """O = dropout(softmax(score(scale * Q K^T), masked by mask)) V.

    The variant is a `spec`, or words: `mask`, `score` and the rest, as attune.Spec has them. The first call of a
    variant compiles a kernel (well under a second, remembered in the user's cache file); later ones launch it.

    Args:
        q: [batch, q_len, heads, head_dim], or [batch, heads, q_len, head_dim] in layout "bhsd"; float16, bfloat16
            or float32. An array of NumPy, torch or CuPy, or of any framework that speaks DLPack, on
            the CPU or a CUDA device. Any strides; those that a kernel cannot walk cost a copy. torch makes gradients
            of q, k, v and `tensors` where they require them and the device has a backward pass, has the call as
            an operator in compiled code, and under torch.autocast computes in autocast's dtype.
        k: likewise, with kv_len and kv_heads, of which heads is a multiple.
        v: as k; its head_dim, which is O's, may be another.
        spec: a Spec, or a YAML file's path, or a name of the library of specs.
        tensors: the auxiliary tensors that the expressions look up, by name: int32, float32 or bool, on q's device.
        dims: with words: what the tensors' dims are called, such as {"doc": "batch, kv_len"}. Left out, they are
            told by their sizes.
        scalars: with words: numbers that the expressions name, folded into the kernel. With a spec: those that it
            leaves to the launch.
        dropout: probability. With a spec: where that leaves it to the launch; likewise `scale`.
        scale: of the product of q and k; None: 1 / sqrt(head_dim of q).
        layout: "bshd" (the default), "bhsd", or "thd": sequences packed one behind the other, q [tokens, heads,
            head_dim], k and v likewise; or "paged": q as with "thd", k and v a cache [pages, page_size, kv_heads,
            head_dim] of which each sequence has the pages that page_table names. With words; a spec has its own.
        precision: of float32's products on GPUs: "strict" or "tf32", as attune.Spec has it. Left out, that of torch's
            tensors is what torch has for its own products (torch.set_float32_matmul_precision), that of other arrays
            "strict". With words; a spec has its own.
        cu_q, cu_kv: with thd: int32 [sequences + 1] on q's device, ascending from 0: sequence i has the tokens from
            cu[i] up to cu[i + 1]. cu_kv left out is cu_q.
        used_q, used_kv: with thd: int32 [sequences]; of a sequence's tokens only the first so many are there. With
            paged used_kv is how many keys each sequence has, and there is no cu_kv.
        page_table: with paged: int32 [sequences, pages of one] on q's device: key i of a sequence is row
            i % page_size of page page_table[sequence, i // page_size]. What lies behind used_kv is not read. Dims
            kv_len of tensors are as long as the pages of one sequence.
        seed, offset: dropout is a pure function of both and of an element's place, the same on every device. Without a
            seed torch draws both from its default generator of q's device; other arrays have 0.
        return_lse: whether to return the rows' log-sum-exp too.
        runtime: what to run on; None: the process' own of q's device.

    Returns:
        O, an array of q's framework in q's dtype and layout; with return_lse a pair of O and LSE, float32
        [batch, heads, q_len], of packed sequences [heads, tokens], natural logarithm. A row that sees no key is 0,
        its LSE -inf; so is one of no sequence. On a CUDA device the launch is enqueued on the framework's current
        stream; nothing is waited for. Of torch's jagged nested tensors O and LSE are jagged nested tensors.

    Raises:
        BadInputError: an expression, an array or an argument is wrong.
        UnsupportedError: the device has no kernel for this.
        UnavailableError: the device, its driver or a compiler is missing.
    """
    torch = sys.modules.get("torch")
    offsets = Offsets(cu_q, cu_kv, used_q, used_kv, page_table)
    if torch is not None and isinstance(q, torch.Tensor) and q.is_nested:
        from attune.torch import _nested

        return _nested.attention(
            q, k, v, offsets, spec=spec, mask=mask, score=score, sink=sink, tensors=tensors, dims=dims,
            scalars=scalars, dropout=dropout, scale=scale, layout=layout, precision=precision, seed=seed,
            offset=offset, return_lse=return_lse, runtime=runtime,
        )  # fmt: skip
    if torch is not None and runtime is None and not offsets.is_given and _are_tensors(torch, q, k, v, tensors):
        from attune.torch import _plain

        words = {
            "mask": mask, "score": score, "sink": sink, "dims": dims, "layout": layout, "precision": precision
        }  # fmt: skip
        given = None if spec is None else _spec(spec, words, torch.compiler.is_dynamo_compiling())
        return _plain.attention(
            q, k, v, given, words, tensors or {}, scalars or {}, dropout, scale, seed, offset, return_lse
        )
    of_gradients: Any = None  # what makes them, where a call of packed sequences wants any
    learned: list[str] = []
    operands: Mapping[str, Any] = {"q": q, "k": k, "v": v}
    arrays: Mapping[str, Any] = tensors or {}
    if torch is not None and isinstance(q, torch.Tensor) and (offsets.is_given or layout in ("thd", "paged")):
        from attune.torch import _packed as of_torch

        if page_table is not None or layout == "paged":
            of_torch.refuse_gradients(operands, arrays)
        learned = of_torch.needing_gradients(arrays)
        if learned or of_torch.needing_gradients(operands):
            of_gradients = of_torch
            operands, arrays = of_torch.detached(operands), of_torch.detached(arrays)
    framework = framework_of("q", q)
    views = [framework_of(name, array).view(array) for name, array in operands.items()]
    auxiliary = {name: _contiguous_view(name, array) for name, array in arrays.items()}
    words = {"mask": mask, "score": score, "sink": sink, "dims": dims, "layout": layout, "precision": precision}
    if page_table is not None or layout == "paged":
        sequences, batch = _paged.sequences_of(offsets, views[1], views[0].device)
        shape = _paged.shape_of(batch, sequences, *views)
        words["layout"] = layout or (None if spec is not None else "paged")
    elif offsets.is_given or layout == "thd":
        sequences, batch = _packed.sequences_of(offsets, views[0].device)
        shape = _packed.shape_of(batch, *views)
        words["layout"] = layout or (None if spec is not None else "thd")
    else:
        sequences, shape = None, None
    if spec is None:
        layout_id = _layout(words["layout"] or "bshd")
        if sequences is not None and layout_id != sequences.layout:
            raise BadInputError(
                f"offsets of sequences are given, and layout `{layout}`",
                f'they are of layout "{sequences.layout.name.lower()}"',
            )
        if torch is not None and isinstance(q, torch.Tensor):
            from attune.torch import _precision

            words["precision"] = _precision.of_call(precision, q.device.type, q.dtype)
        of_words = shape or _launch.shape_of(layout_id, *views)
        found = _spec_of_words(words, layout_id, views, of_words, auxiliary, learned, scalars or {}, dropout, scale)
        launch = Launch(auxiliary, {}, seed=seed or 0, offset=offset)
    else:
        named = _spec(spec, words)
        found = named if isinstance(named, Spec) else spec_of_name(named)
        launch = Launch(auxiliary, scalars or {}, scale, dropout, seed or 0, offset)
    if sequences is None or shape is None:
        o, lse = _run(framework, found, views, (q, k, v), launch, return_lse, runtime)
    else:
        if seed is None and found.dropout != 0 and torch is not None and isinstance(q, torch.Tensor):
            from attune.torch import _dropout

            launch.seed, launch.offset = _dropout.draw(q.device)
        if of_gradients is not None:
            call = of_gradients.Call(found, shape, sequences, tensors or {}, launch, runtime)
            o, lse = of_gradients.attend(call, q, k, v, return_lse)
        else:
            o, lse = _packed.run(
                framework, found, shape, sequences, views, (q, k, v), launch, return_lse, runtime
            )
    return (o, lse) if return_lse else o


def _are_tensors(torch: Any, q: Any, k: Any, v: Any, tensors: Mapping[str, Any] | None) -> bool:
    """Whether all arrays are torch's."""
    of_torch = torch.Tensor
    if not (isinstance(q, of_torch) and isinstance(k, of_torch) and isinstance(v, of_torch)):
        return False
    return not tensors or all([isinstance(each, of_torch) for each in tensors.values()])


def _spec(spec: Spec | str | os.PathLike[str], words: Mapping[str, Any], is_traced: bool = False) -> Spec | str:
    """A Spec, or a name of the library of specs, which never changes; a file may change between two calls, though not
    in a graph."""
    for name, value in words.items():
        if value is not None:
            raise BadInputError(f"both `spec` and `{name}` are given", "a spec says it all; change the spec")
    if isinstance(spec, Spec):
        return spec
    name = os.fspath(spec)
    return name if is_traced or not os.path.exists(name) else Spec.from_file(name)


def _layout(name: str) -> Layout:
    if name.upper() not in Layout.__members__:
        raise BadInputError(f"there is no layout `{name}`", 'layouts are "bshd", "bhsd", "thd" and "paged"')
    return Layout[name.upper()]


def _spec_of_words(
    words: Mapping[str, Any],
    layout: Layout,
    views: list[View],
    shape: Shape,
    tensors: Mapping[str, View],
    learned: Sequence[str],
    scalars: Mapping[str, ScalarValue],
    dropout: float | None,
    scale: float | None,
) -> Spec:
    q, _, v = views
    text = write_spec(
        name="attention",
        dtype=_operand_dtype(q.dtype),
        head_dim=(q.sizes[-1], v.sizes[-1]),
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
    )
    return spec_of_text(text)


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
            hint = f"int32, float32 and bool are: {name}.astype('int32'), in torch {name}.to(torch.int32)"
            raise BadInputError(f"`{name}` is {view.dtype}, which no auxiliary tensor can be", hint)
        grad = " grad" if name in learned else ""
        declared[name] = f"{view.dtype}[{dims.get(name) or guess_dims(view.sizes, shape, bool(grad))}]{grad}"
    return declared


def _contiguous_view(name: str, array: Any) -> View:
    framework = framework_of(name, array)
    view = framework.view(array)
    return view if view.is_contiguous else framework.view(framework.contiguous(array))


def _run(
    framework: Framework,
    spec: Spec,
    views: list[View],
    arrays: tuple[Any, Any, Any],
    launch: Launch,
    return_lse: bool,
    runtime: Runtime | None,
) -> tuple[Any, Any]:
    """O and LSE as the framework's arrays."""
    q, k, v = views
    shape = _launch.shape_of(spec.layout_id, q, k, v)
    _launch.check_operands(spec, q, v)
    o_sizes = _launch.output_sizes(spec.layout_id, shape, v.sizes[-1])
    o = framework.empty(o_sizes, q.dtype, q.device)
    lse = framework.empty((shape.batch, shape.heads, shape.q_len), "float32", q.device) if return_lse else None
    if shape.kv_len == 0:  # there is no kernel for attention over nothing, and what it gives is known
        o[...] = 0
        if lse is not None:
            lse[...] = -float("inf")
    elif shape.batch and shape.q_len:
        q, k, v = (
            view if view.is_operand(spec.dtype_id) else _copied(name, array)
            for name, view, array in zip("qkv", views, arrays, strict=True)
        )
        written = _view_of_new(framework, o), _view_of_new(framework, lse) if return_lse else None
        stream = framework.stream(q.device)

        def allocate(count: int) -> tuple[int, Any]:
            scratch = framework.empty((count + ALIGNMENT_BYTES,), "uint8", q.device)
            pointer = _view_of_new(framework, scratch).pointer
            return -(-pointer // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, scratch

        _launch.forward(spec, shape, (q, k, v), *written, launch, allocate, stream, runtime)
    return framework.finish(o), framework.finish(lse) if return_lse else None


def _copied(name: str, array: Any) -> View:
    framework = framework_of(name, array)
    return framework.view(framework.contiguous(array))


def _view_of_new(framework: Framework, array: Any) -> View:
    """Of an array that the framework's `empty` made: where that is NumPy's, of NumPy."""
    return framework_of("o", array).view(array)
