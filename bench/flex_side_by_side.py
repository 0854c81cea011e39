#!/usr/bin/env python3
"""attune.torch.flex_attention beside torch's compiled flex_attention, as a user calls them: the masks and scores of the
custom table, forward, forward and backward, with a mask that is new at every step, and the first call of each.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/flex_side_by_side.py
    python3 bench/flex_side_by_side.py --only softcap --out /dev/stdout
    python3 bench/flex_side_by_side.py --fp32     # bench/flex_fp32.py's six rows

Every result is checked against torch's before it is timed: outputs and gradients of both lie equally near to each
other.

Needs a CUDA GPU, PyTorch 2.6 or newer with Triton. FlexAttention's FLASH backend takes part where flash-attn-4 is
installed. Plans are the cost model's: no cache is read.
"""

import argparse
import datetime
import functools
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

_folder = tempfile.TemporaryDirectory(prefix="attune-bench-")
os.environ["ATTUNE_CACHE"] = os.path.join(_folder.name, "attune.db")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(_folder.name, "inductor")
os.environ["TRITON_CACHE_DIR"] = os.path.join(_folder.name, "triton")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

import attune  # noqa: E402
import attune.torch as at  # noqa: E402
import checks  # noqa: E402
import contestants  # noqa: E402
import problems  # noqa: E402
import side_by_side  # noqa: E402

ROOT = side_by_side.ROOT
LONG_TOKENS = 98304


def chosen_problems(only=""):
    return [p for p in problems.custom_problems() if only in p.name]


class Contestant:
    """One way to call attention with a problem's mask_mod and score_mod."""

    def __init__(self, problem, inputs, mask_mod, score_mod):
        self.problem, self.inputs, self.mask_mod, self.score_mod = (
            problem,
            inputs,
            mask_mod,
            score_mod,
        )
        self.block_mask = None

    def sizes(self):
        """Of a block mask."""
        batch = self.problem.batch if self.problem.tensors else None
        return batch, None, self.problem.seq, self.problem.seq

    def forward(self):
        with torch.no_grad():
            self.out = self.call(*self.inputs.operands)

    def step(self):
        """Forward and backward."""
        for leaf in self.inputs.leaves:
            leaf.grad = None
        self.call(*self.inputs.leaves).backward(self.inputs.d_out)

    def masked_step(self):
        """The same with a mask that was not there before."""
        self.make_mask()
        self.step()


class Attune(Contestant):
    def make_mask(self):
        if self.mask_mod is not None:
            self.block_mask = at.create_block_mask(self.mask_mod, *self.sizes())

    def call(self, q, k, v):
        return at.flex_attention(q, k, v, self.score_mod, self.block_mask, strict=True)


class Flex(Contestant):
    """torch's, on the backend that it takes when none is named: Triton."""

    options = None

    def __init__(self, *args):
        super().__init__(*args)
        torch.compiler.reset()
        self.compiled = torch.compile(torch_flex.flex_attention, dynamic=False)
        self.compiled_mask = torch.compile(torch_flex.create_block_mask, dynamic=False)

    def make_mask(self):
        if self.mask_mod is not None:
            self.block_mask = self.compiled_mask(
                self.mask_mod, *self.sizes(), device="cuda"
            )

    def call(self, q, k, v):
        return self.compiled(
            q, k, v, self.score_mod, self.block_mask, kernel_options=self.options
        )


class Flash(Flex):
    """The same on FlashAttention-4."""

    options = {"BACKEND": "FLASH"}


def peers():
    return (Flex, Flash) if importlib.util.find_spec("flash_attn") else (Flex,)


class Inputs:
    def __init__(self, problem, generator, dtype):
        made = contestants.make_inputs(problem, generator, dtype)
        self.operands, self.tensors = (made.q, made.k, made.v), made.tensors
        self.leaves = [x.clone().requires_grad_() for x in self.operands]
        self.d_out = torch.randn(
            made.q.shape, generator=generator, device="cuda", dtype=made.q.dtype
        )


