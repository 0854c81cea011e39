#!/usr/bin/env python3
"""Decoding with latent attention, keys of 576 columns of which the first 512 are the values, one query a sequence,
bf16, with a cold L2: Attune beside FlashMLA and FlashInfer. Each is checked against fp64 before it is timed.

    python3 bench/mla.py --out mla.md
    python3 bench/mla.py --only "128 x 4096" --only "128 heads"

All read one cache in pages of 64, the only size that FlashMLA has; Attune once more without pages, sequences of
different lengths packed. Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. FlashMLA and FlashInfer take part
where their packages `flash_mla` and `flashinfer` can be imported, FlashInfer with the faster of its two kernels.

How the work is shared out among processors: Attune's launch does so every time, on the GPU; FlashMLA's planner runs on
the GPU and can be left out while lengths stay the same, so it stands here with and without; FlashInfer's plan() is the
host's work and not timed.
"""

import dataclasses
import importlib.util
import itertools
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import page  # noqa: E402
import row_bench  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS_A_PROBLEM = 0.3
DIM, LATENT = 576, 512
SCALE = DIM**-0.5
PAGE_SIZE = 64
SPEC = (f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {{qk: {DIM}, v: {LATENT}}}\nv_in_k: true\n"
        f"softmax_scale: {SCALE!r}\n")


@dataclasses.dataclass(frozen=True)
class Problem:
    batch: int
    keys: int  # of the longest sequence
    heads: int
    least: int = 0  # of the shortest, where lengths are drawn

    @property
    def key(self):
        lengths = f"{self.least} to {self.keys}" if self.least else f"{self.keys}"
        return f"{self.batch} x {lengths}, {self.heads} heads"

    def lengths(self):
        if not self.least:
            return [self.keys] * self.batch
        drawn = random.Random(self.batch)
        return [self.keys] + [drawn.randint(self.least, self.keys) for _ in range(self.batch - 1)]

    def bytes(self):
        """Of the cache, read once, of Q and of O."""
        return 2 * (sum(self.lengths()) * DIM + self.batch * self.heads * (DIM + LATENT))

    def flops(self):
        return 2 * self.heads * sum(self.lengths()) * (DIM + LATENT)


def all_problems():
    for batch, keys, least in ((128, 4096, 0), (1, 131072, 0), (16, 8192, 0), (64, 8192, 1024)):
        for heads in (16, 128):
            yield Problem(batch, keys, heads, least)


class Inputs:
    def __init__(self, problem, generator, torch):
        import cache_pages

        def normal(*size):
            return torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)

        self.q = normal(problem.batch, 1, problem.heads, DIM)
        self.rows = normal(sum(problem.lengths()), 1, DIM)  # of all sequences
        self.ends = [0, *itertools.accumulate(problem.lengths())]
        self.pages = cache_pages.in_pages([[self.of(b) for b in range(problem.batch)]], PAGE_SIZE, torch)

    def of(self, b):
        return self.rows[self.ends[b]:self.ends[b + 1]]


def attune(problem, inputs, runtime, torch):
    """Without pages: one sequence behind the other."""
    import contestants
    q, k, spec, packed = inputs.q, inputs.rows, SPEC, {}
    shape = attune_c.Shape(problem.batch, problem.heads, 1, 1, problem.keys)
    if problem.least:
        spec += "layout: thd\n"
        shape.q_len, shape.kv_len = problem.batch, len(k)
        packed["cu_q"] = torch.arange(problem.batch + 1, dtype=torch.int32, device="cuda")
        packed["cu_kv"] = torch.tensor(inputs.ends, dtype=torch.int32, device="cuda")
    kernel = runtime.kernel_from_yaml(spec, shape)
    o = torch.full((problem.batch, 1, problem.heads, LATENT), float("nan"), dtype=q.dtype, device="cuda")
    workspace = torch.zeros(max(kernel.workspace_bytes, 16), dtype=torch.uint8, device="cuda")
    bound = kernel.bind(q.data_ptr(), k.data_ptr(), None, o.data_ptr(), None, workspace.data_ptr(), {},
                        **{name: t.data_ptr() for name, t in packed.items()})

    def launch():
        bound(torch.cuda.current_stream().cuda_stream)

    launch.keep = (q, k, workspace, packed)
    return contestants.Entry(launch, lambda: o.transpose(1, 2), {"plan": kernel.plan})


