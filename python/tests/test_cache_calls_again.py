"""Calls over a cache that are made again go straight to their launch: only where nothing has changed."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from calls_again import WAYS, counting  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune.torch import _cache_bound  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE_SIZE, PAGES = 4, 2, 32, 4, 8


@pytest.fixture(params=WAYS, autouse=True)
def straight(request, monkeypatch):
    yield from counting(request, monkeypatch, _cache_bound.CacheBound)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def given():
    torch.manual_seed(4)
    q = torch.randn(2, HEADS, DIM)
    return q, *(torch.randn(PAGES, PAGE_SIZE, KV_HEADS, DIM) for _ in "kv")


WHERE = {"cu_q": int32(0, 1, 2), "used_kv": int32(7, 5), "page_table": int32([3, 1], [0, 2])}


def plain(q, k, v, used, table, scale=DIM**-0.5, seen=lambda keys, at: at >= 0):
    """Of one token each, which stands at the end of its sequence."""
    rows = []
    for token, count, pages in zip(q.double(), used.tolist(), table.tolist(), strict=True):
        keys, values = (x[pages].flatten(0, 1)[:count].double().repeat_interleave(2, 1) for x in (k, v))
        s = torch.einsum("hd,khd->hk", token, keys) * scale
        s = s.masked_fill(~seen(count, torch.arange(count)), -torch.inf)
        rows.append(torch.einsum("hk,khd->hd", s.softmax(-1), values))
    return torch.stack(rows)


def call(q, k, v, **changes):
    return attune.attention(q, k, v, **{"mask": "causal", **WHERE, **changes})


def close(out, wanted, tolerance=2e-5):
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)


def wanted(q, k, v, used_kv=WHERE["used_kv"], page_table=WHERE["page_table"], **rest):
    return plain(q, k, v, used_kv, page_table, **rest)


def settle(run, straight):
    for _ in range(3):
        run()
    straight.clear()
    run()
    assert len(straight) == 1
    straight.clear()


def test_a_call_goes_straight(straight):
    settle(lambda: call(*given()), straight)
    used, table = int32(1, 8), int32([5, 6], [7, 4])
    close(call(*given(), used_kv=used, page_table=table), wanted(*given(), used, table))
    used.copy_(int32(8, 3))  # in place, as a captured graph has it
    close(call(*given(), used_kv=used, page_table=table), wanted(*given(), used, table))
    assert len(straight) == 2


def test_what_changes(straight):
    q, k, v = given()
    settle(lambda: call(q, k, v), straight)

    def near(count, at):
        return count - 1 - at < 3

    heads_first = k.transpose(1, 2).contiguous().transpose(1, 2)
    gaps = torch.randn(2, 2 * HEADS, DIM)[:, ::2].copy_(q)
    odd = torch.randn(q.numel() + 1)[1:].view(q.shape).copy_(q)
    for _ in range(3):
        close(call(q, heads_first, v), wanted(q, k, v))
        close(call(gaps, k, v), wanted(q, k, v))
        close(call(odd, k, v), wanted(q, k, v))
        close(call(q, k, v, scale=0.5), wanted(q, k, v, scale=0.5))
        close(call(q, k, v, mask="sliding_window(3)"), wanted(q, k, v, seen=near))
        window = call(q, k, v, mask="sliding_window(width)", scalars={"width": 3})
        close(window, wanted(q, k, v, seen=near))
        longer = torch.cat([WHERE["page_table"], int32([-1], [-1])], 1)
        close(call(q, k, v, page_table=longer), wanted(q, k, v))
        close(call(q, k, v, page_table=longer[:, :2]), wanted(q, k, v))  # of other strides
        o, lse = call(q, k, v, return_lse=True)
        assert lse.shape == (HEADS, 2) and torch.equal(o, call(q, k, v))
        close(call(*(x.bfloat16() for x in (q, k, v))), wanted(q, k, v), 0.03)
        with pytest.raises(attune.BadInputError, match="int64"):
            call(q, k, v, used_kv=WHERE["used_kv"].long())
        with pytest.raises(attune.BadInputError, match="not of fp8"):
            call(q, k, v, k_scales=torch.ones(1))
        with pytest.raises(attune.BadInputError, match="does not begin at a multiple of 16 bytes"):
            call(q, torch.randn(k.numel() + 1)[1:].view(k.shape), v)


def test_lists_that_are_told_apart_by_name(straight):
    """used_q and used_kv are of one size and one type."""
    q, k, v = given()
    packed = [x.flatten(0, 1)[:16] for x in (k, v)]
    where = {"cu_q": int32(0, 1, 2), "cu_kv": int32(0, 8, 16)}
    lists = int32(1, 0)
    for _ in range(3):
        of_queries = attune.attention(q, *packed, **where, used_q=lists)
        of_keys = attune.attention(q, *packed, **where, used_kv=lists)
        assert (of_queries[1] == 0).all() and not torch.equal(of_queries[0], of_keys[0])
        close(of_keys[0], packed[1][0].double().repeat_interleave(2, 0))
    assert straight
    both = where["cu_q"]
    settle(lambda: attune.attention(q, *packed, cu_q=both, cu_kv=both), straight)  # one key each
    for _ in range(3):
        close(attune.attention(q, *packed, cu_q=both, cu_kv=both), packed[1][:2].double().repeat_interleave(2, 1))
        of_all = attune.attention(q, *packed, cu_q=both, cu_kv=where["cu_kv"])
        assert not torch.allclose(of_all, attune.attention(q, *packed, cu_q=both, cu_kv=both))
        with pytest.raises(attune.BadInputError, match="`cu_kv` is int64"):
            attune.attention(q, *packed, cu_q=both, cu_kv=where["cu_kv"].long())


def test_a_gradient_that_is_wanted_now(straight):
    q, k, v = given()
    settle(lambda: call(q, k, v), straight)
    q.requires_grad_()
    for _ in range(2):
        with pytest.raises(attune.UnsupportedError, match="requires a gradient"):
            call(q, k, v)
        with torch.no_grad():
            close(call(q, k, v), wanted(q, k, v))
    q.requires_grad_(False)
    close(call(q, k, v), wanted(q, k, v))


def test_a_spec_with_tensors_and_dropout(straight):
    q, k, v = given()
    spec = attune.Spec(
        "causal", "score + slope[h] * kv_idx + added[h]", dtype="fp32", head_dim=DIM, layout="paged", dropout=float,
        tensors={"slope": "float32[heads]", "added": "float32[heads]"},
    )  # fmt: skip
    slope, added = torch.randn(2, HEADS)

    def run(dropout=0.0, seed=None, offset=0, **tensors):
        return attune.attention(q, k, v, spec=spec, tensors=tensors, dropout=dropout, seed=seed, offset=offset, **WHERE)

    settle(lambda: run(slope=slope, added=added), straight)
    right, swapped = run(slope=slope, added=added), run(slope=added, added=slope)
    assert not torch.allclose(right, swapped)
    for _ in range(3):
        assert torch.equal(run(added=added, slope=slope), right)
        torch.testing.assert_close(run(added=slope, slope=added), swapped)
        apart = [run(0.5, seed, offset, slope=slope, added=added) for seed, offset in ((1, 0), (2, 0), (1, 4))]
        assert len({tuple(x.flatten().tolist()) for x in apart}) == 3
        torch.manual_seed(1)
        first = run(0.5, slope=slope, added=added)
        assert not torch.equal(first, run(0.5, slope=slope, added=added))
        torch.manual_seed(1)
        assert torch.equal(first, run(0.5, slope=slope, added=added))
    before = run(slope=slope, added=added)
    slope.mul_(2)
    assert not torch.equal(run(slope=slope, added=added), before)
    with pytest.raises(attune.BadInputError, match="slope"):
        run(slope=torch.randn(HEADS + 1), added=added)


def test_scales_of_fp8(straight):
    q, k, v = given()
    q, cache = q.bfloat16(), [x.to(torch.float8_e4m3fn) for x in (k, v)]
    ones = torch.ones(PAGES, 1)

    def run(k_scales, v_scales):
        return attune.attention(q, *cache, mask="causal", **WHERE, k_scales=k_scales, v_scales=v_scales)

    settle(lambda: run(ones, ones), straight)  # one tensor in two places
    for _ in range(3):
        close(run(ones, ones.clone()), wanted(q, *(x.float() for x in cache)), 0.05)
        close(run(ones, 2 * ones), 2 * wanted(q, *(x.float() for x in cache)), 0.05)
        close(run(torch.ones(KV_HEADS), torch.full((), 2.0)), 2 * wanted(q, *(x.float() for x in cache)), 0.05)
        with pytest.raises(attune.BadInputError, match="v_scales"):
            call(q, *cache, k_scales=ones)
