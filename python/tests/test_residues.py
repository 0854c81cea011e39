"""Masks that are taken apart by remainders, and lengths at which they cannot be."""

import numpy
import pytest

import attune

DIM, HEADS, KV_HEADS = 32, 4, 2


def expected(q, k, v, live):
    k, v = (numpy.repeat(x, HEADS // KV_HEADS, 2).astype(numpy.float64) for x in (k, v))
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) / numpy.sqrt(DIM)
    weights = numpy.where(live, numpy.exp(scores - scores.max()), 0)
    total = weights.sum(-1, keepdims=True)
    weights = numpy.divide(weights, total, out=numpy.zeros_like(weights), where=total > 0)
    return numpy.einsum("bhqk,bkhd->bqhd", weights, v)


# Multiples and others, which may share a kernel.
@pytest.mark.parametrize(
    "n, q_len, kv_len", [(4, 64, 64), (4, 65, 65), (4, 63, 67), (8, 120, 129), (8, 128, 256), (3, 66, 99)]
)
def test_dilated_masks_of_any_length(n, q_len, kv_len):
    random = numpy.random.default_rng(n * q_len)
    q = random.standard_normal((2, q_len, HEADS, DIM), dtype=numpy.float32)
    k, v = (random.standard_normal((2, kv_len, KV_HEADS, DIM), dtype=numpy.float32) for _ in range(2))
    distance = numpy.arange(q_len)[:, None] + (kv_len - q_len) - numpy.arange(kv_len)[None]
    out = attune.attention(q, k, v, mask=f"dilated({n})", layout="bshd")
    numpy.testing.assert_allclose(out, expected(q, k, v, (distance >= 0) & (distance % n == 0)), atol=1e-5)


def test_gradients_of_a_dilated_mask():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from attune.torch import flex_attention

    torch.manual_seed(5)
    q, k, v = (torch.randn(2, HEADS, 96, DIM, requires_grad=True) for _ in range(3))
    positions = torch.arange(96)
    distance = positions[:, None] - positions[None]
    live = (distance >= 0) & (distance % 8 == 0)

    def mask(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & ((q_idx - kv_idx) % 8 == 0)

    from attune.torch import create_block_mask

    found = flex_attention(q, k, v, block_mask=create_block_mask(mask, None, None, 96, 96, device="cpu"))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=live)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    g = torch.randn_like(found)
    for a, b in zip(torch.autograd.grad(found, (q, k, v), g), torch.autograd.grad(wanted, (q, k, v), g), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_a_captured_modulus_is_taken_apart():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from attune.torch import create_block_mask, flex_attention

    def every(n):
        return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & ((q_idx - kv_idx) % n == 0)

    length = 1024
    q, k, v = torch.randn(3, 1, HEADS, length, DIM)
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    for n in (4, 8, 2, 16):
        found = flex_attention(
            q, k, v, block_mask=create_block_mask(every(n), None, None, length, length, device="cpu")
        )
        wanted = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=(distance >= 0) & (distance % n == 0)
        )
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        plans = [kernel["plan"] for kernel in attune.default_runtime("cpu").status()["kernels"]]
        assert any(f"residues{n} " in plan for plan in plans), plans
