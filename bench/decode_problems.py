"""What bench/decode.py and bench/launches.py decode: a few queries of each sequence on many keys."""

import dataclasses


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


def sequences_of(problem, inputs):
    """Of K and of V: what cache_pages.in_pages takes."""
    return [[of_sequence(problem, x, b).transpose(0, 1) for b in range(problem.batch)] for x in (inputs.k, inputs.v)]


def yaml(problem):
    return f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {problem.head_dim}\n{VARIANTS[problem.name][0]}\n"


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
