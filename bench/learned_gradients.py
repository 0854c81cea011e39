#!/usr/bin/env python3
"""What gradients of learned tensors cost: the backward pass of specs with `grad: true` beside that of the same specs
without it, in turns, by `attune bench`. Times are of all kernels of the pass, in microseconds.

    python3 bench/learned_gradients.py
    python3 bench/learned_gradients.py --only t5 --family sm90a --deterministic

Needs a GPU and the command, of build/ or as --attune says. Both run the cost model's plan, or one of the family that
--family names.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DISTANCE = "abs(kv_idx - q_idx)"
T5 = (f"(16 if kv_idx > q_idx else 0) + ({DISTANCE} if {DISTANCE} < 8 else "
      f"min(15, 2 + floor(log2(min({DISTANCE}, 128) * min({DISTANCE}, 128) + 0.5))))")
# name: dims of the tensor, score, mask
SPECS = {
    "t5 causal": ("[heads, 32]", f"score + learned[h, {T5}]", "causal"),
    "t5": ("[heads, 32]", f"score + learned[h, {T5}]", "true"),
    "slopes causal": ("[heads]", "score + learned[h] * (kv_idx - q_idx)", "causal"),
    "relative, 2047": ("[heads, 2047]", "score + learned[h, max(0, min(2046, kv_idx - q_idx + 1023))]", "true"),
    "dense": ("[batch, heads, q_len, kv_len]", "score + learned[b, h, q_idx, kv_idx]", "true"),
}
PLANS = {
    "sm80": "sm80 backward {target} w4 t32 s2",
    "sm90a": "sm90a backward sm_90a w2 q64 s2",
    "sm90a_ordered": "sm90a_ordered backward sm_90a q64 k64 s2 both",
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attune", help="the command; default: the newest below build/")
    parser.add_argument("--only", action="append", metavar="TEXT", help="specs whose name contains this; repeatable")
    parser.add_argument("--family", choices=["best", *PLANS], default="best")
    parser.add_argument("--target", default="sm_90a", help="of the sm80 family's plan")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--shape", default="batch=2,heads=16,q_len=4096,kv_len=4096")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def spec_text(name, head_dim, grad, deterministic):
    dims, score, mask = SPECS[name]
    return (f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {head_dim}\nmask: {mask}\n"
            f"deterministic: {str(deterministic).lower()}\n"
            f"tensors: {{learned: {{dtype: float32, dims: {dims}, grad: {str(grad).lower()}}}}}\n"
            f"score: >-\n  {score}\n")


def measure(command, text, arguments, cache):
    """(microseconds, plan), or None where there is no such plan."""
    line = [command, "bench", "-", "--pass", "backward", "--shape", arguments.shape, "--json", "--cache", cache]
    if arguments.family != "best":
        line += ["--plan", PLANS[arguments.family].format(target=arguments.target)]
    done = subprocess.run(line, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    result = json.loads(done.stdout)["results"][0]
    return result["median_us"], result["plan"]


def main():
    arguments = parse_arguments()
    command = arguments.attune or max(glob.glob(f"{ROOT}/build/*/attune"), key=os.path.getmtime)
    print("| spec | head dim | without `grad`, us | with it, us | ratio | plan |\n" + "| --- " * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name in SPECS:
            if arguments.only and not any(text in name for text in arguments.only):
                continue
            for head_dim in (64, 128):
                times = {False: [], True: []}
                plan = None
                for _ in range(arguments.rounds):
                    for grad in times:
                        text = spec_text(name, head_dim, grad, arguments.deterministic)
                        found = measure(command, text, arguments, f"{folder}/cache.db")
                        if found is None:
                            break
                        times[grad].append(found[0])
                        plan = found[1]
                if len(times[True]) < arguments.rounds:
                    continue
                without, given = (sorted(times[grad])[arguments.rounds // 2] for grad in (False, True))
                print(f"| {name} | {head_dim} | {without:.0f} | {given:.0f} | {given / without:.2f} | {plan} |",
                      flush=True)


if __name__ == "__main__":
    main()
