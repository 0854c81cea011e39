"""Tensors with torch's negative bit are what they stand for, and not what lies in memory."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import on_device  # noqa: E402

import attune  # noqa: E402
from attune.torch import flex_attention  # noqa: E402

LENGTH, HEADS, DIM = 12, 2, 16


@pytest.fixture(autouse=True)
def on_this_device():
    with on_device():
        torch.manual_seed(8)
        yield


def dense(q, k, v, table):
    score = "score + table[h] * kv_idx"
    return attune.attention(q, k, v, score=score, tensors={"table": table}, precision="strict")


def packed(q, k, v, table):
    cu = torch.tensor([0, 5, LENGTH], dtype=torch.int32)
    score = "score + table[h] * kv_idx"
    given = [x.flatten(0, 1) for x in (q, k, v)]
    return attune.attention(*given, score=score, tensors={"table": table}, cu_q=cu, precision="strict")[None]


def by_functions(q, k, v, table):
    given = [x.transpose(1, 2) for x in (q, k, v)]
    return flex_attention(*given, lambda s, b, h, i, j: s + table[h] * j, strict=True).transpose(1, 2)


WAYS = pytest.mark.parametrize("attend", [dense, packed, by_functions])


def operands():
    return [*(torch.randn(1, LENGTH, HEADS, DIM) for _ in range(3)), torch.rand(HEADS)]


@WAYS
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("learns", [False, True])
def test_each_operand(attend, place, learns):
    given = operands()
    for _ in range(3):
        attend(*given)
    other = list(given)
    other[place] = torch._neg_view(given[place])
    resolved = list(given)
    resolved[place] = -given[place]
    if learns:
        for x in (other, resolved):
            x[(place + 1) % 3] = x[(place + 1) % 3].detach().requires_grad_()
    for _ in range(3):
        torch.testing.assert_close(attend(*other), attend(*resolved))


@WAYS
def test_a_gradient(attend):
    """That of a conjugate's imaginary part is one."""
    weights = torch.randn(1, LENGTH, HEADS, DIM, dtype=torch.complex64)
    for _ in range(4):
        *given, table = operands()
        found = []
        for is_conjugate in (True, False):
            leaves = [x.detach().requires_grad_() for x in given]
            o = attend(*leaves, table)
            if is_conjugate:
                loss = (torch.complex(torch.zeros_like(o), o).conj() * weights).real.sum()
            else:
                loss = (o * weights.imag).sum()
            found.append(torch.autograd.grad(loss, leaves))
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)
