#!/usr/bin/env python3
"""How far the search's backward plan, and the cost model's first guess, are behind the best of all legal ones on
shapes that nothing was fitted to: `attune tune` and `attune tune --exhaustive`, each with an empty cache, then the
plans they chose and the first guess in turns.

    python3 bench/backward_regret.py
    python3 bench/backward_regret.py --only doc_causal --rounds 9

The best is the fastest of these three in the medians of the rounds. Times are of all launches of the pass, in
microseconds. Needs a GPU, NVRTC and the command, of build/ or as --attune says.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HELD = [
    ("bench/causal_d128", "batch=8,heads=32,kv_heads=8,q_len=640"),
    ("bench/full_d64", "batch=1,heads=32,kv_heads=8,q_len=6144"),
    ("bench/doc_causal", "batch=4,heads=16,q_len=2048"),
    ("bench/sliding1024", "batch=4,heads=16,kv_heads=4,q_len=3072"),
    ("bench/causal_d256", "batch=1,heads=16,kv_heads=8,q_len=6144"),
    ("bench/full_d128", "batch=6,heads=16,q_len=1536"),
    ("bench/causal_d64", "batch=2,heads=12,q_len=5120"),
    ("bench/alibi_causal", "batch=1,heads=24,kv_heads=8,q_len=10240"),
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attune", help="the command; default: the newest below build/")
    parser.add_argument("--only", action="append", metavar="TEXT", help="specs whose name contains this; repeatable")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def run(command, verb, spec, shape, *options):
    line = [command, verb, spec, "--pass", "backward", "--shape", shape, "--json", *options]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(line)}: {done.stderr[-400:]}")
    return json.loads(done.stdout)["results"][0]


def row(command, spec, shape, rounds):
    with tempfile.TemporaryDirectory() as folder:
        cache = ("--cache", os.path.join(folder, "of_the_search.db"))
        search = run(command, "tune", spec, shape, "--compiler", "nvrtc", *cache)
        every = run(command, "tune", spec, shape, "--compiler", "nvrtc", "--exhaustive",
                    "--cache", os.path.join(folder, "of_all.db"))
        first = run(command, "bench", spec, shape, "--samples", "1", "--cache", "none")["plan"]
        times = {plan: [] for plan in (search["plan"], every["plan"], first)}
        for _ in range(rounds if len(times) > 1 else 1):
            for plan, known in times.items():
                known.append(run(command, "bench", spec, shape, "--plan", plan, *cache)["median_us"])
    medians = {plan: statistics.median(known) for plan, known in times.items()}
    best = min(medians, key=medians.get)

    def behind(plan):
        return f"{100 * (medians[plan] / medians[best] - 1):.1f} %"

    return (f"| {spec} | {shape} | {every['measured']} | {medians[best]:.1f} | {behind(search['plan'])} | "
            f"{behind(first)} | {search['measured']} | {search['seconds']:.1f} | {every['seconds']:.1f} | {best} |")


def main():
    arguments = parse_arguments()
    command = arguments.attune or max(glob.glob(f"{ROOT}/build/*/attune"), key=os.path.getmtime)
    print("| spec | shape | all plans | best us | search behind it | first guess behind it | plans of the search | "
          "search s | all s | best |\n" + "| --- " * 10 + "|", flush=True)
    for spec, shape in HELD:
        if not arguments.only or any(text in spec for text in arguments.only):
            print(row(command, spec, shape, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
