#!/usr/bin/env python3
"""NVRTC beside LLVM for every spec of the library: runs build/release/bench/compilers, and writes its section of
docs/performance.md.

    python3 bench/compilers.py
    python3 bench/compilers.py --render compilers.jsonl     # from what the program printed before

Needs a GPU, NVRTC and the LLVM module (`make build`)."""

import argparse
import glob
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402
import problems  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="default: the newest bench/compilers below build/")
    parser.add_argument("--render", metavar="JSONL", help="rewrite the page from saved output")
    parser.add_argument("--jsonl", help="also write the program's output here")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "performance.md"), help="the page to rewrite")
    return parser.parse_args()


def cell(side, key, digits=0):
    value = side.get(key)
    return "" if value is None else f"{value:.{digits}f}"


def compile_cells(row, lines):
    """Seconds of NVRTC and LLVM for the kernel: compiled alone where any was, else in the parallel build."""
    if any("alone_s" in line for line in lines):
        return [cell(row.get("alone_s", {}), name, 2) for name in ("nvrtc", "llvm")]
    return [cell(row[name], "compile_s", 2) for name in ("nvrtc", "llvm")]


def render(text, lines, date):
    environment, rows = lines[0]["environment"], lines[1:]
    table, ratios = [], {}
    for row in rows:
        nvrtc, llvm = row["nvrtc"], row["llvm"]
        ratio = llvm["us"] / nvrtc["us"] if "us" in llvm and "us" in nvrtc else None
        if ratio:
            ratios.setdefault(row["family"], []).append(ratio)
        failures = "; ".join(f"{name}: {side['failure'][:60]}" for name, side in (("NVRTC", nvrtc), ("LLVM", llvm))
                             if "failure" in side)
        table.append([row["spec"], row["family"], cell(nvrtc, "us"), cell(llvm, "us"),
                      f"{ratio:.3f}" if ratio else failures,
                      f"{cell(nvrtc, 'registers')} / {cell(nvrtc, 'spill_bytes')}",
                      f"{cell(llvm, 'registers')} / {cell(llvm, 'spill_bytes')}", *compile_cells(row, lines)])
    header = ["spec", "family", "NVRTC us", "LLVM us", "LLVM / NVRTC", "NVRTC registers / spilled bytes",
              "LLVM registers / spilled bytes", "NVRTC compile s", "LLVM compile s"]
    out = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    out += ["| " + " | ".join(row) + " |" for row in table]
    summary = []
    for family, values in ratios.items():
        within = sum(value <= 1.03 for value in values)
        wins = sum(value < 1 for value in values)
        summary.append(f"{family}: geometric mean of LLVM / NVRTC {problems.geometric_mean(values):.3f}, "
                       f"{within} of {len(values)} within 3 %, {wins} faster with LLVM")
    alone = [row["alone_s"] for row in rows if len(row.get("alone_s", {})) == 2]
    compile_text = "Compile times are those of a build on all cores, in which the driver assembles LLVM's kernels one at a time."
    if alone:
        compile_text = (f"Compile times, cubin included, are given where a kernel was compiled alone; geometric mean of "
                        f"LLVM / NVRTC: {problems.geometric_mean([t['llvm'] / t['nvrtc'] for t in alone]):.2f}.")
    body = ("## NVRTC beside LLVM, forward, batch 2, 16 heads, 4096 tokens\n\n"
            f"{date}, {environment['device']}; {environment['nvrtc']}; {environment['llvm']}. "
            "`python3 bench/compilers.py`\n\n"
            "Both compilers get the same text; plans are the cost model's, untuned. Every kernel was checked against the "
            f"oracle first; times are medians of interleaved rounds. {compile_text}\n\n"
            + "\n".join(out) + "\n\n" + ". ".join(summary) + ".")
    return page.replace_section(text, "compilers", body)


def main():
    arguments = parse_arguments()
    if arguments.render:
        with open(arguments.render, encoding="utf-8") as file:
            output = file.read()
    else:
        found = [arguments.program] if arguments.program else glob.glob(
            os.path.join(ROOT, "build", "*", "bench", "compilers"))
        if not found:
            sys.exit("no bench/compilers below build/: run `make build`")
        program = max(found, key=os.path.getmtime)
        output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    if arguments.jsonl:
        with open(arguments.jsonl, "w", encoding="utf-8") as file:
            file.write(output)
    lines = [json.loads(line) for line in output.splitlines()]
    text = ""
    if os.path.isfile(arguments.out):
        with open(arguments.out, encoding="utf-8") as file:
            text = file.read()
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(render(text, lines, page.now()))


if __name__ == "__main__":
    main()
