#!/usr/bin/env python3
"""Attune beside its peers on numbers that are not normal: shifted scores, hot keys and rows, large and drifting ones.
Time and error of each contestant on the same data, in interleaved rounds with a cold L2.

    python3 bench/distributions.py --out distributions.md
    python3 bench/distributions.py --only hot --dtype bf16

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. FlashAttention-3 takes part where its package
`flash_attn_interface` can be imported. Attune runs the cost model's plans.
"""

import argparse
import datetime
import importlib.util
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
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


def problems():
    for seq in (8192, 512):
        for dtype, dim in (("bf16", 128), ("fp16", 64), ("bf16", 64), ("fp16", 128), ("bf16", 256)):
            for causal in (True, False):
                for name in DISTRIBUTIONS:
                    yield f"{dtype} d{dim} {'causal' if causal else 'full'} {seq}: {name}", dtype, dim, causal, seq, name


class Attune:
    def __init__(self, runtime, dtype, causal, q, k, v, torch):
        batch, heads, seq, dim = q.shape
        spec = (f"attune: 1\nname: bench\ndtype: {dtype}\nhead_dim: {dim}\nlayout: bshd\n" +
                ("mask: causal\n" if causal else ""))
        kernel = runtime.kernel_from_yaml(spec, attune_c.Shape(batch, heads, heads, seq, seq))
        self.q, self.k, self.v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
        self.o = torch.full_like(self.q, float("nan"))
        self.space = torch.zeros(max(kernel.workspace_bytes, 16), dtype=torch.uint8, device="cuda")
        bound = kernel.bind(self.q.data_ptr(), self.k.data_ptr(), self.v.data_ptr(), self.o.data_ptr(), None,
                            self.space.data_ptr(), {})
        self.launch = lambda: bound(torch.cuda.current_stream().cuda_stream)
        self.output = lambda: self.o.transpose(1, 2)


class FlashAttention3:
    def __init__(self, causal, q, k, v, torch):
        from flash_attn_interface import flash_attn_func
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
        state = {}

        def launch():
            out = flash_attn_func(q, k, v, causal=causal)
            state["o"] = out[0] if isinstance(out, tuple) else out

        self.launch, self.output = launch, lambda: state["o"].transpose(1, 2)


class Sdpa:
    def __init__(self, causal, q, k, v, torch):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        state = {}

        def launch():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                state["o"] = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        self.launch, self.output = launch, lambda: state["o"]


def exact(q, k, v, causal, torch):
    """The first batch entry's head 3 in fp64."""
    q, k, v = (t[0, 3].double() for t in (q, k, v))
    scores = q @ k.T * q.shape[-1]**-0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, -1) @ v


def run(problem, runtimes, flush, generator, torch):
    key, dtype, dim, causal, seq, name = problem
    size = (TOKENS // seq, COLUMNS // dim, seq, dim)
    q, k, v = (torch.randn(size, generator=generator, device="cuda") for _ in range(3))
    DISTRIBUTIONS[name](q, k, torch)
    q, k, v = (t.to(torch.bfloat16 if dtype == "bf16" else torch.float16) for t in (q, k, v))
    makers = {label: (lambda runtime=runtime: Attune(runtime, dtype, causal, q, k, v, torch))
              for label, runtime in runtimes.items()}
    if importlib.util.find_spec("flash_attn_interface"):
        makers["FA3"] = lambda: FlashAttention3(causal, q, k, v, torch)
    makers["cuDNN"] = lambda: Sdpa(causal, q, k, v, torch)
    reference = exact(q, k, v, causal, torch)
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
        off = (entry.output()[0, 3].double() - reference).abs()
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
    lines, on_normal = [], {}
    for problem in problems():
        key, *configuration, name = problem
        if arguments.only and name != "normal" and not any(text in key for text in arguments.only):
            continue
        median, errors = run(problem, runtimes, flush, generator, torch)
        ours = median["Attune"]
        if name == "normal":
            on_normal[tuple(configuration)] = ours
        peers = ", ".join(f"{label} {us / ours:.2f}" for label, us in median.items() if label != "Attune")
        beside = errors.get("FA3") or errors.get("cuDNN") or errors["Attune"]
        mean, most = (f"{a / b:.2f}" if b > 0 else "" for a, b in zip(errors["Attune"], beside))
        lines.append(f"| {key} | {ours:.0f} | {on_normal[tuple(configuration)] / ours:.2f} | {peers} | "
                     f"{mean} | {most} |")
        print(lines[-1], file=sys.stderr, flush=True)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    with open(arguments.out, "w") as out:
        out.write(f"{now:%Y-%m-%d %H:%M} UTC, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, commit "
                  f"{commit.stdout.strip() or 'unknown'}. `python3 bench/distributions.py`\n\n"
                  "| data | Attune us | speed on normal data is 1 | a peer's time over ours | mean error over FA3's | "
                  "largest |\n| --- | --- | --- | --- | --- | --- |\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
