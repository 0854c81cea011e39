#!/usr/bin/env python3
"""Off the beaten road: Attune's untuned first guess beside the best of its peers on problems drawn from a seed, forward
and backward, with a cold L2. Every result is compared with the peers' before anything is timed.

    python3 bench/cliffs.py --seed 1 --count 200 --jsonl cliffs.jsonl
    python3 bench/cliffs.py --seed 1 --numbers 17,58 --beside before/libattune.so    # two of them, with another build
    python3 bench/cliffs.py --seed 1 --count 200 --list                              # the problems; needs no GPU
    python3 bench/cliffs.py --render cliffs.jsonl --seed 1 --worst 40     # several files of a seed: the later wins

    python3 bench/cliffs.py --survey serving --seed 1 --count 150    # packed sequences and caches in pages

A problem is one of shape, pass, head dims, dtype, layout, mask, score and dropout (bench/cliff_problems.py). Its peers
are those that can compute it: FlashAttention-3, where its package `flash_attn_interface` can be imported and was built
for it; PyTorch's cuDNN, FlashAttention-2 and memory-efficient back ends, on the same tensors with the same strides; and
where there is a mask or score that those cannot say, compiled FlexAttention. All compile in parallel before the first
is timed. A row's ratio is the fastest peer's time over Attune's: above 1 Attune is ahead.

The survey `serving` has lengths that differ, with and without pages (bench/serving_problems.py). Its peers are
FlashAttention-3, with and without splits, and PyTorch's FlashAttention-2 and cuDNN; those that read no pages get the cache
without any, and where a score or sinks leave nobody they run without these. All are checked against fp64, too. `steps` is
the same with a list of what engines launch all day (bench/engine_problems.py), --count 26.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so.
"""

import argparse
import concurrent.futures
import importlib
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import cliff_problems  # noqa: E402
import engine_problems  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402
import serving_problems  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ALLOWED = 0.02  # of a result's error in norm; two correct bf16 kernels are at a quarter of it
EVEN = 0.97  # from this ratio on a problem counts as not behind
PROBLEMS = {"kernels": cliff_problems, "serving": serving_problems, "steps": engine_problems}
CONTESTANTS = {"kernels": "cliff_contestants", "serving": "serving_contestants", "steps": "serving_contestants"}  # need torch


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--survey", choices=PROBLEMS, default="kernels", help="what kind of problems; default: kernels")
    parser.add_argument("--seed", type=int, help="of the problems and their numbers; default: fresh")
    parser.add_argument("--count", type=int, default=200, help="of problems")
    parser.add_argument("--first", type=int, default=0, help="the first problem's number")
    parser.add_argument("--numbers", type=lambda text: [int(n) for n in text.split(",")], help="these problems alone")
    parser.add_argument("--only", action="append", metavar="TEXT", help="problems whose key contains this; repeatable")
    parser.add_argument("--budget", type=float, default=500, metavar="S", help="start no problem after so many seconds")
    parser.add_argument("--seconds", type=float, default=0.12, help="to time a problem for")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile FlexAttention's kernels before")
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--beside", metavar="LIBRARY", help="another build's libattune.so, a contestant of its own")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--list", action="store_true", help="the problems, and stop")
    parser.add_argument("--jsonl", help="also write what was measured here, problem by problem")
    parser.add_argument("--render", metavar="JSONL", action="append", help="the tables from that; needs no GPU")
    parser.add_argument("--worst", type=int, default=30, help="rows of the table of the worst")
    parser.add_argument("--out", default="/dev/stdout", help="where the tables go")
    parser.add_argument("--compile-share", metavar="I/N", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options):
    numbers = options.numbers or range(options.first, options.first + options.count)
    found = [PROBLEMS[options.survey].drawn(options.seed, number) for number in numbers]
    return [p for p in found if not options.only or any(text in p.key for text in options.only)]


def contestants_of(options):
    return importlib.import_module(CONTESTANTS[options.survey])


def compile_share(options, found):
    """Runs this process' share of FlexAttention's problems once: their code is on disk then."""
    contestants = contestants_of(options)
    index, count = (int(n) for n in options.compile_share.split("/"))
    for problem in [p for p in found if contestants.can_flex(p)][index::count]:
        try:
            entry = contestants.flex(problem, contestants.make_inputs(problem, options.seed))
            entry.launch()
        except Exception as error:  # the measuring process meets it again, and says so
            print(f"{problem.key}: {str(error)[:100]}", file=sys.stderr)


