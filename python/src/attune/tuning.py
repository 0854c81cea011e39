"""attune.tune: the fastest plan for a call, searched on the caller's own data."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from attune import _launch, _structs
from attune._call import Call, describe
from attune._command import command
from attune._errors import BadInputError, UnsupportedError
from attune._frameworks import framework_of
from attune._launch import Gradients
from attune._library import check, library
from attune._packed import Offsets
from attune._view import View
from attune._yaml import ScalarValue
from attune.runtime import Runtime, default_runtime
from attune.spec import Spec


class State(enum.IntEnum):
    """Of a Tuning. STOPPED: by the budget, the callback or cancel(); what was measured is remembered."""

    RUNNING = 0
    DONE = 1
    STOPPED = 2
    FAILED = 3


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a search has done so far.

    Attributes:
        done, total: candidates; the total grows while the search finds more to try.
        seconds: since the call.
        best_us: 0: none is measured yet.
    """

    done: int
    total: int
    seconds: float
    best_us: float
    best_plan: str


@dataclasses.dataclass(frozen=True)
class Result:
    """What a search has found.

    Attributes:
        plan: "" where nothing was measured.
        compiler: that made the plan's code, with its version.
        best_us, before_us: median times of the plan and of the one that a call had before; 0: not measured.
        measured, rejected: candidates; rejected: they do not compile or load, compute something else, hang or crash.
        from_cache: of an earlier search on the same data.
        live_share, full_share: of tiles of 128 queries by 128 keys, those with a live element and those without a dead
            one; None: no tensor decides which.
    """

    state: State
    plan: str
    compiler: str
    best_us: float
    before_us: float
    measured: int
    rejected: int
    from_cache: int
    seconds: float
    live_share: float | None
    full_share: float | None


class Tuning:
    """A search, under way or over. Ends with the object, or with its runtime."""

    def __init__(self, handle: ctypes.c_void_p, keep: Any) -> None:
        self._handle = handle
        # The callback lives as long as it may be called.
        weakref.finalize(self, _destroy, handle, keep)

    def wait(self) -> Result:
        """Returns when it is over.

        Raises:
            AttuneError: it failed.
        """
        check(library().att_tuning_wait(self._handle))
        return self.result

    def cancel(self) -> None:
        """Asks it to stop, and returns at once."""
        library().att_tuning_cancel(self._handle)

    @property
    def result(self) -> Result:
        """What is known so far."""
        found = _structs.TuneResult()
        check(library().att_tuning_result(self._handle, ctypes.byref(found)))
        decides = found.live_share >= 0
        return Result(
            state=State(found.state),
            plan=found.plan.decode(),
            compiler=found.compiler.decode(),
            best_us=found.best_us,
            before_us=found.before_us,
            measured=found.measured,
            rejected=found.rejected,
            from_cache=found.from_cache,
            seconds=found.seconds,
            live_share=found.live_share if decides else None,
            full_share=found.full_share if decides else None,
        )

    def __repr__(self) -> str:
        found = self.result
        return f"<attune.Tuning {found.state.name.lower()}: {found.plan or 'nothing measured'}, {found.best_us:g} us>"


