#!/usr/bin/env python3
"""64 drafted tokens of a tree for each of 16 sequences, whose 8192 keys lie in pages: Attune beside FlashAttention-3,
which has no tree and takes part causally, its keys in pages and not, with the number of splits that is the fastest.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/drafted_tree.py

32 heads on 8, d 128, bf16, cold L2. Attune's result is checked against float64 first. Needs a CUDA GPU and PyTorch.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import contestants  # noqa: E402
import page  # noqa: E402
import side_by_side  # noqa: E402
import torch  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402,F401

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BATCH, DRAFTED, KEYS, HEADS, KV_HEADS, DIM = 16, 64, 8192, 32, 8, 128
BRANCHES = 3  # of a node of the tree
TREE = "kv_idx < kv_len - q_len or sees[q_idx, kv_idx - (kv_len - q_len)]"


def ancestors():
    """[drafted, drafted]: what each drafted token sees of the others."""
    sees = torch.eye(DRAFTED, dtype=torch.bool)
    for token in range(1, DRAFTED):
        sees[token] |= sees[(token - 1) // BRANCHES]
    return sees


def exact(q, k, v, sees):
    """Of a head in float64; its drafted tokens are the last keys."""
    scores = q.double() @ k.double().T * DIM**-0.5
    live = torch.ones_like(scores, dtype=torch.bool)
    live[:, KEYS - DRAFTED:] = sees
    return torch.softmax(scores.masked_fill(~live, float("-inf")), -1) @ v.double()


class Problem:
    def __init__(self):
        def normal(*size):
            return torch.randn(size, device="cuda").bfloat16()

        self.q = normal(BATCH * DRAFTED, HEADS, DIM)
        self.k, self.v = normal(BATCH, KEYS, KV_HEADS, DIM), normal(BATCH, KEYS, KV_HEADS, DIM)
        self.sees = ancestors().cuda()
        self.cu_q = torch.arange(BATCH + 1, dtype=torch.int32, device="cuda") * DRAFTED
        self.lengths = torch.full((BATCH,), KEYS, dtype=torch.int32, device="cuda")

    def in_pages(self, size):
        """The cache in pages in any order, and the table."""
        count = BATCH * KEYS // size
        order = torch.randperm(count, device="cuda")
        pages = []
        for x in (self.k, self.v):
            moved = torch.empty(count, size, KV_HEADS, DIM, dtype=x.dtype, device="cuda")
            moved[order] = x.view(count, size, KV_HEADS, DIM)
            pages.append(moved)
        return *pages, order.view(BATCH, -1).to(torch.int32)


def tree(problem, page_size):
    spec = attune.Spec(TREE, dtype="bf16", head_dim=DIM, layout="paged",
                       tensors={"sees": f"bool[q_len, {DRAFTED}]"})
    k, v, table = problem.in_pages(page_size)
    sees, state = problem.sees.repeat(BATCH, 1).contiguous(), {}

    def launch():
        with torch.no_grad():
            state["o"] = attune.attention(problem.q, k, v, spec=spec, tensors={"sees": sees}, cu_q=problem.cu_q,
                                          used_kv=problem.lengths, page_table=table)

    return contestants.Entry(launch, lambda: state["o"])


def flash_attention_3(problem, page_size, splits):
    import flash_attn_interface

    k, v, table = problem.in_pages(page_size) if page_size else (problem.k, problem.v, None)
    q, state = problem.q.view(BATCH, DRAFTED, HEADS, DIM), {}

    def launch():
        state["o"] = flash_attn_interface.flash_attn_with_kvcache(
            q, k, v, cache_seqlens=problem.lengths, page_table=table, causal=True, num_splits=splits)

    return contestants.Entry(launch, lambda: state["o"])


def check(problem, entry):
    entry.launch()
    for b, h in ((0, 0), (BATCH - 1, HEADS - 2)):
        kv = h // (HEADS // KV_HEADS)
        wanted = exact(problem.q[b * DRAFTED:(b + 1) * DRAFTED, h], problem.k[b, :, kv], problem.v[b, :, kv], problem.sees)
        found = entry.output()[b * DRAFTED:(b + 1) * DRAFTED, h].double()
        error = (found - wanted).abs().max().item()
        if not error <= 0.02 * wanted.abs().max().item():
            sys.exit(f"an error of {error:.2e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    arguments = parser.parse_args()
    problem = Problem()
    entries = {}
    for size in (64, 16):
        entries[f"Attune, a tree, pages of {size}"] = tree(problem, size)
        check(problem, entries[f"Attune, a tree, pages of {size}"])
    for size in (0, 64):
        for splits in (1, 2, 3):
            name = f"FA3, causal, {f'pages of {size}' if size else 'no pages'}, {splits} splits"
            try:
                entry = flash_attention_3(problem, size, splits)
                entry.launch()
                torch.cuda.synchronize()
                entries[name] = entry
            except Exception as error:  # a peer that cannot do it takes no part
                print(f"{name}: {str(error)[:200]}", file=sys.stderr)
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    side_by_side.SECONDS_A_PROBLEM = 2
    times = side_by_side.time_entries(entries, flush, torch)[0]
    ours = next(iter(times.values()))
    page.write_table(arguments.out, ROOT, torch, "bench/drafted_tree.py", ["", "us", "over Attune's first"],
                     [[name, f"{us:.1f}", f"{us / ours:.2f}"] for name, us in times.items()])


if __name__ == "__main__":
    main()
