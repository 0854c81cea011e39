"""Dropout from torch's generator."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import attune  # noqa: E402
from attune.torch import Untranslatable, flex_attention  # noqa: E402

DIM = 32


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(9)


def operands():
    return [torch.randn(BATCH, HEADS, LENGTH, DIM).requires_grad_() for _ in range(3)]


def attend(q, k, v):
    return flex_attention(q, k, v, mods.alibi(), mask_mod=mods.causal, dropout=0.25, strict=True)


def by_words(q, k, v):
    return attune.attention(q, k, v, mask="causal", layout="bhsd", dropout=0.25)


def twice(q, k, v):
    """Two layers: each draws for itself."""
    return attend(attend(q, k, v), k, v)


@pytest.mark.parametrize("function", [attend, by_words])
def test_the_seed_is_drawn_from_torchs_generator(function):
    given = [x.detach() for x in operands()]
    state = torch.get_rng_state()
    first, second = function(*given), function(*given)
    torch.set_rng_state(state)
    assert torch.equal(function(*given), first)
    assert torch.equal(function(*given), second) and not torch.equal(first, second)


def test_a_quarter_is_dropped():
    q, k = (torch.zeros(BATCH, HEADS, LENGTH, DIM) for _ in range(2))
    v = torch.eye(LENGTH).expand(BATCH, HEADS, LENGTH, LENGTH).contiguous()
    p = flex_attention(q, k, v, dropout=0.25, strict=True) * LENGTH  # P itself: 0 or 1 / (1 - 0.25)
    torch.testing.assert_close(p, torch.where(p > 0.5, 1 / 0.75, 0.0))
    assert 0.23 < (p == 0).double().mean() < 0.27


def gradients(function, leaves, weights):
    leaves = [x.detach().requires_grad_() for x in leaves]
    out = function(*leaves)
    (out * weights).sum().backward()
    return [out.detach()] + [x.grad for x in leaves]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("function", [twice, by_words])
def test_checkpointing_drops_the_same(function, reentrant):
    leaves, weights = operands(), torch.randn(BATCH, HEADS, LENGTH, DIM)
    torch.manual_seed(21)
    wanted = gradients(function, leaves, weights)
    torch.manual_seed(21)
    found = gradients(lambda *x: checkpoint(function, *x, use_reentrant=reentrant), leaves, weights)
    for mine, reference in zip(found, wanted, strict=True):
        assert torch.equal(mine, reference)
    torch.manual_seed(22)
    assert not torch.equal(gradients(function, leaves, weights)[0], wanted[0])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_compiled(backend, is_checkpointed):
    """O is linear in v: where both passes drop the same elements, <w, O> is <v, dV>."""

    def function(q, k, v):
        return checkpoint(attend, q, k, v, use_reentrant=False) if is_checkpointed else attend(q, k, v)

    run = torch.compile(function, backend=backend, fullgraph=True)
    leaves, weights = operands(), torch.randn(BATCH, HEADS, LENGTH, DIM)
    outs = []
    for _ in range(2):
        out, _, _, of_v = gradients(run, leaves, weights)
        torch.testing.assert_close((out * weights).sum(), (leaves[2].detach() * of_v).sum(), atol=1e-3, rtol=1e-4)
        outs.append(out)
    assert not torch.equal(*outs)
    torch.manual_seed(5)
    first = run(*leaves)
    torch.manual_seed(5)
    assert torch.equal(run(*leaves), first)


def test_dropout_never_falls_back():
    given = [x.detach() for x in operands()]
    with pytest.raises(Untranslatable, match="asinh"):
        flex_attention(*given, lambda score, *_: torch.asinh(score), dropout=0.1)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_probabilities(dropout):
    with pytest.raises(ValueError, match="dropout"):
        flex_attention(*operands(), dropout=dropout)
