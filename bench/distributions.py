#!/usr/bin/env python3
"""Attune beside its peers on numbers that are not normal: shifted scores, hot keys and rows, large and drifting ones.
Time and error of each contestant on the same data, in interleaved rounds with a cold L2.

    python3 bench/distributions.py --out distributions.md
    python3 bench/distributions.py --only hot --dtype bf16

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. FlashAttention-3 takes part where its package
`flash_attn_interface` can be imported. Attune runs the cost model's plans.
"""

import argparse
import functools
import importlib.util
import math
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS, COLUMNS = 16384, 2048
SECONDS_A_PROBLEM = 0.2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--beside", metavar="LIB", help="another build of it takes part too")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def added(score):
    """Adds score(row, key) = a(row) * b(key) to all scores, through the last column of Q and K, which is theirs
    alone. `score`: (rows, keys) -> (a, b), a product in natural units; either may be a number."""

    def apply(q, k, torch):
        seq, dim = q.shape[-2:]
        rows = torch.arange(seq, device="cuda", dtype=torch.float32)
        a, b = score(rows, rows, torch)
        unit = dim**0.25  # the softmax scale divides by it twice
        q[..., -1], k[..., -1] = a * unit, b * unit

    return apply


def times(factor):
    def apply(q, k, torch):
        q *= factor

    return apply


def one_head(q, k, torch):
    q[:, 3, :, -1] = 9 * q.shape[-1]**0.25
    k[:, 3, :, -1] = 9 * q.shape[-1]**0.25
    q[:, :3, :, -1], q[:, 4:, :, -1] = 0, 0


def heavy_tails(q, k, torch):
    t = torch.distributions.StudentT(2.0)
    for x in (q, k):
        x.copy_(t.sample(x.shape).to("cuda"))


# name -> what it does to normal Q and K [batch, heads, seq, dim], fp32, in place
DISTRIBUTIONS = {
    "normal": lambda q, k, torch: None,
    "all scores - 80": added(lambda r, c, torch: (9.0, -80 / 9)),
    "all scores + 80": added(lambda r, c, torch: (9.0, 80 / 9)),
    "first key 100": added(lambda r, c, torch: (10.0, 10.0 * (c == 0))),
    "middle key 100": added(lambda r, c, torch: (10.0, 10.0 * (c == len(c) // 2))),
    "one row in 97 at 80": added(lambda r, c, torch: (9.0 * (r % 97 == 0), 80 / 9)),
    "q * 4": times(4),
    "q * 12": times(12),
    "keys drift by 60": added(lambda r, c, torch: (8.0, 60 / 8 * c / len(c))),
    "keys drift by -60": added(lambda r, c, torch: (8.0, -60 / 8 * c / len(c))),
    "5 more every 128 keys": added(lambda r, c, torch: (5.0, (c / 128).floor())),
    "Student, 2 degrees": heavy_tails,
    "one head at 81": one_head,
}


def data_problems():
    """(key, dtype, problem), whose name says what its numbers are like."""
    for seq in (8192, 512):
        for dtype, dim in (("bf16", 128), ("fp16", 64), ("bf16", 64), ("fp16", 128), ("bf16", 256)):
            for causal in (True, False):
                for name in DISTRIBUTIONS:
                    key = f"{dtype} d{dim} {'causal' if causal else 'full'} {seq}: {name}"
                    yield key, dtype, problems.Problem("data", name, "", TOKENS // seq, COLUMNS // dim, seq, dim,
                                                       causal=causal, mask=problems.causal_mask if causal else None)


def make_inputs(dtype, problem, generator, torch):
    import contestants
    size = (problem.batch, problem.heads, problem.seq, problem.head_dim)
    q, k, v = (torch.randn(size, generator=generator, device="cuda") for _ in range(3))
    DISTRIBUTIONS[problem.name](q, k, torch)
    return contestants.Inputs(*(t.to({"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]) for t in (q, k, v)), {})


def attune(dtype, problem, inputs, runtime):
    import contestants
    spec = (f"attune: 1\nname: bench\ndtype: {dtype}\nhead_dim: {problem.head_dim}\n" +
            ("mask: causal\n" if problem.causal else ""))
    shape = attune_c.Shape(problem.batch, problem.heads, problem.heads, problem.seq, problem.seq)
    return contestants.launched(runtime.kernel_from_yaml(spec, shape), inputs, {})


def run(key, dtype, problem, runtimes, flush, generator, torch):
    """Medians in microseconds and (mean, largest) errors of head 3, by contestant."""
    import checks
    import contestants
    inputs = make_inputs(dtype, problem, generator, torch)
    makers = {label: functools.partial(attune, dtype, problem, inputs, runtime) for label, runtime in runtimes.items()}
    if importlib.util.find_spec("flash_attn_interface"):
        makers["FA3"] = lambda: contestants.fa3(problem, inputs)
    makers["cuDNN"] = lambda: contestants.sdpa(contestants.SDPBackend.CUDNN_ATTENTION, problem, inputs)
    exact = checks.exact(problem, inputs, 0, 3)
    entries, errors = {}, {}
    for label, make in makers.items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
        except Exception as error:  # a peer that cannot do it takes no part
            print(f"{key}: {label}: {error}", file=sys.stderr)
            continue
        entries[label] = entry
        off = (entry.output()[0, 3].double() - exact).abs()
        errors[label] = (off.mean().item(), off.max().item())
    median, _ = side_by_side.time_entries(entries, flush, torch)
    return median, errors


def main():
    arguments = parse_arguments()
    import torch
    side_by_side.SECONDS_A_PROBLEM = SECONDS_A_PROBLEM
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    libraries = {"Attune": arguments.library or attune_c.find_library(ROOT)}
    if arguments.beside:
        libraries["the other"] = arguments.beside
    runtimes = {label: attune_c.Library(path).runtime("cuda:0", "") for label, path in libraries.items()}
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    rows, on_normal = [], math.nan
    for key, dtype, problem in data_problems():
        is_normal = problem.name == "normal"
        if arguments.only and not is_normal and not any(text in key for text in arguments.only):
            continue
        median, errors = run(key, dtype, problem, runtimes, flush, generator, torch)
        ours = median["Attune"]
        if is_normal:  # the first of its kind
            on_normal = ours
        peers = ", ".join(f"{label} {us / ours:.2f}" for label, us in median.items() if label != "Attune")
        beside = errors.get("FA3") or errors.get("cuDNN") or errors["Attune"]
        mean, most = (f"{a / b:.2f}" if b > 0 else "" for a, b in zip(errors["Attune"], beside))
        rows.append([key, f"{ours:.0f}", f"{on_normal / ours:.2f}", peers, mean, most])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    header = ["data", "Attune us", "speed on normal data is 1", "a peer's time over ours", "mean error over FA3's",
              "largest"]
    page.write_table(arguments.out, ROOT, torch, "bench/distributions.py", header, rows)


if __name__ == "__main__":
    main()
