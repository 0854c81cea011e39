#!/usr/bin/env python3
"""A few queries on many keys: Attune beside FlexAttention, scaled_dot_product_attention, FlashAttention-3 and
FlashInfer, bf16, with a cold L2. Every contestant is checked against fp64 before it is timed.

    python3 bench/decode.py --out docs/lab/decode_table.md
    python3 bench/decode.py --only "1 x 8192" --peer FlashInfer --peer FA3
    python3 bench/decode.py --only " and "     # one long sequence beside short ones

Sequences of different lengths are packed for Attune; FlashAttention-3 has them in a cache with room for the longest.
FlashInfer has its keys in pages, and so has Attune once more beside it. FlashInfer's plan() is the host's work and not
timed; what Attune's launches plan they plan on the GPU, in the time that stands here.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. Attune runs the cost model's plans, or with --cache those that
were tuned. FlashAttention-3 and FlashInfer take part where their packages `flash_attn_interface` and `flashinfer` can
be imported: the one with the number of splits that is the fastest, the other with its faster wrapper on pages of 16,
and with the fastest of its kernels on pages of 16 or 64.
"""

import functools
import importlib.util
import itertools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import page  # noqa: E402
import row_bench  # noqa: E402
import side_by_side  # noqa: E402
from decode_problems import VARIANTS, all_problems, exact, make_inputs, of_sequence, sequences_of, yaml  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS_A_PROBLEM = 0.2
SPLITS = 0, 1, 2, 4, 8, 12, 16, 24, 32, 64  # of FlashAttention-3; 0: as it chooses itself
PAGE_SIZES = 16, 64
PEERS = "Flex", "SDPA", "FA3", "FlashInfer"
IN_PAGES = "Attune in pages"
FASTEST = "FlashInfer's fastest"


def attune(problem, inputs, runtime, torch, packed=False):
    """`packed`: also where all sequences have as many keys."""
    import contestants
    spec = yaml(problem)
    shape, sequences = attune_c.Shape(problem.batch, problem.heads, problem.kv_heads, problem.queries, problem.keys), {}
    if problem.shorter or packed:
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


def in_pages(problem, inputs, runtime, flush, torch):
    """name -> () -> Entry, of those whose cache is in pages."""
    import cache_pages
    q = inputs.q.transpose(1, 2).contiguous()
    sequences = sequences_of(problem, inputs)
    of_size = functools.cache(lambda size: cache_pages.in_pages(sequences, size, torch))
    found = {IN_PAGES: lambda: cache_pages.attune(yaml(problem), q, problem.head_dim, of_size(16), runtime, torch)}
    if importlib.util.find_spec("flashinfer"):
        def wrappers():
            ways = cache_pages.flashinfer_ways(q, of_size(16), torch)
            return {name: make for name, make in ways.items() if "XQA" not in name}

        def all_ways():
            return {name: make for size in PAGE_SIZES
                    for name, make in cache_pages.flashinfer_ways(q, of_size(size), torch).items()}

        found["FlashInfer"] = lambda: cache_pages.fastest(wrappers(), flush, torch)
        found[FASTEST] = lambda: cache_pages.fastest(all_ways(), flush, torch)
    return found


def makers(problem, inputs, runtime, flush, torch):
    """name -> () -> Entry, for those that can express the problem."""
    found = {"Attune": lambda: attune(problem, inputs, runtime, torch)}
    # FlashInfer's decoding is causal where a sequence has several queries.
    if problem.name == "causal" or problem.name == "full" and problem.queries == 1:
        found |= in_pages(problem, inputs, runtime, flush, torch)
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


def run(problem, runtime, flush, generator, peers, torch):
    """Medians in microseconds by contestant, and what they say of themselves."""
    inputs = make_inputs(problem, generator, torch)
    checked = {(0, 1), (problem.batch - 1, problem.heads - 2)}
    wanted = {(b, h): exact(problem, inputs, b, h, torch) for b, h in checked}
    entries, notes = {}, {}
    for label, make in makers(problem, inputs, runtime, flush, torch).items():
        if not any(label.startswith(name) for name in ("Attune", *peers)):
            continue
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            check(entry, wanted)
        except Exception as error:  # a peer that cannot do it takes no part
            print(f"{problem.key}: {label}: {str(error)[:200]}", file=sys.stderr)
            continue
        entries[label] = entry
        notes[label] = entry.notes
    return side_by_side.time_entries(entries, flush, torch)[0], notes


def table_row(problem, median, notes):
    def over(peer, ours):
        return f"{median[peer] / median[ours]:.2f}" if peer in median and ours in median else ""

    ours, paged = median.get("Attune"), median.get(IN_PAGES)
    return [problem.key, f"{ours:.1f}" if ours else "failed", f"{problem.bytes() / ours / 1e6:.2f}" if ours else "",
            *(over(peer, "Attune") for peer in ("Flex", "SDPA", "FA3")), f"{paged:.1f}" if paged else "",
            over("FlashInfer", IN_PAGES), over(FASTEST, IN_PAGES), notes.get(FASTEST, {}).get("way", ""),
            notes.get("Attune", {}).get("plan", "")]


def main():
    parser = row_bench.parser(__doc__)
    parser.add_argument("--peer", action="append", choices=PEERS, help="no other peer takes part; repeatable")
    arguments = parser.parse_args()
    chosen = row_bench.chosen(all_problems(), arguments)
    import torch
    runtime, flush, generator = row_bench.opened(arguments, SECONDS_A_PROBLEM, torch)
    rows = []
    for problem in chosen:
        rows.append(table_row(problem, *run(problem, runtime, flush, generator, arguments.peer or PEERS, torch)))
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    header = ["problem", "Attune us", "TB/s of live K and V", "Flex over ours", "SDPA over ours", "FA3 over ours",
              "Attune us, pages of 16", "FlashInfer over that, its plan() on the host not timed",
              "its fastest over that", "which is", "plan"]
    page.write_table(arguments.out, ROOT, torch, "bench/decode.py", header, rows)


if __name__ == "__main__":
    main()
