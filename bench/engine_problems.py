"""Steps as serving engines launch them all day, which bench/cliffs.py --survey steps times: chunks of prompts, chunks
beside single tokens, drafted tokens and plain decoding over a cache in pages. A fixed list; a seed draws lengths alone.
Needs no torch."""

import dataclasses
import math
import random

from serving_problems import FORWARD, Problem

HEADS = {"32/8": (32, 8, 128), "64/8": (64, 8, 128), "16/2": (16, 2, 128), "16/16": (16, 16, 64)}  # heads, K/V heads, dim


@dataclasses.dataclass(frozen=True)
class Step:
    kind: str
    heads: str
    page: int
    chunks: tuple = ()  # (queries, keys that were there before), or of `prompts` how many and the longest
    tokens: int = 0  # sequences with `each` queries beside them
    keys: tuple = (1024, 8192)  # of those, uniform; of `decode` lognormal between them
    each: int = 1
    rest: tuple = ()  # more members of Problem


STEPS = (
    Step("step fresh", "32/8", 16, ((512, 0),)),
    Step("step fresh", "64/8", 64, ((2048, 0),)),
    Step("step fresh", "32/8", 64, ((8192, 0),)),
    Step("step fresh", "16/2", 16, ((2048, 0),)),
    Step("step cached", "32/8", 64, ((512, 8192),)),
    Step("step cached", "32/8", 16, ((2048, 8192),)),
    Step("step cached", "64/8", 64, ((512, 32768),)),
    Step("step cached", "16/2", 64, ((2048, 32768),)),
    Step("step cached", "16/16", 16, ((2048, 8192),)),
    Step("step mixed", "32/8", 64, ((512, 0),), 31),
    Step("step mixed", "32/8", 16, ((2048, 2048),), 31),
    Step("step mixed", "64/8", 64, ((512, 8192),), 127),
    Step("step mixed", "32/8", 64, ((2048, 0),), 127),
    Step("step mixed", "16/2", 16, ((512, 4096),), 31),
    Step("step mixed", "16/16", 64, ((2048, 4096),), 127),
    Step("step mixed", "32/8", 64, ((512, 8192),), 31, rest=(("window", 1024),)),
    Step("step mixed", "64/8", 16, ((512, 2048), (1024, 0)), 62, rest=(("softcap", 30.0),)),
    Step("step prompts", "32/8", 64, (8, 4096)),
    Step("step prompts", "16/16", 16, (32, 1024)),
    Step("step drafted", "32/8", 64, tokens=32, keys=(4096, 16384), each=4),
    Step("step drafted", "64/8", 16, tokens=32, keys=(4096, 16384), each=8),
    Step("step drafted", "16/2", 64, tokens=32, keys=(4096, 16384), each=5),
    Step("step decode", "32/8", 16, tokens=64, keys=(200, 30000)),
    Step("step decode", "64/8", 64, tokens=128, keys=(200, 30000)),
    Step("step decode", "16/16", 16, tokens=32, keys=(200, 30000)),
    Step("step decode", "16/2", 64, tokens=256, keys=(200, 30000)),
)
SHARES = {step.kind: 0 for step in STEPS}  # kinds, as bench/cliffs.py knows problems by


def lognormal(least, most, middle, rng):
    return min(most, max(least, round(math.exp(rng.gauss(math.log(middle), 1)))))


def drawn(seed, number):
    """The `number`th step, with lengths of a seed; from the list's end on it begins again, with other lengths."""
    step, rng = STEPS[number % len(STEPS)], random.Random(f"steps {seed}/{number}")
    heads, kv_heads, dim = HEADS[step.heads]
    if step.kind == "step prompts":
        count, most = step.chunks
        sequences = [(n, n) for n in (lognormal(64, most, most / 4, rng) for _ in range(count))]
    else:
        sequences = [(queries, before + queries) for queries, before in step.chunks]
        for _ in range(step.tokens):
            keys = lognormal(*step.keys, 2500, rng) if step.kind == "step decode" else rng.randint(*step.keys)
            sequences.append((step.each, keys))
        rng.shuffle(sequences)
    queries, keys = zip(*sequences)
    spread = "lognormal" if step.kind in ("step prompts", "step decode") else "uniform"
    return Problem(step.kind, FORWARD, heads, kv_heads, dim, spread, queries, keys, page=step.page, number=number,
                   **dict(step.rest))
