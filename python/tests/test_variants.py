"""attune.attention against the definition, variant by variant."""

import numpy as np
import pytest
import reference

import attune

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, DIM = 2, 4, 2, 70, 90, 32
SHIFT = KV_LEN - Q_LEN  # queries end where keys end

rng_of_tables = np.random.default_rng(7)
DOC = np.sort(rng_of_tables.integers(0, 4, (BATCH, KV_LEN)), axis=1).astype(np.int32)
LENGTHS = np.array([90, 13], np.int32)
SLOPE = (2.0 ** -np.arange(1, HEADS + 1)).astype(np.float32)
BIAS = rng_of_tables.standard_normal((HEADS, 2 * KV_LEN)).astype(np.float32)
TABLE = rng_of_tables.random((5, 6)) < 0.5

MASKS = {
    "none": (None, {}, None),
    "causal": ("causal", {}, lambda b, h, i, j: j <= i + SHIFT),
    "causal_top_left": ("kv_idx <= q_idx", {}, lambda b, h, i, j: j <= i),
    "window": ("sliding_window(17)", {}, lambda b, h, i, j: (j <= i + SHIFT) & (i + SHIFT - j < 17)),
    "sinks": ("sink_window(9, 4)", {}, lambda b, h, i, j: (j <= i + SHIFT) & ((i + SHIFT - j < 9) | (j < 4))),
    "prefix": ("prefix_lm(30)", {}, lambda b, h, i, j: (j < 30) | (j <= i + SHIFT)),
    "document": (
        "causal and document(doc)",
        {"doc": DOC},
        lambda b, h, i, j: (j <= i + SHIFT) & (DOC[b, i + SHIFT] == DOC[b, j]),
    ),
    "padding": ("padding(lengths)", {"lengths": LENGTHS}, lambda b, h, i, j: j < LENGTHS[b]),
    "dilated": ("dilated(5)", {}, lambda b, h, i, j: (j <= i + SHIFT) & ((i + SHIFT - j) % 5 == 0)),
    "blocks": ("table[q_idx // 16, kv_idx // 16]", {"table": TABLE}, lambda b, h, i, j: TABLE[i // 16, j // 16]),
    "heads": ("h % 2 == 0 or kv_idx > 40", {}, lambda b, h, i, j: (h % 2 == 0) | (j > 40)),
    "dead_rows": ("q_idx > 20 and causal", {}, lambda b, h, i, j: (i > 20) & (j <= i + SHIFT)),
}
SCORES = {
    "softcap": ("5 * tanh(score / 5)", {}, lambda s, b, h, i, j: 5 * np.tanh(s / 5)),
    "alibi": (
        "score + slope[h] * (kv_idx - q_pos)",
        {"slope": SLOPE},
        lambda s, b, h, i, j: s + SLOPE[h] * (j - i - SHIFT),
    ),
    "relative_bias": (
        "score + bias[h, kv_idx - q_idx + 70]",
        {"bias": BIAS},
        lambda s, b, h, i, j: s + BIAS[h, j - i + 70],
    ),
    "conditional": (
        "score * 2 if kv_idx % 3 == 0 else score - 1",
        {},
        lambda s, b, h, i, j: np.where(j % 3 == 0, s * 2, s - 1),
    ),
}


def operands(rng, layout="bshd", dtype=np.float32):
    """q, k and v in the layout, and as [batch, heads, length, dim]."""
    sizes = (BATCH, Q_LEN, HEADS, DIM), (BATCH, KV_LEN, KV_HEADS, DIM), (BATCH, KV_LEN, KV_HEADS, DIM)
    arrays = [rng.standard_normal(size).astype(dtype) for size in sizes]
    by_heads = [array.swapaxes(1, 2) for array in arrays]
    return (arrays if layout == "bshd" else [np.ascontiguousarray(a) for a in by_heads]), by_heads


@pytest.mark.parametrize("name", MASKS)
def test_mask(name, rng):
    text, tensors, function = MASKS[name]
    (q, k, v), by_heads = operands(rng)
    o, lse = attune.attention(q, k, v, mask=text, tensors=tensors, return_lse=True)
    assert o.shape == q.shape and o.dtype == np.float32 and lse.shape == (BATCH, HEADS, Q_LEN)
    reference.check(o.swapaxes(1, 2), lse, *reference.attention(*by_heads, mask=function))


@pytest.mark.parametrize("name", SCORES)
def test_score(name, rng):
    text, tensors, function = SCORES[name]
    (q, k, v), by_heads = operands(rng)
    o, lse = attune.attention(q, k, v, score=text, tensors=tensors, return_lse=True)
    reference.check(o.swapaxes(1, 2), lse, *reference.attention(*by_heads, score=function))


def test_mask_and_score_and_sink_together(rng):
    (q, k, v), by_heads = operands(rng)
    o, lse = attune.attention(
        q, k, v, mask="causal", score="3 * tanh(score / 3)", sink="slope[h]", tensors={"slope": SLOPE}, return_lse=True
    )
    expected = reference.attention(
        *by_heads,
        mask=MASKS["causal"][2],
        score=lambda s, b, h, i, j: 3 * np.tanh(s / 3),
        sink=lambda b, h: SLOPE[h],
    )
    # A sink's logit is in the denominator; what LSE is of it is the library's word.
    reference.check(o.swapaxes(1, 2), None, expected[0], None)
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_layout_and_scale(layout, scale, rng):
    arrays, by_heads = operands(rng, layout)
    o = attune.attention(*arrays, mask="causal", layout=layout, scale=scale)
    expected, _ = reference.attention(*by_heads, mask=MASKS["causal"][2], scale=scale)
    reference.check(o.swapaxes(1, 2) if layout == "bshd" else o, None, expected, None)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(kv_heads, rng):
    (q, _, _), _ = operands(rng)
    k, v = (rng.standard_normal((BATCH, KV_LEN, kv_heads, DIM), dtype=np.float32) for _ in range(2))
    o = attune.attention(q, k, v, mask="causal or h_kv == 0")
    expected, _ = reference.attention(
        *(x.swapaxes(1, 2) for x in (q, k, v)),
        mask=lambda b, h, i, j: (j <= i + SHIFT) | (h // (HEADS // kv_heads) == 0),
    )
    reference.check(o.swapaxes(1, 2), None, expected, None)


def test_half_precision(rng):
    (q, k, v), by_heads = operands(rng, dtype=np.float16)
    o = attune.attention(q, k, v, mask="causal")
    assert o.dtype == np.float16
    reference.check(
        o.swapaxes(1, 2), None, reference.attention(*by_heads, mask=MASKS["causal"][2])[0], None, tolerance=4e-3
    )


def test_values_of_another_width(rng):
    (q, k, _), _ = operands(rng)
    v = rng.standard_normal((BATCH, KV_LEN, KV_HEADS, 64), dtype=np.float32)
    o = attune.attention(q, k, v)
    assert o.shape == (BATCH, Q_LEN, HEADS, 64)
    reference.check(o.swapaxes(1, 2), None, reference.attention(*(x.swapaxes(1, 2) for x in (q, k, v)))[0], None)


def test_a_constant_scalar_is_named_in_an_expression(rng):
    (q, k, v), _ = operands(rng)
    named = attune.attention(q, k, v, mask="sliding_window(window)", scalars={"window": 17})
    np.testing.assert_array_equal(named, attune.attention(q, k, v, mask="sliding_window(17)"))


def test_dropout_is_a_function_of_seed_and_offset(rng):
    (q, k, v), _ = operands(rng)

    def call(seed, offset, p=0.25):
        return attune.attention(q, k, v, dropout=p, seed=seed, offset=offset)

    first = call(1, 0)
    np.testing.assert_array_equal(first, call(1, 0))
    assert not np.array_equal(first, call(2, 0))
    assert not np.array_equal(first, call(1, 4))
    assert not np.array_equal(first, call(1, 0, 0.0))


def test_dropout_keeps_the_expectation(rng):
    (q, k, _), _ = operands(rng)
    v = np.ones((BATCH, KV_LEN, KV_HEADS, DIM), np.float32)
    means = [attune.attention(q, k, v, dropout=0.5, seed=seed).mean() for seed in range(20)]
    assert abs(np.mean(means) - 1) < 0.05
    assert np.std(means) > 0


def test_layouts_agree_on_dropout(rng):
    by_seq, _ = operands(rng)
    by_heads = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in by_seq]
    o = attune.attention(*by_seq, dropout=0.25, seed=5)
    other = attune.attention(*by_heads, dropout=0.25, seed=5, layout="bhsd")
    np.testing.assert_allclose(o.swapaxes(1, 2), other, atol=1e-5)