def compile_ahead(options, found, runtimes):
    """number -> kernels or what went wrong, by runtime."""
    contestants = contestants_of(options)
    workers = []
    if not options.alone and any(contestants.can_flex(p) for p in found):
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--seed", str(options.seed)]
        workers = [subprocess.Popen([*command, "--compile-share", f"{i}/{options.workers}"], stdout=subprocess.DEVNULL)
                   for i in range(options.workers)]

    def one(runtime, problem):
        try:
            return contestants.kernels(problem, runtime)
        except attune_c.AttuneError as error:
            return error

    built = {}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for name, runtime in runtimes.items():
            of_all = pool.map(lambda problem, runtime=runtime: one(runtime, problem), found)
            built[name] = dict(zip((p.number for p in found), of_all))
    for worker in workers:
        worker.wait()
    return built


def differences(entries, torch):
    """name -> the largest error in norm of its results beside Attune's, of those that compute the same."""
    ours = entries["Attune"].results()
    found = {}
    for name, entry in entries.items():
        if not entry.alike:
            continue
        errors = []
        results = entry.results()
        floor = max(t.float().norm().item() for t in results) * 0.01  # a gradient that is zero but for rounding
        for ours_of, theirs in zip(ours, results):
            error = torch.linalg.vector_norm(ours_of.float() - theirs.float()).item()
            errors.append(error / max(theirs.float().norm().item(), floor, 1e-30))
        found[name] = max(errors) if all(e == e for e in errors) else float("inf")
    return found


def run(problem, built, flush, seed, options, torch):
    contestants = contestants_of(options)
    inputs = contestants.make_inputs(problem, seed)
    entries, unable = {}, {}
    makers = {name: lambda of_all=of_all: contestants.attune(problem, inputs, of_all[problem.number])
              for name, of_all in built.items()}
    makers |= {} if options.alone else contestants.peers(problem, inputs)
    for name, make in makers.items():
        try:
            if name in built and isinstance(built[name][problem.number], Exception):
                raise built[name][problem.number]
            entries[name] = make()
            entries[name].launch()
            torch.cuda.synchronize()
            contestants.check(problem, inputs, entries[name])
        except Exception as error:  # a peer may lack a kernel for the problem
            entries.pop(name, None)
            unable[name] = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
    row = {"number": problem.number, "key": problem.key, "flops": problem.flops, "bytes": problem.bytes, "unable": unable,
           "differs": {}}
    if "Attune" in entries:
        row["plan"] = entries["Attune"].plan
        if not problem.dropout:  # whose bits are each library's own
            found = differences(entries, torch)
            row["differs"] = {name: float(f"{e:.2g}") for name, e in found.items() if not e <= ALLOWED}
            # Whoever differs from Attune where another peer does not is wrong itself.
            if len(row["differs"]) < len(entries) - len(built):
                entries = {name: e for name, e in entries.items() if name not in row["differs"]}
        elif not all(t.isfinite().all() for t in entries["Attune"].results()):
            row["differs"] = {"finite": 1}
    times, _ = side_by_side.time_entries(entries, flush, torch) if entries else ({}, 0)
    row["us"] = {name: round(us, 1) for name, us in times.items()}
    return row


def ratio(row, name="Attune"):
    """None where nobody, or only one, could."""
    peers = [us for peer, us in row["us"].items() if not peer.startswith("Attune")]
    return min(peers) / row["us"][name] if peers and name in row["us"] else None


def measure(options):
    import torch
    found = chosen(options)
    if options.compile_share:
        compile_share(options, found)
        return []
    side_by_side.SECONDS_A_PROBLEM, side_by_side.MIN_ROUNDS = options.seconds, 8
    side_by_side.SPACER_CYCLES = 700_000  # what FlexAttention's Python takes
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    libraries = {"Attune": options.library or attune_c.find_library(ROOT)}
    libraries |= {"Attune beside": options.beside} if options.beside else {}
    runtimes = {name: attune_c.Library(path).runtime("cuda:0", "") for name, path in libraries.items()}
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    started = time.monotonic()
    built = compile_ahead(options, found, runtimes)
    print(f"seed {options.seed}: {len(found)} problems, compiled in {time.monotonic() - started:.0f} s", file=sys.stderr)

    def measured(_, problem):
        try:
            return run(problem, built, flush, options.seed + problem.number, options, torch)
        except torch.cuda.OutOfMemoryError as error:
            return {"number": problem.number, "key": problem.key, "flops": 0, "us": {}, "differs": {},
                    "unable": {"all": str(error)[:60]}}
    return side_by_side.rows_within(options.budget, started, found, measured, options.jsonl, torch)


