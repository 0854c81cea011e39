"""torch.func's transforms of packed sequences beside the same sequence by sequence."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402
from torch.func import grad, vjp, vmap  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402

HEADS, KV_HEADS, DIM, TOKENS, SAMPLES = 4, 2, 32, 24, 3


@pytest.fixture(autouse=True)
def on_device():
    with devices.on_device():
        torch.manual_seed(6)
        yield


def operands(*mapped):
    return [torch.randn(*mapped, TOKENS, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]


def cu(*ends):
    return torch.tensor((0, *ends), dtype=torch.int32)


def attend(q, k, v, cu_q, slope=None):
    words = {} if slope is None else {"score": "score + slope[h] * kv_idx", "tensors": {"slope": slope}}
    return attune.attention(q, k, v, mask="causal", cu_q=cu_q, **words)


def loss(*given):
    return attend(*given).sin().sum()


def close(mine, wanted):
    torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-4)


def by_autograd(*given):
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
    return torch.autograd.grad(loss(*leaves), [x for x in leaves if x.requires_grad])


def test_gradients():
    given = (*operands(), cu(9, 20))
    for mine, wanted in zip(grad(loss, (0, 1, 2))(*given), by_autograd(*given), strict=True):
        close(mine, wanted)
    given = (*given, torch.rand(HEADS))
    for mine, wanted in zip(grad(loss, (0, 1, 2, 4))(*given), by_autograd(*given), strict=True):
        close(mine, wanted)
    out, pull = vjp(lambda q: attend(q, *given[1:]), given[0])
    close(pull(out.cos())[0], by_autograd(*given)[0])


@pytest.mark.parametrize("mapped", [(0, None, None, None), (0, 0, 0, 0), (0, None, 0, 0)])
def test_mapped(mapped):
    given = [*operands(SAMPLES), torch.stack([cu(9, 20), cu(1, 24), cu(0, 3)])]
    given = [x if dim == 0 else x[0] for x, dim in zip(given, mapped, strict=True)]
    of_each = [[x[at] if dim == 0 else x for x, dim in zip(given, mapped, strict=True)] for at in range(SAMPLES)]
    close(vmap(attend, mapped)(*given), torch.stack([attend(*each) for each in of_each]))
    found = vmap(grad(loss, (0, 1, 2)), mapped)(*given)
    for mine, wanted in zip(found, zip(*[by_autograd(*each) for each in of_each], strict=True), strict=True):
        close(mine, torch.stack(wanted))


def test_along_another_dim():
    q, k, v = operands(SAMPLES)
    turned = vmap(attend, (2, 0, 0, None), 2)(q.movedim(0, 2), k, v, cu(9, 20))
    close(turned.movedim(2, 0), torch.stack([attend(*each, cu(9, 20)) for each in zip(q, k, v, strict=True)]))


def test_a_cache_has_no_gradient():
    q, pages = torch.randn(2, HEADS, DIM), torch.randn(3, 4, KV_HEADS, DIM)
    where = {"cu_q": cu(1, 2), "used_kv": torch.tensor([3, 4], dtype=torch.int32)}
    where["page_table"] = torch.tensor([[1], [2]], dtype=torch.int32)

    def of_cache(q):
        return attune.attention(q, pages, pages.clone(), mask="causal", **where)

    close(vmap(of_cache)(torch.stack([q, 2 * q])), torch.stack([of_cache(q), of_cache(2 * q)]))
    with pytest.raises(attune.UnsupportedError, match="no backward pass"):
        grad(lambda q: of_cache(q).sum())(q)


def test_under_vmap_a_tensor_learns_as_without():
    given = [*operands(SAMPLES), cu(9, 20), torch.rand(SAMPLES, HEADS)]
    mapped = (0, 0, 0, None, 0)

    def whole(slope):
        return vmap(loss, mapped)(*given[:4], slope).sum()

    of_each = [[x if dim is None else x[at] for x, dim in zip(given, mapped, strict=True)] for at in range(SAMPLES)]
    wanted = torch.stack([by_autograd(*each)[3] for each in of_each])
    close(grad(whole)(given[4]), wanted)
    leaf = given[4].clone().requires_grad_()
    close(torch.autograd.grad(whole(leaf), leaf)[0], wanted)


def test_a_tensor_that_the_spec_has_not_learn_is_refused():
    slope = torch.rand(HEADS)
    for layout, where in (("thd", {"cu_q": cu(9, 20)}), ("bshd", {})):
        given = operands(*[2] * (not where))
        words = {"score": "score + slope[h] * kv_idx", "tensors": {"slope": "float32[heads]"}}
        spec = attune.Spec("causal", **words, dtype="fp32", head_dim=DIM, layout=layout)

        def by_slope(slope, spec=spec, given=given, where=where):
            return attune.attention(*given, spec=spec, tensors={"slope": slope}, **where).sin().sum()

        def by_slopes(slopes, f=by_slope):
            return vmap(f)(slopes).sum()

        for ask, x in ((grad(by_slope), slope), (grad(by_slopes), slope[None]), (vmap(grad(by_slope)), slope[None])):
            with pytest.raises(attune.BadInputError, match="`slope` requires a gradient"):
                ask(x)
        with torch.no_grad():
            close(vmap(by_slope)(slope[None])[0], by_slope(slope))


def test_dropout_is_refused():
    q, k, v = operands()
    before = torch.get_rng_state()
    for seed in ({}, {"seed": 3}):
        with pytest.raises(attune.UnsupportedError, match="packed sequences under"):
            grad(lambda q, seed=seed: attune.attention(q, k, v, cu_q=cu(9, 20), dropout=0.5, **seed).sum())(q)
    ends = cu(9, 20)
    with pytest.raises(attune.UnsupportedError, match="packed sequences under"):
        vmap(lambda q: attune.attention(q, k, v, cu_q=ends, dropout=0.5), randomness="different")(q[None])
    assert torch.equal(torch.get_rng_state(), before)  # what is refused draws nothing


def test_no_elements_are_refused():
    q, k, v = operands()
    for attend_one in (lambda q: attend(q, k, v, cu(9, 20)), lambda q: attune.attention(*(x[None] for x in (q, k, v)))):
        with pytest.raises(attune.BadInputError, match="a dim of 0 elements"):
            vmap(attend_one)(q.new_empty(0, *q.shape))
