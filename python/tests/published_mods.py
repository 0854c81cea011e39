"""score_mods and mask_mods of kinds of models that were published with them, as mods.MODS has others.

Each entry makes (score_mod, mask_mod, tensors that learn); either function may be None.
"""

import functools

import torch
import torch.nn.functional as F
from mods import BATCH, HEADS, LENGTH, generator
from torch.nn.attention.flex_attention import and_masks, or_masks


def random(*sizes):
    return torch.randn(*sizes, generator=generator())


def learned(*sizes):
    return random(*sizes).requires_grad_()


def truths(*sizes, part=0.4):
    return torch.rand(*sizes, generator=generator()) < part


def whole(count, *sizes):
    return torch.randint(0, count, sizes, generator=generator())


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def masked(mask_mod):
    return None, mask_mod, []


def scored(score_mod, *of_learned):
    return score_mod, None, list(of_learned)


def block_diffusion(b, h, q_idx, kv_idx, size=None, clean=None):
    """Noised tokens, then clean ones: a block sees itself and the clean blocks before it."""
    is_clean, of_clean = q_idx >= clean, kv_idx >= clean
    q_block = torch.where(is_clean == 1, (q_idx - clean) // size, q_idx // size)
    kv_block = torch.where(of_clean == 1, (kv_idx - clean) // size, kv_idx // size)
    own = (q_block == kv_block) & (is_clean == of_clean)
    before = (q_block > kv_block) & (of_clean == 1) & (is_clean == 0)
    return own | before | ((q_block >= kv_block) & (of_clean == 1) & (is_clean == 1))


def frames_up_to_now():
    """Video in the order of frames: each token sees the frames up to its own one, at most three, and a first sink."""
    ends = torch.arange(LENGTH) // 16 * 16 + 16
    return lambda b, h, q, k: (k < ends[q]) & ((k >= ends[q] - 3 * 16) | (k < 4)) | (q == k)


def box_of_a_video(depth=4, height=4, width=4):
    def mask_mod(b, h, q_idx, kv_idx):
        def place(index):
            return index // (height * width), index % (height * width) // width, index % width

        near = [(i - j).abs() <= reach for i, j, reach in zip(place(q_idx), place(kv_idx), (1, 2, 1), strict=True)]
        return near[0] & near[1] & near[2]

    return mask_mod


def radial(per_frame=8):
    """The farther two frames are from each other, the narrower is what they see of each other."""

    def mask_mod(b, h, q_idx, kv_idx):
        apart = (q_idx // per_frame - kv_idx // per_frame).abs()
        narrow = torch.floor(torch.log2(apart.clamp(min=1).float()))
        return (q_idx % per_frame - kv_idx % per_frame).abs() < per_frame / torch.exp2(narrow)

    return mask_mod


class OfFrames:
    """A function that is an object, with sizes in tensors."""

    def __init__(self, frames, size):
        self.frames, self.size = torch.tensor(frames, dtype=torch.int32), torch.tensor(size, dtype=torch.int32)

    def __call__(self, b, h, q_idx, kv_idx):
        q_idx, kv_idx = q_idx // self.size, kv_idx // self.size
        clean = (q_idx >= kv_idx) & (q_idx < self.frames) & (kv_idx < self.frames)
        noisy = (q_idx - self.frames > kv_idx) & (kv_idx < self.frames)
        return clean | noisy | (q_idx == kv_idx)


def chunks_after_padding(size=12):
    left = torch.tensor([0, 7])
    inside = lambda b, h, q, k: (k >= left[b]) & (q >= left[b])  # noqa: E731
    return and_masks(causal, inside, lambda b, h, q, k: (q - left[b]) // size == (k - left[b]) // size)


def pictures_in_a_window():
    """Causal in a window, but tokens of one picture see each other; beyond the table there are none."""
    kinds, groups = truths(BATCH, 48), whole(3, BATCH, 48)

    def same_picture(b, h, q_idx, kv_idx):
        q, k = torch.where(q_idx < 48, q_idx, 0), torch.where(kv_idx < 48, kv_idx, 0)
        both = (q_idx < 48) & (kv_idx < 48) & kinds[b, q] & kinds[b, k]
        return torch.where(both, groups[b, q] == groups[b, k], False)

    return or_masks(same_picture, and_masks(causal, lambda b, h, q, k: q - k < 9))


def documents_and_a_growing_window():
    ids, window = whole(4, LENGTH).sort().values.int(), torch.tensor(11, dtype=torch.int32)
    return lambda b, h, q, k: (q >= k) & (ids[q] == ids[k]) & (q - k < window)


def chosen_chunks(size=8):
    """A query's own chunk, and those that a gate gave to it."""
    chosen = whole(LENGTH // size, BATCH, HEADS, LENGTH, 2)

    def mask_mod(b, h, q_idx, kv_idx):
        own = q_idx // size == kv_idx // size
        return (own | (chosen[b, h, q_idx] == kv_idx // size).any(-1)) & (kv_idx <= q_idx)

    return mask_mod


def compressed(stride=8, first=2):
    """Keys are summaries of blocks that are over, after a few of memory."""
    return lambda b, h, q, k: (k < first) | ((k - first) * stride + stride - 1 < q)


def of_groups_of_heads(size=8):
    blocks = truths(BATCH, HEADS // 2, LENGTH, LENGTH // size)
    return lambda b, h, q, k: blocks[b, h // 2, q, k // size] | (q // size == k // size)


def chosen_tokens():
    """Tokens that a router left, in their places; some are none."""
    places, live = torch.sort(whole(200, BATCH, LENGTH)).values, truths(BATCH, LENGTH, part=0.8)
    return lambda b, h, q, k: (places[b, q] >= places[b, k]) & live[b, k]


def both_ends_of_a_sequence():
    """Each rank has a chunk from the start and one from the end."""
    places = torch.cat([torch.arange(0, 32), torch.arange(96, 128)])
    return lambda b, h, q, k: places[q] >= places[k]


def blocks_that_are_numbered_anew(size=16, inner=causal):
    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx // size == kv_idx // size) & inner(b, h, q_idx % size, kv_idx % size)

    return mask_mod


def drafted(prefix=40):
    tree = truths(24, 24).tril() | torch.eye(24, dtype=torch.bool)

    def mask_mod(b, h, q_idx, kv_idx):
        of_tree = tree[(q_idx - prefix).clamp(0, 23), (kv_idx - prefix).clamp(min=0)]
        return torch.where(kv_idx < prefix, q_idx >= kv_idx, (q_idx >= prefix) & of_tree)

    return mask_mod


def with_global_tokens():
    is_global, widths = truths(BATCH, LENGTH, part=0.1), torch.tensor([2, 4, 8, 16])
    return lambda b, h, q, k: is_global[b, q] | is_global[b, k] | ((q - k).abs() <= widths[h])


def random_blocks(size=8):
    blocks = whole(LENGTH // size, HEADS, LENGTH // size, 2)

    def mask_mod(b, h, q_idx, kv_idx):
        q, k = torch.div(q_idx, size, rounding_mode="floor"), torch.div(kv_idx, size, rounding_mode="floor")
        return (blocks[h, q, 0] == k) | (blocks[h, q, 1] == k) | (q == k) | (k == 0)

    return mask_mod


def around_a_circle():
    count = torch.tensor([LENGTH])

    def mask_mod(b, h, q_idx, kv_idx):
        around = ((q_idx - kv_idx + count[0]) <= 5) | ((kv_idx - q_idx + count[0]) <= 5)
        return ((q_idx - kv_idx).abs() <= 5) | around

    return mask_mod


def scales_of_a_picture():
    scale = torch.repeat_interleave(torch.arange(4), torch.tensor([1, 4, 16, LENGTH - 21]))
    return lambda b, h, q, k, scale=scale: scale[q] >= scale[k]


def times():
    of_q, of_k = random(BATCH, LENGTH).cumsum(-1), random(BATCH, LENGTH).cumsum(-1)
    return lambda b, h, q, k: torch.logical_or(of_k[b, k] <= of_q[b, q], k.eq(0))


def temperature_of_far_positions(score, b, h, q_idx, kv_idx):
    return score * (torch.log(torch.floor((q_idx + 1) / 16) + 1) * 0.1 + 1)


def pairs():
    bias = learned(HEADS, LENGTH, LENGTH)
    live = truths(BATCH, LENGTH, part=0.9)
    return scored(lambda s, b, h, q, k: torch.where(live[b % 2, k], s + bias[h, q, k], -1e9), bias)


def windows_that_were_shifted():
    table, places, region = learned(49, HEADS), whole(49, LENGTH, LENGTH), whole(3, 2, LENGTH)

    def score_mod(score, b, h, q_idx, kv_idx):
        apart = (region[b % 2, q_idx] != region[b % 2, kv_idx]).to(score.dtype)
        return score + table[places[q_idx, kv_idx], h] - 100.0 * apart

    return scored(score_mod, table)


def buckets():
    """As T5 counts them, both ways."""
    table = learned(16, HEADS)

    def score_mod(score, b, h, q_idx, kv_idx):
        distance = kv_idx - q_idx
        bucket = 0
        bucket += (distance > 0).to(torch.long) * 8
        distance = torch.abs(distance)
        far = 4 + (torch.log(distance.float() / 4 + 1e-9) / 2.0 * 4).to(torch.long)
        far = torch.min(far, torch.full_like(far, 7))
        return score + table[bucket + torch.where(distance < 4, distance, far), h]

    return scored(score_mod, table)


def kernels_of_distances():
    scale, power = learned(HEADS), learned(HEADS)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score - F.softplus(scale[h]) * torch.log1p(F.softplus(power[h]) * (q_idx - kv_idx).abs())

    return scored(score_mod, scale, power)


def network_of_a_distance():
    first, second = learned(6), learned(HEADS, 6)

    def score_mod(score, b, h, q_idx, kv_idx):
        x = torch.log1p((q_idx - kv_idx).abs() * 0.5) / torch.log1p(q_idx.float() + 2)
        return score + (second[h] * torch.relu(first * x)).sum(-1)

    return scored(score_mod, first, second)


def gates_that_forget():
    sums = F.logsigmoid(random(BATCH, HEADS, LENGTH)).cumsum(-1).requires_grad_()
    return lambda s, b, h, q, k: s + sums[b, h, q] - sums[b, h, k], causal, [sums]


def points_in_space():
    points, width = random(BATCH, LENGTH, 3), learned(HEADS)

    def score_mod(score, b, h, q_idx, kv_idx):
        apart = points[b, q_idx] - points[b, kv_idx]
        return score - (apart * apart).sum(-1) * width[h].exp()

    return scored(score_mod, width)


class Relative(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(2 * LENGTH, HEADS, _weight=random(2 * LENGTH, HEADS))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.table(q_idx - kv_idx + LENGTH)[h]


def of_a_layer():
    layer = Relative()
    return scored(layer, layer.table.weight)


PUBLISHED_MODS = {
    "block diffusion": lambda: masked(functools.partial(block_diffusion, size=8, clean=LENGTH // 2)),
    "frames up to now": lambda: masked(frames_up_to_now()),
    "box of a video": lambda: masked(box_of_a_video()),
    "radial": lambda: masked(radial()),
    "noisy frames": lambda: masked(OfFrames(4, 8)),
    "chunks after padding": lambda: masked(chunks_after_padding()),
    "pictures in a window": lambda: masked(pictures_in_a_window()),
    "documents and a growing window": lambda: masked(documents_and_a_growing_window()),
    "chosen chunks": lambda: masked(chosen_chunks()),
    "compressed keys": lambda: masked(compressed()),
    "blocks of groups of heads": lambda: masked(of_groups_of_heads()),
    "chosen tokens": lambda: masked(chosen_tokens()),
    "both ends": lambda: masked(both_ends_of_a_sequence()),
    "blocks numbered anew": lambda: masked(blocks_that_are_numbered_anew()),
    "drafted tree": lambda: masked(drafted()),
    "global tokens": lambda: masked(with_global_tokens()),
    "random blocks": lambda: masked(random_blocks()),
    "around a circle": lambda: masked(around_a_circle()),
    "scales of a picture": lambda: masked(scales_of_a_picture()),
    "times": lambda: masked(times()),
    "temperature": lambda: (temperature_of_far_positions, causal, []),
    "pairs": pairs,
    "shifted windows": windows_that_were_shifted,
    "buckets both ways": buckets,
    "kernels of distances": kernels_of_distances,
    "network of a distance": network_of_a_distance,
    "gates that forget": gates_that_forget,
    "points in space": points_in_space,
    "table of a layer": of_a_layer,
    "chained methods": lambda: scored(lambda s, b, h, q, k: s.div(3.0).tanh().mul(3.0).sub(k.sub(q).abs().mul(0.01))),
}
