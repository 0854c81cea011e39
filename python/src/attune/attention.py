"""attune.attention: one call from arrays to O."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attune import _advice, _launch, _packed
from attune._call import Call, describe, named_spec
from attune._frameworks import framework_of, is_torch_there
from attune._met import remembered
from attune._packed import Offsets
from attune.runtime import Runtime
from attune.spec import Spec


@remembered
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
    k_scales: Any = None,
    v_scales: Any = None,
    v_in_k: int | None = None,
    shared_prefixes: bool | None = None,
    batch_invariant: bool | None = None,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    runtime: Runtime | None = None,
    key: Any = None,
) -> Any:
    """O = dropout(softmax(score(scale * Q K^T), masked by mask)) V.

        o = attune.attention(q, k, v, mask="causal and document(doc)", tensors={"doc": doc})

    The variant is a `spec`, or words: `mask`, `score` and the rest, as attune.Spec has them. The first call of a
    variant compiles a kernel (well under a second, remembered in the user's cache file); later ones launch it.

    Args:
        q: [batch, q_len, heads, head_dim], or [batch, heads, q_len, head_dim] in layout "bhsd"; float16, bfloat16
            or float32. An array of NumPy, torch or CuPy, or of any framework that speaks DLPack, on
            the CPU or a CUDA device. Any strides; those that a kernel cannot walk cost a copy. torch makes gradients
            of q, k, v and `tensors` where they require them and the device has a backward pass, has the call as
            an operator in compiled code, and under torch.autocast computes in autocast's dtype.
        k: likewise, with kv_len and kv_heads, of which heads is a multiple. Where q is float16 or bfloat16 it may be of
            fp8, float8_e4m3fn or uint8 that holds its bytes, with k_scales and v_scales; head_dim in steps of 16.
        v: as k; its head_dim, which is O's, may be another. None with v_in_k.
        spec: a Spec, or a YAML file's path, or a name of the library of specs.
        mask: where a key is live, such as "causal and document(doc)". docs/language.md has names and operators.
        score: what the softmax takes in place of the scaled product, which it calls `score`: "50 * tanh(score / 50)".
        sink: a logit a head that joins the softmax's denominator and no more, such as "sinks[h]".
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
        k_scales, v_scales: with k and v of fp8, float32 on q's device: keys and values are what is stored times these.
            They broadcast to [pages, kv_heads]: [] of the tensor, [kv_heads] of each head, [pages, 1] of each page. In
            layouts without pages a sequence of the batch stands for a page, with thd all sequences together.
        v_in_k: with words and v None: V is the first so many columns of K (MLA). k may then have 576 columns and V 512.
            A spec has its own.
        shared_prefixes: with words, paged: pages that neighbouring sequences begin with alike are read once for several
            of them, where the device can do that. A spec has its own.
        batch_invariant: with words: a row of O and LSE is the same to the bit whatever else is in the batch. A spec has
            its own.
        seed, offset: dropout is a pure function of both and of an element's place, the same on every device. Without a
            seed torch draws both from its default generator of q's device, in a captured CUDA graph anew at each
            replay; other arrays have 0.
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
    _advice.check_words(
        {"mask": mask, "score": score, "sink": sink}, {"tensors": tensors, "dims": dims, "scalars": scalars}
    )
    torch: Any = None
    if is_torch_there():
        import torch
    offsets = Offsets(cu_q, cu_kv, used_q, used_kv, page_table)
    scales = {"k_scales": k_scales, "v_scales": v_scales}
    words = {
        "mask": mask, "score": score, "sink": sink, "dims": dims, "layout": layout, "precision": precision,
        "v_in_k": v_in_k, "shared_prefixes": shared_prefixes, "batch_invariant": batch_invariant,
    }  # fmt: skip
    if torch is not None and isinstance(q, torch.Tensor) and q.is_nested:
        from attune.torch import _nested

        return _nested.attention(
            q, k, v, offsets, spec=spec, mask=mask, score=score, sink=sink, tensors=tensors, dims=dims,
            scalars=scalars, dropout=dropout, scale=scale, layout=layout, precision=precision, seed=seed,
            offset=offset, return_lse=return_lse, runtime=runtime, **scales, v_in_k=v_in_k,
            shared_prefixes=shared_prefixes, batch_invariant=batch_invariant,
        )  # fmt: skip
    if torch is not None and isinstance(q, torch.Tensor) and not torch.compiler.is_dynamo_compiling():
        from attune.torch._negative import all_resolved, resolved
        from attune.torch._transforms import refuse_jit

        refuse_jit()
        q, k, v, scales = resolved(q), resolved(k), resolved(v), dict(all_resolved(scales))
        tensors = all_resolved(tensors) if tensors else tensors
    if torch is not None and isinstance(q, torch.Tensor) and spec is None and page_table is None:
        from attune.torch import _widths

        if _widths.is_odd(q, k, v):
            return _widths.attend(
                attention, q, k, v, scale, tensors=tensors, scalars=scalars, dropout=dropout, cu_q=cu_q, cu_kv=cu_kv,
                used_q=used_q, used_kv=used_kv, seed=seed, offset=offset, return_lse=return_lse, runtime=runtime,
                **scales, **words,
            )  # fmt: skip
    if torch is not None and runtime is None and _are_tensors(torch, q, k, v, tensors):
        from attune.torch import _cached

        is_traced = torch.compiler.is_dynamo_compiling()
        if not offsets.is_given and not _cached.is_cache(k, v, scales, words):
            given = None if spec is None else named_spec(spec, words, is_traced)
            return _cached.of_dense(
                q, k, v, given, words, tensors or {}, scalars or {}, dropout, scale, seed, offset, return_lse,
                key if given is spec else None,
            )  # fmt: skip
        if _cached.takes(q, k, v, offsets, scales, tensors):
            given = None if spec is None else named_spec(spec, words, is_traced)
            return _cached.attention(
                q, k, v, given, words, offsets, scales, tensors or {}, scalars or {}, dropout, scale, seed, offset,
                return_lse, key if given is spec else None,
            )  # fmt: skip
    of_gradients: Any = None  # what makes them, where a call of packed sequences wants any
    learned: list[str] = []
    operands: Mapping[str, Any] = {"q": q, "k": k, "v": v}
    arrays: Mapping[str, Any] = tensors or {}
    is_cache = v is None or k_scales is not None or v_scales is not None
    is_packed = offsets.is_given or layout in ("thd", "paged")
    if torch is not None and isinstance(q, torch.Tensor):
        from attune.torch import _packed as of_torch

        of_torch.refuse_hidden(operands, arrays)
    if torch is not None and isinstance(q, torch.Tensor) and (is_packed or is_cache):
        if page_table is not None or layout == "paged" or is_cache:
            of_torch.refuse_gradients(operands, arrays)
        learned = of_torch.needing_gradients(arrays)
        if learned or of_torch.needing_gradients(operands):
            of_gradients = of_torch
            operands, arrays = of_torch.detached(operands), of_torch.detached(arrays)
    call = describe(
        operands, arrays, offsets, spec, words, learned, scalars or {}, dropout, scale, seed, offset, scales
    )
    if call.sequences is None:
        o, lse = _run(call, return_lse, runtime)
    else:
        if of_gradients is not None:
            recorded = of_gradients.Call(call.spec, call.shape, call.sequences, tensors or {}, call.launch, runtime)
            o, lse = of_gradients.attend(recorded, q, k, v, return_lse)
        else:
            o, lse = _packed.run(
                call.framework, call.spec, call.shape, call.sequences, call.views, call.arrays, call.launch,
                return_lse, runtime,
            )  # fmt: skip
    return (o, lse) if return_lse else o


def _are_tensors(torch: Any, q: Any, k: Any, v: Any, tensors: Mapping[str, Any] | None) -> bool:
    """Whether all arrays are torch's."""
    of_torch = torch.Tensor
    if not (isinstance(q, of_torch) and isinstance(k, of_torch) and (v is None or isinstance(v, of_torch))):
        return False
    return not tensors or all([isinstance(each, of_torch) for each in tensors.values()])


def _run(call: Call, return_lse: bool, runtime: Runtime | None) -> tuple[Any, Any]:
    """O and LSE as the framework's arrays."""
    framework, spec, shape = call.framework, call.spec, call.shape
    q = call.views[0]
    o_sizes = _launch.output_sizes(spec.layout_id, shape, spec.head_dim[1])
    o = framework.empty(o_sizes, q.dtype, q.device)
    lse = framework.empty((shape.batch, shape.heads, shape.q_len), "float32", q.device) if return_lse else None
    if shape.kv_len == 0:  # there is no kernel for attention over nothing, and what it gives is known
        o[...] = 0
        if lse is not None:
            lse[...] = -float("inf")
    elif shape.batch and shape.q_len:
        operands = _launch.operand_views(spec, call.views, call.arrays)
        # Of an array that NumPy made for a framework that cannot write one, NumPy's view.
        written = framework_of("o", o).view(o), framework_of("lse", lse).view(lse) if return_lse else None
        stream = framework.stream(q.device)
        allocate = _packed.allocator(framework, q.device)
        _launch.forward(spec, shape, operands, *written, call.launch, allocate, stream, runtime)
    return framework.finish(o), framework.finish(lse) if return_lse else None
