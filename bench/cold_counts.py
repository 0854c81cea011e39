#!/usr/bin/env python3
"""What a cold `attune compile` costs, in basic blocks that valgrind counts over the whole process: the same from run
to run within a percent, however busy the machine is, where seconds are not (docs/lab/cold_compile.md). Needs valgrind,
and a compiler, but no GPU.

    python3 bench/cold_counts.py --out counts.md
    python3 bench/cold_counts.py --target cpu --only causal
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPE = "batch=2,heads=16,q_len=8192,kv_len=8192"
SPECS = ("full", "causal", "document", "document_causal", "tree_attention", "sliding_window_sinks", "softcap",
         "relative_bias", "t5_bias", "alibi", "dilated", "block_sparse", "models/gemma2_9b_global",
         "models/gemma2_9b_local")
BACKWARD_TOO = ("full", "causal", "document_causal", "tree_attention", "softcap", "t5_bias")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attune", default=os.path.join(ROOT, "build", "release", "attune"))
    parser.add_argument("--target", default="sm_90a", help="default: %(default)s")
    parser.add_argument("--compiler", help="default: nvrtc, and llvm for the CPU")
    parser.add_argument("--only", action="append", metavar="TEXT", help="specs whose name contains this; repeatable")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def million_blocks(options, spec, of_pass):
    """Of one process. Every spec of these tables has a kernel, so one that does not compile ends the program."""
    compiler = options.compiler or ("llvm" if options.target == "cpu" else "nvrtc")
    with tempfile.TemporaryDirectory(prefix="attune-bench-") as folder:
        command = ["valgrind", "--tool=none", "--stats=yes", options.attune, "compile", spec, "--pass", of_pass,
                   "--target", options.target, "--compiler", compiler, "--shape", SHAPE, "--cache", "none",
                   "-o", os.path.join(folder, "image")]
        done = subprocess.run(command, capture_output=True, text=True)
    counted = re.search(r"([\d,]+) event checks", done.stderr)
    if counted is None or done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if not line.startswith(("==", "--"))]  # not valgrind's
        sys.exit("\n".join([f"cold_counts: {spec}, {of_pass}: exit code {done.returncode}"] + said))
    return int(counted[1].replace(",", "")) / 1e6


def main():
    options = parse_arguments()
    rows = []
    for spec in SPECS:
        if options.only and not any(text in spec for text in options.only):
            continue
        counts = [million_blocks(options, spec, "forward"),
                  million_blocks(options, spec, "backward") if spec in BACKWARD_TOO else None]
        rows.append([spec] + ["" if count is None else f"{count:.1f}" for count in counts])
        print(*rows[-1], file=sys.stderr, flush=True)
    page.write_table(options.out, ROOT, None, "bench/cold_counts.py",
                     ["spec", "forward, million blocks", "backward"], rows, options.target)


if __name__ == "__main__":
    main()
