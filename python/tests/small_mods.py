"""score_mods and mask_mods that take rows apart, make small tensors, or search them, as mods.MODS has others.

Each entry makes (score_mod, mask_mod); either may be None.
"""

import torch
import torch.nn.functional as F
from mods import BATCH, HEADS, LENGTH, generator


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def pictures():
    """Rows of (type, start, length), which a loop unpacks."""
    spans = torch.tensor([[[0, 8, 16], [1, 40, 10]], [[0, 0, 5], [1, 20, 20]]])

    def mask_mod(b, h, q_idx, kv_idx):
        mask = causal(b, h, q_idx, kv_idx)
        for _, start, length in spans[b]:
            mask = mask | ((q_idx >= start) & (kv_idx < start + length))
        return mask

    return mask_mod


def bounds():
    """A pair of each sequence."""
    pairs = torch.tensor([[3, 60, 7], [0, 30, 7]])

    def mask_mod(b, h, q_idx, kv_idx):
        low, high = pairs[b, :2]
        return (kv_idx >= low) & (kv_idx < high)

    return mask_mod


def by_offsets(count):
    """Documents of packed sequences, of which there is nothing but where they end."""
    offsets = torch.tensor([0, 9, 20, 33, LENGTH], dtype=torch.int32)
    return lambda b, h, q_idx, kv_idx: (count(q_idx, offsets) == count(kv_idx, offsets)) & (q_idx >= kv_idx)


def sums_of_truths():
    return by_offsets(lambda index, offsets: (index >= offsets).sum())


def searched():
    return by_offsets(lambda index, offsets: torch.searchsorted(offsets, index, right=True))


def buckets():
    ends = torch.tensor([9, 20, 33, 50])
    return lambda b, h, q, k: torch.bucketize(k, ends) <= torch.bucketize(q, ends)


def sinks():
    kept = torch.tensor([0, 5, 17])
    return lambda b, h, q, k: torch.isin(k, kept) | (k == kept + 1).any() | ((q >= k) & (q - k < 8))


def neighbours():
    """A list for each query; whether a key is among them is a sum that keeps its dim."""
    near = torch.randint(0, LENGTH, (LENGTH, 5), generator=generator())
    return lambda b, h, q, k: torch.sum(near[q] == k, dim=0, keepdim=True).to(torch.bool)[0]


def great_circles():
    latitude, longitude = (scale * torch.rand(LENGTH, generator=generator()) - 1 for scale in (2, 3))

    def score_mod(score, b, h, q, k):
        y = torch.sin(longitude[q] - longitude[k]) * torch.cos(latitude[k])
        x = torch.cos(latitude[q]) * torch.sin(latitude[k])
        return score - torch.atan2(y, x) - torch.atan(score) + torch.asin(y * 0.9) * torch.acos(x * 0.9)

    return score_mod


def stacked():
    return lambda b, h, q, k: (
        torch.any(torch.stack([q == k, k < 4, (q - k) % 8 == 0]))
        & torch.all(torch.cat([(q - k < 40)[None], (k % 7 != 5).view(1)]), dim=0)
    )


def chosen():
    """A traced index into a tensor that the function makes."""
    near, far = (torch.rand(HEADS, generator=generator()) for _ in "ab")
    return lambda score, b, h, q, k: score + torch.stack([near[h], far[h], near[h] * far[h]])[(q + k) % 3]


def distances():
    """Of points in space, and of some of their coordinates."""
    points = torch.randn(BATCH, LENGTH, 3, generator=generator())
    columns = torch.tensor([0, 2])

    def score_mod(score, b, h, q, k):
        apart = points[b, q] - points[b, k]
        flat = points[b, q, columns] - points[b, k][columns]
        return score - apart.norm(dim=-1) - 0.1 * (flat * flat).sum() + apart[None, 1:].amax() - apart.max(dim=0)[0]

    return score_mod


def chunks():
    """Products of all pairs: a matrix of probabilities by chunks."""
    ends = torch.tensor([0, 10, 25, 40, LENGTH])
    chances = torch.rand(4, 4, generator=generator()) + 0.1

    def score_mod(score, b, h, q_idx, kv_idx):
        q, k = q_idx.expand(4), kv_idx.expand(4)
        in_q = ((q >= ends[:-1]) & (q < ends[1:])).float()
        in_k = ((k >= ends[:-1]) & (k < ends[1:])).float()
        return score + torch.log((in_q.unsqueeze(1) * in_k.unsqueeze(0) * chances).sum()) + in_q @ chances @ in_k

    return score_mod


