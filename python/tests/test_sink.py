"""A sink beside FlexAttention's functions: a logit a head that joins the softmax's denominator, and learns."""

import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402
from test_gradients import plain_attention  # noqa: E402

from attune.torch import Untranslatable, _recall, flex_attention  # noqa: E402

DIM = 32


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(17)


def operands():
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM, requires_grad=True) for _ in range(3))
    return q, k, v, torch.randn(HEADS, requires_grad=True)


def with_sink(q, k, v, sink, score_mod=None):
    """By what it does to an output without one."""
    out, lse = plain_attention(q, k, v, score_mod, mods.causal)
    whole = torch.logaddexp(lse, sink[:, None])
    return out * (lse - whole).exp()[..., None], whole


def check(run, leaves, score_mod=None, tolerance=1e-4):
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    results = []
    for function, given in ((run, leaves), (with_sink, doubles)):
        out, lse = function(*given, score_mod)
        (out.square().sum() + lse.sum()).backward()
        results.append([out, lse, *(x.grad for x in given)])
        for x in given:
            x.grad = None
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


def attend(q, k, v, sink, score_mod=None):
    return flex_attention(q, k, v, score_mod, mask_mod=mods.causal, sink=sink, return_lse=True, strict=True)


@pytest.mark.parametrize("compiles", [False, True])
def test_values_and_gradients(compiles):
    run = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiles else attend
    check(run, operands())


def test_beside_a_score():
    slopes = torch.rand(HEADS)
    check(attend, operands(), lambda score, b, h, i, j: score + slopes[h] * (j - i))


def test_computed_by_the_graph():
    def run(q, k, v, sink, score_mod=None):
        return attend(q, k, v, sink * 1, score_mod)

    check(torch.compile(run, fullgraph=True, backend="inductor"), operands())


def test_another_sink_in_a_call_that_is_known():
    q, k, v, sink = (x.detach() for x in operands())
    for shift in (0, 1, 2):
        torch.testing.assert_close(
            attend(q, k, v, sink + shift)[0].double(), with_sink(*(x.double() for x in (q, k, v, sink + shift)))[0],
            atol=1e-5, rtol=1e-5,
        )  # fmt: skip


def test_nothing_remembers_a_sink():
    q, k, v, sink = (x.detach() for x in operands())
    attend(q, k, v, sink)
    before, kept = len(_recall._programs), []
    for _ in range(8):
        each = sink.clone()
        attend(q, k, v, each)
        kept.append(weakref.ref(each))
    del each
    assert len(_recall._programs) == before and not any(reference() is not None for reference in kept)


def test_bfloat16():
    leaves = [x.detach().bfloat16().requires_grad_() for x in operands()]
    out, _ = attend(*leaves)
    wanted, _ = with_sink(*(x.detach().double() for x in leaves))
    torch.testing.assert_close(out.double(), wanted, atol=0.02, rtol=0.02)
    out.float().sum().backward()
    assert leaves[3].grad.dtype == torch.bfloat16


def test_wrong_sizes():
    q, k, v, _ = operands()
    with pytest.raises(ValueError, match=f"sink of {HEADS} heads"):
        attend(q, k, v, torch.zeros(HEADS + 1))


def test_nothing_to_fall_back_to():
    q, k, v, sink = operands()
    with pytest.raises(Untranslatable):
        flex_attention(q, k, v, lambda score, b, h, i, j: torch.special.i0(score), sink=sink)