def tune(
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
    scalars: Mapping[str, ScalarValue] | None = None,
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
    d_o: Any = None,
    budget_s: float | None = None,
    background: bool = False,
    max_candidates: int | None = None,
    progress: Callable[[Progress], object] | None = None,
    runtime: Runtime | None = None,
) -> Tuning:
    """Searches the fastest plan for `attune.attention` with these arguments, and remembers it in the cache file.

    All that a call reads is copied first. Candidates are compiled and launched in processes of their own, each is
    verified before it is timed, and nothing of the caller's is written. Calls of the shape have the plan from then on,
    in this process and, through the cache file, in later ones.

    Args:
        q, k, v, ..., batch_invariant: as attune.attention has them.
        d_o: as O: tunes the backward pass, where this is the gradient that arrives.
        budget_s: seconds, looked at between steps; None: until the search ends by itself, minutes on a GPU.
        background: returns once the data are copied.
        max_candidates: plans to try at most.
        progress: called at every step, on the thread that tunes; an exception out of it stops the search and is
            raised again, but in the background.
        runtime: one with a cache file; None: the process' own of q's device.

    Raises:
        BadInputError: what attune.attention would not take, an empty call, or there is no cache file.
        UnavailableError: there is no compiler, or no command `attune` of this build.
    """
    operands, arrays = {"q": q, "k": k, "v": v}, dict(tensors or {})
    torch = sys.modules.get("torch")
    learned = []
    if torch is not None and isinstance(q, torch.Tensor):
        from attune.torch import _packed as of_torch

        if q.is_nested:
            raise BadInputError("`q` is a nested tensor", "give its values() and offsets() as cu_q")
        learned = of_torch.needing_gradients(arrays)
        operands, arrays = of_torch.detached(operands), of_torch.detached(arrays)
    words = {
        "mask": mask, "score": score, "sink": sink, "dims": dims, "layout": layout, "precision": precision,
        "v_in_k": v_in_k, "shared_prefixes": shared_prefixes, "batch_invariant": batch_invariant,
    }  # fmt: skip
    offsets = Offsets(cu_q, cu_kv, used_q, used_kv, page_table)
    scales = {"k_scales": k_scales, "v_scales": v_scales}
    call = describe(operands, arrays, offsets, spec, words, learned, scalars or {}, dropout, scale, 0, 0, scales)
    launch = _Launch(call)
    raised: list[BaseException] = []
    callback = _callback(progress, raised, background)
    options = _structs.TuneOptions(
        budget_ms=0.0 if budget_s is None else budget_s * 1e3,
        background=int(background),
        max_candidates=max_candidates or 0,
        command=os.fsencode(command()),
        progress=callback,
    )
    runtime = runtime or default_runtime(call.views[0].device)
    handle = ctypes.c_void_p()
    search = library().att_tune if d_o is None else library().att_tune_backward
    args = ctypes.byref(launch.forward() if d_o is None else launch.backward(d_o))
    check(search(runtime.handle, call.spec.handle, args, ctypes.byref(options), ctypes.byref(handle)))
    if raised and not background:
        library().att_tuning_destroy(handle)
        raise raised[0]
    return Tuning(handle, callback)


class _Launch:
    """The arguments of a launch, and what they point to: none of it is written."""

    def __init__(self, call: Call) -> None:
        self._call = call
        in_pages = call.sequences is not None and call.sequences.page_table is not None
        self._operands = _launch.operand_views(call.spec, call.views, call.arrays, in_pages)
        self._keep: list[Any] = []

    def forward(self) -> _structs.ForwardArgs:
        call = self._call
        return _launch.forward_args(
            call.spec, call.shape, self._operands, self._new(self._o_sizes), None, call.launch, call.sequences
        )

    def backward(self, d_o: Any) -> _structs.BackwardArgs:
        call = self._call
        given = framework_of("d_o", d_o).view(d_o.detach() if hasattr(d_o, "detach") else d_o)
        if given.sizes != self._o_sizes:
            raise BadInputError(f"`d_o` is {given.sizes}, and O {self._o_sizes}")
        if not given.is_operand(call.spec.dtype_id):
            framework = framework_of("d_o", d_o)
            contiguous = framework.contiguous(d_o)
            self._keep.append(contiguous)
            given = framework.view(contiguous)
        if call.spec.v_in_k or call.spec.is_scaled:
            raise UnsupportedError(f"the spec `{call.spec.name}` has a cache of its own kind, and no backward pass")
        d_q, d_k, d_v = (self._new(x.sizes) for x in self._operands)
        learned = {x.name: self._new(call.launch.tensors[x.name].sizes, "float32") for x in call.spec.tensors if x.grad}
        gradients = Gradients(given, None, d_q, d_k, d_v, learned)
        rows = call.shape.heads * call.shape.q_len * (1 if call.sequences is not None else call.shape.batch)
        o, lse = self._new(self._o_sizes), self._new((rows,), "float32")
        return _launch.backward_args(
            call.spec, call.shape, self._operands, o, lse, gradients, call.launch, call.sequences
        )

    @property
    def _o_sizes(self) -> tuple[int, ...]:
        return (*self._operands[0].sizes[:-1], self._call.spec.head_dim[1])

    def _new(self, sizes: tuple[int, ...], dtype: str | None = None) -> View:
        q = self._operands[0]
        array = self._call.framework.empty(sizes, dtype or q.dtype, q.device)
        self._keep.append(array)
        return framework_of("o", array).view(array)


def _callback(progress: Callable[[Progress], object] | None, raised: list[BaseException], background: bool) -> Any:
    if progress is None:
        if background:
            return _structs.TuneFunction()
        progress = id  # Python must run now and then, to notice Ctrl-C

    def call(_: Any, given: Any) -> int:
        now = given.contents
        try:
            progress(Progress(now.done, now.total, now.seconds, now.best_us, now.best_plan.decode()))
        except BaseException as error:  # Ctrl-C too
            raised.append(error)
        return len(raised)

    return _structs.TuneFunction(call)


def _destroy(handle: ctypes.c_void_p, keep: Any) -> None:
    library().att_tuning_destroy(handle)
    del keep
