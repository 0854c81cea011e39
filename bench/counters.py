#!/usr/bin/env python3
"""What the GPU's counters say of the Hopper kernels: runs `attune bench` under ncu, and writes its section of
docs/lab/tables.md.

    python3 bench/counters.py --cache tuned.db
    python3 bench/counters.py --render counters.json     # from what an earlier run saved

Needs an sm_90a GPU whose counters may be read, and ncu."""

import argparse
import csv
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, LENGTH = 16, 16384
PEAK_TFLOPS = 989.0  # dense bf16 of the data sheet
METRICS = {
    "tensor": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "special": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "instructions": "sm__inst_executed.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "ns": "gpu__time_duration.sum",
}
KERNELS = [(f"bench/{mask}_d{d}", d, mask) for d in (64, 128, 256) for mask in ("full", "causal")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="default: the newest attune below build/")
    parser.add_argument("--cache", default="none", help="the tuned cache whose plans are taken")
    parser.add_argument("--json", help="also write the counters here")
    parser.add_argument("--render", metavar="JSON", help="rewrite the page from saved counters")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "lab", "tables.md"), help="the page to rewrite")
    return parser.parse_args()


def counters_of(program, spec, cache):
    """The counters of the last launch of the spec's kernel."""
    shape = f"batch=1,heads={HEADS},kv_heads={HEADS},q_len={LENGTH},kv_len={LENGTH}"
    command = ["ncu", "--clock-control", "none", "--csv", "-k", "regex:^att_sm90", "-c", "3", "--metrics",
               ",".join(METRICS.values()), program, "bench", spec, "--shape", shape, "--samples", "2", "--cache", cache]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    launches = {}
    for row in csv.DictReader(line for line in output.splitlines() if line.startswith('"')):
        launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"].split("(")[0]})
        launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    if not launches:
        sys.exit(f"counters: ncu saw no Hopper kernel of {spec}:\n{output[-2000:]}")
    last = list(launches.values())[-1]
    return {"kernel": last["kernel"], **{name: last[metric] for name, metric in METRICS.items()}}


def measure(options):
    program = page.newest_built(ROOT, "attune", named=options.program)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    device = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    rows = [{"spec": spec, "d": d, "mask": mask, **counters_of(program, spec, options.cache)}
            for spec, d, mask in KERNELS]
    return {"date": page.now(), "device": device, "arguments": sys.argv[1:], "rows": rows}


def section(results):
    table = []
    for row in results["rows"]:
        live = 0.5 if row["mask"] == "causal" else 1.0
        flops = 4.0 * HEADS * LENGTH * LENGTH * row["d"] * live
        needed = 4.0 * HEADS * LENGTH * row["d"] * 2  # Q, K, V and O once
        scores = 4.0 * HEADS * LENGTH * LENGTH * live * 2  # S and P, each written and read once
        moved = row["read_bytes"] + row["written_bytes"]
        elements = HEADS * LENGTH * LENGTH * live
        table.append([
            str(row["d"]), row["mask"], f"`{row['kernel']}`", f"{row['ns'] / 1e3:.0f}", f"{row['tensor']:.0f} %",
            f"{row['issue']:.0f} %", f"{row['special']:.0f} %", f"{row['instructions'] * 32 / elements:.1f}",
            f"{100 * flops / row['ns'] / 1e3 / PEAK_TFLOPS:.0f} %", f"{flops / moved:.0f}", f"{moved / 1e9:.2f}",
            f"{needed / 1e9:.2f}", f"{(needed + scores) / 1e9:.1f}", f"{row['l2_bytes'] / 1e9:.1f}"
        ])
    header = ["d", "mask", "kernel", "us", "tensor pipe busy", "issue slots used", "exponential unit busy",
              "instructions an element", "share of matrix peak", "FLOP a byte of HBM", "HBM GB", "GB needed",
              "GB with S and P in memory", "L2 GB"]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in table]
    return (f"## Counters of the Hopper kernels, bf16, batch 1, {HEADS} heads, {LENGTH} tokens\n\n"
            f"{results['date']}, {results['device']}. `{page.command('bench/counters.py', results['arguments'])}`\n\n"
            "By ncu, at the clock the GPU chose; one launch each. Shares are of the elapsed cycles of all SMs, the "
            "launch's ragged end included. An element is one of S that the mask leaves. The matrix peak is the data "
            f"sheet's {PEAK_TFLOPS:.0f} TFLOP/s; HBM can be the limit only below 206 FLOP a byte.\n\n" + "\n".join(lines))


def main():
    options = parse_arguments()
    results = json.loads(page.read(options.render)) if options.render else measure(options)
    if options.json:
        page.write(options.json, json.dumps(results, indent=1))
    page.rewrite(options.out, lambda text: page.replace_section(text, "counters", section(results)))


if __name__ == "__main__":
    main()