def seconds_of(call):
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def times_us(calls, rounds, repeats):
    """The median of each call, in turn with the others."""
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repeats):
                call()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) / repeats * 1e3)
    return {name: sorted(each)[len(each) // 2] for name, each in found.items()}


def gradients(contestant):
    contestant.step()
    return [x.grad.float() for x in contestant.inputs.leaves]


def difference(mine, theirs):
    """The norm of the difference, of the norm."""
    return ((mine - theirs).norm() / theirs.norm()).item()


def run_problem(prepared, whats, compiling, all_ready, alone):
    """`prepared()`: the contestants and the row that their times of `whats` join. Of a process among others:
    `compiling` bounds how many of them prepare at once, nothing is timed until `all_ready`, and then one at a time,
    which holds `alone`."""
    try:
        with compiling:
            made, row = prepared()
    finally:
        torch.cuda.synchronize()
        all_ready.wait()
    with alone:
        for what in whats:
            found = times_us(
                {name: getattr(each, what) for name, each in made.items()},
                rounds=7,
                repeats=5,
            )
            row.update({f"{what} {name}": value for name, value in found.items()})
    return row


def prepare(problem, inputs, kinds):
    """Who can do it, what is known of them before they are timed, and their results, which agree."""
    mask_mod, mask, tensors = None, problem.mask, inputs.tensors
    if mask is not None:

        def mask_mod(b, h, q, k):  # it sees a function and tensors, as a program's own does, and no objects of a bench
            return mask(b, h, q, k, tensors)

    row, made, results = {"name": problem.name, "difference": 0.0}, {}, {}
    for kind in kinds:
        name = kind.__name__
        contestant = kind(problem, inputs, mask_mod, problem.score)

        def first(contestant=contestant):
            contestant.make_mask()
            contestant.step()

        try:
            row[f"first {name}"] = seconds_of(first)
            contestant.forward()
            results[name] = [contestant.out.float(), *gradients(contestant)]
            made[name] = contestant
        except Exception as error:  # a peer that cannot do it takes no part
            if kind is Attune:
                raise
            row[f"without {name}"] = (str(error).splitlines() or [type(error).__name__])[0]
    for name in list(made)[1:]:
        apart = max(map(difference, results["Attune"], results[name]))
        row["difference"] = max(row["difference"], apart)
        if not apart < 0.02:
            raise RuntimeError(f"{problem.name}: Attune and {name} differ by {apart:.3f}: nothing is timed")
    return made, row, results


_worker = {}  # what a process of the pool was started with


def start_worker(precision, **given):
    _worker.update(given)
    torch.set_float32_matmul_precision(precision)


def in_processes(named, names, options, precision):
    """What `named` returns of each name, in a process each, which finds in `_worker` what they have in common."""
    context = multiprocessing.get_context("spawn")
    in_common = {
        "seed": options.seed,
        "compiling": context.Semaphore(options.workers),
        "all_ready": context.Barrier(len(names)),
        "alone": context.Lock(),
    }
    start = functools.partial(start_worker, precision, **in_common)
    with context.Pool(len(names), initializer=start) as pool:
        return list(pool.imap(named, names, chunksize=1))


def run_named(problem_name):
    seed, *turns = (_worker[key] for key in ("seed", "compiling", "all_ready", "alone"))
    problem = next(p for p in chosen_problems() if p.name == problem_name)

    def prepared():
        inputs = Inputs(problem, torch.Generator("cuda").manual_seed(seed), torch.bfloat16)
        return prepare(problem, inputs, (Attune, *peers()))[:2]

    row = run_problem(prepared, ("forward", "step", "masked_step"), *turns)
    print(row, file=sys.stderr, flush=True)
    return row


def call_overhead():
    """Microseconds of the host for a call on little work, by name."""
    q, k, v = (
        torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def causal(b, h, i, j):
        return i >= j

    mask = at.create_block_mask(causal, None, None, 64, 64)
    of_torch = torch_flex.create_block_mask(causal, None, None, 64, 64, device="cuda")
    compiled = torch.compile(torch_flex.flex_attention, dynamic=False)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def without_gradients(function):
        def call():
            with torch.no_grad():
                function()

        return call

    calls = {
        "attune.torch.flex_attention": without_gradients(
            lambda: at.flex_attention(q, k, v, None, mask)
        ),
        "the same with autograd": lambda: at.flex_attention(*leaves, None, mask),
        "torch's compiled flex_attention": without_gradients(
            lambda: compiled(q, k, v, None, of_torch)
        ),
        "scaled_dot_product_attention": without_gradients(
            lambda: sdpa(q, k, v, is_causal=True)
        ),
    }
    found = {}
    for name, call in calls.items():
        for _ in range(20):
            call()
        least = float("inf")
        for _ in range(20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(50):
                call()
            least = min(least, (time.perf_counter() - began) / 50)
        found[name] = least * 1e6
    return found


def long_documents():
    """Peak bytes beside operands, results and their gradients, of a step over one long row with a document mask."""
    heads, dim = 8, 128
    doc = (torch.arange(LONG_TOKENS, device="cuda") // 8192).to(torch.int32)

    def mask_mod(b, h, i, j):
        return (doc[i] == doc[j]) & (i >= j)

    q, k, v = (
        torch.randn(
            1, heads, LONG_TOKENS, dim, device="cuda", dtype=torch.bfloat16
        ).requires_grad_()
        for _ in range(3)
    )
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = at.flex_attention(q, k, v, mask_mod=mask_mod, strict=True)
    out.sum().backward()
    torch.cuda.synchronize()
    counted = 4 * q.numel() * 2  # out and three gradients
    return torch.cuda.max_memory_allocated() - before - counted, q.numel() * 2


def geometric(values):
    return problems.geometric_mean([value for value in values if value])


def page(rows, overhead, memory):
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    names = [kind.__name__ for kind in peers()]
    lines = [
        f"{date}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, commit "
        f"{os.environ.get('ATTUNE_COMMIT') or commit.stdout.strip() or 'unknown'}, untuned plans. "
        f"`python3 bench/flex_side_by_side.py {' '.join(sys.argv[1:])}`",
        "",
        "Times are Attune's in microseconds; ratios are torch's time over it, of " + " and ".join(names) + " "
        "(Flex: the backend Triton; Flash: FlashAttention-4). 2 x 16 heads x 8192, d 128, bf16.",
        "",
        "| | forward us | ratios | forward and backward us | ratios | with a new mask us | ratios | first step s | "
        "torch's | difference |",
        "|" + " --- |" * 10,
    ]
    ratios = {}

    def ratio(row, what, name):
        if f"{what} {name}" not in row:
            return "-"
        found = row[f"{what} {name}"] / row[f"{what} Attune"]
        ratios.setdefault((what, name), []).append(found)
        return f"{found:.2f}"

    whats = ("forward", "step", "masked_step")
    for row in rows:
        cells = [row["name"]]
        for what in whats:
            cells += [f"{row[f'{what} Attune']:.0f}", ", ".join(ratio(row, what, name) for name in names)]
        firsts = [row.get(f"first {name}") for name in names]
        cells += [
            f"{row['first Attune']:.2f}",
            ", ".join(f"{seconds:.2f}" if seconds else "-" for seconds in firsts),
            f"{row['difference']:.4f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    means = [
        cell
        for what in whats
        for cell in ("", ", ".join(f"{geometric(ratios.get((what, name), [])):.2f}" for name in names))
    ]
    lines += ["| geometric mean | " + " | ".join(means) + " | | | |", ""]
    for row in rows:
        for name in names:
            if f"without {name}" in row:
                lines += [f"{row['name']} without {name}: {row[f'without {name}']}", ""]
    if overhead:
        lines += [
            "Host time of a call on 1 x 2 heads x 64, in microseconds:",
            "",
            "| call | us |",
            "| --- | --- |",
        ]
        lines += [f"| {name} | {value:.1f} |" for name, value in overhead.items()]
        lines.append("")
    if memory:
        lines.append(
            f"A step over {LONG_TOKENS} tokens in documents of 8192, 8 heads, d 128: {memory[0] / 2**20:.0f} MiB beside "
            f"q, k, v, their gradients and the output, {memory[1] / 2**20:.0f} MiB each."
        )
    return "\n".join(lines) + "\n"


def parse_arguments(description, has_fp32):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="problems whose name contains this"
    )
    if has_fp32:
        parser.add_argument(
            "--fp32", action="store_true", help="in float32, beside FlexAttention on Triton"
        )
    parser.add_argument("--list", action="store_true", help="the problems, and stop")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="compile for so many problems at once; one at a time is timed",
    )
    parser.add_argument("--out", default="/dev/stdout")
    return parser.parse_args()


def main():
    options = parse_arguments(__doc__, has_fp32=True)
    if options.fp32:
        import flex_fp32

        flex_fp32.run(options)
        return
    names = [p.name for p in chosen_problems(options.only)]
    if options.list:
        print("\n".join(names))
        return
    torch.set_float32_matmul_precision("high")
    print(f"{attune.default_runtime('cuda:0').device}", file=sys.stderr)
    overhead = call_overhead() if not options.only else None
    memory = long_documents() if not options.only else None
    print(overhead, memory, file=sys.stderr, flush=True)
    torch.cuda.empty_cache()
    rows = in_processes(run_named, names, options, "high")
    with open(options.out, "w") as file:
        file.write(page(rows, overhead, memory))


if __name__ == "__main__":
    main()
