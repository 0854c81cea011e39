#!/usr/bin/env python3
"""A training step of a small decoder on attune.torch.flex_attention, beside the same on torch's compiled flex_attention:
12 layers, 16 heads of 128, 8192 tokens in documents, bf16. Attune's step has dropout in its attention, torch's cannot.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/training_step.py

Before, both learn the same batches without dropout from the same weights: their losses lie beside one another in what is
printed. Needs a CUDA GPU, PyTorch 2.6 or newer with Triton.
"""

import argparse
import os
import sys
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="attune-bench-")
os.environ.setdefault("ATTUNE_CACHE", os.path.join(_folder.name, "attune.db"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

import attune.torch as at  # noqa: E402

LAYERS, HEADS, DIM, TOKENS, VOCABULARY = 12, 16, 128, 8192, 4096
WIDTH = HEADS * DIM
DROPOUT = 0.1


class OnAttune:
    dropout = 0.0

    def __init__(self, documents):
        self.mask = at.create_block_mask(documents, 1, None, TOKENS, TOKENS)

    def __call__(self, q, k, v):
        return at.flex_attention(
            q, k, v, None, self.mask, dropout=self.dropout, strict=True
        )


class OnTorch:
    def __init__(self, documents):
        self.mask = torch_flex.create_block_mask(
            documents, 1, None, TOKENS, TOKENS, device="cuda"
        )
        self.compiled = torch.compile(torch_flex.flex_attention, dynamic=False)

    def __call__(self, q, k, v):
        return self.compiled(q, k, v, None, self.mask)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.up, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x, attend):
        q, k, v = (
            self.qkv(self.before_attention(x))
            .view(1, TOKENS, 3, HEADS, DIM)
            .permute(2, 0, 3, 1, 4)
        )
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(1, TOKENS, WIDTH))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
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
    def __init__(self, attend, seed):
        torch.manual_seed(seed)
        self.attend, self.model = (
            attend,
            Decoder().to(device="cuda", dtype=torch.bfloat16),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, tokens):
        logits = self.model(tokens, self.attend)
        loss = F.cross_entropy(logits[0, :-1].float(), tokens[0, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="to compare losses over")
    parser.add_argument("--rounds", type=int, default=7, help="of a step each, in turn")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    generator = torch.Generator("cuda").manual_seed(options.seed)
    documents = documents_of(generator)
    trainers = {
        "Attune": Trainer(OnAttune(documents), options.seed),
        "Flex": Trainer(OnTorch(documents), options.seed),
    }
    # Tokens that depend on the one before: there is something to learn.
    first = torch.randint(
        VOCABULARY, (options.steps, 1), generator=generator, device="cuda"
    )
    steps = torch.randint(
        3, (options.steps, TOKENS), generator=generator, device="cuda"
    )
    batches = (first + steps.cumsum(1)) % VOCABULARY
    losses = {
        name: [each.step(batch[None]).item() for batch in batches]
        for name, each in trainers.items()
    }
    apart = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    for name, values in losses.items():
        print(
            f"loss {name:7}",
            " ".join(
                f"{value:.3f}" for value in values[:: max(1, options.steps // 10)]
            ),
        )
    print(f"losses lie {apart:.4f} apart at most, over {options.steps} steps")
    if not apart < 0.05:
        sys.exit("they should lie closer: nothing is timed")
    trainers["Attune"].attend.dropout = DROPOUT
    times = {name: [] for name in trainers}
    for _ in range(options.rounds):
        for name, each in trainers.items():
            each.step(batches[:1])
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            each.step(batches[:1])
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end))
    median = {name: sorted(each)[len(each) // 2] for name, each in times.items()}
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: a step takes {median['Attune']:.1f} ms with "
        f"dropout {DROPOUT}, torch's {median['Flex']:.1f} ms without: {median['Flex'] / median['Attune']:.2f}"
    )


if __name__ == "__main__":
    main()
