"""Each row's largest score, by AuxRequest(max_scores=True), beside its definition."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device  # noqa: E402
from torch.nn.attention.flex_attention import AuxRequest  # noqa: E402

from attune.torch import create_block_mask, flex_attention  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 2, 4, 72, 64


@pytest.fixture(autouse=True)
def here():
    torch.compiler.reset()
    with on_device():
        torch.manual_seed(7)
        yield


def operands(dtype=torch.float32, kv_heads=HEADS, length=LENGTH):
    sizes = ((HEADS, LENGTH), (kv_heads, length), (kv_heads, length))
    return [torch.randn(BATCH, heads, size, DIM).to(dtype) for heads, size in sizes]


def wanted(q, k, score_mod=None, mask_mod=None, scale=None):
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.transpose(-1, -2) * (DIM**-0.5 if scale is None else scale)
    at = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    s = s if score_mod is None else score_mod(s, *at).double()
    return (s if mask_mod is None else s.masked_fill(~mask_mod(*at), -torch.inf)).amax(-1)


def check(found, q, k, *given, **rest):
    assert found.dtype == torch.float32 and not found.requires_grad
    torch.testing.assert_close(found.double(), wanted(q, k, *given, **rest), atol=2e-5, rtol=2e-5)


def causal(b, h, i, j):
    return i >= j


def of_documents(b, h, i, j):
    return (i >= j) & (i // 9 == j // 9) & (i % 5 != 3)  # some rows see nothing


def bent(score, b, h, i, j):
    return 3 * torch.tanh(score / 3) - 0.1 * (i - j).abs()


def cut(score, b, h, i, j):
    return torch.where((i - j).abs() < 7, score, -torch.inf)


@pytest.mark.parametrize("score_mod", [None, bent, cut])
@pytest.mark.parametrize("mask_mod", [None, causal, of_documents])
def test_it_is_the_largest(score_mod, mask_mod):
    for _ in range(3):
        q, k, v = operands()
        out, aux = flex_attention(
            q, k, v, score_mod, mask_mod=mask_mod, return_aux=AuxRequest(lse=True, max_scores=True), strict=True
        )
        alone, lse = flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True, strict=True)
        assert torch.equal(out, alone) and torch.equal(aux.lse, lse)
        check(aux.max_scores, q, k, score_mod, mask_mod)


def test_grouped_heads_blocks_and_a_scale():
    q, k, v = operands(kv_heads=2, length=90)
    mask = create_block_mask(of_documents, None, None, LENGTH, 90, device=DEVICE)
    for scale in (None, 0.3):
        _, aux = flex_attention(
            q, k, v, block_mask=mask, scale=scale, enable_gqa=True, return_aux=AuxRequest(max_scores=True), strict=True
        )
        assert aux.lse is None
        check(aux.max_scores, q, k, None, of_documents, scale)


def test_equal_ones_and_large_ones():
    q, k, v = operands()
    _, aux = flex_attention(q * 0, k, v, return_aux=AuxRequest(max_scores=True), strict=True)
    torch.testing.assert_close(aux.max_scores, torch.zeros_like(aux.max_scores), atol=1e-6, rtol=0)
    _, aux = flex_attention(q * 1e3, k * 1e3, v, return_aux=AuxRequest(max_scores=True), strict=True)
    check(aux.max_scores, q * 1e3, k * 1e3)


def test_beside_gradients_and_dropout():
    given = [x.requires_grad_() for x in operands()]
    slopes = torch.rand(HEADS, requires_grad=True)

    def score_mod(score, b, h, i, j):
        return score + slopes[h] * (i - j)

    for _ in range(3):
        out, aux = flex_attention(
            *given, score_mod, dropout=0.25, return_aux=AuxRequest(max_scores=True), strict=True
        )
        check(aux.max_scores, *given[:2], lambda s, b, h, i, j: s + slopes[h] * (i - j))
        assert all(each.any() for each in torch.autograd.grad(out.square().sum(), [*given, slopes]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_in_a_graph(dynamic):
    def layer(q, k, v, mask):
        return flex_attention(q, k, v, bent, mask, return_aux=AuxRequest(max_scores=True), strict=True)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    q, k, v = given = [x.requires_grad_() for x in operands()]
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device=DEVICE)
    out, aux = compiled(*given, mask)
    check(aux.max_scores, q, k, bent, causal)
    assert aux.lse is None and torch.autograd.grad(out.sum(), q)[0].any()
