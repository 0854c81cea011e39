#!/usr/bin/env python3
"""A few queries on many keys: Attune beside FlexAttention, scaled_dot_product_attention and FlashAttention-3, bf16,
with a cold L2. Every contestant is checked against fp64 before it is timed.

    python3 bench/decode.py --out docs/lab/decode_table.md
    python3 bench/decode.py --only "1 x 8192"
    python3 bench/decode.py --only " and "     # one long sequence beside short ones

Sequences of different lengths are packed for Attune; FlashAttention-3 has them in a cache with room for the longest.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. Attune runs the cost model's plans, or with --cache those that
were tuned. FlashAttention-3 takes part where its package `flash_attn_interface` can be imported, with the number of
splits that is the fastest.
"""

import argparse
import dataclasses
import importlib.util
import itertools
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
    shorter: int = 0  # keys of all sequences but the first, where they have fewer

    @property
    def key(self):
        lengths = f"{self.batch} x {self.keys}"
        if self.shorter:
            lengths = f"1 x {self.keys} and {self.batch - 1} x {self.shorter}"
        return f"{lengths}, {self.queries} queries, {self.heads}/{self.kv_heads} heads, d {self.head_dim}, {self.name}"

    def lengths(self):
        return [self.keys] + [self.shorter or self.keys] * (self.batch - 1)

    def bytes(self):
        """Of the keys and values that live rows read."""
        most = 4100 if self.name == "window 4096, 4 sinks" else self.keys
        return 2 * 2 * self.kv_heads * self.head_dim * sum(min(length, most) for length in self.lengths())


# name -> (lines of the spec, mask_mod of positions, score_mod of positions); positions count from the first key
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
    yield Problem(64, 131072, shorter=1024)
    yield Problem(64, 8192, queries=4)
    for heads, kv_heads in ((32, 32), (32, 16), (24, 8), (40, 8), (32, 4), (32, 2)):
        yield Problem(64, 8192, heads=heads, kv_heads=kv_heads)
    for head_dim in (64, 256):
        yield Problem(64, 8192, head_dim=head_dim)
    for name in VARIANTS:
        if name != "full":
            yield Problem(16, 32768, queries=2, name=name)
    yield Problem(1, 131072, name="window 4096, 4 sinks")
    yield Problem(1, 4100)  # as many keys as the window and the sinks are
    yield Problem(16, 8192, queries=64, name="causal")


def make_inputs(problem, generator, torch):
    """k and v [batch, kv_heads, keys, dim]; of different lengths [1, kv_heads, keys of all sequences, dim]."""
    import contestants

    def normal(batch, heads, length):
        size = (batch, heads, length, problem.head_dim)
        return torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)

    cache = (1, sum(problem.lengths())) if problem.shorter else (problem.batch, problem.keys)
    k, v = (normal(cache[0], problem.kv_heads, cache[1]) for _ in "kv")
    return contestants.Inputs(normal(problem.batch, problem.heads, problem.queries), k, v, {})


def of_sequence(problem, cache, b):
    """Its part of inputs.k or inputs.v: [kv_heads, keys, dim]."""
    if not problem.shorter:
        return cache[b]
    begin = sum(problem.lengths()[:b])
    return cache[0, :, begin:begin + problem.lengths()[b]]


def attune(problem, inputs, runtime, torch):
    import contestants
    spec = f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {problem.head_dim}\n{VARIANTS[problem.name][0]}\n"
    shape, sequences = attune_c.Shape(problem.batch, problem.heads, problem.kv_heads, problem.queries, problem.keys), {}
    if problem.shorter:
        spec += "layout: thd\n"
        shape.q_len, shape.kv_len = problem.batch * problem.queries, sum(problem.lengths())
        for name, lengths in (("cu_q", [problem.queries] * problem.batch), ("cu_kv", problem.lengths())):
            sequences[name] = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    kernel = runtime.kernel_from_yaml(spec, shape)
    return contestants.launched(kernel, inputs, {"plan": kernel.plan}, sequences)


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