def flash_mla(inputs, plans, torch):
    """`plans`: each launch has its planner in front."""
    import contestants
    import flash_mla
    pages, state = inputs.pages, {"metadata": flash_mla.get_mla_metadata()[0]}
    used = pages.used(torch)

    def launch():
        if plans:
            state["metadata"] = flash_mla.get_mla_metadata()[0]  # empty: the launch fills it
        state["o"], _ = flash_mla.flash_mla_with_kvcache(inputs.q, pages.caches[0], pages.table, used, LATENT,
                                                         state["metadata"], softmax_scale=SCALE, causal=False)

    return contestants.Entry(launch, lambda: state["o"].transpose(1, 2))


def flashinfer(inputs, flush, torch):
    import cache_pages

    def way(backend):
        return lambda: cache_pages.flashinfer_mla(inputs.q, inputs.pages, SCALE, backend, torch)

    return cache_pages.fastest({backend: way(backend) for backend in ("fa2", "fa3")}, flush, torch)


def makers(problem, inputs, runtime, flush, torch):
    """name -> () -> Entry."""
    import cache_pages
    found = {"paged": lambda: cache_pages.attune(SPEC, inputs.q, LATENT, inputs.pages, runtime, torch),
             "plain": lambda: attune(problem, inputs, runtime, torch)}
    if importlib.util.find_spec("flash_mla"):
        found["FlashMLA"] = lambda: flash_mla(inputs, False, torch)
        found["FlashMLA and its planner"] = lambda: flash_mla(inputs, True, torch)
    if importlib.util.find_spec("flashinfer"):
        found["FlashInfer"] = lambda: flashinfer(inputs, flush, torch)
    return found


def exact(inputs, b):
    """A sequence's output in fp64: [heads, 512]."""
    k = inputs.of(b)[:, 0].double()
    return (inputs.q[b, 0].double() @ k.T * SCALE).softmax(-1) @ k[:, :LATENT]


def check(entry, wanted):
    for b, output in wanted.items():
        error = (entry.output()[b, :, 0].double() - output).abs().max().item()
        if not error <= output.abs().max().item() * 0.02:
            raise ValueError(f"an error of {error:.2e} in sequence {b}")


def run(problem, runtime, flush, generator, torch):
    """Medians in microseconds by contestant, and what they say of themselves."""
    inputs = Inputs(problem, generator, torch)
    wanted = {b: exact(inputs, b) for b in {0, problem.batch // 2, problem.batch - 1}}
    entries, notes = {}, {}
    for label, make in makers(problem, inputs, runtime, flush, torch).items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            check(entry, wanted)
        except Exception as error:  # a peer that cannot do it takes no part
            print(f"{problem.key}: {label}: {str(error)[:300]}", file=sys.stderr)
            continue
        entries[label], notes[label] = entry, entry.notes
    return side_by_side.time_entries(entries, flush, torch)[0], notes


def table_row(problem, median, notes):
    def us(label):
        return f"{median[label]:.1f}" if label in median else ""

    def rates(label):
        if label not in median:
            return ["", ""]
        return [f"{problem.bytes() / median[label] / 1e6:.2f}", f"{problem.flops() / median[label] / 1e6:.0f}"]

    def over(label):
        return f"{median[label] / median['paged']:.2f}" if label in median and "paged" in median else ""

    return [problem.key, us("paged"), *rates("paged"), us("plain"), us("FlashMLA"), *rates("FlashMLA"),
            over("FlashMLA"), over("FlashMLA and its planner"), us("FlashInfer"), over("FlashInfer"),
            notes.get("FlashInfer", {}).get("way", ""), notes.get("paged", {}).get("plan", ""),
            notes.get("plain", {}).get("plan", "")]


HEADER = ["problem", "Attune us, pages of 64", "TB/s", "TFLOP/s", "Attune us, no pages",
          "FlashMLA us, planner not timed", "TB/s", "TFLOP/s", "over Attune in pages", "the same with its planner",
          "FlashInfer us, plan() not timed", "over Attune in pages", "which is", "plan in pages", "plan without"]


def main():
    options = row_bench.parser(__doc__).parse_args()
    chosen = row_bench.chosen(all_problems(), options)
    import torch
    runtime, flush, generator = row_bench.opened(options, SECONDS_A_PROBLEM, torch)
    rows = []
    for problem in chosen:
        rows.append(table_row(problem, *run(problem, runtime, flush, generator, torch)))
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    page.write_table(options.out, ROOT, torch, "bench/mla.py", HEADER, rows)


if __name__ == "__main__":
    main()
