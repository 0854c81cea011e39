"""Problems off the beaten road, drawn from a seed: what bench/cliffs.py times. Needs no torch; masks and scores work on
whatever indexable integers they are given."""

import dataclasses
import math
import random
from typing import Callable, Optional

FORWARD, BACKWARD = "forward", "backward"
MOST_FLOPS = {FORWARD: 1.2e12, BACKWARD: 0.5e12}  # of two products: a few milliseconds
MOST_ELEMENTS = 1 << 28  # of Q or K

BATCHES = 1, 1, 2, 3, 4, 8, 16, 32, 64
HEADS = 1, 2, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 64
DIMS = 16, 32, 40, 64, 64, 64, 72, 80, 96, 112, 128, 128, 128, 160, 192, 256, (192, 128)
LENGTHS = (1, 17, 64, 77, 100, 128, 197, 256, 257, 384, 500, 577, 729, 1000, 1024, 1025, 1500, 2048, 3000, 4096, 4097,
           6000, 8192, 16384, 32768, 65536)
LAYOUTS = "bshd", "bshd", "bhsd", "qkv"  # qkv: slices of one [batch, seq, 3, heads, dim]


@dataclasses.dataclass(frozen=True)
class Problem:
    kind: str
    of_pass: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dim: int
    dim_v: int
    dtype: str = "bf16"
    layout: str = "bshd"
    mask: str = "none"  # a key of MASKS
    score: str = "none"  # a key of SCORES
    dropout: float = 0.0
    lengths: tuple = ()  # of packed sequences
    number: int = -1

    @property
    def key(self):
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        dims = f"{self.dim}" if self.dim == self.dim_v else f"{self.dim}/{self.dim_v}"
        shape = f"{self.batch} x {self.q_len}" + (f" on {self.kv_len}" if self.q_len != self.kv_len else "")
        if self.lengths:
            shape = f"{self.batch} packed, {min(self.lengths)} to {max(self.lengths)}"
        said = [text for text in (self.mask, self.score) if text != "none"]
        return ", ".join([self.kind, self.of_pass, shape, f"h {heads}", f"d {dims}", self.dtype, self.layout, *said] +
                         ([f"dropout {self.dropout}"] if self.dropout else []))

    @property
    def total(self):
        """Queries and keys of all sequences, as a launch's shape has them."""
        tokens = sum(self.lengths)
        return (tokens, tokens) if self.lengths else (self.q_len, self.kv_len)

    @property
    def yaml(self):
        mask, score = MASKS[self.mask], SCORES[self.score]
        lines = ["attune: 1", "name: cliff", f"dtype: {self.dtype}", f"head_dim: {{qk: {self.dim}, v: {self.dim_v}}}"]
        lines += ["layout: thd"] if self.lengths else []
        lines += ["tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=1024)}}"] if mask.doc else []
        lines += [f"mask: {mask.text}"] if mask.text else []
        lines += [f"score: {score.text.format(heads=self.heads)}"] if score.text else []
        lines += [f"dropout: {self.dropout}"] if self.dropout else []
        return "\n".join(lines) + "\n"

    @property
    def is_dense(self):
        """What scaled_dot_product_attention can say."""
        return self.mask in ("none", "causal") and self.score == "none" and not self.lengths

    @property
    def flops(self):
        """Of the pass, with all pairs, half of them where causal."""
        pairs = sum(n * n for n in self.lengths) if self.lengths else self.batch * self.q_len * self.kv_len
        if "causal" in self.mask or self.mask.startswith("window"):
            pairs *= 0.5 if self.q_len == self.kv_len else 1 - 0.5 * min(1, self.q_len / self.kv_len)
        products = (1, 1) if self.of_pass == FORWARD else (3, 2)
        return 2 * self.heads * pairs * (products[0] * self.dim + products[1] * self.dim_v)

    @property
    def bytes(self):
        """Of Q, K, V and O, or of gradients and what they are made of."""
        (queries, keys), batch = self.total, 1 if self.lengths else self.batch
        dims = self.dim + self.dim_v
        moved = (4 if self.dtype == "fp32" else 2) * batch * dims * (self.heads * queries + self.kv_heads * keys)
        return moved * (1 if self.of_pass == FORWARD else 2)


@dataclasses.dataclass(frozen=True)
class Mask:
    text: str = ""
    says: Optional[Callable] = None  # (b, q position, kv_idx, doc) -> bool
    doc: bool = False
    window: int = 0


@dataclasses.dataclass(frozen=True)
class Score:
    text: str = ""
    says: Optional[Callable] = None  # (score, h, q position, kv_idx, heads) -> score


