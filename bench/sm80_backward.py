#!/usr/bin/env python3
"""The sm80 family's backward pass beside FlashAttention-2's, on the GPU that is there, whichever it is.

    ATTUNE=build/release/attune python3 bench/sm80_backward.py --out docs/lab/sm80_backward_table.md

bf16, 16384 tokens in all, cold L2. Attune's time is the command's, which verifies each plan first; FlashAttention-2 is
scaled_dot_product_attention's, all kernels of the pass, in the same run: the two take turns row by row. A row has every
plan that --plan names (several may be given), and the table the fastest of them. Needs a CUDA GPU and PyTorch.
"""

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = 16384
HEADS = {64: 32, 128: 16, 256: 8}
PLANS = {64: ("w4 t32 s2 sums wide", "w4 t64 s2 sums"), 128: ("w8 t64 s2 sums pairs", "w4 t64 s2 sums pairs"),
         256: ("w8 t32 s2 sums fours", "w4 t32 s2 sums fours", "w8 t32 s2")}
ROUNDS = 15


def rows():
    return [(d, causal, seq) for d in HEADS for causal in (False, True) for seq in (1024, 8192)]


def attune_us(row, tile, target):
    d, causal, seq = row
    shape = f"batch={TOKENS // seq},heads={HEADS[d]},kv_heads={HEADS[d]},q_len={seq}"
    command = [os.environ.get("ATTUNE", f"{ROOT}/build/release/attune"), "bench",
               f"{ROOT}/specs/bench/{'causal' if causal else 'full'}_d{d}.yaml", "--shape", shape, "--pass", "backward",
               "--plan", f"sm80 backward {target} {tile}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"ATTUNE_CACHE": "none"})
    if done.returncode != 0:
        return None
    return json.loads(done.stdout)["results"][0]["median_us"]


def flash_attention_2_us(row, torch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    d, causal, seq = row
    make = lambda: torch.randn(TOKENS // seq, HEADS[d], seq, d, device="cuda", dtype=torch.bfloat16)
    q, k, v = (make().requires_grad_(True) for _ in range(3))
    g = make()
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    times = []
    for _ in range(ROUNDS):
        flush.zero_()
        torch.cuda._sleep(400000)  # the host is ahead
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        torch.autograd.grad(o, (q, k, v), g, retain_graph=True)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the table here")
    parser.add_argument("--target", default="sm_90a", help="the GPU's, as plans name it")
    arguments = parser.parse_args()
    import torch

    lines = ["| d | heads | causal | seq | plan | Attune us | FA2 us | FA2 / Attune |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows():
        d, causal, seq = row
        theirs = flash_attention_2_us(row, torch)
        timed = [(us, tile) for tile in PLANS[d] if (us := attune_us(row, tile, arguments.target))]
        us, tile = min(timed) if timed else (float("nan"), "none ran")
        lines.append(f"| {d} | {HEADS[d]} | {'yes' if causal else 'no'} | {seq} | {tile} | {us:.0f} | {theirs:.0f} | "
                     f"{theirs / us:.2f} |")
        print(lines[-1], flush=True)
    commit = os.environ.get("ATTUNE_COMMIT") or subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    head = (f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {torch.cuda.get_device_name()}, PyTorch "
            f"{torch.__version__}, commit {commit or 'unknown'}. `{shlex.join(['python3', 'bench/sm80_backward.py', *sys.argv[1:]])}`")
    text = head + "\n\n" + "\n".join(lines) + "\n"
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
