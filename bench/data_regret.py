#!/usr/bin/env python3
"""Twelve masks that tensors decide, tuned without having seen those tensors: makes the tensors, runs
build/release/bench/data_regret, and writes its section of docs/performance.md.

    python3 bench/data_regret.py
    python3 bench/data_regret.py --make DIRECTORY         # the masks and their tensors alone; no GPU
    python3 bench/data_regret.py --render data.jsonl --date ... # from what the program printed before

Needs a GPU, NVRTC (`make build`) and NumPy."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import page  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BATCH, HEADS, LENGTH = 2, 16, 8192
DRAFTED = 64
CHOICES = ("tuned", "tuned on them", "first", "first with tensors", "yardstick")


def documents(rng, lengths):
    """Which document each position of a packed row is of; lengths are drawn until the row is full."""
    rows = []
    for _ in range(BATCH):
        ends = np.cumsum(np.maximum(lengths(LENGTH), 1).astype(np.int64))
        rows.append(np.searchsorted(ends, np.arange(LENGTH), side="right"))
    return np.array(rows, np.int32)


def parents(rng, count, attraction):
    """Of a random recursive tree in preorder: each node hangs on the path to the one before it."""
    parent, path = [-1], [0]
    for node in range(1, count):
        depth = min(len(path) - 1, int(rng.geometric(attraction)) - 1)
        del path[len(path) - depth:]
        parent.append(path[-1])
        path.append(node)
    return parent


def subtree_ends(rng):
    parent = parents(rng, LENGTH, 0.5)
    end = np.arange(1, LENGTH + 1, dtype=np.int32)
    for node in range(LENGTH - 1, 0, -1):
        end[parent[node]] = max(end[parent[node]], end[node])
    return end


def ancestors(rng):
    parent = parents(rng, DRAFTED, 0.5)
    found = np.zeros((DRAFTED, DRAFTED), bool)
    for node in range(DRAFTED):
        up = node
        while up >= 0:
            found[node, up] = True
            up = parent[up]
    return found


def buckets(rng):
    """Hyperplanes' sides of a walk: neighbours in time are near each other in space, as tokens are."""
    walk = np.cumsum(rng.standard_normal((LENGTH, 64)), 0)
    walk -= np.linspace(0, 1, LENGTH)[:, None] * walk[-1]
    sides = np.einsum("td,hdp->htp", walk, rng.standard_normal((HEADS, 64, 5))) > 0
    return (sides @ (1 << np.arange(5))).astype(np.int32)


def clusters(rng, size, share):
    """Rows that attend the same blocks, a band and some of their own."""
    kinds = rng.random((8, size)) < share
    blocks = kinds[rng.integers(0, 8, size)] | (rng.random((size, size)) < 0.02)
    return blocks | (np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= 1)


def lognormal(rng, mean, deviation):
    return lambda count: rng.lognormal(np.log(mean), deviation, count)


# name: mask, tensors' declarations, shape, what makes them.
SQUARE = {"batch": BATCH, "heads": HEADS, "kv_heads": HEADS, "q_len": LENGTH, "kv_len": LENGTH}
DOC = "doc: {dtype: int32, dims: [batch, kv_len]%s}"
END = "end: {dtype: int32, dims: [kv_len]%s}"
MASKS = {
    "documents": ("causal and document(doc)", DOC % ", sample: segments(mean=700)", SQUARE,
                  lambda rng: {"doc": documents(rng, lognormal(rng, 350, 1.2))}),
    "documents_unsaid": ("causal and document(doc)", DOC % "", SQUARE,
                         lambda rng: {"doc": documents(rng, lognormal(rng, 350, 1.2))}),
    "pages_of_text": ("document(doc)", DOC % ", sample: segments(mean=1024)", SQUARE,
                      lambda rng: {"doc": documents(rng, lambda n: rng.integers(300, 2500, n))}),
    "padding": ("kv_idx < length[b]", "length: {dtype: int32, dims: [batch], sample: 'lengths(0.3, 1.0)'}",
                {**SQUARE, "batch": 4, "q_len": 4096, "kv_len": 4096},
                lambda rng: {"length": (4096 * rng.beta(3, 2, 4)).astype(np.int32)}),
    "prefixes_unsaid": ("causal or kv_idx < prefix[b]", "prefix: {dtype: int32, dims: [batch]}",
                        {**SQUARE, "batch": 4, "q_len": 4096, "kv_len": 4096},
                        lambda rng: {"prefix": (4096 * rng.beta(2, 4, 4)).astype(np.int32)}),
    "spans_unsaid": ("causal and q_idx - kv_idx < span[h]", "span: {dtype: int32, dims: [heads]}", SQUARE,
                     lambda rng: {"span": np.geomspace(32, 8192, HEADS).astype(np.int32)}),
    "blocks": ("block_sparse(blocks, 64)", "blocks: {dtype: bool, dims: [128, 128], sample: chance(0.25)}", SQUARE,
               lambda rng: {"blocks": clusters(rng, 128, 0.2)}),
    "blocks_unsaid": ("causal and block_sparse(blocks, 128)", "blocks: {dtype: bool, dims: [64, 64]}", SQUARE,
                      lambda rng: {"blocks": clusters(rng, 64, 0.15)}),
    "tree_of_drafts": ("tree(ancestor)", "ancestor: {dtype: bool, dims: [q_len, q_len], sample: ancestors(branch=2)}",
                       {**SQUARE, "batch": 16, "heads": 32, "kv_heads": 8, "q_len": DRAFTED},
                       lambda rng: {"ancestor": ancestors(rng)}),
    "subtrees": ("kv_idx <= q_idx and q_idx < end[kv_idx]", END % ", sample: subtree_ends(branch=3)", SQUARE,
                 lambda rng: {"end": subtree_ends(rng)}),
    "subtrees_unsaid": ("kv_idx <= q_idx and q_idx < end[kv_idx]", END % "", SQUARE,
                        lambda rng: {"end": subtree_ends(rng)}),
    "buckets_unsaid": ("causal and bucket[h, q_idx] == bucket[h, kv_idx]",
                       "bucket: {dtype: int32, dims: [heads, kv_len]}", SQUARE, lambda rng: {"bucket": buckets(rng)}),
}  # fmt: skip


