"""attune.attention of torch's tensors over a cache: packed sequences, pages, fp8, V in the columns of K.

Without gradients; in compiled code an operator of the graph."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attune import _launch, _packed, _paged
from attune._call import width_of_v
from attune._dlpack import contiguous_strides
from attune._errors import BadInputError
from attune._launch import Launch, Sequences, refuse
from attune._library import check
from attune._packed import OFFSETS, Offsets
from attune._structs import Layout, Shape
from attune._view import ALIGNMENT_BYTES, View
from attune.runtime import default_runtime
from attune.spec import Spec
from attune.torch import _cache_bound, _dropout, _packed_plan, _precision
from attune.torch._plain import attention as of_dense  # noqa: F401
from attune.torch._plain import dense_sizes, text_of
from attune.torch._launch_plan import (
    ADDRESSES, KEPT_WORKSPACE_BYTES, forward_function, key_of, stream_of, view_of, write_addresses,
)  # fmt: skip
from attune.torch._memory import empty_on
from attune.torch._numbers import plain
from attune.torch._plans import in_one_line, variant_of
from attune.torch._sizes import Sizes

_MAX_PLANS = 1024
_FP8 = (torch.float8_e4m3fn, torch.uint8)
_MISALIGNED = ALIGNMENT_BYTES - 1
_SCALES = ("k_scales", "v_scales")
# What a launch is given beside the tensors of the spec, in this order.
NAMES = ("q", "k", "v", *OFFSETS, *_SCALES)

Arrays = tuple[Any, ...]  # tensors, or None

_OWN_TYPES = {torch.Tensor, torch.nn.Parameter, type(None)}
_dispatch_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack


def is_cache(k: torch.Tensor, v: Any, scales: Mapping[str, Any], words: Mapping[str, Any]) -> bool:
    """Whether a call without offsets is one over a cache all the same."""
    return (
        v is None
        or scales["k_scales"] is not None
        or scales["v_scales"] is not None
        or words["layout"] in ("thd", "paged")
        or bool(words["shared_prefixes"])
        or k.dtype in _FP8
    )


def takes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    offsets: Offsets,
    scales: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None,
    dropout: float | None,
) -> bool:
    """Whether all is torch's, nothing wants a gradient but in a graph that packed sequences are part of, and nothing is
    drawn while a graph is made."""
    given = (
        offsets.cu_q, offsets.cu_kv, offsets.used_q, offsets.used_kv, offsets.page_table, scales["k_scales"],
        scales["v_scales"],
    )  # fmt: skip
    if not are_tensors(given):
        return False
    if dropout and torch.compiler.is_dynamo_compiling():
        return False
    if torch.is_grad_enabled():
        of_gradients = (q, k, v, scales["k_scales"], scales["v_scales"], *(tensors or {}).values())
        if any([x is not None and x.requires_grad for x in of_gradients]):
            is_packed = offsets.cu_q is not None and offsets.page_table is None and v is not None
            if torch.compiler.is_dynamo_compiling():
                return is_packed
            is_scaled = scales["k_scales"] is not None or scales["v_scales"] is not None or k.dtype in _FP8
            return is_packed and not is_scaled and is_plain((q, k, v, *given, *(tensors or {}).values()))
    return True


def are_tensors(arrays: Sequence[Any]) -> bool:
    """Whether all are torch's, or None."""
    if not torch.compiler.is_dynamo_compiling() and {type(x) for x in arrays} <= _OWN_TYPES:
        return True
    return all([x is None or isinstance(x, torch.Tensor) for x in arrays])


def is_plain(arrays: Sequence[torch.Tensor | None]) -> bool:
    """Whether they are nothing but memory, and no mode of torch's wants to see what is done with them."""
    return not _dispatch_modes() and _transforms() is None and {type(x) for x in arrays} <= _OWN_TYPES


