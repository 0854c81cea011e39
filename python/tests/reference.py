"""Attention in float64, by its definition, from a mask and a score that are NumPy functions."""

import numpy as np


def attention(q, k, v, mask=None, score=None, scale=None, sink=None):
    """O and LSE of [batch, heads, length, head_dim]. mask(b, h, q_idx, kv_idx) and score(score, b, h, q_idx, kv_idx)
    take index arrays that broadcast; sink(b, h) too."""
    batch, heads, q_len, dim = q.shape
    _, kv_heads, kv_len, _ = k.shape
    group = heads // kv_heads
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(-1, -2) * (dim**-0.5 if scale is None else scale)
    indices = np.ogrid[:batch, :heads, :q_len, :kv_len]
    if score is not None:
        s = np.broadcast_to(score(s, *indices), s.shape)
    if mask is not None:
        s = np.where(mask(*indices), s, -np.inf)
    logits = s
    if sink is not None:
        extra = np.broadcast_to(sink(*np.ogrid[:batch, :heads]), (batch, heads))
        logits = np.concatenate([s, np.broadcast_to(extra[..., None, None], (*s.shape[:3], 1))], axis=-1)
    top = logits.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.exp(logits - top).sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    p = np.exp(s - top) / np.where(total > 0, total, 1)
    return p @ v, lse


def check(o, lse, expected_o, expected_lse, tolerance=2e-5):
    """Raises unless both are as expected, non-finite values first."""
    assert np.isfinite(o.astype(np.float64)).all()
    np.testing.assert_allclose(o.astype(np.float64), expected_o, atol=tolerance, rtol=tolerance)
    if lse is not None:
        np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
        np.testing.assert_allclose(lse, expected_lse, atol=10 * tolerance, rtol=tolerance)
