"""The problems of the side-by-side benchmark: shapes, masks and scores. Needs no torch; masks and scores
work on whatever indexable integers they are given."""

import dataclasses
import math
from typing import Callable, Optional

TOKENS = 16384
SEQS = (512, 1024, 2048, 4096, 8192, 16384)
HEADS = {64: 32, 128: 16, 256: 8}
# (of Q and K, of V) -> heads: whole, and as near as can be to the 2048 columns of HEADS
OTHER_HEADS = {(80, 80): 26, (96, 96): 21, (192, 192): 11, (192, 128): 13}
OTHER_SEQS = (2048, 8192, 16384)


@dataclasses.dataclass(frozen=True)
class Problem:
    section: str  # "forward", "dims", "custom" or "dropout"
    name: str
    spec: str  # below the repository's root
    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: bool = False
    # (b, h, q_idx, kv_idx, tensors) -> bool; None: all keys are live
    mask: Optional[Callable] = None
    # (score, b, h, q_idx, kv_idx) -> float
    score: Optional[Callable] = None
    tensors: tuple = ()  # names, each made by side_by_side.make_tensor
    dropout: float = 0.0
    value_dim: Optional[int] = None  # of V and O, where it is not head_dim

    @property
    def head_dim_v(self):
        return self.value_dim or self.head_dim

    @property
    def key(self):
        dims = f"{self.head_dim}_{self.value_dim}" if self.value_dim else self.head_dim
        return f"{self.section}/{self.name}/d{dims}/s{self.seq}"


def flops(problem, live_elements):
    """Multiplications and additions of both matrix products over `live_elements` pairs of one head and
    batch entry on average."""
    return 2 * problem.batch * problem.heads * (problem.head_dim + problem.head_dim_v) * live_elements


def table_elements(problem):
    """Pairs that the forward tables count: all of them, half when causal (FlashAttention's convention)."""
    return problem.seq * problem.seq / (2 if problem.causal else 1)


def forward_problems():
    found = []
    for head_dim, heads in HEADS.items():
        for causal in (False, True):
            for seq in SEQS:
                name = "causal" if causal else "full"
                found.append(
                    Problem("forward", name, f"specs/bench/{name}_d{head_dim}.yaml", TOKENS // seq, heads, seq,
                            head_dim, causal=causal,
                            mask=causal_mask if causal else None))
    return found


def neighbours(mean_dim):
    """The head dims of the forward table below and above."""
    return max(d for d in HEADS if d < mean_dim), min(d for d in HEADS if d > mean_dim)


def dims_problems():
    """Head dims that are compared with the line through those of the forward table."""
    found = []
    for (head_dim, head_dim_v), heads in OTHER_HEADS.items():
        value_dim = head_dim_v if head_dim_v != head_dim else None
        dims = f"{head_dim}_{head_dim_v}" if value_dim else f"{head_dim}"
        for name, mask in (("full", None), ("causal", causal_mask)):
            found += [
                Problem("dims", name, f"specs/bench/{name}_d{dims}.yaml", TOKENS // seq, heads, seq, head_dim,
                        causal=mask is not None, mask=mask, value_dim=value_dim) for seq in OTHER_SEQS
            ]
    return found


def line_problems(problem):
    """The keys of the forward problems that the line of a problem of dims_problems() goes through."""
    if problem.section != "dims":
        return []
    mean_dim = (problem.head_dim + problem.head_dim_v) / 2
    return [f"forward/{problem.name}/d{d}/s{problem.seq}" for d in neighbours(mean_dim)]


def causal_mask(b, h, q, k, tensors):
    return q >= k


def _natten(b, h, q, k, tensors):
    width, reach = 128, 6
    return (abs(q // width - k // width) <= reach) & (abs(q % width - k % width) <= reach)


def _block_diffusion(b, h, q, k, tensors):
    """BD3-LM's mask for training (Arriola et al. 2025): noised tokens, then as many clean ones, in blocks. A noised
    block sees itself and the clean blocks before it, a clean block the clean ones up to itself."""
    half, block = 4096, 64
    noised_q, noised_k, clean_q, clean_k = q < half, k < half, q >= half, k >= half
    block_q, block_k = q % half // block, k % half // block
    diagonal = (block_q == block_k) & noised_q & noised_k
    offset_causal = (block_q > block_k) & noised_q & clean_k
    causal = (block_q >= block_k) & clean_q & clean_k
    return diagonal | offset_causal | causal


# name -> (mask, score, tensors)
_MASKS = {
    "causal": (causal_mask, ()),
    "sliding1024": (lambda b, h, q, k, t: (q >= k) & (q - k < 1024), ()),
    "prefix1024": (lambda b, h, q, k, t: (k < 1024) | (q >= k), ()),
    "doc_causal": (lambda b, h, q, k, t: (t["doc"][b, q] == t["doc"][b, k]) & (q >= k), ("doc",)),
    "dilated8": (lambda b, h, q, k, t: (q >= k) & ((q - k) % 8 == 0), ()),
    "sink4_window1024": (lambda b, h, q, k, t: (q >= k) & ((q - k < 1024) | (k < 4)), ()),
    "natten2d_k13": (_natten, ()),
    "block_diffusion": (_block_diffusion, ()),
}


# The three scores, with torch imported by the caller's tensors: `score` is one, indices too.
def _softcap(s, b, h, q, k):
    return 20 * (s / 20).tanh()


def _alibi(s, b, h, q, k):
    return s + (k - q) * (-(h + 1) * 0.5).exp2()


def _relbias(s, b, h, q, k):
    return s + (q - k)


def custom_problems():
    def one(name, mask, score=None, tensors=()):
        spec = "causal_d128" if name == "causal" else "full_d128" if name == "noop_full" else name
        return Problem("custom", name, f"specs/bench/{spec}.yaml", 2, 16, 8192, 128, mask=mask, score=score,
                       tensors=tensors)

    found = [one(name, mask, tensors=tensors) for name, (mask, tensors) in _MASKS.items()]
    found.append(one("noop_full", None))
    for name, score in (("softcap", _softcap), ("alibi", _alibi), ("relbias", _relbias)):
        found.append(one(f"{name}_full", None, score))
    for name, score in (("softcap", _softcap), ("alibi", _alibi)):
        found.append(one(f"{name}_causal", causal_mask, score))
    return found


def dropout_problems():
    return [
        Problem("dropout", "causal", "specs/bench/dropout_causal_d128.yaml", TOKENS // seq, 16, seq, 128,
                causal=True, mask=causal_mask, dropout=0.1) for seq in (2048, 8192)
    ]


def all_problems(only=None, quick=False):
    """Every problem in the order of the page. `only`: substrings of keys, any of which suffices; other head
    dims bring the problems that they are compared with. `quick`: a third of the forward table and four of the
    custom variants."""
    found = forward_problems() + dims_problems() + custom_problems() + dropout_problems()
    if quick:
        found = [
            p for p in found if (p.section == "forward" and p.head_dim == 128 and p.seq in (1024, 8192)) or
            (p.section == "custom" and p.name in ("causal", "sliding1024", "doc_causal", "softcap_full"))
        ]
    if only:
        wanted = {p.key for p in found if any(part in p.key for part in only)}
        wanted.update(key for p in found if p.key in wanted for key in line_problems(p))
        found = [p for p in found if p.key in wanted]
    return found


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def geometric_mean(values):
    values = [v for v in values if v and v > 0]
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")