class CachePlan:
    """Launches of a spec on tensors of known sizes, strides, types and device: all but addresses is worked out.
    Thread-safe: each launch takes structs of its own from a pool.

    Raises:
        BadInputError, UnsupportedError: the tensors fit neither each other nor a kernel.
    """

    def __init__(self, spec: Spec, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch) -> None:
        views = {name: None if x is None else view_of(x) for name, x in zip(NAMES, arrays, strict=True)}
        q, k, v = operands = views["q"], views["k"], views["v"]
        assert q is not None and k is not None
        self.spec, self.device, self.is_on_cpu = spec, arrays[0].device, q.device == "cpu"
        self.copied: set[int] = set()  # of NAMES
        self.sequences, self.shape = self._sequences(views, q, k, v)
        _launch.check_operands(spec, q, k, v)
        if self.sequences is not None:
            _packed.check_layout(spec, self.sequences)
        self.in_pages = self.sequences is not None and self.sequences.page_table is not None
        for place, (name, view) in enumerate(zip("qkv", operands, strict=True)):
            if view is not None and not _launch.is_operand(spec, name, view):
                if self.in_pages and name != "q":
                    _launch.refuse_to_copy(name, view)
                self.copied.add(place)
                view.strides = contiguous_strides(view.sizes)
        self.operands = q, k, v
        launch.scales = _launch.check_scales(
            spec, self.shape, self.sequences, views["k_scales"], views["v_scales"], q.device
        )
        self.has_work = _packed.has_work(self.shape)
        width = spec.head_dim[1]
        if self.sequences is not None:
            self.o_sizes: tuple[int, ...] = (self.shape.q_len, self.shape.heads, width)
            self.lse_sizes: tuple[int, ...] = (self.shape.heads, self.shape.q_len)
        else:
            self.o_sizes = _launch.output_sizes(spec.layout_id, self.shape, width)
            self.lse_sizes = (self.shape.batch, self.shape.heads, self.shape.q_len)
        self.o_strides, self.lse_strides = contiguous_strides(self.o_sizes), contiguous_strides(self.lse_sizes)
        self.empty, self.dtype = empty_on(self.device), arrays[0].dtype
        # The members that hold addresses, each with its place among the tensors.
        self.members = tuple(
            (name, place) for place, name in enumerate(NAMES) if views[name] is not None and name not in ("q", "k", "v")
        )
        if self.sequences is not None and views["cu_kv"] is None and not self.in_pages:
            self.members += (("cu_kv", NAMES.index("cu_q")),)
        self.drops = spec.dropout != 0
        self.draws = self.drops and not spec.seed_on_device  # a seed that is the host's
        slots = spec.launch_scalar_slots.values()
        self.scalar_slots = tuple([(slot, spec.scalars[slot].dtype == "int32") for slot in slots])
        self.is_open = bool(spec.launch_scalar_slots or spec.scale is None or spec.dropout is None)
        self.pool: list[Any] = []
        self.key, self.backwards = key_of(arrays), {}
        self.workspace_bytes, self.keeps_workspace = 0, False
        self.declared = [view_of(x) for x in tensors]
        for view in self.declared:
            view.strides = contiguous_strides(view.sizes)
        if self.has_work:
            self.pool.append(self._arguments(launch))
            self.kernel = default_runtime(q.device).kernel(spec, self.shape)
            self.workspace_bytes, self.handle = self.kernel.workspace_bytes, self.kernel.handle
            self.keeps_workspace = self.is_on_cpu and self.workspace_bytes <= KEPT_WORKSPACE_BYTES
            self.scales = launch.scales
            self.function = forward_function()

    def _sequences(
        self, views: Mapping[str, View | None], q: View, k: View, v: View | None
    ) -> tuple[Sequences | None, Shape]:
        given = Offsets(**{name: views[name] for name in OFFSETS})
        for name in OFFSETS:
            view = views[name]
            if view is not None:
                _packed.check_int32(name, view, q.device)
                if not view.is_contiguous:
                    self.copied.add(NAMES.index(name))
        if given.page_table is not None or self.spec.layout_id == Layout.PAGED:
            sequences, batch = _paged.sequences_of(given, k)
            return sequences, _paged.shape_of(batch, sequences, q, k, v)
        if given.is_given or self.spec.layout_id == Layout.THD:
            sequences, batch = _packed.sequences_of(given)
            return sequences, _packed.shape_of(batch, q, k, v)
        return None, _launch.shape_of(self.spec.layout_id, q, k, v)

    def _arguments(self, launch: Launch) -> Any:
        """att_forward_args, all but the addresses, their own address, and a workspace where they have one."""
        o = View(0, self.o_sizes, contiguous_strides(self.o_sizes), self.operands[0].dtype, "", None)
        launch.tensors = {tensor.name: view for tensor, view in zip(self.spec.tensors, self.declared, strict=True)}
        args = _launch.forward_args(self.spec, self.shape, self.operands, o, None, launch, self.sequences)
        return args, ctypes.addressof(args), None

    def run(
        self, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch, with_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """O and LSE; rows of no sequence are 0 and -inf."""
        if self.drops and isinstance(launch.seed, torch.Tensor) and not self.spec.seed_on_device:
            plan = plan_of(self.spec.with_device_seed, arrays, tensors, launch)
            return plan.run(arrays, tensors, launch, with_lse)
        is_whole = self.sequences is None and self.has_work
        q, k, v = arrays[:3]
        o = self.empty(self.o_sizes, self.o_strides, self.dtype)
        lse = self.empty(self.lse_sizes, self.lse_strides, torch.float32) if with_lse else None
        if not is_whole:
            o.zero_()
            if lse is not None:
                lse.fill_(-torch.inf)
        if not self.has_work:
            return o, lse
        if self.copied:
            arrays = tuple([_copy(x) if place in self.copied else x for place, x in enumerate(arrays)])
            q, k, v = arrays[:3]
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), 0 if v is None else v.data_ptr()
        if (q_at | k_at | v_at) & _MISALIGNED:
            return self._run_aligned(arrays, tensors, launch, with_lse)
        try:
            args, address, scratch = self.pool.pop()
        except IndexError:
            launch.scales = self.scales
            args, address, scratch = self._arguments(launch)
        if self.workspace_bytes:
            if scratch is None:
                # torch's allocations are aligned to 16 bytes, and on a GPU reused in the order of the stream.
                scratch = self.empty((self.workspace_bytes,), (1,), torch.uint8)
                args.workspace_bytes = self.workspace_bytes
            scratch_at = scratch.data_ptr()
        else:
            scratch_at = 0
        lse_at = 0 if lse is None else lse.data_ptr()
        write_addresses(args, ADDRESSES, q_at, k_at, v_at, o.data_ptr(), lse_at, scratch_at)
        for name, place in self.members:
            setattr(args, name, arrays[place].data_ptr())
        keep = []
        for slot, tensor in enumerate(tensors):
            keep.append(tensor.contiguous())
            args.tensor_views[slot].data = keep[-1].data_ptr()
        if self.is_open or launch.scale is not None or launch.dropout is not None or launch.scalars:
            _launch.fill_numbers(args, self.spec, launch)
        if self.drops:
            _launch.fill_seed(args, self.spec, launch.seed, launch.offset)
        status = self.function(self.handle, address, None if self.is_on_cpu else stream_of(self.device))
        if status:
            check(status)
        # A GPU may still be at work on the workspace: there the next launch has one of its own.
        self.pool.append((args, address, scratch if self.keeps_workspace else None))
        return o, lse

    def _run_aligned(self, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch, with_lse: bool) -> Any:
        """Of operands that begin between two multiples of 16 bytes: copies, which have other strides."""
        found = list(arrays)
        for place, name in enumerate("qkv"):
            x = arrays[place]
            if x is not None and x.data_ptr() & _MISALIGNED:
                if self.in_pages and name != "q":
                    refuse(name, "does not begin at a multiple of 16 bytes", "a cache is not copied")
                found[place] = _copy(x)
        return plan_of(self.spec, tuple(found), tensors, launch).run(tuple(found), tensors, launch, with_lse)


