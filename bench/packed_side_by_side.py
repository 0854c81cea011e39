#!/usr/bin/env python3
"""Packed sequences, forward and backward: Attune beside FlashAttention-3's varlen functions, bf16, d 128, in
interleaved rounds with a cold L2. The documents' ends are drawn at random. Times are of all kernels of a pass, and a
backward pass is timed alone.

    python3 bench/packed_side_by_side.py --out packed.md
    python3 bench/packed_side_by_side.py --only "64 documents" --seed 7
    python3 bench/packed_side_by_side.py --list     # the documents' lengths; needs no GPU

Output and gradients of a K/V head, of all documents, are checked against float64 before anything is timed. Needs a CUDA
GPU, PyTorch 2.6 or newer, and libattune.so. FlashAttention-3 takes part where its package `flash_attn_interface` can be
imported. Attune runs the cost model's plans.
"""

import argparse
import dataclasses
import importlib.util
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import backward_side_by_side as backward  # noqa: E402
import contestants  # noqa: E402
import page  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD_DIM = 128
SCALE = HEAD_DIM**-0.5
ALLOWED = 0.02  # of a result's error in norm; two correct bf16 kernels are at a quarter of it


@dataclasses.dataclass(frozen=True)
class Row:
    documents: int
    tokens: int  # of all documents
    causal: bool = True
    heads: int = 16
    kv_heads: int = 16

    @property
    def key(self):
        return f"{self.documents} documents, {self.tokens} tokens, {self.head_names}, {self.mask}"

    @property
    def head_names(self):
        return f"{self.heads} heads" if self.heads == self.kv_heads else f"{self.heads} heads on {self.kv_heads}"

    @property
    def mask(self):
        return "causal" if self.causal else "none"

    @property
    def yaml(self):
        return (f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {HEAD_DIM}\nlayout: thd\n" +
                ("mask: causal\n" if self.causal else ""))

    def offsets(self, seed):
        """Where documents begin, and where the last one ends."""
        cuts = random.Random(seed).sample(range(1, self.tokens), self.documents - 1)
        return [0, *sorted(cuts), self.tokens]


ROWS = (Row(12, 8192), Row(12, 8192, causal=False), Row(64, 16384), Row(4, 16384), Row(12, 8192, heads=32, kv_heads=8),
        Row(12, 32768))


class Inputs:
    def __init__(self, row, seed, torch):
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(heads):
            size = (row.tokens, heads, HEAD_DIM)
            return torch.randn(size, generator=generator, device="cuda").to(torch.bfloat16)

        self.q, self.k, self.v, self.d_o = (normal(n) for n in (row.heads, row.kv_heads, row.kv_heads, row.heads))
        self.offsets = row.offsets(seed)
        self.longest = max(end - begin for begin, end in zip(self.offsets, self.offsets[1:]))
        self.cu = torch.tensor(self.offsets, dtype=torch.int32, device="cuda")

    def gradients(self, torch):
        """Room for them."""
        return [torch.full_like(t, float("nan")) for t in (self.q, self.k, self.v)]


class Attune:
    def __init__(self, runtime, row, inputs, torch):
        shape = attune_c.Shape(row.documents, row.heads, row.kv_heads, row.tokens, row.tokens)
        kernels = [runtime.kernel_from_yaml(row.yaml, shape, of_pass)
                   for of_pass in (attune_c.PASS_FORWARD, attune_c.PASS_BACKWARD)]
        o, grads = torch.full_like(inputs.q, float("nan")), inputs.gradients(torch)
        lse = torch.empty(row.heads, row.tokens, device="cuda", dtype=torch.float32)
        space = torch.empty(max(16, *(kernel.workspace_bytes for kernel in kernels)), dtype=torch.uint8, device="cuda")
        named = dict(q=inputs.q, k=inputs.k, v=inputs.v, o=o, lse=lse, workspace=space, cu_q=inputs.cu, cu_kv=inputs.cu)
        of_gradients = dict(d_o=inputs.d_o, d_q=grads[0], d_k=grads[1], d_v=grads[2])
        pointers = {name: t.data_ptr() for name, t in (named | of_gradients).items()}
        forward = kernels[0].bind(tensors={}, **{name: pointers[name] for name in named})
        backward_pass = kernels[1].bind_backward(pointers | {"workspace_bytes": space.numel()}, {})
        stream = lambda: torch.cuda.current_stream().cuda_stream
        self.forward = contestants.Entry(lambda: forward(stream()), lambda: o)
        self.backward = contestants.Entry(lambda: backward_pass(stream()), lambda: grads)
        self.keep = (kernels, named, of_gradients)
        self.plans = ", ".join(kernel.plan for kernel in kernels)


