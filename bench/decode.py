#!/usr/bin/env python3
"""A few queries on many keys: Attune beside FlexAttention, scaled_dot_product_attention and FlashAttention-3, bf16,
with a cold L2. Every contestant is checked against fp64 before it is timed.

    python3 bench/decode.py --out docs/lab/decode_table.md
    python3 bench/decode.py --only "1 x 8192"

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. Attune runs the cost model's plans, or with --cache those that
were tuned. FlashAttention-3 takes part where its package `flash_attn_interface` can be imported, with the number of
splits that is the fastest.
"""

import argparse
import dataclasses
import importlib.util
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import page  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS_A_PROBLEM = 0.2
SPLITS = 0, 1, 2, 4, 8, 12, 16, 24, 32, 64  # of FlashAttention-3; 0: as it chooses itself


@dataclasses.dataclass(frozen=True)
class Problem:
    batch: int
    keys: int
    queries: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    name: str = "full"

    @property
    def key(self):
        return (f"{self.batch} x {self.keys}, {self.queries} queries, {self.heads}/{self.kv_heads} heads, "
                f"d {self.head_dim}, {self.name}")

    def live_keys(self):
        return {"window 4096, 4 sinks": min(self.keys, 4100)}.get(self.name, self.keys)

    def bytes(self):
        """Of the keys and values that live rows read."""
        return 2 * 2 * self.batch * self.kv_heads * self.live_keys() * self.head_dim


# name -> (lines of the spec, mask_mod of positions, score_mod of positions); a query's position counts from the first key
VARIANTS = {
    "full": ("", None, None),
    "causal": ("mask: causal", lambda q, k: q >= k, None),
    "window 4096, 4 sinks": ("mask: causal and (q_pos - kv_idx < 4096 or kv_idx < 4)",
                             lambda q, k: (q >= k) & ((q - k < 4096) | (k < 4)), None),
    "softcap 30": ("score: 30 * tanh(score / 30)", None, lambda s, h, q, k: 30 * (s / 30).tanh()),
    "alibi": ("score: score + exp2(-0.25 * (h + 1)) * (kv_idx - q_pos)", None,
              lambda s, h, q, k: s + (-0.25 * (h + 1)).exp2() * (k - q)),
}


def all_problems():
    for batch, keys in ((1, 8192), (1, 131072), (8, 8192), (64, 8192), (128, 4096), (16, 32768)):
        yield Problem(batch, keys)
    yield Problem(64, 8192, queries=4)
    for kv_heads in (32, 16, 4, 2):
        yield Problem(64 if kv_heads < 16 else 16, 8192, kv_heads=kv_heads)
    yield Problem(64, 8192, heads=40)
    for head_dim in (64, 256):
        yield Problem(32, 8192, head_dim=head_dim)
    for name in VARIANTS:
        if name != "full":
            yield Problem(16, 32768, queries=2, name=name)
    yield Problem(1, 131072, name="window 4096, 4 sinks")
    yield Problem(16, 8192, queries=64, name="causal")


def make_inputs(problem, generator, torch):
    import contestants

    def normal(heads, length):
        size = (problem.batch, heads, length, problem.head_dim)
        return torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)

    return contestants.Inputs(normal(problem.heads, problem.queries), normal(problem.kv_heads, problem.keys),
                              normal(problem.kv_heads, problem.keys), {})


def attune(problem, inputs, runtime):
    import contestants
    spec = f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {problem.head_dim}\n{VARIANTS[problem.name][0]}\n"
    shape = attune_c.Shape(problem.batch, problem.heads, problem.kv_heads, problem.queries, problem.keys)
    kernel = runtime.kernel_from_yaml(spec, shape)
    return contestants.launched(kernel, inputs, {"plan": kernel.plan})


def sdpa(problem, inputs, torch):
    import contestants
    state = {}

    def launch():
        state["o"] = torch.nn.functional.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, enable_gqa=True)

    return contestants.Entry(launch, lambda: state["o"])


