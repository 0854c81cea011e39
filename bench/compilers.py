#!/usr/bin/env python3
"""NVRTC beside LLVM for every spec of the library: runs build/release/bench/compilers, and writes its section of
docs/lab/tables.md.

    python3 bench/compilers.py --jobs 8
    python3 bench/compilers.py --gpus 0,1     # each measures a part
    python3 bench/compilers.py --render compilers.jsonl     # from what the program printed before

Needs a GPU, NVRTC and the LLVM module (`make build`)."""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402
import problems  # noqa: E402

# As the program calls them, and the page. NVRTC first.
COMPILERS = {"nvrtc": "NVRTC", "llvm": "LLVM", "llvm-list": "LLVM, listed"}
ORDERS = list(COMPILERS)[1:]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="default: the newest bench/compilers below build/")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2),
                        help="processes that compile, one kernel at a time each; default: half the cores")
    parser.add_argument("--gpus", type=lambda text: text.split(","), default=["0"], metavar="N,...",
                        help="as CUDA_VISIBLE_DEVICES names them; default: 0")
    parser.add_argument("--render", metavar="JSONL", help="rewrite the page from saved output")
    parser.add_argument("--jsonl", help="also write the program's output here")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "lab", "tables.md"), help="the page to rewrite")
    return parser.parse_args()


def cell(side, key, digits=0):
    value = side.get(key)
    return "" if value is None else f"{value:.{digits}f}"


def percent(values):
    return f"{100 * values:.1f} %"


def halves(rows):
    """How repeatable the ratios are."""
    noise = sorted(row[name]["noise"] for row in rows for name in ORDERS if "noise" in row[name])
    if not noise:
        return ""
    return (f"A ratio is the median of the rounds' own, since the GPU's clock changes. That of their first half and of their "
            f"second differ by {percent(noise[len(noise) // 2])} in the median, "
            f"{percent(noise[len(noise) * 95 // 100])} in 95 of 100 kernels, {percent(noise[-1])} at most. ")


def best_ratio(row):
    """What the tuner keeps; None where LLVM's code failed in every order."""
    return min((row[name]["ratio"] for name in ORDERS if "ratio" in row[name]), default=None)


def ratio_cell(side):
    return f"{side['ratio']:.3f}" if "ratio" in side else side.get("failure", "")[:60]


def standing(values):
    within, wins = (sum(test(value) for value in values) for test in (lambda v: v <= 1.03, lambda v: v < 1))
    return f"{problems.geometric_mean(values):.3f}, {within} of {len(values)} within 3 %, {wins} faster"


def summary(rows):
    """A sentence a family: each order's kernels, and the better ones."""
    sentences = []
    for family in dict.fromkeys(row["family"] for row in rows):
        of = [row for row in rows if row["family"] == family]
        parts = [f"`{name}` {standing([row[name]['ratio'] for row in of if 'ratio' in row[name]])}" for name in ORDERS]
        parts.append(f"the better of both {standing([ratio for ratio in map(best_ratio, of) if ratio])}")
        sentences.append(f"{family}, geometric mean of the ratios: {'; '.join(parts)}")
    return ". ".join(sentences) + "."


def render(text, lines):
    environment, rows = lines[0]["environment"], lines[1:]
    table = []
    for row in rows:
        sides = [row[name] for name in COMPILERS]
        best = best_ratio(row)
        table.append([row["spec"], row["family"], *(cell(side, "us") for side in sides), *map(ratio_cell, sides[1:]),
                      f"{best:.3f}" if best else "",
                      *(f"{cell(side, 'registers')} / {cell(side, 'spill_bytes')}" for side in sides),
                      *(cell(side, "compile_s", 2) if side["compile_s"] else "" for side in sides)])
    header = ["spec", "family", *(f"{title} us" for title in COMPILERS.values()),
              *(f"{COMPILERS[name]} / NVRTC" for name in ORDERS), "better / NVRTC",
              *(f"{title} registers / spilled bytes" for title in COMPILERS.values()),
              *(f"{title} compile s" for title in COMPILERS.values())]
    out = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    out += ["| " + " | ".join(row) + " |" for row in table]
    compiled = [(row["nvrtc"]["compile_s"], row["llvm"]["compile_s"]) for row in rows
                if row["nvrtc"]["compile_s"] and row["llvm"]["compile_s"]]
    body = ("## NVRTC beside LLVM, forward, batch 2, 16 heads, 4096 tokens\n\n"
            f"{environment['date']}, {environment['device']}; {'; '.join(environment[name] for name in COMPILERS)}. "
            "`python3 bench/compilers.py`\n\n"
            "All get the same text; plans are the cost model's, untuned. LLVM orders instructions in one of two ways (docs/llvm.md), "
            "which are compilers of their own: untuned, `llvm` is taken, and the tuner's finals are run by both and keep the better. "
            "The better is what the 3 % are about. Every kernel was checked against the "
            f"oracle first; times are {environment['how']}. {halves(rows)}Compile times are cold and end with code that the GPU takes: an idle "
            "machine, one kernel at a time in each of a few processes. `llvm`'s over NVRTC's, geometric mean: "
            f"{problems.geometric_mean([llvm / nvrtc for nvrtc, llvm in compiled]):.2f}.\n\n"
            + "\n".join(out) + "\n\n" + summary(rows))
    return page.replace_section(text, "compilers", body)


def measure(program, jobs, gpus):
    with tempfile.TemporaryDirectory() as directory:
        # The driver's cache too: cold for the compiles, and for the measurement it holds what the driver assembled.
        assembled = os.path.join(directory, "assembled")
        os.mkdir(assembled)

        def run(share, of, *more):
            environment = {**os.environ, "CUDA_CACHE_PATH": assembled, "CUDA_VISIBLE_DEVICES": gpus[share % len(gpus)]}
            command = [program, "--cache", os.path.join(directory, "compilers.db"), "--share", f"{share + 1}/{of}", *more]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda share: run(share, jobs, "--compile"), range(jobs)))
        with concurrent.futures.ThreadPoolExecutor(len(gpus)) as pool:
            outputs = list(pool.map(lambda share: run(share, len(gpus)).splitlines(keepends=True), range(len(gpus))))
        # Each begins with the environment.
        return "".join(outputs[0] + [line for output in outputs[1:] for line in output[1:]])


def main():
    arguments = parse_arguments()
    if arguments.render:
        output = page.read(arguments.render)
    else:
        output = measure(page.newest_built(ROOT, "bench", "compilers", named=arguments.program), arguments.jobs,
                         arguments.gpus)
    if arguments.jsonl:
        page.write(arguments.jsonl, output)
    lines = [json.loads(line) for line in output.splitlines()]
    page.rewrite(arguments.out, lambda text: render(text, lines))


if __name__ == "__main__":
    main()
