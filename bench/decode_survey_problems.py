"""What bench/decode_survey.py times: one new token of each sequence on a cache. Needs no torch."""

import dataclasses
import math
import random

from serving_problems import FORWARD, Problem, spread_lengths

BATCHES = 1, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256
GROUPS = 1, 2, 3, 5, 6, 7, 8, 12, 16, 32, 4, 4, 4
KV_HEADS = 1, 2, 4, 8, 8, 8, 16, 32
DIMS = 64, 80, 96, 128, 128, 128, 192, 256
PAGES = -1, -1, 0, 1, 8, 16, 16, 32, 64, 64, 128, 256  # -1: dense; 0: packed
SPREADS = "equal", "equal", "uniform", "lognormal", "one long", "zeros"
LEAST_KEYS, MOST_KEYS = 200, 200_000  # but for a tenth of the problems, which are shorter
MOST_CACHE_ELEMENTS = 1 << 28  # of K
MOST_HEADS = 256
LAUNCH_US = 5  # of a launch that reads nothing


@dataclasses.dataclass(frozen=True)
class Decoding(Problem):
    cache: str = ""  # the dtype of K and V, where it is not that of Q
    always: int = 0  # keys before a window that are live, too
    dense: bool = False
    asked: float = 0.0  # at least so many times the speed of `over`
    over: str = ""  # the name of another row, or "bytes"
    name: str = ""

    @property
    def key(self):
        layout = "dense" if self.dense else f"pages of {self.page}" if self.page else "packed"
        most, least = max(self.keys), min(self.keys)
        said = [f"{self.batch} x {most}" if most == least else f"{self.batch} x {least}-{most} {self.spread}"]
        said += [f"h {self.heads}/{self.kv_heads}", f"d {self.dim}", self.dtype, *([self.cache] if self.cache else []), layout]
        said += [f"window {self.window}" + (f" and {self.always}" if self.always else "")] if self.window else []
        said += [f"softcap {self.softcap:.0f}"] if self.softcap else []
        said += ["sinks"] if self.sinks else []
        return ", ".join(said)

    @property
    def yaml(self):
        lines = [line for line in super().yaml.splitlines() if not (line.startswith("layout") and self.dense)]
        if self.always:
            lines = [f"mask: causal and (q_pos - kv_idx < {self.window} or kv_idx < {self.always})" if line.startswith("mask")
                     else line for line in lines]
        return "\n".join([*lines, *([f"kv_dtype: {self.cache}"] if self.cache else [])]) + "\n"

    @property
    def total(self):
        return (1, max(self.keys)) if self.dense else super().total

    @property
    def bytes(self):
        live = sum(min(n, self.window + self.always) if self.window else n for n in self.keys)
        return 2 * self.kv_heads * self.dim * ((1 if self.cache else 2) * live) + 4 * self.heads * self.dim * self.batch

    def bytes_us(self, bytes_per_us):
        """What reading the cache takes, and a launch that reads nothing."""
        return LAUNCH_US + self.bytes / bytes_per_us


def decoding(keys, group, kv_heads, dim, page, spread="equal", **more):
    return Decoding("decode", FORWARD, group * kv_heads, kv_heads, dim, spread, (1,) * len(keys), tuple(keys),
                    causal=more.pop("causal", False), page=max(page, 0), dense=page < 0, **more)


def drawn(seed, number):
    """The `number`th problem of a seed."""
    rng = random.Random(f"decode {seed}/{number}")
    while True:
        batch, group, kv_heads, dim, page = (rng.choice(of) for of in (BATCHES, GROUPS, KV_HEADS, DIMS, PAGES))
        least, longest = (1, LEAST_KEYS) if rng.random() < 0.1 else (LEAST_KEYS, MOST_KEYS)
        most = round(math.exp(rng.uniform(math.log(least), math.log(longest))))
        spread = "equal" if page < 0 or batch == 1 else rng.choice(SPREADS)
        keys = spread_lengths(spread, batch, most, rng)
        more = {"dtype": rng.choice(("bf16", "bf16", "fp16"))}
        if rng.random() < 0.2 and dim % 16 == 0:
            more["cache"] = "fp8_e4m3"
        if rng.random() < 0.15:
            more |= {"window": rng.choice((128, 1024, 4096)), "always": rng.choice((0, 4)), "causal": True}
        if rng.random() < 0.2:
            more |= rng.choice(({"softcap": 30.0}, {"sinks": True}))
        elements = sum(keys) * kv_heads * dim
        if 0 < elements <= MOST_CACHE_ELEMENTS and kv_heads * group <= MOST_HEADS:
            return decoding(keys, group, kv_heads, dim, page, spread, number=number, **more)


def asked():
    """The rows that targets were set for."""
    many = (8192,) * 64
    for dim in (64, 128, 256):
        for group in (1, 2, 3, 5, 8, 16):
            yield decoding(many, group, 8, dim, -1, asked=0.95, over="bytes", name=f"group {group}, d {dim}")
    yield decoding(many, 4, 8, 128, -1, asked=0.95, over="bytes", name="contiguous")
    yield decoding(many, 4, 8, 128, 0, asked=0.98, over="contiguous", name="packed")
    for page, ratio in ((64, 0.98), (16, 0.98), (1, 0.92)):
        yield decoding(many, 4, 8, 128, page, asked=ratio, over="contiguous", name=f"pages of {page}")
    for page in (0, 64, 16):
        yield decoding((131072,) + (1024,) * 63, 4, 8, 128, page, "one long", asked=0.9, over="bytes",
                       name=f"skewed, {'pages of %d' % page if page else 'packed'}")
    for page in (-1, 64):
        where = "dense" if page < 0 else f"pages of {page}"
        yield decoding((4100,), 4, 8, 128, page, name=f"4100 keys, {where}")
        yield decoding((131072,), 4, 8, 128, page, causal=True, window=4096, always=4, asked=1, over=f"4100 keys, {where}",
                       name=f"window 4096 of 131072 keys and 4, {where}")
    for page in (-1, 64):
        over = "contiguous" if page < 0 else f"pages of {page}"
        yield decoding(many, 4, 8, 128, page, cache="fp8_e4m3", asked=1.7, over=over, name=f"fp8, {over}")
