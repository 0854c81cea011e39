#!/usr/bin/env python3
"""Errors of O against fp64 on peaked and shifted rows, and what `accuracy: strict` costs.

Attune as it is and strict, cuDNN through PyTorch, and FlashAttention-3 where its package `flash_attn_interface` can be
imported. The yardstick, 1 of the columns, is FlashAttention-3's arithmetic emulated in PyTorch: blocks of 128 keys from the last
to the first, scores in fp32 less the largest so far, exponentials rounded to the dtype for the product with V, their
sum not, O rounded.
Times are medians of interleaved rounds with a cold L2, on the same numbers.

    python3 bench/accuracy.py --out accuracy.md
    python3 bench/accuracy.py --only bf16 --cache tuned.db

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. Without a cache Attune runs the cost model's plans.
"""

import argparse
import importlib.util
import math
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import hostile_data  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEQ, BATCH, COLUMNS = 8192, 2, 2048
SECONDS_A_PROBLEM = 0.3
HEAD = 3  # whose errors are looked at, of the first of the batch
ROWS = 1024  # at a time, in fp64
BLOCK = 128  # keys
NAMES = ["normal", "q * 4", "q * 12", "first key 100", "middle key 100", "all scores + 80", "Student, 2 degrees"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--beside", metavar="LIB", help="strict kernels of another build take part too")
    parser.add_argument("--cache", default="", help="cache file with tuned kernels")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def rows_of(problem, inputs, torch, output):
    """`output(scores, v)` of the head, by blocks of rows, whose scores are natural and masked; fp64."""
    q, k, v = (t[0, HEAD].double() for t in (inputs.q, inputs.k, inputs.v))
    keys = torch.arange(problem.seq, device="cuda")
    blocks = []
    for first in range(0, problem.seq, ROWS):
        scores = q[first:first + ROWS] @ k.T / math.sqrt(problem.head_dim)
        if problem.causal:
            scores = scores.masked_fill(keys > keys[first:first + ROWS, None], -math.inf)
        blocks.append(output(scores, v))
    return torch.cat(blocks)


def emulated(dtype, torch):
    """FlashAttention-3's arithmetic on scores; what fp32 rounds in sums is left out, it is small."""

    def output(scores, v):
        scores = scores.float() * math.log2(math.e)
        o = torch.zeros(len(scores), v.shape[1], dtype=torch.float64, device="cuda")
        sums = torch.zeros(len(scores), 1, dtype=torch.float64, device="cuda")
        top = torch.full((len(scores), 1), -math.inf, device="cuda")
        for first in reversed(range(0, scores.shape[1], BLOCK)):
            block = scores[:, first:first + BLOCK]
            before, top = top, torch.maximum(top, block.amax(1, keepdim=True))
            base = top.clamp(min=-1e30)  # of rows that have no key yet
            shrink, p = torch.exp2((before - base).double()), torch.exp2(block - base)
            o = o * shrink + p.to(dtype).double() @ v[first:first + BLOCK]
            sums = sums * shrink + p.sum(1, keepdim=True).double()
        return (o / sums).to(dtype).double()

    return output


def attune(dtype, problem, inputs, runtime, accuracy):
    import contestants
    spec = (f"attune: 1\nname: bench\ndtype: {dtype}\nhead_dim: {problem.head_dim}\naccuracy: {accuracy}\n" +
            ("mask: causal\n" if problem.causal else ""))
    shape = attune_c.Shape(problem.batch, problem.heads, problem.heads, problem.seq, problem.seq)
    kernel = runtime.kernel_from_yaml(spec, shape)
    return contestants.launched(kernel, inputs, {"plan": kernel.plan})


def makers(dtype, problem, inputs, runtime, beside):
    import contestants
    found = {"fast": lambda: attune(dtype, problem, inputs, runtime, "fast"),
             "strict": lambda: attune(dtype, problem, inputs, runtime, "strict")}
    if beside:
        found["strict, the other"] = lambda: attune(dtype, problem, inputs, beside, "strict")
    if problem.head_dim <= 128:
        found["cuDNN"] = lambda: contestants.sdpa(contestants.SDPBackend.CUDNN_ATTENTION, problem, inputs)
    if importlib.util.find_spec("flash_attn_interface"):
        found["FA3"] = lambda: contestants.fa3(problem, inputs)
    return found


def ratio(mine, its):
    """Of two errors; where neither errs they are alike."""
    return mine / its if its else 1.0 if not mine else float("inf")


def run(key, dtype, problem, libraries, flush, generator, torch):
    """Cells by contestant: mean and largest error over the emulation's, and time over that of fast kernels."""
    inputs = hostile_data.make_inputs(dtype, problem, generator)
    exact = rows_of(problem, inputs, torch, lambda scores, v: torch.softmax(scores, 1) @ v)
    off = (rows_of(problem, inputs, torch, emulated(inputs.q.dtype, torch)) - exact).abs()
    yardstick = off.mean().item(), off.max().item()
    entries, errors = {}, {}
    for label, make in makers(dtype, problem, inputs, *libraries).items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
        except Exception as error:  # a peer that cannot do it takes no part
            print(f"{key}: {label}: {error}", file=sys.stderr)
            continue
        entries[label] = entry
        off = (entry.output()[0, HEAD].double() - exact).abs()
        errors[label] = [ratio(mine, its) for mine, its in zip((off.mean().item(), off.max().item()), yardstick)]
    median, _ = side_by_side.time_entries(entries, flush, torch)
    cells = {label: f"{errors[label][0]:.3f} {errors[label][1]:.2f}, {us / median['fast']:.3f}"
             for label, us in median.items()}
    return cells, median, {label: entry.notes.get("plan", "") for label, entry in entries.items()}


def all_problems():
    for dtype, dim in (("bf16", 128), ("fp16", 128), ("bf16", 64), ("fp16", 64), ("bf16", 256)):
        for causal in (True, False):
            for name in NAMES:
                yield f"{dtype} d{dim} {'causal' if causal else 'full'}: {name}", dtype, problems.Problem(
                    "data", name, "", BATCH, COLUMNS // dim, SEQ, dim, causal=causal,
                    mask=problems.causal_mask if causal else None)


def main():
    arguments = parse_arguments()
    import torch
    side_by_side.SECONDS_A_PROBLEM = SECONDS_A_PROBLEM
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    paths = [arguments.library or attune_c.find_library(ROOT), arguments.beside]
    libraries = [attune_c.Library(path).runtime("cuda:0", arguments.cache) if path else None for path in paths]
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    labels = ["strict", "strict, the other", "cuDNN", "FA3"]
    rows, shown = [], set()
    for key, dtype, problem in all_problems():
        if arguments.only and not any(text in key for text in arguments.only):
            continue
        cells, median, plans = run(key, dtype, problem, libraries, flush, generator, torch)
        rows.append([key, f"{median['fast']:.0f}", cells["fast"].split(",")[0]] +
                    [cells.get(label, "") for label in labels])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        for label, plan in plans.items():
            if plan and (label, plan) not in shown:
                print(f"    {label}: {plan}", file=sys.stderr)
                shown.add((label, plan))
    header = ["data", "fast us", "mean and largest error over the emulation's"] + [
        f"{label}: errors, time over fast's" for label in labels]
    page.write_table(arguments.out, ROOT, torch, "bench/accuracy.py", header, rows)


if __name__ == "__main__":
    main()
