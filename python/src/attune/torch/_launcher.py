"""A ForwardPlan's launch as one function, for calls that are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from attune._library import check
from attune.torch import _native
from attune.torch._launch_plan import ADDRESSES, MISALIGNED, Scalars, raw_stream, write_addresses
from attune.torch._plans import ForwardPlan

# Of q, k, v, tensors, with_lse and scalars: O, or O and LSE.
Launcher = Callable[..., Any]


def launcher_of(plan: ForwardPlan) -> tuple[Launcher | None, Any]:
    """ForwardPlan.run of launches that bring operands, tensors and scalars, the tensors of sizes that `run` has passed.
    None: there is more to do, such as to bring a seed. Behind it what _native.forward takes for it; None: it is one in
    Python."""
    if (plan.draws_or_scales and not plan.draws) or not plan.has_work or plan.copies_any:
        return None, None
    if plan.draws:  # what has no bytecode alone is given a seed
        return None, (_native.launcher_of(plan) or (None, None))[1]
    return _native.launcher_of(plan) or (_in_python(plan), None)


def _in_python(plan: ForwardPlan) -> Launcher:
    """What a launch needs is at hand in it, where looking it up in the plan takes as long as all else."""
    o_sizes, o_strides, dtype = plan.o_sizes, plan.o_strides, plan.dtype
    lse_sizes, lse_strides, float32 = plan.lse_sizes, plan.lse_strides, torch.float32
    empty, function, handle, write = plan.empty, plan.function, plan.handle, write_addresses
    take, give_back = plan.pool.pop, plan.pool.append
    scratch_sizes, keeps_workspace = (plan.workspace_bytes,), plan.keeps_workspace
    wants_workspace = plan.workspace_bytes > 0
    device = None if plan.is_on_cpu else plan.device.index or 0
    stream_of = raw_stream or (lambda index: torch.cuda.current_stream(index).cuda_stream)

    def launch(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        with_lse: bool,
        scalars: Scalars,
    ) -> Any:
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (q_at | k_at | v_at) & MISALIGNED:
            found = plan.run(q, k, v, tensors, with_lse, scalars)
            return found if with_lse else found[0]
        o = empty(o_sizes, o_strides, dtype)
        if with_lse:
            lse = empty(lse_sizes, lse_strides, float32)
            lse_at = lse.data_ptr()
        else:
            lse, lse_at = None, 0
        try:
            arguments = take()
        except IndexError:
            arguments = plan._arguments()
        if scalars is not arguments.brought:
            plan.fill_scalars(arguments, scalars)
        if tensors:
            for view, tensor in zip(arguments.tensors, tensors, strict=True):
                view.data = tensor.data_ptr()
        scratch_at = 0
        if wants_workspace:
            scratch = arguments.workspace
            if scratch is None:
                scratch = empty(scratch_sizes, (1,), torch.uint8)
                if keeps_workspace:
                    arguments.workspace = scratch
            scratch_at = scratch.data_ptr()
        write(arguments.args, ADDRESSES, q_at, k_at, v_at, o.data_ptr(), lse_at, scratch_at)
        status = function(handle, arguments.address, None if device is None else stream_of(device))
        if status:
            check(status)
        give_back(arguments)
        return (o, lse) if with_lse else o

    return launch
