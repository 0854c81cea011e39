"""attune.append: new keys and values into a cache, turned by their positions on the way."""

from __future__ import annotations

from typing import Any

from attune._append import NAMES, WRITTEN, AppendPlan, Options
from attune._errors import BadInputError, UnsupportedError
from attune._frameworks import framework_of, is_writable, is_torch_there
from attune.runtime import Runtime, default_runtime


def append(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    cu_q: Any,
    used_q: Any = None,
    cu_kv: Any = None,
    used_kv: Any = None,
    page_table: Any = None,
    q: Any = None,
    q_out: Any = None,
    positions: Any = None,
    rope: str | None = None,
    rotary_dim: int | None = None,
    rope_base: float | None = None,
    rope_factor: float | None = None,
    cosines: Any = None,
    sines: Any = None,
    k_scales: Any = None,
    v_scales: Any = None,
    layout: str | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Writes keys and values of new tokens to their rows of a cache, in one launch, and turns queries and keys by their
    positions (RoPE). What has the name of an argument of attune.attention is what that call is given behind this one.

    Token i of a sequence's n new ones is key used_kv - n + i of it: `used_kv` counts the new ones, too. Nothing else of
    a cache is written; a page number outside of the cache (-1) is no page.

    Args:
        k: of the new tokens, [tokens, kv_heads, head_dim]; float16, bfloat16 or float32; an array of NumPy, torch
            or CuPy, on the CPU or a CUDA device. head_dim is 8 to 256 in steps of 8, in front of fp8 of 16. Any
            strides; those that a kernel cannot walk cost a copy.
        v: [tokens, kv_heads, head_dim of v]; None where there are no values apart from the keys (MLA).
        k_cache, v_cache: written. [pages, page_size, kv_heads, head_dim] with page_table; [rows, kv_heads, head_dim]
            with cu_kv; else [batch, length, kv_heads, head_dim] or what `layout` says. Of k's dtype, or of fp8:
            float8_e4m3fn, or uint8 that holds its bytes. Any strides that kernels walk; never copied.
        cu_q: int32 [sequences + 1] on k's device, ascending from 0: the new tokens of sequence i are those from
            cu_q[i] up to cu_q[i + 1], of which the first used_q[i] are there.
        used_kv: int32 [sequences]: keys of each sequence, the new ones too. None, not with pages: all that there is
            room for.
        cu_kv: int32 [sequences + 1]: which rows of the cache are whose, of a packed one.
        page_table: int32 [sequences, pages of one].
        q: queries of the new tokens [tokens, heads, head_dim], which turn as the keys do.
        q_out: where they go, as q; q itself turns them in place. None: a new array, 0 in rows of no sequence.
        positions: int32 [tokens]: by which each token turns. None: by its key's number in the sequence. Tokens of a
            tree of drafts that stand side by side have one position.
        rope: "half": elements i and i + rotary_dim / 2 of a head turn together (GPT-NeoX, Llama); "interleaved": 2 i
            and 2 i + 1 (GPT-J); None: nothing turns.
        rotary_dim: the first so many elements of a head turn; None: all.
        rope_base, rope_factor: pair i turns by position * base^(-2 i / rotary_dim) / factor radians; None: 10000, 1.
        cosines, sines: in their place: float32 [positions, rotary_dim / 2]. They may be columns of one matrix. A
            position beyond takes the nearest one there is.
        k_scales, v_scales: with a cache of fp8, as attune.attention has them. What is written is divided by them,
            rounded to the nearest, and at most 448 either way.
        layout: of the cache, "bshd" or "bhsd", where neither page_table nor cu_kv says so.
        runtime: what to run on; None: the process' own of k's device.

    Returns:
        The turned queries, an array of q's framework; None without q. On a CUDA device the launch is enqueued on the
        framework's current stream; nothing is waited for.

    Raises:
        BadInputError: an array or an argument is wrong. Nothing has been written then.
        UnsupportedError: the device has no kernel for this.
        UnavailableError: the device, its driver or a compiler is missing.
    """
    arrays = (
        q, k, v, q_out, k_cache, v_cache, cu_q, used_q, cu_kv, used_kv, page_table, positions, cosines, sines,
        k_scales, v_scales,
    )  # fmt: skip
    torch: Any = None
    if is_torch_there():
        import torch
    if torch is not None and isinstance(k, torch.Tensor):
        from attune.torch import _append as of_torch

        if runtime is None and of_torch.are_tensors(arrays):
            return of_torch.append(arrays, rope, rotary_dim, rope_base, rope_factor, layout)
    options = Options(rope, rotary_dim, rope_base, rope_factor, layout)
    return _append(dict(zip(NAMES, arrays, strict=True)), options, runtime)


def _append(arrays: dict[str, Any], options: Options, runtime: Runtime | None) -> Any:
    if arrays["q"] is None and arrays["q_out"] is not None:
        raise BadInputError("`q_out` is given, and `q` is None")
    for name in ("k", "k_cache"):
        if arrays[name] is None:
            raise BadInputError(f"`{name}` is None", "new keys, and where they go")
    frameworks = {name: framework_of(name, array) for name, array in arrays.items() if array is not None}
    if "q" in frameworks and arrays["q_out"] is None:
        of_q = frameworks["q_out"] = frameworks["q"]
        like = of_q.view(arrays["q"])
        q_out = of_q.empty(like.sizes, like.dtype, like.device)
        q_out[...] = 0
        arrays["q_out"] = q_out
    for name in WRITTEN:
        if arrays[name] is not None and not is_writable(arrays[name]):
            raise BadInputError(f"`{name}` cannot be written", "an array of NumPy, torch or CuPy that is not read-only")
    views: dict[str, Any] = {
        name: None if array is None else frameworks[name].view(array) for name, array in arrays.items()
    }
    for name in WRITTEN:
        view = views[name]
        if view is not None and view.owner is not arrays[name]:
            raise UnsupportedError(f"`{name}` lies in memory in a way that no kernel walks")
    is_in_place = arrays["q"] is not None and views["q"].pointer == views["q_out"].pointer
    plan = AppendPlan(options, views, runtime or default_runtime(views["k"].device))
    if is_in_place and "q" in plan.copied:
        raise BadInputError("`q_out` is `q`, which has strides that no kernel walks", "leave q_out out, or copy q")
    keep, addresses = [], {}
    for name in plan.members:
        view = views[name]
        if name in plan.copied:
            copy = frameworks[name].contiguous(arrays[name])
            keep.append(copy)
            view = frameworks[name].view(copy)
        addresses[name] = view.pointer
    if plan.has_work:
        plan.run(addresses, frameworks["k"].stream(views["k"].device))
    del keep
    finished = {name: frameworks[name].finish(arrays[name]) for name in WRITTEN if arrays[name] is not None}
    return finished.get("q_out")