def waves():
    frequencies = torch.tensor([0.1, 0.5, 1.0])
    table = torch.rand(HEADS, 3, generator=generator())
    return lambda score, b, h, q, k: score + (torch.cos((q - k) * frequencies) * table[h]).sum(-1)


def embedded():
    table = torch.nn.Embedding(9, HEADS)
    table.weight.requires_grad_(False)
    return lambda score, b, h, q, k: score + table((q - k).abs().clamp(max=8))[h]


def gathered():
    """By torch's other names of a look-up."""
    doc = torch.randint(0, 3, (LENGTH,), generator=generator()).sort().values

    def mask_mod(b, h, q, k):
        one = torch.take(doc, q) == torch.gather(doc, 0, k.view(1)).squeeze()
        other = torch.index_select(doc, 0, q.reshape(1))[0] == torch.ops.aten.index(doc, [k])
        return one & other

    return mask_mod


def in_place(score, b, h, q, k):
    score = score.clone()
    doubled = score.mul_(2.0).add_(1.0)
    return (score + doubled).masked_fill_(k > q, float("-inf"))


def functions(score, b, h, q, k):
    bent = torch.log1p(score.abs()) + torch.expm1(score / 4) + torch.sinh(score / 4) * torch.cosh(score / 4)
    bent = bent + F.logsigmoid(score) + torch.logaddexp(score, 0 * score) + torch.hypot(score, 0 * score + 1)
    bent = bent + torch.lerp(score, 3 * score, 0.3) + F.leaky_relu(score, 0.1) + F.elu(score) + F.softsign(score)
    bent = bent + torch.addcmul(score, score, score, value=0.1) + F.hardtanh(score) + F.mish(score) + F.relu6(score)
    return bent + torch.copysign(score.abs(), -score) + torch.log10(1 + score.abs())


def activations(score, b, h, q, k):
    bent = F.hardsigmoid(score) + F.hardswish(score) + F.selu(score) + F.celu(score, 0.7) + F.tanhshrink(score)
    bent = bent + F.softshrink(score, 0.2) + F.threshold(score, -9.0, 0.5) + torch.special.expit(score)
    bent = bent + torch.addcdiv(score, score, 1 + score.abs(), value=0.5) + torch.logaddexp2(score, 0 * score)
    bent = bent + torch.ldexp(score, h % 3 - 1) + torch.rad2deg(score / 60) + torch.special.erfc(score)
    bent = bent + torch.special.logit(torch.sigmoid(score / 2)) + torch.norm(torch.stack([score, score + 1]), p=2)
    return bent + torch.heaviside(q - k + 0.5, torch.tensor(0.5)) + F.hardshrink(q - k + 0.25, 2.0)


def roundings(score, b, h, q, k):
    rounded = torch.round((q - k) / 2) + torch.frac((q - k) / 3) + 0.1 * torch.fmod(q - k, 5)
    return torch.where(torch.isfinite(score) & ~torch.isnan(score), score, 0.0) + rounded + torch.fmod(score, 0.7)


SMALL_MODS = {
    "pictures": lambda: (None, pictures()),
    "bounds": lambda: (None, bounds()),
    "sums of truths": lambda: (None, sums_of_truths()),
    "searched": lambda: (None, searched()),
    "buckets": lambda: (None, buckets()),
    "sinks": lambda: (None, sinks()),
    "neighbours": lambda: (None, neighbours()),
    "great circles": lambda: (great_circles(), None),
    "stacked": lambda: (None, stacked()),
    "chosen": lambda: (chosen(), None),
    "distances": lambda: (distances(), None),
    "chunks": lambda: (chunks(), None),
    "waves": lambda: (waves(), None),
    "embedded": lambda: (embedded(), None),
    "gathered": lambda: (None, gathered()),
    "in place": lambda: (in_place, None),
    "functions": lambda: (functions, None),
    "activations": lambda: (activations, None),
    "roundings": lambda: (roundings, None),
    "softmax": lambda: (lambda s, b, h, q, k: torch.softmax(torch.stack([s, s * 2]), 0)[1] + s, None),
    "logsumexp": lambda: (lambda s, b, h, q, k: torch.logsumexp(torch.stack([s, s * 2]), 0), None),
}
