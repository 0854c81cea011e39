"""Head dims that no kernel has: those that are no multiple of 8."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402

import attune  # noqa: E402
from attune.torch import _widths, flex_attention  # noqa: E402

LENGTH = 40
WIDTHS = [(1, 1), (5, 3), (20, 36), (64, 20), (100, 100)]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def by_words(q, k, v):
    return attune.attention(q, k, v, mask="causal", layout="bhsd", return_lse=True)


def by_functions(q, k, v):
    return flex_attention(q, k, v, mask_mod=causal, return_lse=True, strict=True)


def packed(q, k, v):
    cu = torch.tensor([0, LENGTH], dtype=torch.int32, device=q.device)
    given = [x[0].transpose(0, 1) for x in (q, k, v)]
    o, lse = attune.attention(*given, mask="causal", cu_q=cu, return_lse=True)
    return o.transpose(0, 1)[None].contiguous(), lse[None]


def plain(q, k, v):
    s = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    s = s.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    return s.softmax(-1) @ v, s.logsumexp(-1)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("function", [by_words, by_functions, packed])
@pytest.mark.parametrize("widths", WIDTHS)
def test_any(function, widths, is_compiled):
    torch.compiler.reset()
    torch.manual_seed(3)
    of_q, of_v = widths
    sizes = (1, 2, LENGTH, of_q), (1, 2, LENGTH, of_q), (1, 2, LENGTH, of_v)
    given = [devices.made(lambda size=size: torch.randn(size, requires_grad=True)) for size in sizes]
    run = torch.compile(function, backend="aot_eager", fullgraph=True) if is_compiled else function
    doubles = [x.detach().double().requires_grad_() for x in given]
    weights = torch.randn_like(given[2])
    results = []
    for each, leaves in ((run, given), (run, given), (plain, doubles)):
        o, lse = each(*leaves)
        assert o.is_contiguous() and o.shape[-1] == of_v
        loss = (o * weights).sum() + lse.sum()
        results.append([x.double() for x in (o, lse, *torch.autograd.grad(loss, leaves))])
    for found in results[:2]:
        for mine, wanted in zip(found, results[-1], strict=True):
            torch.testing.assert_close(mine, wanted, atol=3e-5, rtol=3e-5)


def strides_of(function, given, width):
    """Of O and of the operands' gradients, the last dim of size 8 in place of `width`."""
    o, _ = function(*given)
    found = [o, *torch.autograd.grad(o.sum(), given)]
    return [tuple(x.stride(dim) // width * 8 for dim in range(3)) for x in found], [x.stride(3) for x in found]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("function", [by_words, by_functions])
def test_axes_lie_as_those_of_q(function, is_compiled, order):
    torch.compiler.reset()
    run = torch.compile(function, backend="aot_eager", fullgraph=True) if is_compiled else function
    sizes, back = [(2, 3, LENGTH)[dim] for dim in order], [order.index(dim) for dim in range(3)]
    found = []
    for width in (16, 20, 21):
        given = [devices.made(lambda width=width: torch.randn(*sizes, width)).permute(*back, 3) for _ in range(3)]
        found.append(strides_of(run, [x.requires_grad_() for x in given], width))
    assert found[1] == found[0] == found[2]


def test_axes_of_a_graph_of_open_sizes():
    torch.compiler.reset()
    run = torch.compile(by_words, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (LENGTH, 24):
        q, k, v = (devices.made(lambda n=length: torch.randn(2, n, 3, 20)).transpose(1, 2) for _ in range(3))
        o, lse = run(q, k, v)
        assert o.stride() == q.stride()
        torch.testing.assert_close((o, lse), by_words(q, k, v))


def test_what_lacks_nothing_is_not_copied():
    met = []

    def function(*given, scale):
        met.extend(given)
        return given[2]

    q, k, v = (devices.made(lambda width=width: torch.randn(1, 2, LENGTH, width)) for width in (20, 20, 16))
    assert _widths.attend(function, q, k, v, None) is v and met[2] is v and met[0].shape[-1] == 24


def test_a_scale_that_is_given():
    q, k, v = (devices.made(lambda: torch.randn(1, 2, LENGTH, 20)) for _ in range(3))
    wanted = plain(*(x.double() for x in (0.25 * 20**0.5 * q, k, v)))[0]
    found = attune.attention(q, k, v, mask="causal", layout="bhsd", scale=0.25)
    torch.testing.assert_close(found.double(), wanted, atol=3e-5, rtol=3e-5)


def test_what_does_not_fit_is_said_of_what_was_given():
    q, k, v = torch.randn(1, 2, LENGTH, 20), torch.randn(1, 2, LENGTH, 12), torch.randn(1, 2, LENGTH, 12)
    with pytest.raises(ValueError, match="20.*12|12.*20"):
        flex_attention(q, k, v)
    with pytest.raises(attune.BadInputError, match="20|12"):
        attune.attention(q, k, v, layout="bhsd")
