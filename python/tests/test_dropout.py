"""Dropout from torch's generator, on ATTUNE_TEST_DEVICE."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402
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
    with devices.on_device():
        yield


def operands():
    return [torch.randn(BATCH, HEADS, LENGTH, DIM).requires_grad_() for _ in range(3)]


SLOPED = devices.made(mods.alibi)  # once: a backward pass that calls `attend` again does so in a thread of its own


def attend(q, k, v):
    return flex_attention(q, k, v, SLOPED, mask_mod=mods.causal, dropout=0.25, strict=True)


def by_words(q, k, v):
    return attune.attention(q, k, v, mask="causal", layout="bhsd", dropout=0.25)


def twice(q, k, v):
    """Two layers: each draws for itself."""
    return attend(attend(q, k, v), k, v)


@pytest.mark.parametrize("function", [attend, by_words])
def test_the_seed_is_drawn_from_torchs_generator(function):
    given = [x.detach() for x in operands()]
    torch.manual_seed(21)
    first, second = function(*given), function(*given)
    torch.manual_seed(21)
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


KINDS = {
    "aot_eager": {"backend": "aot_eager"},
    "inductor": {"backend": "inductor"},
    "graphs": {"mode": "reduce-overhead"},  # of torch's own, on a GPU
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [attend, by_words])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_compiled(kind, function, is_checkpointed):
    """O is linear in v: where both passes drop the same elements, <w, O> is <v, dV>."""
    if kind == "graphs" and devices.DEVICE == "cpu":
        pytest.skip("there are no CUDA graphs")

    def layer(q, k, v):
        return checkpoint(function, q, k, v, use_reentrant=False) if is_checkpointed else function(q, k, v)

    run = torch.compile(layer, fullgraph=True, **KINDS[kind])
    leaves, weights = operands(), torch.randn(BATCH, HEADS, LENGTH, DIM)
    outs = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="attune")  # not: each replay drops the same
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            out, _, _, of_v = gradients(run, leaves, weights)
            lost = (out * weights).sum() - (leaves[2].detach() * of_v).sum()
            assert lost.abs() < 1e-4 * weights.norm() * out.norm()
            outs.append(out.clone())
    assert all(not torch.equal(x, y) for i, x in enumerate(outs) for y in outs[:i])
    if is_checkpointed and kind == "aot_eager" and devices.DEVICE != "cpu":
        return  # torch 2.11 does not draw its own dropout again there either
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        torch.compiler.cudagraph_mark_step_begin()
        found.append(run(*leaves).clone())
    assert torch.equal(*found)


def test_dropout_never_falls_back():
    given = [x.detach() for x in operands()]
    with pytest.raises(Untranslatable, match="asinh"):
        flex_attention(*given, lambda score, *_: torch.asinh(score), dropout=0.1)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_probabilities(dropout):
    with pytest.raises(ValueError, match="dropout"):
        flex_attention(*operands(), dropout=dropout)