def _copy(x: torch.Tensor | None) -> torch.Tensor:
    assert x is not None
    return x.clone(memory_format=torch.contiguous_format)


_plans: dict[tuple[Any, ...], CachePlan] = {}
_of_words: dict[tuple[Any, ...], CachePlan] = {}


def plan_of(spec: Spec, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch) -> CachePlan:
    key = spec, key_of(arrays), key_of(tensors)
    plan = _plans.get(key)
    if plan is None:
        plan = CachePlan(spec, arrays, tensors, launch)
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    spec: Spec | str | None,
    words: Mapping[str, Any],
    offsets: Offsets,
    scales: Mapping[str, torch.Tensor | None],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    seed: int | None,
    offset: int,
    return_lse: bool,
    key: Any = None,
) -> Any:
    """As attune.attention has it, `words` being all that stands for a spec. `key`: all that the caller said beside
    tensors, where the call may be found by it."""
    if not torch.compiler.is_dynamo_compiling():
        scalars, dropout, scale = {name: plain(x) for name, x in scalars.items()}, plain(dropout), plain(scale)
    arrays = (
        q, k, v, offsets.cu_q, offsets.cu_kv, offsets.used_q, offsets.used_kv, offsets.page_table,
        scales["k_scales"], scales["v_scales"],
    )  # fmt: skip
    if torch.compiler.is_dynamo_compiling() or not is_plain(arrays):
        if spec is None:
            text = _text(arrays, words, tensors, tuple(scalars.items()), dropout, scale)
            scalars, scale = {}, None
        else:
            text = spec if isinstance(spec, str) else spec.reference
        # Slots are in the order of names, those of ints and floats among themselves too.
        ints = [scalars[name] for name in sorted(scalars) if isinstance(scalars[name], int)]
        floats = [scalars[name] for name in sorted(scalars) if not isinstance(scalars[name], int)]
        o, lse = torch.ops.attune.attention_over_cache(
            *arrays, [tensors[name] for name in sorted(tensors)], in_one_line(text), ints, floats, scale
        )
        return (o, lse) if return_lse else o
    launch = Launch({}, {})
    if spec is None:
        plan = _plan_of_words(arrays, words, tensors, scalars, dropout, scale, launch)
        given = by_slot(plan.spec, tensors)
    else:
        found = variant_of(spec).spec if isinstance(spec, str) else spec
        launch.scalars, launch.scale, launch.dropout = scalars, scale, dropout
        given = by_slot(found, tensors)
        plan = plan_of(found, arrays, given, launch)
    if plan.drops:
        launch.seed, launch.offset = _dropout.state_of(plan.spec, q.device, seed, offset)
    records = torch.is_grad_enabled() and any([x.requires_grad for x in (*arrays, *given) if x is not None])
    if records:
        _packed_plan.check_learned(plan, given)
    o, lse = run(plan, arrays, given, launch, return_lse, records)
    if key is not None and not isinstance(spec, str) and (spec is not None or not scalars):
        asks_precision = spec is None and words["precision"] is None
        numbers = (dropout, scale, *scalars.values())
        is_seeded = seed is not None
        _cache_bound.bind(key, plan, arrays, tensors, launch, numbers, asks_precision, spec, records, run, is_seeded)
    return (o, lse) if return_lse else o


