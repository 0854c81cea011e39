"""What libattune_calls.so has in the place of bytecode, where it can be had: launches, and what is recorded of them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import pathlib
import sysconfig
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from attune import _met
from attune._library import check, library
from attune.runtime import Kernel
from attune.torch import _memory
from attune.torch._launch_plan import raw_stream
from attune.torch._plans import ForwardPlan
from attune.torch._untouched import NONE, Untouched

_NAME = "libattune_calls.so"
_MAX_SCALARS, _MAX_TENSORS = 32, 16  # of a spec; python/native/launch.hpp has them, too

_data_ptr: Any = torch.Tensor.data_ptr

# Sizes, strides and type of a new tensor, and the rows of it that a launch leaves as they are.
Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, Untouched]


@dataclasses.dataclass(frozen=True)
class Behind:
    """Tensors that a launch is given behind the spec's.

    Attributes:
        members: of those of the launch's struct that point to one its offset, in bytes, and the tensor's place.
    """

    count: int = 0
    members: tuple[tuple[int, int], ...] = ()


NOTHING = Behind()


class Launches(Protocol):
    """What is asked of a plan of either pass."""

    spec: Any
    scalar_slots: tuple[tuple[int, bool], ...]
    device: torch.device
    is_on_cpu: bool
    draws: bool
    keeps_workspace: bool
    workspace_bytes: int


@dataclasses.dataclass(frozen=True)
class _Functions:
    """Of the library: what makes finders, launchers of both passes, calls, and what a Function is made of, and what
    puts calls that were made before in front of attune.attention's bytecode."""

    finder: Callable[[Any], Any]
    launcher: Callable[[Any], Any]
    straight: Callable[[Any], Any]
    forward: Callable[[Any], Any]
    backward: Callable[[Any], Any]
    bound_backward: Callable[[Any], Any]
    recorder: Callable[[Any], Any]
    enter_attention: Callable[[Any], Any]


@functools.cache
def _functions() -> _Functions | None:
    """None: it is not beside libattune, or not of this Python: it counts on the interpreter's lock."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        c = ctypes.PyDLL(str(pathlib.Path(library()._name).resolve().with_name(_NAME)))
        made = [getattr(c, f"attune_calls_{each.name}") for each in dataclasses.fields(_Functions)]
    except (OSError, AttributeError):
        return None
    for function in made:
        function.argtypes, function.restype = [ctypes.py_object], ctypes.py_object
    return _Functions(*made)


def forward() -> Any:
    """forward(ctx, q, k, v, *learned) of an autograd.Function, of the call that is being recorded by `straight` or by
    what `recorder` gives. None: there is none."""
    functions = _functions()
    return None if functions is None else functions.forward(False)


def recorder(apply: Any) -> Callable[..., Any]:
    """record(call, q, k, v, *learned), of the apply of a Function that has such a `forward`. `call` is (what
    `launcher_of` gave, tensors, scalars, whether LSE is asked for, what the backward pass is told)."""
    functions = _functions()
    assert functions is not None, "there is a forward"
    found: Callable[..., Any] = functions.recorder(apply)
    return found


def backward(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """backward(ctx, d_o[, d_lse]) of a Function whose forward is `forward`'s: the launches that `ctx.call[3]` has of
    `bound_backward`, and for all else `otherwise`."""
    functions = _functions()
    assert functions is not None, "there is a forward"
    asks_order = getattr(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled)
    found: Callable[..., Any] = functions.backward((torch.is_grad_enabled, asks_order, otherwise, None))
    return found


def launcher_of(plan: ForwardPlan) -> tuple[Callable[..., Any], Any] | None:
    """What attune.torch._launcher's has, for a plan of which that has one, and what `forward` takes in its place."""
    functions = _functions()
    if functions is None or not can_launch(plan):
        return None
    arguments = plan._arguments()
    o = plan.o_sizes, plan.o_strides, plan.dtype, NONE
    outputs = o, (plan.lse_sizes, plan.lse_strides, torch.float32, NONE)
    return launcher(plan, plan.handle, arguments.address, arguments, outputs, plan.run)


def launcher(
    plan: Launches,
    handle: Any,
    address: int,
    keep: Any,
    outputs: tuple[Kind, Kind],
    otherwise: Callable[..., Any],
    behind: Behind = NOTHING,
) -> tuple[Callable[..., Any], Any]:
    """`launcher_of` of any plan that `can_launch`: its arguments lie at `address` and are kept with `keep`, and
    `otherwise` is what runs launches that are not as usual, as ForwardPlan.run."""
    functions = _functions()
    assert functions is not None, "it can launch"
    function = _address_of(library().att_forward)
    found: tuple[Callable[..., Any], Any] = functions.launcher(
        (function, handle, address, *outputs, otherwise, None, _of_launch(plan, keep, behind))
    )
    return found


