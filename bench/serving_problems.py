"""Serving off the beaten road, drawn from a seed: packed sequences and caches in pages, of lengths that differ, which
bench/cliffs.py --survey serving times. Needs no torch."""

import dataclasses
import math
import random

from cliff_problems import BACKWARD, FORWARD, draw

MOST_FLOPS = {FORWARD: 0.6e12, BACKWARD: 0.4e12}
MOST_CACHE_ELEMENTS = 1 << 29  # of K
MOST_QUERY_ELEMENTS = 1 << 27

BATCHES = 1, 2, 4, 8, 16, 32, 64, 128, 256
KV_HEADS = 1, 2, 4, 8, 8, 8, 16, 32
GROUPS = 1, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 12, 16
MOST_HEADS = 128
DIMS = 64, 64, 80, 96, 128, 128, 128, 128, 192, 256
MOST_KEYS = 256, 1000, 2048, 4096, 8192, 8192, 16384, 32768, 131072
MOST_TOKENS = 257, 512, 1000, 2048, 4096, 8192  # of a prompt
CHUNKS = 64, 100, 128, 256, 512, 1000, 1024, 2048
PAGES = 1, 16, 16, 32, 64, 64, 128, 256
SPREADS = "equal", "uniform", "lognormal", "one long", "zeros"


@dataclasses.dataclass(frozen=True)
class Problem:
    kind: str  # a key of SHARES: layout and queries
    of_pass: str
    heads: int
    kv_heads: int
    dim: int
    spread: str
    queries: tuple  # of each sequence
    keys: tuple
    dtype: str = "bf16"
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    page: int = 0  # rows of a page; 0: packed
    number: int = -1
    dropout = 0.0  # of none of them

    @property
    def batch(self):
        return len(self.keys)

    @property
    def is_equal(self):
        """Whether the sequences are a dense batch, too."""
        return len(set(self.keys)) == 1 and len(set(self.queries)) == 1 and min(self.keys) > 0

    @property
    def is_plain(self):
        """What libraries without expressions can say."""
        return not self.softcap and not self.sinks

    @property
    def key(self):
        def told(lengths):
            return f"{min(lengths)}" if len(set(lengths)) == 1 else f"{min(lengths)}-{max(lengths)}"

        mask = f"window {self.window}" if self.window else "causal" if self.causal else "none"
        said = [f"softcap {self.softcap:.0f}"] if self.softcap else []
        said += ["sinks"] if self.sinks else []
        said += [f"pages of {self.page}"] if self.page else []
        shape = f"{self.batch} x {told(self.queries)} on {told(self.keys)} {self.spread}, {sum(self.queries)} on {sum(self.keys)}"
        return ", ".join([self.kind, self.of_pass, shape, f"h {self.heads}/{self.kv_heads}", f"d {self.dim}", self.dtype, mask,
                          *said])

    @property
    def yaml(self):
        lines = ["attune: 1", "name: cliff", f"dtype: {self.dtype}", f"head_dim: {self.dim}"]
        lines += [f"layout: {'paged' if self.page else 'thd'}"]
        lines += ["tensors: {sinks: {dtype: float32, dims: [heads]}}"] if self.sinks else []
        lines += [f"mask: causal and q_pos - kv_idx < {self.window}"] if self.window else ["mask: causal"] if self.causal else []
        lines += [f"score: {self.softcap} * tanh(score / {self.softcap})"] if self.softcap else []
        lines += ["sink: sinks[h]"] if self.sinks else []
        return "\n".join(lines) + "\n"

    @property
    def total(self):
        """Queries and keys that a launch's shape says: of all sequences, or in pages the most keys of one."""
        return sum(self.queries), max(self.keys) if self.page else sum(self.keys)

    @property
    def flops(self):
        pairs = sum(live_pairs(q, k, self) for q, k in zip(self.queries, self.keys))
        return 2 * self.heads * pairs * 2 * self.dim * (1 if self.of_pass == FORWARD else 2.5)

    @property
    def bytes(self):
        """That a pass moves at least: K and V, as far as a mask leaves them, Q and O; of gradients twice as much."""
        keys = sum(min(k, self.window + q) if self.window and q else k if q else 0 for q, k in zip(self.queries, self.keys))
        moved = 2 * 2 * self.dim * (self.kv_heads * keys + self.heads * sum(self.queries))
        return moved * (1 if self.of_pass == FORWARD else 2)


