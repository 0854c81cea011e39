#!/usr/bin/env python3
"""What calls of a serving loop cost from Python beside the C calls that they make, in microseconds: eager, tiny operands.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/python_serving_calls.py [--device cuda]

Each number is the least of many short rounds: what else the machine does is not counted. On a GPU it is the host's
time; what a round has enqueued is awaited outside of it.
"""

import argparse
import timeit

import torch

import attune
import attune.torch  # noqa: F401
from attune.torch import _append, _cache_plan

SEQUENCES, HEADS, KV_HEADS, DIM, PAGE_SIZE = 2, 4, 2, 64, 16
WAITS = {"cpu": lambda: None, "cuda": lambda: torch.cuda.synchronize()}


def microseconds(call, wait, rounds, calls=20):
    call()
    best = float("inf")
    for _ in range(rounds):
        best = min(best, timeit.timeit(call, number=calls))
        wait()
    return best / calls * 1e6


def c_call(plan, output=None):
    """What a plan launches, its arguments as they were left but for an output of its own: the C call alone."""
    args, address = plan.pool[-1][:2]
    if output is not None:
        args.o = output.data_ptr()
    stream = None if plan.is_on_cpu else torch.cuda.current_stream().cuda_stream
    keep = None
    if getattr(plan, "workspace_bytes", 0):
        keep = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=plan.device)
        args.workspace = keep.data_ptr()
    return lambda: (plan.function(plan.handle, address, stream), keep, output)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=WAITS)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    torch.set_default_device(options.device)
    wait = WAITS[options.device]
    q, k, v = (torch.randn(SEQUENCES, heads, DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS))
    caches = [torch.zeros(8, PAGE_SIZE, KV_HEADS, DIM).bfloat16() for _ in "kv"]
    of_fp8 = [x.to(torch.float8_e4m3fn) for x in caches]
    where = {
        "cu_q": torch.tensor([0, 1, 2], dtype=torch.int32),
        "used_kv": torch.tensor([9, 20], dtype=torch.int32),
        "page_table": torch.tensor([[3, 1], [0, 2]], dtype=torch.int32),
    }
    scales = {"k_scales": torch.ones(8, 1), "v_scales": torch.ones(8, 1)}
    spec = attune.Spec("causal", dtype="bf16", head_dim=DIM, layout="paged")
    turns = {"rope": "half", "rope_base": 5e5}
    out = torch.empty_like(q)
    torch.set_default_device(None)

    def append():
        attune.append(k, v, *caches, q=q, q_out=out, **where, **turns)

    def decode():
        attune.attention(q, *caches, spec=spec, **where)

    with torch.no_grad():
        append(), decode()
        wait()
        (of_append,), (of_decode,) = _append._plans.values(), _cache_plan._plans.values()
        rows = {
            "att_append": c_call(of_append),
            "append, queries into a tensor": append,
            "append, queries anew": lambda: attune.append(k, v, *caches, q=q, **where, **turns),
            "append, no queries": lambda: attune.append(k, v, *caches, **where, **turns),
            "append, fp8": lambda: attune.append(k, v, *of_fp8, q=q, q_out=out, **where, **scales, **turns),
            "att_forward": c_call(of_decode, torch.empty_like(q)),
            "attention, a spec": decode,
            "attention, words": lambda: attune.attention(q, *caches, mask="causal", **where),
            "attention, fp8": lambda: attune.attention(q, *of_fp8, mask="causal", **where, **scales),
        }
        print(f"torch {torch.__version__}, attune {attune.version()}, {options.device}")
        print(f"{'':34}{'us':>8}{'above C':>10}")
        base = 0.0
        for name, call in rows.items():
            time = microseconds(call, wait, options.rounds)
            base = time if name.startswith("att_") else base
            print(f"{name:34}{time:8.2f}{time - base:10.2f}")


if __name__ == "__main__":
    main()
