"""Masks that tensors decide: what a spec says of the tensors (`sample:`), and tensors that are made in another way, as
those are that a launch brings. bench/data_regret.py tunes on the former and measures on the latter. Needs NumPy."""

import dataclasses
import os
import typing

import numpy as np

import page

BATCH, HEADS = 2, 16
LENGTH = 8192  # what numbers below are meant for: other lengths scale them
DRAFTED = 64
SEGMENTS = 64


@dataclasses.dataclass(frozen=True)
class Mask:
    mask: str
    tensors: dict  # name: (dtype, dims, sample)
    shape: dict  # beside what shape_of() fills in
    real: typing.Callable  # of a random generator: name -> values


def lognormal(rng, mean, deviation, count):
    """Heavy-tailed, at least 1."""
    return np.maximum(rng.lognormal(np.log(mean) - deviation**2 / 2, deviation, count), 1).astype(np.int64)


def numbered(lengths, length):
    """Which part each position of a row is in."""
    return np.searchsorted(np.cumsum(lengths), np.arange(length), side="right")


def documents(rng, batch, length, mean):
    return np.array([numbered(lognormal(rng, mean, 1.2, length), length) for _ in range(batch)], np.int32)


def sequence_lengths(rng, count, length, mean):
    return np.minimum(lognormal(rng, mean, 0.9, count), length).astype(np.int32)


def uneven_parents(rng, count):
    """In preorder: mostly a child of the node before; now and then from far up, so that a few nodes have many."""
    parent, path = [-1], [0]
    for node in range(1, count):
        climbs = 0 if rng.random() < 0.7 else int(rng.zipf(2.5))
        del path[max(1, len(path) - climbs):]
        parent.append(path[-1])
        path.append(node)
    return parent


def subtree_ends(parent):
    end = np.arange(1, len(parent) + 1, dtype=np.int32)
    for node in range(len(parent) - 1, 0, -1):
        end[parent[node]] = max(end[parent[node]], end[node])
    return end


def ancestors(parent):
    found = np.eye(len(parent), dtype=bool)
    for node in range(1, len(parent)):
        found[node] |= found[parent[node]]
    return found


def attached(rng, count):
    """A tree to which the younger nodes and those that have children already attract new ones."""
    weights, parent = [1.0], [-1]
    for node in range(1, count):
        weight = np.array(weights) * np.arange(1, node + 1)
        parent.append(int(rng.choice(node, p=weight / weight.sum())))
        weights[parent[-1]] += 1
        weights.append(1.0)
    return parent


