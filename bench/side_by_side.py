#!/usr/bin/env python3
"""Attune beside its peers in one process: checks every contestant, then times them in interleaved rounds with
a cold L2, and writes the tables of docs/performance.md.

    python3 bench/side_by_side.py --cache tuned.db
    python3 bench/side_by_side.py --quick --only forward/causal --out /dev/stdout
    python3 bench/side_by_side.py --only dims/ --json dims.json --out /dev/stdout
    python3 bench/side_by_side.py --only custom/ --workers 14     # compiled at once, timed one at a time
    python3 bench/side_by_side.py --beside before/libattune.so --out /dev/stdout     # what a change did
    python3 bench/side_by_side.py --render results.json      # the page again, from saved results; needs no GPU

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so (`make build`). The cache is one that `attune tune
specs/bench/*.yaml --cache tuned.db` filled; without it Attune runs the cost model's plans, and the tables say so.
FlashAttention-3 takes part where its package `flash_attn_interface` can be imported.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import os
import shlex
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import in_turns  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Twice the largest L2 of today's GPUs, so that nothing of the last launch is left in it.
FLUSH_BYTES = 256 << 20
# Keeps the GPU busy while the host enqueues the next launch, so that no host time is measured.
SPACER_CYCLES = 400_000
MIN_ROUNDS, MAX_ROUNDS, SECONDS_A_PROBLEM = 10, 60, 1.5
COMPILERS = 8  # threads that build Attune's kernels beforehand
OTHER = "the other build"


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", help="cache file with tuned kernels, or \"\" for none; default: the user's own")
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--beside", metavar="LIB", help="another build of it takes part too, by plans of the cost model")
    parser.add_argument("--only", action="append", metavar="TEXT",
                        help="problems whose key contains this, `dims/` for a section; repeatable")
    parser.add_argument("--quick", action="store_true", help="a few problems of each kind")
    parser.add_argument("--list", action="store_true", help="the keys of the problems, and stop")
    parser.add_argument("--budget", type=float, default=440, metavar="S", help="start no problem after so many seconds")
    parser.add_argument("--seconds", type=float, default=SECONDS_A_PROBLEM, help="that a problem is timed; default: %(default)s")
    parser.add_argument("--workers", type=int, metavar="N",
                        help="a process for each problem: so many compile at once, and one at a time is timed")
    parser.add_argument("--seed", type=int, help="of the inputs; default: fresh")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "performance.md"), help="the page to rewrite")
    parser.add_argument("--json", help="also write the results here")
    parser.add_argument("--render", metavar="JSON", action="append",
                        help="rewrite the page from saved results; several are merged, the later wins")
    return parser.parse_args(arguments)


def time_round(entry, flush, torch):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    torch.cuda._sleep(SPACER_CYCLES)
    begin.record()
    entry.launch()
    end.record()
    return begin, end


def time_entries(entries, flush, torch):
    """Medians in microseconds. Every round times each contestant once, so drifting clocks hit all alike."""
    times = {name: [] for name in entries}
    started = time.monotonic()
    for index in range(MAX_ROUNDS):
        events = {name: time_round(entry, flush, torch) for name, entry in entries.items()}
        torch.cuda.synchronize()
        for name, (begin, end) in events.items():
            times[name].append(begin.elapsed_time(end) * 1e3)
        if index + 1 >= MIN_ROUNDS and time.monotonic() - started > SECONDS_A_PROBLEM:
            break
    return {name: problems.median(values) for name, values in times.items()}, index + 1


def compile_ahead(chosen, runtimes):
    """Kernels of all problems, several at a time; what fails here fails again in its row, which says so."""

    def build(problem, runtime):
        shape = attune_c.Shape(problem.batch, problem.heads, problem.heads, problem.seq, problem.seq)
        try:
            runtime.kernel(f"{ROOT}/{problem.spec}", shape)
        except attune_c.AttuneError:
            pass

    with concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool:
        for problem in chosen:
            for runtime in runtimes:
                pool.submit(build, problem, runtime)


def makers(problem, inputs, runtimes):
    import contestants

    found = contestants.makers(problem, inputs, runtimes[0], ROOT)
    if len(runtimes) == 2:
        found[OTHER] = lambda: contestants.attune(problem, inputs, runtimes[1], ROOT)
    return found


def run_problem(problem, runtimes, flush, seed, torch, budget=math.inf):
    """Its row; None where its turn to be timed comes `budget` seconds after all rows were compiled."""
    with in_turns.compiling():
        entries, live, notes, failures = checked_entries(problem, runtimes, seed, torch)
    ready = time.monotonic()
    with in_turns.timing():
        if time.monotonic() - ready > budget:
            return None
        for entry in entries.values():
            notes.update(entry.timed_notes())
        times, rounds = time_entries(entries, flush, torch) if entries else ({}, 0)
    return {**described(problem), "live_share": live / problem.seq**2, "flops": problems.flops(problem, live),
            "us": times, "rounds": rounds, "failures": failures, **notes}


def described(problem):
    return {
        "section": problem.section, "key": problem.key, "name": problem.name, "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v, "heads": problem.heads, "batch": problem.batch, "seq": problem.seq,
        "causal": problem.causal
    }


def checked_entries(problem, runtimes, seed, torch):
    """Those that do the problem right, by name; its live elements, notes, and why others take no part."""
    import checks
    import contestants

    generator = torch.Generator(device="cuda").manual_seed(seed)
    inputs = contestants.make_inputs(problem, generator)
    live = checks.live_elements(problem, inputs) if problem.section == "custom" else problems.table_elements(problem)
    b, h = seed % problem.batch, seed // 7 % problem.heads
    exact, plain = checks.reference(problem, inputs, b, h)

    entries, notes, failures = {}, {}, {}
    for name, make in makers(problem, inputs, runtimes).items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            wrong = checks.verdict(problem, entry.output(), exact, plain, b, h)
        except Exception as error:  # a peer may lack a backend for the shape: say so and go on
            wrong = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        if wrong:
            failures[name] = wrong
            continue
        entries[name] = entry
        if name != OTHER:
            notes.update(entry.notes)
    del exact, plain
    torch.cuda.empty_cache()  # of what checks took: with --workers other problems are compiled beside this one
    return entries, live, notes, failures


def calibrate(flush, torch):
    from contestants import Entry

    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    entries = {"matmul": Entry(lambda: torch.mm(a, b), None), "copy": Entry(lambda: target.copy_(source), None)}
    for entry in entries.values():
        entry.launch()
    times, _ = time_entries(entries, flush, torch)
    return {"matmul_tflops": 2 * n**3 / times["matmul"] / 1e6,
            "copy_tb_per_s": 2 * source.numel() / times["copy"] / 1e6}


def environment(library, torch):
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return {"date": page.now(), "gpu": torch.cuda.get_device_name(), "driver": driver, "cuda": torch.version.cuda,
            "torch": torch.__version__, "attune": library.version, "commit": page.commit(ROOT),
            "command": "python3 bench/side_by_side.py " + shlex.join(sys.argv[1:])}


def opened(options, torch):
    """The library, runtimes of it and of the other build, and what flushes the L2."""
    global SECONDS_A_PROBLEM
    SECONDS_A_PROBLEM = options.seconds
    path = options.library or attune_c.find_library(ROOT)
    if path is None:
        sys.exit("side_by_side: no libattune.so below build/: run `make build`, or name one with --library")
    library = attune_c.Library(path)
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    runtimes = [library.runtime("cuda:0", options.cache)]
    if options.beside:
        runtimes.append(attune_c.Library(options.beside).runtime("cuda:0", ""))
    return library, runtimes, torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")


def measured_alone(options, seed, key):
    """The row of a problem, of a process of its own."""
    import torch

    _, runtimes, flush = opened(options, torch)
    index, problem = next(found for found in enumerate(problems.all_problems([key])) if found[1].key == key)
    return run_problem(problem, runtimes, flush, seed + index, torch, options.budget)


def failed(key, error):
    problem = next(found for found in problems.all_problems([key]) if found.key == key)
    why = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return {**described(problem), "live_share": 0, "flops": 0, "us": {}, "rounds": 0, "failures": {"Attune": why}}


def rows_of(chosen, options, runtimes, flush, seed, torch):
    """The row of each, as it is known."""
    if options.workers:
        alone = functools.partial(measured_alone, options, seed)
        keys = [problem.key for problem in chosen]
        for key, row in zip(keys, in_turns.results(alone, failed, keys, options.workers)):
            if row is None:
                print(f"out of time: left {key} out", file=sys.stderr)
            else:
                yield row
        return
    started = time.monotonic()
    compile_ahead(chosen, runtimes[options.cache != "":])  # a cache has the code that it was tuned with
    for index, problem in enumerate(chosen):
        if time.monotonic() - started > options.budget:
            print(f"out of time: left {len(chosen) - index} problems out, from {problem.key} on", file=sys.stderr)
            return
        yield run_problem(problem, runtimes, flush, seed + index, torch)


def measure(options):
    import torch

    library, runtimes, flush = opened(options, torch)
    results = {"environment": {**environment(library, torch), **calibrate(flush, torch)}, "rows": []}
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    results["seed"] = seed
    chosen = problems.all_problems(options.only, options.quick)
    for row in rows_of(chosen, options, runtimes, flush, seed, torch):
        results["rows"].append(row)
        shown = "  ".join(f"{name} {row['flops'] / us / 1e6:.0f}" for name, us in row["us"].items())
        print(f"{row['key']:<28} {shown}  {row['failures'] or ''}", file=sys.stderr, flush=True)
        save(options, results)
    return results


def merge(files):
    """Rows by key and the environment, the later file winning."""
    merged = {"rows": []}
    rows = {}
    for name in files:
        results = json.loads(page.read(name))
        merged["environment"] = results["environment"]
        rows.update({row["key"]: row for row in results["rows"]})
    order = {problem.key: index for index, problem in enumerate(problems.all_problems())}
    merged["rows"] = sorted(rows.values(), key=lambda row: order.get(row["key"], len(order)))
    return merged


def save(options, results):
    if options.json:
        page.write(options.json, json.dumps(results, indent=1))


def rows_within(budget, started, found, measure, jsonl, torch):
    """What `measure(index, problem)` says of the problems begun within `budget` seconds of `started`, a time of
    time.monotonic(); each is also a line of the file `jsonl`, if there is one, as soon as it is known."""
    rows = []
    lines = open(jsonl, "w", encoding="utf-8") if jsonl else None
    for index, problem in enumerate(found):
        if time.monotonic() - started > budget:
            print(f"out of time: left {len(found) - index} problems out", file=sys.stderr)
            break
        rows.append(measure(index, problem))
        if lines:
            print(json.dumps(rows[-1]), file=lines, flush=True)
        torch.cuda.empty_cache()
    return rows


def main():
    options = parse_arguments()
    if options.list:
        print("\n".join(problem.key for problem in problems.all_problems(options.only, options.quick)))
        return
    results = merge(options.render) if options.render else measure(options)
    save(options, results)
    every = problems.all_problems()
    page.rewrite(options.out, lambda text: page.render(text, results, page.reference(ROOT), every))


if __name__ == "__main__":
    main()
