#!/usr/bin/env python3
"""A training step of a small decoder on attune.torch.flex_attention, beside the same on torch's compiled
flex_attention: 12 layers, 16 heads of 128 or as many as are asked for, 8192 tokens in documents, bf16. Attune's step has dropout in its attention,
torch's cannot. The documents are the same at every step, or new ones, for which everyone makes a mask.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/training_step.py
    ... python3 bench/training_step.py --heads 16 --heads 8 --heads 4

Before, all learn the same batches without dropout from the same weights, of new documents at every step: their losses
lie beside one another in what is printed. Needs a CUDA GPU, PyTorch 2.6 or newer with Triton. FlexAttention's FLASH
backend takes part where flash-attn-4 is installed.
"""

import argparse
import importlib.util
import os
import sys
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="attune-bench-")
os.environ.setdefault("ATTUNE_CACHE", os.path.join(_folder.name, "attune.db"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

import attune.torch as at  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS, DIM, TOKENS, VOCABULARY = 12, 128, 8192, 4096
DROPOUT = 0.1


class OnAttune:
    dropout = 0.0

    def see(self, documents):
        """Makes the mask."""
        self.mask = at.create_block_mask(documents, 1, None, TOKENS, TOKENS)

    def __call__(self, q, k, v):
        return at.flex_attention(
            q, k, v, None, self.mask, dropout=self.dropout, strict=True
        )


class OnTorch:
    """On the backend that it takes when none is named: Triton."""

    options = None

    def __init__(self):
        self.compiled = torch.compile(torch_flex.flex_attention, dynamic=False)
        self.compiled_mask = torch.compile(torch_flex.create_block_mask, dynamic=False)

    def see(self, documents):
        self.mask = self.compiled_mask(
            documents, 1, None, TOKENS, TOKENS, device="cuda"
        )

    def __call__(self, q, k, v):
        return self.compiled(q, k, v, None, self.mask, kernel_options=self.options)


class OnFlash(OnTorch):
    """The same on FlashAttention-4."""

    options = {"BACKEND": "FLASH"}


def kinds():
    found = {"Attune": OnAttune, "Flex": OnTorch}
    if importlib.util.find_spec("flash_attn"):
        found["Flash"] = OnFlash
    return found


class Block(nn.Module):
    def __init__(self, heads):
        super().__init__()
        width = heads * DIM
        self.heads = heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x, attend):
        q, k, v = (
            self.qkv(self.before_attention(x))
            .view(1, TOKENS, 3, self.heads, DIM)
            .permute(2, 0, 3, 1, 4)
        )
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Decoder(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, heads * DIM)
        self.blocks = nn.ModuleList(Block(heads) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(heads * DIM)
        for matrix in (each for each in self.parameters() if each.dim() == 2):
            nn.init.normal_(matrix, std=0.02)

    def forward(self, tokens, attend):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, attend)
        return self.norm(x) @ self.embedding.weight.T


def documents_of(generator):
    cuts = torch.randperm(TOKENS - 1, generator=generator, device="cuda")[:11] + 1
    starts = torch.zeros(TOKENS, dtype=torch.int32, device="cuda")
    starts[cuts] = 1
    doc = starts.cumsum(0, dtype=torch.int32)[None]
    return lambda b, h, i, j: (doc[b, i] == doc[b, j]) & (i >= j)


class Trainer:
    def __init__(self, attend, seed, heads):
        torch.manual_seed(seed)
        self.attend, self.model = (
            attend,
            Decoder(heads).to(device="cuda", dtype=torch.bfloat16),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, tokens, documents=None):
        """`documents`: new ones."""
        if documents is not None:
            self.attend.see(documents)
        logits = self.model(tokens, self.attend)
        loss = F.cross_entropy(logits[0, :-1].float(), tokens[0, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def make_batches(steps, generator):
    """Tokens that depend on the one before: there is something to learn."""
    first = torch.randint(VOCABULARY, (steps, 1), generator=generator, device="cuda")
    change = torch.randint(3, (steps, TOKENS), generator=generator, device="cuda")
    return (first + change.cumsum(1)) % VOCABULARY


def learn(batches, documents, seed, heads):
    """Who can do it, and their losses."""
    trainers, losses = {}, {}
    for name, kind in kinds().items():
        try:
            trainer = Trainer(kind(), seed, heads)
            losses[name] = [
                trainer.step(batch[None], of_step).item()
                for batch, of_step in zip(batches, documents, strict=True)
            ]
            trainers[name] = trainer
        except Exception as error:  # a peer that cannot do it takes no part
            if kind is not OnFlash:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"without {name}: {reason}", file=sys.stderr)
    return trainers, losses


def check(losses, steps, heads):
    for name, values in losses.items():
        shown = " ".join(f"{value:.3f}" for value in values[:: max(1, steps // 10)])
        print(f"{heads} heads, loss {name:7}", shown, file=sys.stderr)
    apart = max(max(each) - min(each) for each in zip(*losses.values(), strict=True))
    print(f"losses lie {apart:.4f} apart at most, of {steps} steps", file=sys.stderr)
    if not apart < 0.05:
        sys.exit("they should lie closer: nothing is timed")


def step_ms(trainers, batch, documents):
    """The median of each, in turn with the others. `documents`: of a step before and of the timed one, by round."""
    times = {name: [] for name in trainers}
    for before, timed in documents:
        for name, each in trainers.items():
            each.step(batch, before)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            each.step(batch, timed)
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end))
    return {name: problems.median(each) for name, each in times.items()}


def table_row(variant, median, names):
    row = [variant, f"{median['Attune']:.1f}"]
    for name in names:
        known = name in median
        row.append(f"{median[name]:.1f}" if known else "")
        row.append(f"{median[name] / median['Attune']:.2f}" if known else "")
    return row


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="to compare losses over")
    parser.add_argument("--rounds", type=int, default=7, help="of a step each, in turn")
    parser.add_argument("--heads", type=int, action="append", metavar="N", help="of a layer, default 16; repeatable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def rows_of(heads, options, generator, names):
    batches = make_batches(options.steps, generator)
    documents = [documents_of(generator) for _ in range(options.steps)]
    trainers, losses = learn(batches, documents, options.seed, heads)
    check(losses, options.steps, heads)
    trainers["Attune"].attend.dropout = DROPOUT
    new = [
        [documents_of(generator) for _ in range(2)] for _ in range(options.rounds)
    ]
    variants = {
        "the same documents": [(None, None)] * options.rounds,
        "new documents at every step": new,
    }
    return [
        table_row(f"{heads} heads, {variant}", step_ms(trainers, batches[:1], each), names)
        for variant, each in variants.items()
    ]


def main():
    options = parse_arguments()
    generator = torch.Generator("cuda").manual_seed(options.seed)
    names = [name for name in kinds() if name != "Attune"]
    table = [row for heads in options.heads or [16] for row in rows_of(heads, options, generator, names)]
    header = ["a step", f"Attune ms, with dropout {DROPOUT}"]
    for name in names:
        header += [f"{name} ms, without", "over Attune's"]
    page.write_table(options.out, ROOT, torch, "bench/training_step.py", header, table)


if __name__ == "__main__":
    main()
