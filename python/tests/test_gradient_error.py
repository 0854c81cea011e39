"""Gradients of bf16 are as near to float64's as those of torch's own attention. Needs a GPU: ATTUNE_TEST_DEVICE=cuda."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import attune  # noqa: E402

if devices.DEVICE == "cpu":
    pytest.skip("torch's attention on a CPU rounds elsewhere", allow_module_level=True)

# Long enough for a CTA for each key tile on Hopper, and short ones whose key tiles come off a counter.
SHAPES = [(8, 16, 1024, 128), (2, 16, 8192, 128), (8, 16, 1024, 96), (4, 16, 4096, 64)]


def gradients(function, given, d_o):
    inputs = [x.detach().requires_grad_() for x in given]
    function(*inputs).backward(d_o)
    return [x.grad for x in inputs]


def of_one_head(q, k, v):
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    later = torch.ones(s.shape[-2:], device=s.device, dtype=torch.bool).triu(1)
    return s.masked_fill(later, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("shape", SHAPES)
def test_no_gradient_is_further_from_float64_than_torchs(shape):
    torch.manual_seed(4)
    *given, d_o = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    ours = gradients(lambda *qkv: attune.attention(*qkv, mask="causal", layout="bhsd"), given, d_o)
    theirs = gradients(lambda *qkv: scaled_dot_product_attention(*qkv, is_causal=True), given, d_o)
    first = [x[:1, :1].double() for x in (*given, d_o)]
    wanted = gradients(of_one_head, first[:3], first[3])
    for name, *three in zip("qkv", ours, theirs, wanted, strict=True):
        error, error_of_torch = ((x[:1, :1].double() - three[2]).abs().mean().item() for x in three[:2])
        assert error <= 1.1 * error_of_torch, name  # with P rounded before dS is made of it, 1.24
