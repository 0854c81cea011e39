"""A cache of known keys beside its oracle: sequences that grow token by token, and attention over them in float64."""

import numpy as np
import reference
import torch

import attune

HEADS, KV_HEADS, DIM = 4, 2, 32
PAGE_SIZE, ROOM = 8, 40
PROMPTS = (11, 1, 17)  # tokens that each sequence begins with
STEPS = 6


def turned(x, positions, rope=None, rotary_dim=None, base=10000.0, factor=1.0):
    """RoPE of [tokens, heads, dim] in float64, by its definition."""
    if rope is None:
        return x
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    pairs = np.arange(dim // 2)
    angle = positions[:, None] * base ** (-2.0 * pairs / dim) / factor
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = (pairs, pairs + dim // 2) if rope == "half" else (2 * pairs, 2 * pairs + 1)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def stored(x, dtype, scale=None):
    """What a cache of the dtype holds of float64 numbers, in float64."""
    x = torch.from_numpy(np.ascontiguousarray(x))
    if dtype is torch.float8_e4m3fn:
        scale = torch.from_numpy(scale)
        x = (x / scale).clamp(-448, 448)
        return (x.float().to(dtype).double() * scale).numpy()
    return x.to(dtype).double().numpy()


class Loop:
    """Sequences whose keys lie in a cache of the layout, and what each of them has by itself.

    scales: None, "tensor", "head", "page" or "both", of a cache of fp8.
    """

    def __init__(self, dtype, layout="paged", scales=None, dims=(DIM, DIM), device="cpu", seed=0, **rotation):
        self.rng = np.random.default_rng(seed)
        self.dtype, self.layout, self.device, self.rotation, self.dims = dtype, layout, device, rotation, dims
        self.kind = torch.float8_e4m3fn if scales else dtype
        count, of_one = len(PROMPTS), -(-ROOM // PAGE_SIZE)
        pages = count * of_one + 2
        sizes = {
            "paged": (pages, PAGE_SIZE, KV_HEADS),
            "thd": (count * ROOM, KV_HEADS),
            "bshd": (count, ROOM, KV_HEADS),
            "bhsd": (count, KV_HEADS, ROOM),
        }[layout]
        # What no key lies in is NaN: 0x7f in fp8.
        self.caches = [
            torch.full((*sizes, dim), torch.nan, dtype=torch.float32).to(self.kind).to(device) for dim in dims
        ]
        self.table = self.rng.permutation(pages)[: count * of_one].reshape(count, of_one).astype(np.int32)
        slices = {"paged": pages, "thd": 1}.get(layout, count)
        shape = {"tensor": (), "head": (KV_HEADS,), "page": (slices, 1), "both": (slices, KV_HEADS)}.get(scales)
        self.scales = {}
        if scales:
            for name in ("k_scales", "v_scales"):
                of_all = np.asarray(2.0 ** self.rng.integers(-8, -5, shape) * self.rng.uniform(1, 2, shape))
                self.scales[name] = torch.from_numpy(of_all).float().to(device)
        self.keys = [[np.zeros((0, KV_HEADS, dim)) for dim in dims] for _ in PROMPTS]

    def scale_of(self, name, number, places):
        """[tokens, kv_heads, 1] of keys at these places of the sequence."""
        slices = {"paged": self.table[number][places // PAGE_SIZE], "thd": 0 * places}.get(
            self.layout, number + 0 * places
        )
        values = self.scales[name].cpu().double().numpy()
        rows = len(self.caches[0]) if self.layout != "thd" else 1
        return np.broadcast_to(values, (rows, KV_HEADS))[slices][..., None].copy()

    def int32(self, values):
        return torch.as_tensor(np.asarray(values), dtype=torch.int32, device=self.device)

    def where(self):
        """What tells both launches where sequences lie."""
        used = self.int32([len(keys[0]) for keys in self.keys])
        if self.layout == "paged":
            return {"used_kv": used, "page_table": self.int32(self.table)}
        if self.layout == "thd":
            return {"used_kv": used, "cu_kv": self.int32(np.arange(len(PROMPTS) + 1) * ROOM)}
        return {"used_kv": used}

    def attended(self):
        """The same and the cache as attention takes them: rows of a batch are pages, one of each sequence."""
        if self.layout in ("paged", "thd"):
            return self.caches, self.where()
        caches = self.caches if self.layout == "bshd" else [x.transpose(1, 2) for x in self.caches]
        return caches, {**self.where(), "page_table": self.int32(np.arange(len(PROMPTS))[:, None])}

    def grow(self, counts):
        """So many new tokens of each sequence: q, k and v of all, packed, the offsets, and q as it is to be turned."""
        cu = np.cumsum([0, *counts])
        tokens = int(cu[-1])
        q, k, v = (
            torch.from_numpy(self.rng.standard_normal((tokens, heads, dim))).to(self.dtype)
            for heads, dim in ((HEADS, self.dims[0]), (KV_HEADS, self.dims[0]), (KV_HEADS, self.dims[1]))
        )
        queries = q.double().numpy().copy()
        for number, keys in enumerate(self.keys):
            own = slice(cu[number], cu[number + 1])
            places = np.arange(len(keys[0]), len(keys[0]) + counts[number])
            queries[own] = stored(turned(queries[own], places, **self.rotation), self.dtype)
            for at, (name, new) in enumerate((("k", k), ("v", v))):
                rows = new[own].double().numpy()
                if name == "k":
                    rows = turned(rows, places, **self.rotation)
                scale = self.scale_of(f"{name}_scales", number, places) if self.scales else None
                keys[at] = np.concatenate([keys[at], stored(rows, self.kind, scale)])
        return (*(x.to(self.device) for x in (q, k, v)), self.int32(cu), queries)

    def append(self, q, k, v, cu, **words):
        rotation = {
            {"base": "rope_base", "factor": "rope_factor"}.get(name, name): x for name, x in self.rotation.items()
        }
        return attune.append(
            k, v, *self.caches, q=q, cu_q=cu, layout=None if self.layout in ("paged", "thd") else self.layout,
            **self.where(), **self.scales, **rotation, **words,
        )  # fmt: skip

    def attend(self, q, cu, **words):
        caches, where = self.attended()
        return attune.attention(q, *caches, cu_q=cu, **where, **self.scales, return_lse=True, **words)

    def expected(self, queries, cu):
        """Causal attention of each sequence by itself."""
        cu = cu.tolist()
        o, lse = np.zeros((len(queries), HEADS, self.dims[1])), np.full((HEADS, len(queries)), -np.inf)
        for number, (k, v) in enumerate(self.keys):
            own = slice(cu[number], cu[number + 1])
            if own.start == own.stop:
                continue
            shift = len(k) - (own.stop - own.start)
            one = [x.swapaxes(0, 1)[None] for x in (queries[own], k, v)]
            mine, of_rows = reference.attention(*one, mask=lambda b, h, i, j, shift=shift: j <= i + shift)
            o[own], lse[:, own] = mine[0].swapaxes(0, 1), of_rows[0]
        return o, lse

    def check(self, o, lse, queries, cu, tolerance):
        reference.check(o.cpu().double().numpy(), lse.cpu().numpy(), *self.expected(queries, cu), tolerance)

    def steps(self):
        """New tokens of each sequence, step by step: prompts, then one at a time; one pauses, one has drafts."""
        yield PROMPTS
        for step in range(STEPS):
            yield (1, 0 if step == 2 else 1, 3 if step == 4 else 1)
