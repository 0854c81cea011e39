"""score_mods and mask_mods as people write them, for q of [2, 4, 64, ...] and k of [2, 4, 64, ...] or fewer heads.

Each entry makes (score_mod, mask_mod); either may be None.
"""

import math

import torch
import torch.nn.functional as F

BATCH, HEADS, LENGTH = 2, 4, 64


def generator():
    return torch.Generator(torch.get_default_device()).manual_seed(11)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(size):
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx <= size)


def documents(dtype=torch.int64):
    return torch.randint(0, 4, (BATCH, LENGTH), generator=generator()).sort(dim=1).values.to(dtype)


def document_mask():
    doc = documents()
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (doc[b, q_idx] == doc[b, kv_idx])


def jagged_document_mask():
    """By one offset a position, as for packed sequences."""
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor([10, 20, 30, 4]))
    offsets = torch.tensor([0, 10, 30, 60])

    def mask_mod(b, h, q_idx, kv_idx):
        q_local, kv_local = q_idx - offsets[ids[q_idx]], kv_idx - offsets[ids[kv_idx]]
        return (ids[q_idx] == ids[kv_idx]) & (q_local >= kv_local)

    return mask_mod


def natten(width, kernel):
    def mask_mod(b, h, q_idx, kv_idx):
        q_x, q_y = q_idx // width, q_idx % width
        kv_x, kv_y = kv_idx // width, kv_idx % width
        x = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
        y = torch.clamp(q_y, min=kernel // 2, max=(width - 1) - kernel // 2)
        return ((x - kv_x).abs() <= kernel // 2) & (torch.abs(y - kv_y) <= kernel // 2)

    return mask_mod


def morton(width):
    """A window in Morton order: bits are taken apart by shifts and masks."""

    def even_bits(x):
        return (x & 1) + ((x >> 1) & 2) + ((x >> 2) & 4)

    def mask_mod(b, h, q_idx, kv_idx):
        rows = even_bits(q_idx) - even_bits(kv_idx)
        columns = even_bits(q_idx >> 1) - even_bits(kv_idx >> 1)
        return (rows.abs() <= width) & (columns.abs() <= width)

    return mask_mod


def prefix_lm():
    lengths = torch.tensor([13, 40])
    return lambda b, h, q_idx, kv_idx: (kv_idx < lengths[b]) | (q_idx >= kv_idx)


def padded():
    lengths = torch.tensor([64, 17], dtype=torch.int16)
    return lambda b, h, q_idx, kv_idx: torch.logical_and(q_idx < lengths[b], kv_idx < lengths[b])


def transfusion():
    """Causal text with images that see all of themselves: (start, length) pairs."""
    modalities = torch.tensor([[[8, 16], [40, 10]], [[0, 5], [20, 20]]])
    offsets, ends = modalities[..., 0], modalities.sum(-1)

    def mask_mod(b, h, q_idx, kv_idx):
        mask = q_idx >= kv_idx
        for m in range(2):
            mask = mask | ((q_idx >= offsets[b, m]) & (kv_idx < ends[b, m]))
        return mask

    return mask_mod


def alibi():
    slopes = torch.exp2(-torch.arange(1, HEADS + 1) * 2.0)
    return lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx) * slopes[h]


def softcap(cap):
    return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)


def relative_bias():
    bias = torch.randn(HEADS, 2 * LENGTH - 1, generator=generator())
    return lambda score, b, h, q_idx, kv_idx: score + bias[h][q_idx - kv_idx + LENGTH - 1]


def dense_bias(dtype):
    bias = torch.randn(BATCH, HEADS, LENGTH, LENGTH, generator=generator()).to(dtype)
    return lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx]


def wrapped_bias():
    """Negative indices count from the end."""
    bias = torch.randn(LENGTH, generator=generator())
    return lambda score, b, h, q_idx, kv_idx: score + bias[q_idx - kv_idx]


def t5_bias():
    table = torch.randn(12, HEADS, generator=generator())

    def score_mod(score, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).abs()
        far = 6 + (torch.log2(distance / 6.0 + 1e-6) * 2).to(torch.int32)
        bucket = torch.where(distance < 6, distance, torch.minimum(far, 0 * far + 11))
        return score + table[bucket, h]

    return score_mod


