#!/usr/bin/env python3
"""What decoding over packed and paged sequences spends outside of its main kernel: the kernel in front that deals the
keys out, and what comes behind. Beside the dense layout, which has neither, and peers; bf16, a cold L2.

    python3 bench/launches.py --out launches.md
    python3 bench/launches.py --only "1 x 8192"

"Whole" is a launch between two events, without the profiler, in rounds that take turns. The other times are medians of
the GPU's own timestamps of each kernel (torch.profiler, CUPTI). The main kernel is the longest. It may begin before the
one in front ends, and then waits for it; so what counts is how long after the launch's beginning the last kernel in
front ends, and how long after the main kernel's end the last one ends.

"Dense, in pieces" is the dense layout with a plan that splits each sequence, as packed ones do; a memset of its
counters goes in front. Merging is the work of the main kernel's CTAs, whatever the layout.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so; FlashAttention-3 and FlashInfer take part where their packages
`flash_attn_interface` and `flashinfer` can be imported (FlashInfer plans on the host, which is not timed).
"""

import importlib.util
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import decode  # noqa: E402
import page  # noqa: E402
import row_bench  # noqa: E402
import side_by_side  # noqa: E402
from decode_problems import Problem, exact, make_inputs, sequences_of, yaml  # noqa: E402
from problems import median  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS_A_PROBLEM = 1.0
TRACED_ROUNDS = 20
ROWS = Problem(64, 8192), Problem(16, 32768), Problem(1, 8192), Problem(64, 131072, shorter=1024)
# The cost model gives this shape a plan without clusters that splits sequences; its code computes any shape.
IN_PIECES = dict(batch=1, heads=16, kv_heads=4, q_len=1, kv_len=32768)


def in_pieces(problem, inputs, runtime):
    import contestants
    shape = attune_c.Shape(problem.batch, problem.heads, problem.kv_heads, problem.queries, problem.keys)
    kernel = runtime.kernel_from_yaml(yaml(problem), attune_c.Shape(**IN_PIECES)).at(shape)
    return contestants.launched(kernel, inputs, {"plan": kernel.plan})


def makers(problem, inputs, runtime, flush, torch):
    """name -> () -> Entry."""
    import cache_pages
    found = {}
    if not problem.shorter:
        found["dense"] = lambda: decode.attune(problem, inputs, runtime, torch)
        found["dense, in pieces"] = lambda: in_pieces(problem, inputs, runtime)
    found["packed"] = lambda: decode.attune(problem, inputs, runtime, torch, packed=True)
    q = inputs.q.transpose(1, 2).contiguous()
    for size in (16, 64):
        pages = cache_pages.in_pages(sequences_of(problem, inputs), size, torch)
        found[f"pages of {size}"] = lambda pages=pages: cache_pages.attune(yaml(problem), q, problem.head_dim, pages,
                                                                           runtime, torch)
    if importlib.util.find_spec("flash_attn_interface"):
        found["FA3"] = lambda: decode.flash_attention_3(problem, inputs, flush, torch)
    if importlib.util.find_spec("flashinfer"):
        ways = cache_pages.flashinfer_ways(q, pages, torch)
        found["FlashInfer, pages of 64"] = lambda: cache_pages.fastest(ways, flush, torch)
    return found


def traced(entries, flush, torch):
    """name -> for each round, (kernel, begin, end) of a launch in their order, in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    def space():
        flush.zero_()
        torch.cuda._sleep(side_by_side.SPACER_CYCLES)

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(TRACED_ROUNDS):
            for entry in entries.values():
                space()
                entry.launch()
        space()
        torch.cuda.synchronize()
    events = [(event.start_ns(), event.end_ns(), event.name()) for event in profiler.profiler.kineto_results.events()
              if event.device_type() == torch.autograd.DeviceType.CUDA and "Sync" not in event.name()]
    launches = between_spacers(events)
    if len(launches) != TRACED_ROUNDS * len(entries) or not all(launches):
        raise RuntimeError(f"{len(launches)} launches of {TRACED_ROUNDS * len(entries)} stand in the trace")
    return {name: launches[i::len(entries)] for i, name in enumerate(entries)}


def between_spacers(events):
    """Launches, from (begin, end, kernel) in nanoseconds: what follows each spacer, but for the next one's flush."""
    launches, first = [], min(events)[0]
    for begin, end, name in sorted(events):
        if "spin_kernel" in name:
            launches.append([])
        elif launches:
            launches[-1].append((name, (begin - first) / 1e3, (end - first) / 1e3))
    return [launch[:-1] for launch in launches[:-1]]