def window(width):
    return Mask(f"causal and q_pos - kv_idx < {width}", lambda b, q, k, doc: (q >= k) & (q - k < width), window=width)


MASKS = {
    "none": Mask(),
    "causal": Mask("causal", lambda b, q, k, doc: q >= k),
    "window128": window(128),
    "window512": window(512),
    "window4096": window(4096),
    "sinks": Mask("causal and (q_pos - kv_idx < 1024 or kv_idx < 4)",
                  lambda b, q, k, doc: (q >= k) & ((q - k < 1024) | (k < 4))),
    "prefix": Mask("kv_idx < 300 or causal", lambda b, q, k, doc: (k < 300) | (q >= k)),
    "documents": Mask("doc[b, q_idx] == doc[b, kv_idx]", lambda b, q, k, doc: doc[b, q] == doc[b, k], doc=True),
    "causal documents": Mask("causal and doc[b, q_idx] == doc[b, kv_idx]",
                             lambda b, q, k, doc: (q >= k) & (doc[b, q] == doc[b, k]), doc=True),
}
SCORES = {
    "none": Score(),
    "softcap": Score("30 * tanh(score / 30)", lambda s, h, q, k, heads: 30 * (s / 30).tanh()),
    "ALiBi": Score("score + (kv_idx - q_pos) * exp2(-(h + 1) * 8 / {heads})",
                   lambda s, h, q, k, heads: s + (k - q) * (-(h + 1) * (8 / heads)).exp2()),
}

# What models call: (name, batch, heads, kv_heads, q_len, kv_len, dim, dim_v, mask)
MODELS = (
    ("SD 1.5", 2, 8, 8, 4096, 4096, 40, 40, "none"), ("SD 1.5", 2, 8, 8, 1024, 1024, 80, 80, "none"),
    ("SD 1.5", 2, 8, 8, 256, 256, 160, 160, "none"), ("SD 1.5", 2, 8, 8, 4096, 77, 40, 40, "none"),
    ("SDXL", 2, 10, 10, 4096, 4096, 64, 64, "none"), ("SDXL", 2, 10, 10, 4096, 77, 64, 64, "none"),
    ("SDXL", 2, 20, 20, 1024, 1024, 64, 64, "none"), ("SDXL", 2, 20, 20, 1024, 77, 64, 64, "none"),
    ("Flux", 1, 24, 24, 4608, 4608, 128, 128, "none"), ("DiT-XL", 32, 16, 16, 256, 256, 72, 72, "none"),
    ("ViT-B", 64, 12, 12, 197, 197, 64, 64, "none"), ("ViT-L", 32, 16, 16, 257, 257, 64, 64, "none"),
    ("ViT-H", 16, 16, 16, 257, 257, 80, 80, "none"), ("SigLIP", 16, 16, 16, 729, 729, 72, 72, "none"),
    ("Swin", 64, 24, 24, 49, 49, 32, 32, "none"), ("Whisper", 4, 20, 20, 1500, 1500, 64, 64, "none"),
    ("Whisper", 8, 20, 20, 1, 1500, 64, 64, "none"), ("Whisper", 8, 20, 20, 448, 1500, 64, 64, "none"),
    ("BERT", 32, 12, 12, 128, 128, 64, 64, "none"), ("BERT", 8, 16, 16, 512, 512, 64, 64, "none"),
    ("GPT-2", 8, 12, 12, 1024, 1024, 64, 64, "causal"), ("Qwen2.5 7B", 1, 28, 4, 4096, 4096, 128, 128, "causal"),
    ("Phi-3", 1, 32, 32, 2048, 2048, 96, 96, "causal"), ("Falcon 7B", 1, 71, 1, 2048, 2048, 64, 64, "causal"),
    ("Gemma 2", 1, 8, 4, 4096, 4096, 256, 256, "causal"), ("DeepSeek", 1, 16, 16, 4096, 4096, 192, 128, "causal"),
    ("Perceiver", 4, 8, 8, 512, 8192, 96, 96, "none"), ("Q-Former", 16, 12, 12, 32, 257, 64, 64, "none"),
    ("Llama 3 8B", 1, 32, 8, 500, 500, 128, 128, "causal"), ("Llama 3 8B", 1, 32, 8, 512, 8192, 128, 128, "causal"))


def dims_of(rng):
    dim = rng.choice(DIMS)
    return dim if isinstance(dim, tuple) else (dim, dim)


def heads_of(rng):
    heads = rng.choice(HEADS)
    groups = [g for g in range(1, heads + 1) if heads % g == 0]
    group = rng.choice(groups) if rng.random() < 0.5 else 1
    return heads, heads // group