def masked_score(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def added_mask(score, b, h, q_idx, kv_idx):
    return score * 2 + torch.where((kv_idx - q_idx).abs() < 9, 0.0, float("-inf"))


def filled_score(score, b, h, q_idx, kv_idx):
    return score.masked_fill(kv_idx % 5 == 2, -math.inf)


def zero_dim(value):
    tensor = torch.tensor(value)
    return lambda score, b, h, q_idx, kv_idx: score * tensor


def by_object():
    class Mod:
        factor = 0.5

        def __call__(self, score, b, h, q_idx, kv_idx):
            return score - self.factor * (q_idx - kv_idx).abs().sqrt()

    return Mod()


def bits_of_a_table():
    words = torch.randint(0, 2**30, (LENGTH, LENGTH // 16 + 1), generator=generator(), dtype=torch.int32)
    return lambda b, h, q_idx, kv_idx: ((words[q_idx, kv_idx // 16] >> (kv_idx % 16)) & 1 == 1) | (kv_idx == q_idx)


def nested():
    table = torch.rand(4, 4, generator=generator()) < 0.6
    doc = documents(torch.int32)
    return lambda b, h, q_idx, kv_idx: table[doc[b, q_idx], doc[b, kv_idx]] | (kv_idx == q_idx)


def groups():
    """By a row of truths for each position."""
    table = torch.rand(LENGTH, 4, generator=generator()) < 0.3
    return lambda b, h, q_idx, kv_idx: (table[q_idx] & table[kv_idx]).any() | (q_idx == kv_idx)


def selected_tiles():
    """A list of tiles for each tile of queries."""
    tiles = torch.randint(0, 8, (BATCH, HEADS, 8, 3), generator=generator())
    sizes = torch.randint(1, 9, (8,), generator=generator())

    def mask_mod(b, h, q_idx, kv_idx):
        listed = (tiles[b, h, q_idx // 8] == (kv_idx // 8).unsqueeze(-1)).any(dim=-1)
        return listed & (kv_idx % 8 < sizes[kv_idx // 8])

    return mask_mod


def rotary_part():
    """A product of rows beside the score's own, as in latent attention."""
    of_q = torch.randn(BATCH, HEADS, LENGTH, 8, generator=generator())
    of_k = torch.randn(BATCH, 1, LENGTH, 8, generator=generator())

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + 0.3 * torch.dot(of_q[b, h, q_idx], of_k[b, h // HEADS, kv_idx])

    return score_mod


def reductions():
    table = torch.randn(LENGTH, 5, generator=generator())

    def score_mod(score, b, h, q_idx, kv_idx):
        q, k = table[q_idx], table[kv_idx]
        spread = (q - k).abs().amax(-1) - torch.minimum(q, k[1]).mean() + (q * 2 > k).all() * 1.0
        return score + spread + (q * 2)[:2].sum() + q @ k

    return score_mod


MODS = {
    "groups": lambda: (None, groups()),
    "selected tiles": lambda: (None, selected_tiles()),
    "product of rows": lambda: (rotary_part(), None),
    "reductions": lambda: (reductions(), None),
    "no mods": lambda: (None, None),
    "causal": lambda: (None, causal),
    "window": lambda: (None, window(9)),
    "window and dead rows": lambda: (None, lambda b, h, q, k: (q > 5) & (q - k < 3) & (q >= k)),
    "document": lambda: (None, document_mask()),
    "jagged documents": lambda: (None, jagged_document_mask()),
    "prefix": lambda: (None, prefix_lm()),
    "padding": lambda: (None, padded()),
    "natten": lambda: (None, natten(8, 5)),
    "morton": lambda: (None, morton(2)),
    "transfusion": lambda: (None, transfusion()),
    "dilated": lambda: (None, lambda b, h, q, k: (q >= k) & ((q - k) % 4 == 0)),
    "checkerboard by head": lambda: (None, lambda b, h, q, k: ((q + k + h) % 2 == 0) ^ (k < 4)),
    "equal truths": lambda: (None, lambda b, h, q, k: (q < 32) == (k < 32)),
    "nested look-up": lambda: (None, nested()),
    "int as truth": lambda: (None, lambda b, h, q, k: (q - k) & 3),
    "constant": lambda: (None, lambda b, h, q, k: b.new_ones((), dtype=torch.bool)),
    "bits": lambda: (None, lambda b, h, q, k: ((q | 5) ^ 3) >= ((~k & -4) + 64)),
    "bits that vary": lambda: (None, lambda b, h, q, k: ((q & k) == 0) | ((q ^ k) < 9) | ((k >> (h + 1)) % 2 == 0)),
    "bits of a table": lambda: (None, bits_of_a_table()),
    "alibi": lambda: (alibi(), None),
    "softcap": lambda: (softcap(3.0), causal),
    "relative bias": lambda: (relative_bias(), None),
    "dense bias": lambda: (dense_bias(torch.float32), None),
    "bias in bfloat16": lambda: (dense_bias(torch.bfloat16), None),
    "negative index": lambda: (wrapped_bias(), None),
    "t5": lambda: (t5_bias(), None),
    "mask in the score": lambda: (masked_score, None),
    "mask added": lambda: (added_mask, None),
    "mask filled": lambda: (filled_score, causal),
    "0-d tensor": lambda: (zero_dim(0.3), None),
    "0-d int tensor": lambda: (zero_dim(2), None),
    "object": lambda: (by_object(), None),
    "position as score": lambda: (lambda score, b, h, q, k: q - 2 * k, None),
    "inverse": lambda: (lambda score, b, h, q, k: 1 / (1 + score.abs()), None),
    "silu": lambda: (lambda score, b, h, q, k: F.silu(score), None),
    "gelu": lambda: (lambda score, b, h, q, k: F.gelu(score, approximate="tanh"), None),
    "exact gelu": lambda: (lambda score, b, h, q, k: F.gelu(score), None),
    "softplus": lambda: (lambda score, b, h, q, k: F.softplus(score) - F.softplus(score, beta=2), None),
    "waves": lambda: (
        lambda score, b, h, q, k: torch.sin(score) * torch.cos(0.1 * k) + torch.tan(0.001 * (q - k)) + score.erf(),
        None,
    ),
    "varying powers": lambda: (
        lambda score, b, h, q, k: score.abs() ** (0.5 + 0.1 * h) + (1 + score.abs()) ** 1.5 - score**9 * 1e-4,
        None,
    ),
    "powers": lambda: (lambda score, b, h, q, k: score**2 - torch.pow(score, 3) * 0.1 + 0.5 ** (h + 1), None),
    "sigmoid": lambda: (lambda score, b, h, q, k: torch.sigmoid(score).log() + torch.rsqrt(k + 1), None),
    "rounding": lambda: (
        lambda score, b, h, q, k: torch.floor(score) + torch.ceil(score) * 0.5 + score.trunc() + score.long(),
        None,
    ),
    "float remainders": lambda: (lambda score, b, h, q, k: score % 0.75 + score // 0.5, None),
    "division of ints": lambda: (
        lambda score, b, h, q, k: score + torch.div(q - k, 7, rounding_mode="trunc") + (q - k) // 7 + (q - k) / 7,
        None,
    ),
    "sign and clamp": lambda: (lambda score, b, h, q, k: score.sign() * score.abs().clamp(max=1.0), None),
    "bool arithmetic": lambda: (lambda score, b, h, q, k: score * (q > k) + (q == k), None),
}


def _branch(score, b, h, q_idx, kv_idx):
    return score if q_idx > kv_idx else score * 2


def _wide_row():
    table = torch.rand(LENGTH, 200, generator=generator()) < 0.3
    return lambda b, h, q_idx, kv_idx: (table[q_idx] & table[kv_idx]).any() | (q_idx == kv_idx)


def _row_with_options():
    table = torch.rand(LENGTH, 4, generator=generator())
    return lambda score, b, h, q_idx, kv_idx: score + (table[q_idx] * table[kv_idx]).sum(-1, keepdim=True)


# What cannot be translated, with a word of the message.
UNTRANSLATABLE = {
    "asinh": (lambda: (lambda score, b, h, q, k: torch.asinh(score), None), "score_mod uses `asinh`"),
    "branch": (lambda: (_branch, None), "a branch on a traced value"),
    "wide row": (lambda: (None, _wide_row()), "mask_mod uses .*no row of at most 128 elements"),
    "row with options": (lambda: (_row_with_options(), None), "a tensor of shape .1,., where a scalar is wanted"),
    "math": (lambda: (lambda score, b, h, q, k: math.exp(score), None), "`float` of a traced value"),
}