def with_room(problem, cache, torch):
    """[batch, keys, kv_heads, dim]: every sequence has room for as many keys as the longest."""
    if not problem.shorter:
        return cache.transpose(1, 2).contiguous()
    size = (problem.batch, problem.keys, problem.kv_heads, problem.head_dim)
    found = torch.zeros(size, dtype=cache.dtype, device="cuda")
    for b, length in enumerate(problem.lengths()):
        found[b, :length] = of_sequence(problem, cache, b).transpose(0, 1)
    return found


def flash_attention_3(problem, inputs, flush, torch):
    import contestants
    import flash_attn_interface
    q = inputs.q.transpose(1, 2).contiguous()
    k, v = (with_room(problem, x, torch) for x in (inputs.k, inputs.v))
    lengths = torch.tensor(problem.lengths(), dtype=torch.int32, device="cuda")
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
    q, k, v = inputs.q[b, h].double(), *(of_sequence(problem, x, b)[kv].double() for x in (inputs.k, inputs.v))
    scores = (q @ k.T) * problem.head_dim**-0.5
    rows = torch.arange(problem.queries, device="cuda")[:, None] + len(k) - problem.queries
    keys = torch.arange(len(k), device="cuda")[None, :]
    if score:
        scores = score(scores, torch.tensor(h, device="cuda"), rows, keys)
    if mask:
        scores = scores.masked_fill(~mask(rows, keys), float("-inf"))
    return torch.softmax(scores, -1) @ v


def makers(problem, inputs, runtime, flush, torch):
    """name -> () -> Entry, for those that can express the problem."""
    found = {"Attune": lambda: attune(problem, inputs, runtime, torch)}
    if not problem.shorter:
        found["Flex"] = lambda: flex(problem, inputs, torch)
        if problem.name == "full":
            found["SDPA"] = lambda: sdpa(problem, inputs, torch)
    if problem.name in ("full", "causal") and importlib.util.find_spec("flash_attn_interface"):
        found["FA3"] = lambda: flash_attention_3(problem, inputs, flush, torch)
    return found


def check(entry, wanted):
    """`wanted`: by sequence and head."""
    for (b, h), exact_output in wanted.items():
        error = (entry.output()[b, h].double() - exact_output).abs().max().item()
        if not error <= exact_output.abs().max().item() * 0.02:
            raise ValueError(f"an error of {error:.2e}")


def run(problem, runtime, flush, generator, torch):
    """Medians in microseconds by contestant, and Attune's plan."""
    inputs = make_inputs(problem, generator, torch)
    checked = {(0, 1), (problem.batch - 1, problem.heads - 2)}
    wanted = {(b, h): exact(problem, inputs, b, h, torch) for b, h in checked}
    entries, plan = {}, ""
    for label, make in makers(problem, inputs, runtime, flush, torch).items():
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            check(entry, wanted)
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
    parser.add_argument("--list", action="store_true", help="the keys of the rows, and stop")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    arguments = parser.parse_args()
    chosen = [p for p in all_problems() if not arguments.only or any(text in p.key for text in arguments.only)]
    if arguments.list:
        print("\n".join(problem.key for problem in chosen))
        return
    import torch
    side_by_side.SECONDS_A_PROBLEM = SECONDS_A_PROBLEM
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    runtime = attune_c.Library(arguments.library or attune_c.find_library(ROOT)).runtime("cuda:0", arguments.cache)
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    rows = []
    for problem in chosen:
        median, plan = run(problem, runtime, flush, generator, torch)
        ours = median.get("Attune")
        beside = [f"{median[peer] / ours:.2f}" if ours and peer in median else "" for peer in ("Flex", "SDPA", "FA3")]
        rows.append([problem.key, f"{ours:.1f}" if ours else "failed",
                     f"{problem.bytes() / ours / 1e6:.2f}" if ours else "", *beside, plan])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    header = ["problem", "Attune us", "TB/s of live K and V", "Flex over ours", "SDPA over ours", "FA3 over ours",
              "plan"]
    page.write_table(arguments.out, ROOT, torch, "bench/decode.py", header, rows)


if __name__ == "__main__":
    main()