def short(kernel):
    """Attune's names end in what a kernel is for; peers' have templates and arguments."""
    if kernel.endswith("_items"):
        return "list"
    if kernel.startswith("Memset"):
        return "memset"
    return kernel.split("<")[0].split("(")[0].split("::")[-1].removeprefix("void ")[:32]


def parts(launch):
    """Of one launch: kernels in front, those behind, and in microseconds how long those in front run, when the last of
    them ends and the main one begins (from the launch's beginning), the main one's time, and from its end to the end.
    """
    main = max(launch, key=lambda kernel: kernel[2] - kernel[1])
    at = launch.index(main)
    begin, before, after = launch[0][1], launch[:at], launch[at + 1:]
    times = (sum(b[2] - b[1] for b in before), max((b[2] for b in before), default=begin) - begin, main[1] - begin,
             main[2] - main[1], max((a[2] for a in after), default=main[2]) - main[2])
    return " ".join(short(b[0]) for b in before), " ".join(short(a[0]) for a in after), times


def row_of(problem, name, whole, dense, launches, plan):
    found = [parts(launch) for launch in launches]
    in_front, listed, begins, main, behind = (median(list(values)) for values in zip(*(times for *_, times in found)))
    names = found[-1]
    return [problem.key.split(",")[0], name, f"{whole:.1f}", f"{whole - dense:+.1f}" if dense else "", names[0],
            f"{in_front:.1f}" if names[0] else "", f"{listed:.1f}", f"{begins:.1f}", f"{main:.1f}", names[1],
            f"{behind:.1f}", f"{listed + behind:.1f}", plan]


HEADER = ["problem", "layout", "whole us", "over dense", "in front", "its us", "in front ends at", "main begins at",
          "main us", "behind", "ends after main by", "beyond main: front's end and behind", "plan"]


def measured(problem, runtime, flush, generator, torch):
    """Its rows of the table."""
    inputs = make_inputs(problem, generator, torch)
    wanted = {(b, h): exact(problem, inputs, b, h, torch)
              for b, h in {(0, 1), (problem.batch - 1, problem.heads - 2)}}
    entries = {}
    for name, make in makers(problem, inputs, runtime, flush, torch).items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            decode.check(entry, wanted)
            entries[name] = entry
        except Exception as error:  # a peer that cannot do it takes no part
            print(f"{problem.key}: {name}: {str(error)[:300]}", file=sys.stderr)
    whole, _ = side_by_side.time_entries(entries, flush, torch)
    launches = traced(entries, flush, torch)
    return [row_of(problem, name, whole[name], whole.get("dense"), launches[name],
                   entry.notes.get("plan") or entry.notes.get("way", "")) for name, entry in entries.items()]


def main():
    options = row_bench.parser(__doc__).parse_args()
    chosen = row_bench.chosen(ROWS, options)
    import torch
    runtime, flush, generator = row_bench.opened(options, SECONDS_A_PROBLEM, torch)
    table = []
    for problem in chosen:
        for row in measured(problem, runtime, flush, generator, torch):
            print("  ".join(row), file=sys.stderr, flush=True)
            table.append(row)
        torch.cuda.empty_cache()
    page.write_table(options.out, ROOT, torch, "bench/launches.py", HEADER, table)


if __name__ == "__main__":
    main()