def flex(problem, inputs, torch):
    import contestants
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    _, mask, score = VARIANTS[problem.name]
    before = problem.keys - problem.queries  # keys before the first query's position
    block_mask = score_mod = None
    if mask:
        block_mask = create_block_mask(lambda b, h, q, k: mask(q + before, k), None, None, problem.queries,
                                       problem.keys, device="cuda")
    if score:
        def score_mod(s, b, h, q, k):
            return score(s, h, q + before, k)
    state = {}

    def launch():
        state["o"] = compiled(inputs.q, inputs.k, inputs.v, score_mod=score_mod, block_mask=block_mask,
                              enable_gqa=True)

    return contestants.Entry(launch, lambda: state["o"])


def flash_attention_3(problem, inputs, flush, torch):
    import contestants
    import flash_attn_interface
    q, k, v = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    lengths = torch.full((problem.batch,), problem.keys, dtype=torch.int32, device="cuda")
    state = {}

    def entry(splits):
        def launch():
            state["o"] = flash_attn_interface.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=lengths, causal=problem.name == "causal", num_splits=splits)

        return contestants.Entry(launch, lambda: state["o"].transpose(1, 2))

    entries = {splits: entry(splits) for splits in SPLITS}
    times, _ = side_by_side.time_entries(entries, flush, torch)
    return entries[min(times, key=times.get)]


def exact(problem, inputs, b, h, torch):
    """One head's output in fp64."""
    _, mask, score = VARIANTS[problem.name]
    kv = h // (problem.heads // problem.kv_heads)
    q, k, v = inputs.q[b, h].double(), inputs.k[b, kv].double(), inputs.v[b, kv].double()
    scores = (q @ k.T) * problem.head_dim**-0.5
    rows = torch.arange(problem.queries, device="cuda")[:, None] + problem.keys - problem.queries
    keys = torch.arange(problem.keys, device="cuda")[None, :]
    if score:
        scores = score(scores, torch.tensor(h, device="cuda"), rows, keys)
    if mask:
        scores = scores.masked_fill(~mask(rows, keys), float("-inf"))
    return torch.softmax(scores, -1) @ v


def run(problem, runtime, flush, generator, torch):
    """Medians in microseconds by contestant, Attune's plan, and what failed."""
    inputs = make_inputs(problem, generator, torch)
    makers = {"Attune": lambda: attune(problem, inputs, runtime), "Flex": lambda: flex(problem, inputs, torch)}
    if problem.name == "full":
        makers["SDPA"] = lambda: sdpa(problem, inputs, torch)
    if problem.name in ("full", "causal") and importlib.util.find_spec("flash_attn_interface"):
        makers["FA3"] = lambda: flash_attention_3(problem, inputs, flush, torch)
    b, h = problem.batch - 1, problem.heads - 2
    wanted = exact(problem, inputs, b, h, torch)
    entries, plan = {}, ""
    for label, make in makers.items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            error = (entry.output()[b, h].double() - wanted).abs().max().item()
            if not error <= wanted.abs().max().item() * 0.02:
                raise ValueError(f"an error of {error:.2e}")
        except Exception as error:  # a peer that cannot do it takes no part
            print(f"{problem.key}: {label}: {str(error)[:200]}", file=sys.stderr)
            continue
        entries[label] = entry
        plan = entry.notes.get("plan", plan)
    return side_by_side.time_entries(entries, flush, torch)[0], plan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--cache", default="", help="Attune's cache file; default: none, the cost model's plans")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    arguments = parser.parse_args()
    import torch
    side_by_side.SECONDS_A_PROBLEM = SECONDS_A_PROBLEM
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    runtime = attune_c.Library(arguments.library or attune_c.find_library(ROOT)).runtime("cuda:0", arguments.cache)
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    rows = []
    for problem in all_problems():
        if arguments.only and not any(text in problem.key for text in arguments.only):
            continue
        median, plan = run(problem, runtime, flush, generator, torch)
        ours = median.get("Attune")
        beside = [f"{median[peer] / ours:.2f}" if ours and peer in median else "" for peer in ("Flex", "SDPA", "FA3")]
        rows.append([problem.key, f"{ours:.1f}" if ours else "failed",
                     f"{problem.bytes() / ours / 1e6:.2f}" if ours else "", *beside, plan])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    page.write_table(arguments.out, ROOT, torch, "bench/decode.py",
                     ["problem", "Attune us", "TB/s of live K and V", "Flex over ours", "SDPA over ours", "FA3 over ours",
                      "plan"], rows)


if __name__ == "__main__":
    main()
