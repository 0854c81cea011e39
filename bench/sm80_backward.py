#!/usr/bin/env python3
"""The sm80 family's backward pass beside FlashAttention-2's, on the GPU that is there, whichever it is.

    ATTUNE=build/release/attune python3 bench/sm80_backward.py --out docs/lab/sm80_backward_table.md

bf16, 16384 tokens in all, cold L2. Attune's time is the command's, which verifies each plan first; FlashAttention-2 is
scaled_dot_product_attention's, all kernels of the pass, in the same run: the two take turns row by row. A row has every
plan of PLANS for its head dim, and the table the fastest of them. Needs a CUDA GPU and PyTorch.
"""

import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import backward_side_by_side as backward  # noqa: E402
import page  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS = {64: 32, 128: 16, 256: 8}
PLANS = {64: ("w4 t32 s2 sums wide", "w4 t64 s2 sums"), 128: ("w8 t64 s2 sums pairs", "w4 t64 s2 sums pairs"),
         256: ("w8 t64 s2 sums fours", "w8 t32 s2 sums fours", "w4 t32 s2 sums fours", "w8 t32 s2")}


def rows():
    for d, heads in HEADS.items():
        yield from backward.plain_rows("sm80", d, heads, (1024, 8192))


def attune_us(row, tile, target):
    """None where this plan cannot run."""
    shape = f"batch={row.batch},heads={row.heads},kv_heads={row.heads},q_len={row.seq}"
    command = [os.environ.get("ATTUNE", f"{ROOT}/build/release/attune"), "bench", "-", "--shape", shape,
               "--pass", "backward", "--plan", f"sm80 backward {target} {tile}", "--json"]
    done = subprocess.run(command, input=row.yaml, capture_output=True, text=True,
                          env=os.environ | {"ATTUNE_CACHE": "none"})
    if done.returncode != 0:
        return None
    return json.loads(done.stdout)["results"][0]["median_us"]


def flash_attention_2(row, generator, flush, torch):
    """Its time in us, or why there is none."""
    from torch.nn.attention import SDPBackend
    inputs = backward.make_inputs(row, generator, torch)
    make = lambda: backward.Autograd(backward.sdpa(row, SDPBackend.FLASH_ATTENTION, torch), inputs, torch)
    entries, notes = backward.take_part(row, [("FA2", make)], torch)
    if not entries:
        return notes["FA2"]
    error = backward.head_error(row, entries["FA2"], inputs, torch)
    return side_by_side.time_entries(entries, flush, torch)[0]["FA2"] if error < 0.02 else f"an error of {error:.1e}"


def measured(row, target, generator, flush, torch):
    """Its row of the table."""
    theirs = flash_attention_2(row, generator, flush, torch)
    timed = [(us, tile) for tile in PLANS[row.head_dim] if (us := attune_us(row, tile, target))]
    us, tile = min(timed) if timed else (float("nan"), "none ran")
    beside = [theirs, ""] if isinstance(theirs, str) else [f"{theirs:.0f}", f"{theirs / us:.2f}"]
    return [str(row.head_dim), str(row.heads), "yes" if row.causal else "no", str(row.seq), tile, f"{us:.0f}", *beside]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    parser.add_argument("--target", default="sm_90a", help="the GPU's, as plans name it")
    arguments = parser.parse_args()
    import torch
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    table = []
    for row in rows():
        table.append(measured(row, arguments.target, generator, flush, torch))
        print("  ".join(table[-1]), file=sys.stderr, flush=True)
    header = ["d", "heads", "causal", "seq", "plan", "Attune us", "FA2 us", "FA2 / Attune"]
    page.write_table(arguments.out, ROOT, torch, "bench/sm80_backward.py", header, table)


if __name__ == "__main__":
    main()