def of_kind(kind, of_pass, rng):
    """A problem, which may be too large."""
    batch, (heads, kv_heads), (dim, dim_v) = rng.choice(BATCHES), heads_of(rng), dims_of(rng)
    q_len = kv_len = rng.choice(LENGTHS)
    rest = {"dtype": rng.choice(("bf16", "bf16", "bf16", "fp16")), "layout": rng.choice(LAYOUTS)}
    rest["mask"] = rng.choice(("none", "causal"))
    if kind == "cross":
        kv_len, rest["mask"] = rng.choice((1, 16, 77, 154, 226, 257, 512, 1500, 4096, 16384)), "none"
    elif kind == "chunk":
        q_len, kv_len, rest["mask"] = rng.choice((65, 100, 128, 256, 500, 512, 1024, 2048)), max(q_len, 4096), "causal"
    elif kind == "decode":
        q_len, kv_len = rng.choice((1, 1, 1, 1, 2, 4, 5, 8, 16, 33, 64)), rng.choice((130, 1000, 1500, 4096, 8192, 32768,
                                                                                   100_000))
    elif kind in ("mask", "score", "masked decode"):
        q_len = kv_len = rng.choice((300, 1000, 1024, 2048, 4096, 5000, 8192, 16384))
        rest["mask"] = rng.choice([name for name in MASKS if name not in ("none", "causal") and
                                   (kind == "mask" or not MASKS[name].doc)])
        if kind == "score":
            rest |= {"mask": rng.choice(("none", "causal")), "score": rng.choice(("softcap", "ALiBi"))}
        if kind == "masked decode":
            q_len, rest["score"] = rng.choice((1, 1, 4, 16)), rng.choice(tuple(SCORES))
    elif kind == "dropout":
        rest["dropout"] = rng.choice((0.1, 0.2))
    elif kind == "packed":
        most = rng.choice((64, 257, 512, 1000, 2000, 4096, 8192))
        rest |= {"lengths": tuple(rng.randint(1, most) for _ in range(batch)), "layout": "bshd"}
        q_len = kv_len = max(rest["lengths"])
    elif kind == "sm80":
        rest["layout"] = "bshd"  # its heads from the last to the first
    elif kind == "fp32":
        rest["dtype"] = "fp32"
    elif kind == "model":
        name, batch, heads, kv_heads, q_len, kv_len, dim, dim_v, rest["mask"] = rng.choice(MODELS)
        kind, rest["dtype"] = name, "bf16"
    if rest["layout"] == "qkv" and (q_len != kv_len or dim != dim_v or heads != kv_heads):
        rest["layout"] = "bshd"
    return Problem(kind, of_pass, batch, heads, kv_heads, q_len, kv_len, dim, dim_v, **rest)


def fits(problem):
    queries, keys = problem.total
    batch = 1 if problem.lengths else problem.batch
    elements = batch * max(queries * problem.heads, keys * problem.kv_heads) * max(problem.dim, problem.dim_v)
    pairs = sum(n * n for n in problem.lengths) if problem.lengths else batch * queries * keys
    flops = 2 * problem.heads * pairs * (problem.dim + problem.dim_v)
    limit = MOST_FLOPS[problem.of_pass] / (8 if problem.dtype == "fp32" else 1)
    return elements <= MOST_ELEMENTS and flops <= limit


# How many of each hundred. A kind without a backward pass here has none in BACKWARD_SHARE.
SHARES = {"self": 22, "model": 20, "cross": 8, "chunk": 6, "decode": 10, "mask": 8, "score": 4, "masked decode": 3,
          "dropout": 4, "packed": 5, "sm80": 6, "fp32": 4}
BACKWARD_SHARE = {"self": 0.4, "model": 0.4, "cross": 0.4, "chunk": 0.3, "mask": 0.4, "score": 0.4, "dropout": 0.5}


def drawn(seed, number):
    """The `number`th problem of a seed."""
    return draw(random.Random(f"{seed}/{number}"), number, SHARES, BACKWARD_SHARE, of_kind, fits)


def draw(rng, number, shares, backward_share, of_kind, fits):
    """A problem of a survey: of kinds by their shares, the first one that fits."""
    kind = rng.choices(tuple(shares), tuple(shares.values()))[0]
    of_pass = BACKWARD if rng.random() < backward_share.get(kind, 0) else FORWARD
    while True:
        problem = of_kind(kind, of_pass, rng)
        if fits(problem):
            return dataclasses.replace(problem, number=number)



def default_scale(problem):
    return 1 / math.sqrt(problem.dim)
