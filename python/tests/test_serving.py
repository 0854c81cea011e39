"""A serving loop in torch: append and attention over its cache, token by token, against a dense oracle in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import os  # noqa: E402

import reference  # noqa: E402
from serving import HEADS, KV_HEADS, PAGE_SIZE, Loop, turned  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402

DEVICE = os.environ.get("ATTUNE_TEST_DEVICE", "cpu")
FP32, BF16 = torch.float32, torch.bfloat16
# GPUs' kernels round P to 16 bits, and 3xTF32 has fp32's errors.
TOLERANCES = {FP32: 2e-5, BF16: 2e-2, torch.float16: 4e-3}
HALF = {"rope": "half"}

CASES = {
    "bf16": (BF16, {}),
    "fp32": (FP32, {}),
    "fp32, packed": (FP32, {"layout": "thd"}),
    "fp32, contiguous": (FP32, {"layout": "bshd"}),
    "fp32, heads first": (FP32, {"layout": "bhsd"}),
    "fp8, of the tensor": (BF16, {"scales": "tensor", **HALF}),
    "fp8, of each head": (BF16, {"scales": "head", **HALF}),
    "fp8, of each page": (BF16, {"scales": "page", **HALF}),
    "fp8, of each head of a page": (BF16, {"scales": "both", **HALF}),
    "fp8, packed": (BF16, {"scales": "head", "layout": "thd", **HALF}),
    "fp8, contiguous": (BF16, {"scales": "both", "layout": "bshd", **HALF}),
    "half": (FP32, HALF),
    "interleaved": (FP32, {"rope": "interleaved"}),
    "a part turns": (FP32, {"rope": "half", "rotary_dim": 12, "base": 500.0, "factor": 4.0}),
    "values of another width": (FP32, {"dims": (32, 16), "rope": "interleaved"}),
}


@pytest.fixture(autouse=True)
def without_gradients():
    torch.compiler.reset()
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", CASES)
def test_token_by_token(name):
    dtype, options = CASES[name]
    loop = Loop(dtype, device=DEVICE, **options)
    for counts in loop.steps():
        q, k, v, cu, queries = loop.grow(counts)
        q_out = loop.append(q, k, v, cu)
        reference.check(q_out.cpu().double().numpy(), None, queries, None, 2**-7 if dtype == BF16 else 1e-6)
        loop.check(*loop.attend(q_out, cu, mask="causal"), queries, cu, TOLERANCES[dtype])


def test_a_spec_and_queries_in_place():
    loop = Loop(BF16, device=DEVICE, scales="page", **HALF)
    spec = attune.Spec("causal", dtype="bf16", kv_dtype="fp8_e4m3", head_dim=32, layout="paged")
    assert spec.is_scaled and spec.kv_dtype == "float8_e4m3fn"
    for counts in loop.steps():
        q, k, v, cu, queries = loop.grow(counts)
        assert loop.append(q, k, v, cu, q_out=q) is q
        loop.check(*loop.attend(q, cu, spec=spec), queries, cu, TOLERANCES[BF16])


def test_bytes_of_fp8():
    """A cache of uint8 is one of fp8, and holds the same bytes."""
    loops = [Loop(BF16, device=DEVICE, scales="both") for _ in range(2)]
    loops[1].caches = [x.view(torch.uint8) for x in loops[1].caches]
    found = []
    for loop in loops:
        q, k, v, cu, _ = loop.grow((5, 1, 9))
        loop.append(q, k, v, cu)
        found.append(loop.attend(q, cu, mask="causal")[0])
    assert torch.equal(loops[0].caches[0].view(torch.uint8), loops[1].caches[0])
    assert torch.equal(*found)


def test_nothing_but_new_rows_is_written():
    loop = Loop(FP32, device=DEVICE)
    for counts in loop.steps():
        q, k, v, cu, _ = loop.grow(counts)
        loop.append(q, k, v, cu)
        keys = sum(len(of_one[0]) for of_one in loop.keys)
        for cache in loop.caches:
            assert (~cache.isnan()).all(-1).sum() == keys * KV_HEADS
            assert (~cache.isnan()).sum() == keys * KV_HEADS * cache.shape[-1]


def test_tables_of_angles_and_positions():
    """A tree of drafts: its nodes stand side by side, and turn by their depth."""
    loop = Loop(FP32, device=DEVICE)
    q, k, v, cu, _ = loop.grow((5, 0, 9))
    positions = torch.tensor([0, 1, 2, 2, 3, *range(9)], dtype=torch.int32, device=DEVICE)
    angle = torch.arange(10)[:, None] * 10000.0 ** (-2.0 * torch.arange(16) / 32)
    both = torch.cat([angle.cos(), angle.sin()], 1).to(DEVICE)
    found = attune.append(
        k, v, *loop.caches, q=q, cu_q=cu, **loop.where(), rope="half", positions=positions,
        cosines=both[:, :16], sines=both[:, 16:],
    )  # fmt: skip
    wanted = turned(q.cpu().double().numpy(), positions.cpu().double().numpy(), "half")
    reference.check(found.cpu().numpy(), None, wanted, None, 1e-5)


def test_rows_of_no_sequence():
    loop = Loop(FP32, device=DEVICE, **HALF)
    q, k, v, cu, _ = loop.grow((4, 1, 2))
    more = [torch.cat([x, torch.full_like(x[:3], torch.nan)]) for x in (q, k, v)]
    found = loop.append(*more, cu)
    assert torch.equal(found[7:], torch.zeros_like(found[7:]))
    assert torch.equal(found[:7], loop.append(q, k, v, cu))
    o, lse = loop.attend(more[0], cu, mask="causal")
    assert not o[7:].any() and (lse[:, 7:] == -torch.inf).all()


def test_strides_and_addresses_between():
    """New tokens that are columns of one matrix, and begin between two multiples of 16 bytes."""
    loops = [Loop(FP32, device=DEVICE, **HALF) for _ in range(3)]
    for number, loop in enumerate(loops):
        q, k, v, cu, _ = loop.grow((4, 1, 2))
        if number == 1:
            heads = torch.cat([q, k, v], 1)
            q, k, v = heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS], heads[:, HEADS + KV_HEADS :]
        elif number == 2:
            q, k, v = (torch.empty(x.numel() + 1, device=DEVICE)[1:].view(x.shape).copy_(x) for x in (q, k, v))
        loop.found = loop.append(q, k, v, cu), loop.attend(q, cu)[0]
    for loop in loops[1:]:
        assert all(map(torch.equal, loops[0].found, loop.found))
        assert all(map(torch.equal, *([x.nan_to_num(7.0) for x in each.caches] for each in (loops[0], loop))))


@pytest.mark.parametrize(("latent", "rotary", "heads"), [(64, 64, 4), (512, 64, 16)])
def test_latent_attention(latent, rotary, heads):
    """MLA: one row a token, of which the first columns are V, and the last ones turn."""
    rng = np.random.default_rng(3)
    width, pages, used = latent + rotary, 6, 0
    cache = torch.full((pages, PAGE_SIZE, 1, width), torch.nan, dtype=BF16, device=DEVICE)
    table = torch.tensor([[4, 0, 3]], dtype=torch.int32, device=DEVICE)
    spec = attune.Spec("causal", dtype="bf16", head_dim=(width, latent), v_in_k=True, layout="paged", scale=0.1)
    # A launch appends at most 256 columns: the latent is appended as that many heads of the cache's row.
    parts = -(-latent // 256)
    of_latent = cache[..., 0, :latent].unflatten(-1, (parts, -1))
    rows = np.zeros((0, width))
    for count in (9, 1, 1, 2):
        used += count
        q, row = (torch.from_numpy(rng.standard_normal((count, n, width))).to(BF16).to(DEVICE) for n in (heads, 1))
        cu, used_kv = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, count], [used]))
        where = {"cu_q": cu, "used_kv": used_kv, "page_table": table}
        places = np.arange(used - count, used)
        queries, new = (x.cpu().double().numpy().copy() for x in (q, row))
        for x in (queries, new):
            x[..., latent:] = turned(x[..., latent:], places, "half")
        attune.append(row[..., :latent].reshape(count, parts, -1), None, of_latent, None, **where)
        attune.append(
            row[..., latent:], None, cache[..., latent:], None, q=q[..., latent:], q_out=q[..., latent:], rope="half",
            **where,
        )  # fmt: skip
        rows = np.concatenate([rows, torch.from_numpy(new[:, 0]).to(BF16).double().numpy()])
        o, lse = attune.attention(q, cache, None, spec=spec, return_lse=True, **where)
        same = attune.attention(q, cache, None, mask="causal", v_in_k=latent, scale=0.1, **where)
        assert torch.equal(o, same)
        one = (q.cpu().double().numpy().swapaxes(0, 1)[None], rows[None, None], rows[None, None, :, :latent])
        wanted = reference.attention(*one, mask=lambda b, h, i, j: j <= i + used - count, scale=0.1)  # noqa: B023
        reference.check(
            o.cpu().double().numpy(), lse.cpu().numpy(), wanted[0][0].swapaxes(0, 1), wanted[1][0], TOLERANCES[BF16]
        )
        reference.check(q.cpu().double().numpy(), None, queries, None, 2**-6)


def test_shared_prefixes():
    """Sequences that begin with the same pages."""
    loop = Loop(BF16, device=DEVICE)
    q, k, v, cu, _ = loop.grow((16, 16, 16))
    loop.table[1, :2] = loop.table[2, :2] = loop.table[0, :2]
    for of_one in loop.keys[1:]:
        of_one[0], of_one[1] = (x.copy() for x in loop.keys[0])
    for x in (k, v):
        x[16:32] = x[32:48] = x[:16]
    loop.append(q, k, v, cu)
    for _ in range(3):
        q, k, v, cu, queries = loop.grow((1, 1, 1))
        loop.append(q, k, v, cu)
        found = loop.attend(q, cu, mask="causal", shared_prefixes=True)
        loop.check(*found, queries, cu, TOLERANCES[BF16])
        spec = attune.Spec("causal", dtype="bf16", head_dim=32, layout="paged", shared_prefixes=True)
        loop.check(*loop.attend(q, cu, spec=spec), queries, cu, TOLERANCES[BF16])


def test_batch_invariant():
    """A sequence alone has the bits that it has beside others."""
    loop = Loop(BF16, device=DEVICE)
    for counts in loop.steps():
        q, k, v, cu, queries = loop.grow(counts)
        loop.append(q, k, v, cu)
        o, lse = loop.attend(q, cu, mask="causal", batch_invariant=True)
        loop.check(o, lse, queries, cu, TOLERANCES[BF16])
        caches, where = loop.attended()
        for number, (first, last) in enumerate(zip(cu.tolist(), cu.tolist()[1:], strict=False)):
            alone = attune.attention(
                q[first:last], *caches, mask="causal", batch_invariant=True, cu_q=loop.int32([0, last - first]),
                **{name: x[number : number + 1] for name, x in where.items()}, return_lse=True,
            )  # fmt: skip
            assert torch.equal(alone[0], o[first:last]) and torch.equal(alone[1], lse[:, first:last])


def test_fp8_without_pages():
    """[batch, length, kv_heads, head_dim], its scales of sequences and heads."""
    rng = np.random.default_rng(1)
    q = torch.from_numpy(rng.standard_normal((2, 5, HEADS, 32))).to(BF16).to(DEVICE)
    k, v = (
        torch.from_numpy(rng.standard_normal((2, 20, KV_HEADS, 32))).to(torch.float8_e4m3fn).to(DEVICE) for _ in "kv"
    )
    scales = [torch.from_numpy(rng.uniform(0.5, 2, (2, KV_HEADS))).float().to(DEVICE) for _ in "kv"]
    o, lse = attune.attention(q, k, v, k_scales=scales[0], v_scales=scales[1], return_lse=True)
    wide = [x.cpu().double() * s.cpu().double()[:, None, :, None] for x, s in zip((k, v), scales, strict=True)]
    one = [np.swapaxes(x.cpu().double().numpy(), 1, 2) for x in (q, *wide)]
    wanted = reference.attention(*one)
    reference.check(o.cpu().double().numpy(), lse.cpu().numpy(), wanted[0].swapaxes(1, 2), wanted[1], TOLERANCES[BF16])


def test_launch_scalars_and_tensors():
    """A spec that leaves numbers to the launch, over a cache; another number is no new plan."""
    loop = Loop(FP32, device=DEVICE)
    q, k, v, cu, queries = loop.grow((9, 4, 7))
    loop.append(q, k, v, cu)
    spec = attune.Spec(
        "causal and kv_idx >= first[b] and kv_idx < last", "score * factor", dtype="fp32", head_dim=32, layout="paged",
        scalars={"last": int, "factor": float}, tensors={"first": "int32[batch]"}, scale=float,
    )  # fmt: skip
    first = loop.int32([2, 0, 3])
    for last, factor in ((6, 0.5), (9, 2.0)):
        words = {"scalars": {"last": last, "factor": factor}, "tensors": {"first": first}, "scale": 0.25}
        o, lse = loop.attend(q, cu, spec=spec, **words)
        for number, (begin, end) in enumerate(zip(cu.tolist(), cu.tolist()[1:], strict=False)):
            one = [x.swapaxes(0, 1)[None] for x in (queries[begin:end], *loop.keys[number])]
            begins = first[number].item()
            wanted = reference.attention(
                *one,
                mask=lambda b, h, i, j: (j <= i) & (j >= begins) & (j < last),  # noqa: B023
                scale=0.25 * factor,
            )
            reference.check(
                o[begin:end].cpu().numpy(), lse[:, begin:end].cpu().numpy(), wanted[0][0].swapaxes(0, 1), wanted[1][0]
            )
    with pytest.raises(attune.BadInputError, match="scalars"):
        loop.attend(q, cu, spec=spec, tensors={"first": first}, scale=0.25)
    with pytest.raises(attune.BadInputError, match="needs the tensor `first`"):
        loop.attend(q, cu, spec=spec, scalars={"last": 3, "factor": 1.0}, scale=0.25)
    with pytest.raises(attune.BadInputError, match="`scale` is left"):
        loop.attend(q, cu, spec=spec, **{**words, "scale": None})


def test_a_scale_is_asked_for_at_each_launch():
    loop = Loop(FP32, device=DEVICE)
    q, k, v, cu, _ = loop.grow((2, 1, 1))
    loop.append(q, k, v, cu)
    spec = attune.Spec(dtype="fp32", head_dim=32, layout="paged", scale=float)
    found = [loop.attend(q, cu, spec=spec, scale=scale)[1] for scale in (0.5, 0.25, 0.5)]
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
    with pytest.raises(attune.BadInputError, match="`scale` is left"):
        loop.attend(q, cu, spec=spec)