class FlashAttention3:
    def __init__(self, row, inputs, torch):
        import flash_attn_interface as fa
        operands = inputs.q, inputs.k, inputs.v
        packed = dict(cu_seqlens_q=inputs.cu, cu_seqlens_k=inputs.cu, max_seqlen_q=inputs.longest,
                      max_seqlen_k=inputs.longest, softmax_scale=SCALE)
        state, grads = {}, inputs.gradients(torch)

        def forward():
            state["o"], state["lse"], *_ = fa._flash_attn_forward(*operands, causal=row.causal, **packed)

        def backward_pass():
            fa._flash_attn_backward(inputs.d_o, *operands, state["o"], state["lse"], dq=grads[0], dk=grads[1],
                                    dv=grads[2], is_causal=row.causal, **packed)

        self.forward = contestants.Entry(forward, lambda: state["o"])
        self.backward = contestants.Entry(backward_pass, lambda: grads)


def of_head(row, tensor):
    """What belongs to the last K/V head, of a tensor of query or of K/V heads: [tokens, heads, dim]."""
    group = tensor.shape[1] // row.kv_heads
    return tensor[:, -group:]


def exact_document(row, q, k, v, d_o, torch):
    """Of the query heads of one K/V head, in float64: O, dQ, dK and dV."""
    leaves = [t.double().transpose(0, 1).requires_grad_(True) for t in (q, k, v)]
    scores = (leaves[0] @ leaves[1].transpose(1, 2)) * SCALE
    if row.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    o = torch.softmax(scores, -1) @ leaves[2]
    gradients = torch.autograd.grad(o, leaves, d_o.double().transpose(0, 1))
    return [t.detach().transpose(0, 1) for t in (o, *gradients)]


def exact(row, inputs, torch):
    """Of all documents."""
    tensors = [of_head(row, t) for t in (inputs.q, inputs.k, inputs.v, inputs.d_o)]
    documents = [exact_document(row, *(t[begin:end] for t in tensors), torch)
                 for begin, end in zip(inputs.offsets, inputs.offsets[1:])]
    return [torch.cat(parts) for parts in zip(*documents)]


def errors(row, contestant, wanted):
    """Of O and of the gradients, in norm; too large ones are an error."""
    mine = [of_head(row, t) for t in (contestant.forward.output(), *contestant.backward.output())]
    found = [backward.apart(mine[:1], wanted[:1]), backward.apart(mine[1:], wanted[1:])]
    if not all(each < ALLOWED for each in found):
        raise ValueError(f"errors of {found[0]:.1e} and {found[1]:.1e}")
    return found


def take_part(row, inputs, runtime, torch):
    """Who can do it, their errors, and why others cannot."""
    makers = {"Attune": lambda: Attune(runtime, row, inputs, torch)}
    if importlib.util.find_spec("flash_attn_interface"):
        makers["FA3"] = lambda: FlashAttention3(row, inputs, torch)
    wanted = exact(row, inputs, torch)
    made, off, notes = {}, {}, {}
    for name, make in makers.items():
        try:
            contestant = make()
            contestant.forward.launch()
            contestant.backward.launch()
            torch.cuda.synchronize()
            off[name] = errors(row, contestant, wanted)
            made[name] = contestant
        except Exception as error:  # a peer that cannot do it takes no part
            notes[name] = str(error).splitlines()[0][:60] if str(error) else type(error).__name__
    return made, off, notes


def cells(median, notes):
    """Attune's time, FlashAttention-3's, and that over ours."""
    ours, theirs = median.get("Attune"), median.get("FA3")
    return [f"{ours:.0f}" if ours else notes.get("Attune", ""), f"{theirs:.0f}" if theirs else notes.get("FA3", ""),
            f"{theirs / ours:.2f}" if ours and theirs else ""]


def measured(row, runtime, seed, flush, torch):
    """Its row of the table."""
    inputs = Inputs(row, seed, torch)
    made, off, notes = take_part(row, inputs, runtime, torch)
    table_row = [f"{row.documents}, {row.tokens}", row.head_names, row.mask]
    for of_pass in ("forward", "backward"):
        entries = {name: getattr(each, of_pass) for name, each in made.items()}
        table_row += cells(side_by_side.time_entries(entries, flush, torch)[0], notes)
    table_row.append("; ".join(f"{name} {o:.1e}, {gradients:.1e}" for name, (o, gradients) in off.items()))
    return table_row + [made["Attune"].plans if "Attune" in made else ""]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--cache", default="", help="Attune's cache file; default: none, the cost model's plans")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="of the documents' ends and the numbers; default: 1")
    parser.add_argument("--list", action="store_true", help="the rows and their documents' lengths, and stop")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def main():
    options = parse_arguments()
    chosen = [row for row in ROWS if not options.only or any(text in row.key for text in options.only)]
    if options.list:
        for row in chosen:
            offsets = row.offsets(options.seed)
            print(f"{row.key}:", *(end - begin for begin, end in zip(offsets, offsets[1:])))
        return
    import torch
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    runtime = attune_c.Library(options.library or attune_c.find_library(ROOT)).runtime("cuda:0", options.cache)
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    table = []
    for row in chosen:
        table.append(measured(row, runtime, options.seed, flush, torch))
        print("  ".join(table[-1]), file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    header = ["documents, tokens", "heads", "mask", "forward us", "FA3", "ratio", "backward us", "FA3", "ratio",
              "errors in norm: o, gradients", "plans"]
    page.write_table(options.out, ROOT, torch, "bench/packed_side_by_side.py", header, table)


if __name__ == "__main__":
    main()