def kind_of(row):
    kind, of_pass = row["key"].split(", ")[:2]
    is_known = any(kind in of_survey.SHARES for of_survey in PROBLEMS.values())
    return (kind if is_known else "model") + ", " + of_pass


def before(row):
    """The ratio of the build beside; of rows that were timed without one, whose plans it shares, the same."""
    return ratio(row, "Attune beside") or ratio(row)


def summary(rows):
    """A line a kind of problem, and one of all."""
    beside = any("Attune beside" in row["us"] for row in rows)
    by_kind = {}
    for row in rows:
        for kind in (kind_of(row), "all"):
            by_kind.setdefault(kind, []).append(row)
    lines = []
    for kind in sorted(by_kind, key=lambda k: (k == "all", k)):
        of_kind = [row for row in by_kind[kind] if ratio(row)]
        if of_kind:
            lines.append([kind, str(len(of_kind)), *told_ratios([ratio(row) for row in of_kind]),
                          *(told_ratios([before(row) for row in of_kind]) if beside else [])])
    header = [f"at least {EVEN} of the best peer", "mean ratio", "worst"]
    return page.table(["kind", "problems", *header, *(f"build beside: {text}" for text in header if beside)], lines)


def told_ratios(ratios):
    ahead = sum(r >= EVEN for r in ratios) / len(ratios)
    return [f"{ahead:.0%}", f"{problems.geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"]


def worst(rows, count):
    beside = any("Attune beside" in row["us"] for row in rows)
    lines = []
    for row in sorted((row for row in rows if ratio(row)), key=ratio)[:count]:
        best = min((us, name) for name, us in row["us"].items() if not name.startswith("Attune"))
        ours = row["us"]["Attune"]
        lines.append([str(row["number"]), row["key"], f"{ours:.1f}", f"{row.get('bytes', 0) / ours / 1e6:.2f}",
                      f"{row['flops'] / ours / 1e6:.0f}", best[1], f"{best[0]:.1f}", f"{ratio(row):.2f}"])
        if beside:
            other = ratio(row, "Attune beside")
            lines[-1].append(f"{other:.2f}" if other else "")
        lines[-1].append(row["plan"])
    header = ["number", "problem", "Attune us", "TB/s", "TFLOP/s", "best peer", "its us", "ratio",
              *(["ratio of the build beside"] if beside else []), "plan"]
    return page.table(header, lines)


def told(rows, options):
    text = f"Seed {options.seed if options.seed is not None else 'of the file'}, {len(rows)} problems.\n\n{summary(rows)}\n\n"
    text += f"The {options.worst} furthest behind:\n\n{worst(rows, options.worst)}\n"
    failed = [f"- {row['number']}, {row['key']}: {row['unable']['Attune']}" for row in rows if "Attune" in row.get("unable", {})]
    text += "\nAttune has no kernel for, or a wrong one:\n\n" + "\n".join(failed) + "\n" if failed else ""
    differs = [f"- {row['number']}, {row['key']}: {row['differs']}" for row in rows if row.get("differs")]
    return text + ("\nResults that differ from Attune's:\n\n" + "\n".join(differs) + "\n" if differs else "")


def main():
    options = parse_arguments()
    if options.render:
        lines = [line for name in options.render for line in page.read(name).splitlines() if line.startswith("{")]
        wanted = set(options.numbers or range(options.first, options.first + options.count))
        rows = {row["number"]: row for row in map(json.loads, lines) if row["number"] in wanted}
        page.write(options.out, told(list(rows.values()), options))
        return
    options.seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    if options.list:
        print("\n".join(f"{p.number} {p.key}" for p in chosen(options)))
        return
    rows = measure(options)
    if not options.compile_share:
        page.write(options.out, told(rows, options))


if __name__ == "__main__":
    main()