def bound_backward(
    plan: Launches,
    kernel: Kernel,
    address: int,
    keep: Any,
    check_saved: Callable[..., bool],
    gradients: tuple[Kind, ...],
    learned: tuple[int, ...],
    behind: Behind = NOTHING,
) -> Any:
    """A launch of what `check_saved` passes, for the fourth place of a context's `call`; None: there is none. Its
    arguments at `address` are all but addresses, `gradients` are what it gives, `learned` the slots of those behind the
    third."""
    functions = _functions()
    if functions is None or not can_launch(plan):
        return None
    function = _address_of(library().att_backward)
    of_launch = _of_launch(plan, (keep, kernel), behind)
    return functions.bound_backward((function, kernel.handle, address, check_saved, gradients, learned, of_launch))


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _empty(plan: Launches) -> Any:
    return _memory._on_cpu if plan.is_on_cpu else _memory._on_gpu


def can_launch(plan: Launches) -> bool:
    spec = plan.spec
    if _functions() is None or _empty(plan) is None:
        return False
    if len(spec.scalars) > _MAX_SCALARS or len(spec.tensors) > _MAX_TENSORS:
        return False
    return plan.is_on_cpu or (_memory._current_gpu is not None and raw_stream is not None)


def _of_launch(plan: Launches, keep: Any, behind: Behind) -> tuple[Any, ...]:
    """What python/native/launch.cpp takes of a plan of either pass. `keep` is kept as long as its launches are."""
    return (
        tuple(plan.scalar_slots),
        ((plan.workspace_bytes,), (1,), torch.uint8, NONE),
        _empty(plan),
        _memory._current_gpu,
        raw_stream,
        plan.device.index or 0,
        _data_ptr,
        check,
        keep,
        not plan.is_on_cpu,
        plan.keeps_workspace,
        plan.draws,
        behind.count,
        behind.members,
        _address_of(library().att_fill_untouched),
    )


def straight(
    check: Any,
    handle: Any,
    apply: Any,
    scalars: tuple[float, ...],
    told: Any,
    names: tuple[str, ...] = (),
    learned: tuple[int, ...] = (),
    draw: Callable[[], Any] | None = None,
    drawn_otherwise: Callable[..., Any] | None = None,
    behind: tuple[int, ...] = (),
    twins: tuple[tuple[int, int], ...] = (),
) -> Callable[..., Any] | None:
    """go(q, k, v, tensors, with_lse, scalars by name, all arrays): O, or O and LSE; None where `check` does not pass
    the tensors.

    Args:
        handle: what `launcher_of` gave.
        apply: an autograd.Function's, which has `forward`, where a gradient is wanted, or None; `told` is for its
            backward pass.
        names: of scalars that each call brings, by slot; without any they are `scalars`. Not with `apply`.
        learned: places of the tensors that the Function is given.
        draw: what gives `told` with a seed that it draws, of launches with dropout. Of one that lies on the device
            `drawn_otherwise` makes the call, of q, k, v, tensors, with_lse and `told`.
        behind: places among all arrays of those that a launch is given behind the spec's tensors; `twins` are pairs of
            places at which there is one array.
    """
    functions = _functions()
    if functions is None or handle is None:
        return None
    parts = check, handle, apply, scalars, told, None, names, learned, draw, drawn_otherwise, behind, twins
    found: Callable[..., Any] = functions.straight(parts)
    return found


def find() -> Callable[..., Any] | None:
    """attune._met's."""
    functions = _functions()
    if functions is None:
        return None
    found: Callable[..., Any] = functions.finder(_of_finder())
    return found


def _of_finder() -> tuple[Any, ...]:
    return _met.CALLS, torch.is_grad_enabled, None, False, True


@functools.cache
def enter_attention(function: Any) -> tuple[Callable[..., Any], bool] | None:
    """From now on `function`, which is attune.attention, is called without a frame and a mapping of arguments wherever
    `find` finds its call, and as ever elsewhere. Everyone who looks into the function, as torch's compiler does, sees
    what it was.

    Returns:
        What finds calls, of the function's arguments: it gives None where there is none. And whether it stands before
        the function: Python lets it from 3.12 on. None: there is no such thing.
    """
    functions, watched = _functions(), _watched()
    if functions is None or watched is None:
        return None
    parts = function, _bytecode_of(function), watched, vars(_met), _met._names, _of_finder()
    met, stands = functions.enter_attention(parts)
    return met, bool(stands)


def _watched() -> tuple[Any, ...] | None:
    """What tells whether somebody wants to see a call's bytecode run. None: this torch does not say it."""
    try:
        from torch._C._dynamo.eval_frame import get_eval_frame_callback
    except ImportError:
        return None
    return forward_ad, get_eval_frame_callback, None, False


def _bytecode_of(function: Any) -> Any:
    """The function once more: what it is when nothing is in front of it."""
    found = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found