def make(directory):
    for seed, (name, (mask, declaration, shape, tensors)) in enumerate(MASKS.items()):
        folder = os.path.join(directory, name)
        os.makedirs(folder, exist_ok=True)
        sizes = ", ".join(f"{key}: {value}" for key, value in shape.items())
        page.write(folder + ".yaml", f"attune: 1\nname: {name}\ndtype: bf16\nhead_dim: 128\ntensors:\n  {declaration}\n"
                                     f"mask: {mask}\ntune:\n  shapes:\n    - {{{sizes}}}\n")  # fmt: skip
        for tensor, values in tensors(np.random.default_rng(seed)).items():
            np.save(os.path.join(folder, tensor + ".npy"), values)


def percent(ratio):
    return f"{100 * (ratio - 1):.1f} %"


def render(text, lines, date):
    environment, rows = lines[0], lines[1:]
    body = [
        "## Regret where tensors decide the mask\n",
        f"{date}, {environment['device']}; {environment['compiler']}. `python3 bench/data_regret.py`\n",
        "Each mask was tuned without its real tensors: on what its spec says of them (`sample:`), or, `unsaid`, on "
        "several plausible kinds. All times are of the real ones, in interleaved rounds; regret is how much longer than "
        "the best of the columns, of which the yardstick is the fastest of the cost model's first 32 plans and of 32 "
        "spread over the rest. The first guess knows nothing of the tensors; with them it counts their tiles.\n",
        "| mask | live, full tiles | best us | " + " | ".join(CHOICES) + " | tuned / first guess | search s |",
        "|" + " --- |" * (len(CHOICES) + 5),
    ]
    regrets, behind = [], 0
    for row in rows:
        us = row["us"]
        best = min(us.values())
        regrets.append(us["tuned"] / best)
        behind += us["tuned"] > us["first"]
        body.append(
            f"| {row['mask']} | {row['live']:.3f}, {row['full']:.3f} | {best:.1f} | "
            + " | ".join(percent(us[name] / best) for name in CHOICES)
            + f" | {us['tuned'] / us['first']:.3f} | {row['seconds']:.1f} |"
        )
    good = sum(regret <= 1.03 for regret in regrets)
    body.append(
        f"\nTuned plans are within 3 % of the best on {good} of {len(rows)} masks (worst {percent(max(regrets))}), and slower "
        f"than the first guess on {behind}."
    )
    return page.replace_section(text, "data-regret", "\n".join(body))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="default: the newest bench/data_regret below build/")
    parser.add_argument("--make", metavar="DIRECTORY", help="write the masks and their tensors there, and end")
    parser.add_argument("--render", metavar="JSONL", help="rewrite the page from saved output")
    parser.add_argument("--date", help="when saved output was made; default: now")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "performance.md"), help="the page to rewrite")
    arguments = parser.parse_args()
    if arguments.make:
        return make(arguments.make)
    if arguments.render:
        output = page.read(arguments.render)
    else:
        program = page.newest_built(ROOT, "bench", "data_regret", named=arguments.program)
        with tempfile.TemporaryDirectory() as directory:
            make(directory)
            output = subprocess.run([program, "cuda:0", directory, *MASKS], check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    page.rewrite(arguments.out, lambda text: render(text, lines, arguments.date or page.now()))
    return None


if __name__ == "__main__":
    main()