def rollouts(rng, length):
    return {
        "segment": np.minimum(documents(rng, BATCH, length, length // 40), SEGMENTS - 1).astype(np.int32),
        "above": ancestors(attached(rng, SEGMENTS)),
    }


def buckets(rng, length):
    """Hyperplanes' sides of a walk: neighbours in time are near each other in space, as tokens are."""
    walk = np.cumsum(rng.standard_normal((length, 64)), 0)
    walk -= np.linspace(0, 1, length)[:, None] * walk[-1]
    sides = np.einsum("td,hdp->htp", walk, rng.standard_normal((HEADS, 64, 5))) > 0
    return {"bucket": (sides @ (1 << np.arange(5))).astype(np.int32)}


def experts(rng, length):
    """A few of the eight take most tokens, and a token often goes where the one before it went."""
    popularity = 1 / np.arange(1, 9)
    drawn = rng.choice(8, (BATCH, length), p=popularity / popularity.sum())
    stays = rng.random((BATCH, length)) < 0.6
    for at in range(1, length):
        drawn[:, at] = np.where(stays[:, at], drawn[:, at - 1], drawn[:, at])
    return {"expert": drawn.astype(np.int32)}


def block_clusters(rng, size):
    """Rows of blocks that attend the same ones, a band, and some of their own."""
    kinds = rng.random((8, size)) < 0.2
    blocks = kinds[rng.integers(0, 8, size)] | (rng.random((size, size)) < 0.02)
    return {"blocks": blocks | (np.abs(np.subtract.outer(np.arange(size), np.arange(size))) <= 1)}


def images_in_text(rng, length):
    """Text of any length, then a picture of one of two resolutions: the odd parts are pictures."""
    rows = []
    for _ in range(BATCH):
        parts = lognormal(rng, length * 300 // LENGTH, 1.0, length)
        parts[1::2] = rng.choice([length * 576 // LENGTH, length * 1024 // LENGTH], len(parts[1::2]))
        rows.append(numbered(parts, length))
    return {"part": np.array(rows, np.int32)}


def landmarks(rng, length):
    """The first tokens of every document, and a few that come in bursts."""
    doc = documents(rng, BATCH, length, length * 600 // LENGTH)
    landmark = np.diff(doc, axis=1, prepend=-1) != 0
    for row in landmark:
        for start in rng.integers(0, length, max(1, length // 1024)):
            row[start:start + 12] = True
    return {"doc": doc, "landmark": landmark}


def arrivals(rng, length):
    """Bursts: the gaps between events are heavy-tailed."""
    gaps = rng.pareto(1.3, (BATCH, length)) + 0.01
    times = np.cumsum(np.minimum(gaps, 200 * np.median(gaps)), 1)
    return {"time": (10000 * times / times[:, -1:]).astype(np.int32)}


def decoding_order(rng, blocks):
    """Blocks that are decoded roughly from left to right, the easy ones earlier."""
    moved = np.arange(blocks) + rng.standard_normal(blocks) * blocks / 8 * (rng.random(blocks) < 0.4)
    return {"order": np.argsort(np.argsort(moved)).astype(np.int32)}


def left_padded_drafts(rng, length):
    kept = sequence_lengths(rng, 16, length - 2 * DRAFTED, length // 3)
    return {"ancestor": ancestors(attached(rng, DRAFTED)), "first": (length - 2 * DRAFTED - kept).astype(np.int32)}


def masks(length=LENGTH):
    """By name. Whoever writes a spec knows about how long documents are, not how their lengths spread."""
    along, one_each = "[batch, kv_len]", "[batch]"
    part = lambda elements: max(2, length * elements // LENGTH)
    return {
        "documents": Mask(
            "causal and document(doc)", {"doc": ("int32", along, f"segments(mean={part(700)})")}, {},
            lambda rng: {"doc": documents(rng, BATCH, length, part(700))}),
        "padding": Mask(
            "padding(lengths)", {"lengths": ("int32", one_each, "lengths(0.1, 0.9)")},
            {"batch": 8, "q_len": length // 2, "kv_len": length // 2},
            lambda rng: {"lengths": (length // 2 * rng.beta(2, 3, 8)).astype(np.int32)}),
        "decode_lengths": Mask(
            "padding(lengths)", {"lengths": ("int32", one_each, "lengths(0.05, 1)")},
            {"batch": 64, "heads": 32, "kv_heads": 8, "q_len": 1},
            lambda rng: {"lengths": sequence_lengths(rng, 64, length, part(2500))}),
        "prefixes": Mask(
            "causal or kv_idx < prefix[b]", {"prefix": ("int32", one_each, "lengths(0.02, 0.4)")}, {"batch": 4, "heads": 8},
            lambda rng: {"prefix": sequence_lengths(rng, 4, length, part(1200))}),
        "head_spans": Mask(
            "causal and q_pos - kv_idx < span[h]", {"span": ("int32", "[heads]", "lengths(0.01, 0.5)")}, {},
            lambda rng: {"span": rng.permutation(np.geomspace(part(32), length, HEADS)).astype(np.int32)}),
        "block_table": Mask(
            "block_sparse(blocks, 64)", {"blocks": ("bool", "[q_len // 64, kv_len // 64]", "chance(0.25)")}, {},
            lambda rng: block_clusters(rng, length // 64)),
        "block_order": Mask(
            "order[kv_idx // 64] <= order[q_idx // 64]", {"order": ("int32", "[kv_len // 64]", "permutation")}, {},
            lambda rng: decoding_order(rng, length // 64)),
        "drafts": Mask(
            "tree(ancestor) and kv_idx >= first[b]",
            {"ancestor": ("bool", "[q_len, q_len]", "ancestors(branch=2)"), "first": ("int32", one_each, "lengths(0, 0.9)")},
            {"batch": 16, "heads": 32, "kv_heads": 8, "q_len": DRAFTED},
            lambda rng: left_padded_drafts(rng, length)),
        "subtrees": Mask(
            "kv_idx <= q_idx and q_idx < end[kv_idx]", {"end": ("int32", "[kv_len]", "subtree_ends(branch=1.5)")}, {},
            lambda rng: {"end": subtree_ends(uneven_parents(rng, length))}),
        "rollouts": Mask(
            "causal and above[segment[b, q_pos], segment[b, kv_idx]]",
            {"segment": ("int32", along, f"segments(mean={part(160)})"),
             "above": ("bool", f"[{SEGMENTS}, {SEGMENTS}]", "ancestors(branch=2.3)")}, {},
            lambda rng: rollouts(rng, length)),
        "buckets": Mask(
            "causal and bucket[h, q_pos] == bucket[h, kv_idx]",
            {"bucket": ("int32", "[heads, kv_len]", "uniform(0, 15)")}, {},
            lambda rng: buckets(rng, length)),
        "experts": Mask(
            "causal and expert[b, q_pos] == expert[b, kv_idx]", {"expert": ("int32", along, "uniform(0, 7)")}, {},
            lambda rng: experts(rng, length)),
        "images_in_text": Mask(
            "causal or part[b, q_pos] == part[b, kv_idx] and part[b, q_pos] % 2 == 1",
            {"part": ("int32", along, f"segments(mean={part(500)})")}, {},
            lambda rng: images_in_text(rng, length)),
        "landmarks": Mask(
            "causal and (document(doc) or landmark[b, kv_idx])",
            {"doc": ("int32", along, f"segments(mean={part(600)})"), "landmark": ("bool", along, "chance(0.01)")}, {},
            lambda rng: landmarks(rng, length)),
        "time_window": Mask(
            "causal and time[b, q_pos] - time[b, kv_idx] <= 600", {"time": ("int32", along, "sorted(0, 10000)")}, {},
            lambda rng: arrivals(rng, length)),
    }  # fmt: skip


def shape_of(mask, length):
    shape = {"batch": BATCH, "heads": HEADS, "q_len": length, "kv_len": length, **mask.shape}
    return {"kv_heads": shape["heads"], **shape}


def spec_text(name, mask, length, is_said):
    sizes = ", ".join(f"{key}: {value}" for key, value in shape_of(mask, length).items())
    declared = "".join(
        f"  {tensor}: {{dtype: {dtype}, dims: {dims}" + (f", sample: '{sample}'" if is_said else "") + "}\n"
        for tensor, (dtype, dims, sample) in mask.tensors.items())  # fmt: skip
    return (f"attune: 1\nname: {name}\ndtype: bf16\nhead_dim: 128\ntensors:\n{declared}mask: {mask.mask}\n"
            f"tune:\n  shapes:\n    - {{{sizes}}}\n")  # fmt: skip


def make(directory, length=LENGTH, only=None, is_said=True):
    """DIRECTORY/MASK.yaml and DIRECTORY/MASK/TENSOR.npy; returns the names. The same values whatever `only` says."""
    made = []
    for seed, (name, mask) in enumerate(masks(length).items()):
        if only and name not in only:
            continue
        folder = os.path.join(directory, name)
        os.makedirs(folder, exist_ok=True)
        page.write(folder + ".yaml", spec_text(name, mask, length, is_said))
        for tensor, values in mask.real(np.random.default_rng(seed)).items():
            np.save(os.path.join(folder, tensor + ".npy"), values)
        made.append(name)
    return made