def run(
    plan: CachePlan, arrays: Arrays, tensors: Sequence[torch.Tensor], launch: Launch, with_lse: bool, records: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not records:
        return plan.run(arrays, tensors, launch, with_lse)
    if plan.drops and isinstance(launch.seed, torch.Tensor) and not plan.spec.seed_on_device:
        plan = plan_of(plan.spec.with_device_seed, arrays, tensors, launch)
    return _packed_plan.record(plan, arrays, tensors, launch, with_lse)


def by_slot(spec: Spec, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Raises BadInputError unless they are those of the spec."""
    if not tensors and not spec.tensors:
        return []
    _launch.check_names(spec, tensors)
    return [tensors[declared.name] for declared in spec.tensors]


def _plan_of_words(
    arrays: Arrays,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
    dropout: float | None,
    scale: float | None,
    launch: Launch,
) -> CachePlan:
    q = arrays[0]
    assert q is not None
    dims = words["dims"]
    key: tuple[Any, ...] = (
        *[value for name, value in words.items() if name != "dims"],
        None if dims is None else tuple(dims.items()),
        q.dtype is torch.float32 and _precision.of_call(words["precision"], q.device.type, q.dtype),
        *(dropout, scale),
        *key_of(arrays),
    )
    if scalars:
        key += tuple([(name, type(x), x) for name, x in scalars.items()])
    if tensors:
        learned = [torch.is_grad_enabled() and x.requires_grad for x in tensors.values()]
        key += (*tensors, *learned, *key_of(tuple(tensors.values())))
    plan = _of_words.get(key)
    if plan is None:
        spec = variant_of(_text(arrays, words, tensors, tuple(scalars.items()), dropout, scale)).spec
        plan = plan_of(spec, arrays, by_slot(spec, tensors), launch)
        if len(_of_words) >= _MAX_PLANS:
            _of_words.clear()
        _of_words[key] = plan
    return plan


def _text(
    arrays: Arrays,
    words: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: tuple[tuple[str, Any], ...],
    dropout: float | None,
    scale: float | None,
) -> str:
    """The spec's YAML. Traced by Dynamo, to which lengths may be symbols."""
    q, k, v, cu_q, cu_kv, used_q, used_kv, table, *_ = arrays
    assert q is not None and k is not None
    layout = words["layout"]
    is_packed = cu_q is not None or cu_kv is not None or used_q is not None or used_kv is not None
    if layout is None:
        layout = "paged" if table is not None else "thd" if is_packed else "bshd"
    _check_layout(layout, table is not None, is_packed)
    check_dims(layout, q, k, v)
    if layout in ("thd", "paged") and (cu_q is None or cu_q.dim() != 1 or cu_q.shape[0] == 0):
        hint = "where each sequence begins, and the last one ends: int32 [sequences + 1]"
        raise BadInputError(f"layout {layout} wants `cu_q`", hint)
    if layout == "paged":
        if table is None:
            raise BadInputError(
                "layout paged wants `page_table`", "which pages each sequence has: int32 [sequences, pages]"
            )
        sizes = Sizes(cu_q.shape[0] - 1, q.shape[1], k.shape[2], q.shape[0], table.shape[-1] * k.shape[1])
    elif layout == "thd":
        sizes = Sizes(cu_q.shape[0] - 1, q.shape[1], k.shape[1], q.shape[0], k.shape[0])
    else:
        sizes = dense_sizes(layout, q, k)
    width = width_of_v(None if v is None else v.shape[-1], words["v_in_k"])
    kind = (
        "fp8_e4m3" if k.dtype in _FP8 else None,
        words["v_in_k"] is not None,
        bool(words["shared_prefixes"]),
        bool(words["batch_invariant"]),
    )
    return text_of(layout, sizes, q, width, words, tensors, scalars, dropout, scale, kind)


def _check_layout(layout: str, is_paged: bool, is_packed: bool) -> None:
    if layout not in _NDIM:
        raise BadInputError(f"there is no layout `{layout}`", 'layouts are "bshd", "bhsd", "thd" and "paged"')
    found = "paged" if is_paged else "thd" if is_packed and layout != "paged" else None
    if found is not None and layout != found:
        raise BadInputError(f"offsets of sequences are given, and layout `{layout}`", f'they are of layout "{found}"')


_NDIM = {"bshd": (4, 4), "bhsd": (4, 4), "thd": (3, 3), "paged": (3, 4)}


def check_dims(layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None) -> None:
    """Raises BadInputError unless q, k and v have as many dims as the layout."""
    of_q, of_keys = _NDIM[layout]
    for name, x, ndim in (("q", q, of_q), ("k", k, of_keys), ("v", v, of_keys)):
        if x is not None and x.dim() != ndim:
            raise BadInputError(f"`{name}` has {x.dim()} dims, not the {ndim} of layout {layout}")