def live_pairs(queries, keys, problem):
    """Of one sequence, nearly."""
    if not problem.causal or not queries or not keys:
        return queries * keys
    if problem.window:
        return queries * min(problem.window, keys)
    first = max(keys - queries, 0)
    return queries * (first + keys) / 2 if keys > 1 else queries


def spread_lengths(spread, count, most, rng):
    """Of so many sequences."""
    if spread == "equal":
        return [most] * count
    if spread == "lognormal":
        return [min(most, max(1, round(math.exp(rng.gauss(math.log(most / 4), 1))))) for _ in range(count)]
    if spread == "one long":
        others = [rng.randint(max(most // 128, 1), max(most // 32, 1)) for _ in range(count - 1)]
        place = rng.randrange(count)
        return others[:place] + [most] + others[place:]
    lengths = [rng.randint(1, most) for _ in range(count)]
    if spread == "zeros":  # as the rows of a captured graph that no request has
        lengths = [0 if rng.random() < 0.25 else n for n in lengths]
    return lengths


def queries_of(work, keys, rng):
    if work == "self":
        return keys
    if work == "decode":
        return [1] * len(keys)
    if work == "few":
        few = rng.choice((2, 3, 4, 5, 8, 16))
        return [min(few, max(n, 1)) for n in keys]
    chunk = rng.choice(CHUNKS)
    if work == "chunk":
        return [min(chunk, n) for n in keys]
    chunks = set(rng.sample(range(len(keys)), min(len(keys), rng.choice((1, 1, 2)))))  # beside single tokens
    return [min(chunk, n) if i in chunks else 1 for i, n in enumerate(keys)]


def of_kind(kind, of_pass, rng):
    """A problem, which may be too large or empty."""
    layout, work = kind.split(" ")
    spread = rng.choice(SPREADS)
    kv_heads, group = rng.choice(KV_HEADS), rng.choice(GROUPS)
    batch = rng.choice(BATCHES[1:] if work == "mixed" or spread == "one long" else BATCHES)
    keys = spread_lengths(spread, batch, rng.choice(MOST_TOKENS if work == "self" else MOST_KEYS), rng)
    rest = {"dtype": rng.choice(("bf16", "bf16", "bf16", "fp16")), "page": rng.choice(PAGES) if layout == "paged" else 0}
    rest["causal"] = work != "self" or rng.random() < 0.75
    if rest["causal"] and rng.random() < 0.15:
        rest["window"] = rng.choice((128, 512, 4096))
    if of_pass == FORWARD and rng.random() < 0.16:
        rest |= rng.choice(({"softcap": 30.0}, {"sinks": True}))
    return Problem(kind, of_pass, kv_heads * group, kv_heads, rng.choice(DIMS), spread,
                   tuple(queries_of(work, keys, rng)), tuple(keys), **rest)


def fits(problem):
    return (sum(problem.keys) > 0 and problem.heads <= MOST_HEADS and problem.flops <= MOST_FLOPS[problem.of_pass] and
            sum(problem.keys) * problem.kv_heads * problem.dim <= MOST_CACHE_ELEMENTS and
            sum(problem.queries) * problem.heads * problem.dim <= MOST_QUERY_ELEMENTS)


# How many of each hundred: the layout, and what queries are beside keys. `mixed`: a chunk or two beside single tokens.
SHARES = {"paged decode": 22, "paged few": 10, "paged chunk": 9, "paged mixed": 15, "varlen decode": 8, "varlen few": 5,
          "varlen chunk": 7, "varlen mixed": 6, "varlen self": 18}
BACKWARD_SHARE = {"varlen self": 0.5}


def drawn(seed, number):
    """The `number`th problem of a seed."""
    return draw(random.Random(f"serving {seed}/{number}"), number, SHARES, BACKWARD_SHARE, of_kind, fits)
