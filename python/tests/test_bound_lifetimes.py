"""Calls that are made again: what was made for them ends with them, and is made once for sizes that come again."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import on_device  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import _bound, _cache_bound, _cache_launch, _native  # noqa: E402

# Of float32 a GPU asks torch for its precision at each call where the call leaves it open.
CAUSAL = {"mask": "causal", "precision": "strict"}

pytestmark = pytest.mark.skipif(_native._functions() is None, reason="libattune_calls.so is not there")


@pytest.fixture(autouse=True)
def anew():
    with on_device():
        torch.manual_seed(3)
        forget()
        yield
        forget()


def forget():
    _met.CALLS.clear()


def counted(monkeypatch, kind):
    """Weak references to all that are made of a class."""
    made, init = [], kind.__init__
    slots = "__weakref__" in dir(kind)
    references = weakref.ref if slots else lambda x: weakref.ref(x.check)

    def counting(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(references(self))

    monkeypatch.setattr(kind, "__init__", counting)
    return made


def packed(tokens, learns=False):
    q = torch.randn(tokens, 4, 32, requires_grad=learns)
    k, v = torch.randn(tokens, 2, 32), torch.randn(tokens, 2, 32)
    return q, k, v, torch.tensor([0, tokens // 2, tokens], dtype=torch.int32)


def assert_ended(made):
    """All of them, of which there were some, when nothing is remembered."""
    assert made
    forget()
    gc.collect()
    assert [each() for each in made] == [None] * len(made)


@pytest.mark.parametrize("dropout", [None, 0.5])
@pytest.mark.parametrize("learns", [False, True])
def test_launches_over_a_cache_end_with_their_calls(monkeypatch, learns, dropout):
    made = counted(monkeypatch, _cache_launch.CacheLaunch)
    for tokens in range(8, 14):
        q, k, v, cu = packed(tokens, learns)
        for _ in range(3):
            o = attune.attention(q, k, v, cu_q=cu, dropout=dropout, **CAUSAL)
            if learns:
                o.sum().backward()
    del o
    assert_ended(made)


@pytest.mark.parametrize("dropout", [None, 0.5])
@pytest.mark.parametrize("learns", [False, True])
def test_dense_calls_end(monkeypatch, learns, dropout):
    made = counted(monkeypatch, _bound.Bound)
    for length in range(8, 14):
        q, k, v = (torch.randn(1, length, 2, 32, requires_grad=learns) for _ in range(3))
        for _ in range(3):
            o = attune.attention(q, k, v, dropout=dropout, **CAUSAL)
            if learns:
                o.sum().backward()
    del o
    assert_ended(made)


def test_sizes_that_come_again_have_one_launch_each(monkeypatch):
    made = counted(monkeypatch, _cache_launch.CacheLaunch)
    given = [packed(tokens) for tokens in range(16, 16 + 2 * _bound.MAX_BOUND)]
    outputs = []
    for _ in range(4):
        outputs.append([attune.attention(q, k, v, cu_q=cu, **CAUSAL) for q, k, v, cu in given])
    assert len(made) == len(given)
    for again in outputs[1:]:
        for o, known in zip(again, outputs[0], strict=True):
            assert torch.equal(o, known)
