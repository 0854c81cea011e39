#!/usr/bin/env python3
"""What a call from Python costs where its sizes come again, one of so many at a time, as batches of unequal lengths
bring them: microseconds of the host, eager, tiny operands.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/python_sizes.py [--device cuda]

Each number is the mean over the sizes of the least that a call took in many rounds, each of which takes all sizes once,
in an order of its own.
"""

import argparse
import random
import time

import torch

import attune
import attune.torch as at

COUNTS = (1, 4, 8, 32, 200)
SIZES = {"cpu": (1, 2, 16, torch.float32), "cuda": (1, 2, 64, torch.bfloat16)}


def packed_call(q, k, v, cu_q, cu_kv):
    return attune.attention(*[x[0] for x in (q, k, v)], mask="causal", cu_q=cu_q, cu_kv=cu_kv)


def dense_call(q, k, v, *_):
    return attune.attention(q, k, v, mask="causal")


def causal(score, b, h, q_idx, kv_idx):
    return torch.where(kv_idx <= q_idx, score, -torch.inf)


def flex_call(q, k, v, *_):
    return at.flex_attention(*[x.transpose(1, 2) for x in (q, k, v)], causal)


def microseconds(step, given, wait, rounds):
    order, least = list(range(len(given))), [float("inf")] * len(given)
    for _ in range(4):  # the third one is remembered as it was made
        for each in given:
            step(*each)
    for _ in range(rounds):
        random.shuffle(order)
        wait()
        for place in order:
            start = time.perf_counter()
            step(*given[place])
            least[place] = min(least[place], time.perf_counter() - start)
    wait()
    return sum(least) / len(least) * 1e6


def steps(compiled):
    calls = {"words": dense_call, "packed": packed_call, "flex_attention": flex_call}
    if compiled:
        calls["compiled, dynamic"] = torch.compile(dense_call, dynamic=True, backend="aot_eager", fullgraph=True)

    def forward(call):
        def step(leaves, given, _):
            with torch.no_grad():
                call(*given)

        return step

    def recorded(call):
        return lambda leaves, given, _: call(*leaves)

    def trained(call):
        return lambda leaves, given, d_o: torch.autograd.grad(call(*leaves), leaves[:3], d_o)

    for name, call in calls.items():
        yield name, call, (forward(call), recorded(call), trained(call))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    batch, heads, dim, dtype = SIZES[options.device]
    device = torch.device(options.device)
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    random.seed(1)
    print(f"{options.device}, torch {torch.__version__}; columns: {' '.join(map(str, options.counts))} sizes")
    for name, call, of_passes in steps("compiled" in options.only or not options.only):
        if options.only and options.only not in name:
            continue
        for passes, step in zip(("forward", "recorded", "with its backward pass"), of_passes, strict=True):
            found = []
            for count in options.counts:
                given = []
                for place in range(count):  # so short that all take as long
                    lengths = 8 + place % 8, *[16 + place // 8] * 2
                    operands = [torch.randn(batch, x, heads, dim, device=device).to(dtype) for x in lengths]
                    lists = [torch.tensor([0, x // 2, x], dtype=torch.int32, device=device) for x in lengths[:2]]
                    leaves = [x.clone().requires_grad_() for x in operands]
                    with torch.no_grad():
                        like = torch.ones_like(call(*operands, *lists))
                    given.append(((*leaves, *lists), (*operands, *lists), like))
                found.append(microseconds(step, given, wait, options.rounds))
            print(f"{name}, {passes}: " + "  ".join(f"{x:.1f}" for x in found), flush=True)


if __name__ == "__main__":
    main()
