"""Calls whose sizes come again, one of many at a time: each goes straight to its launch, and what does not come again
is forgotten."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from calls_again import close, every_call, operands, plain, straight  # noqa: E402, F401

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune._recent import Recent  # noqa: E402
from attune.torch import _bound, _native  # noqa: E402

MANY = 3 * _bound.MAX_BOUND


def test_what_comes_again_is_kept():
    known = Recent(4)
    known.put("again", 0)
    for other in range(100):
        known.put(other, other)
        assert known.recall("again") == 0
        assert len(known) + len(known._before) <= 8
    assert known.recall(99) == 99 and known.recall(1) is None
    known.clear()
    assert known.recall("again") is None and known.recall(99) is None


@every_call
def test_many_sizes(call, straight):  # noqa: F811
    given = [operands(q_len=5 + at, kv_len=20) for at in range(MANY)]
    for _ in range(3):
        for each in given:
            call(*each)
    straight.clear()
    for each in given:
        close(call(*each), plain(*each))
    assert len(straight) == MANY


def test_strides_of_many_sizes(straight):  # noqa: F811
    def call(given):
        return attune.attention(*given, mask="causal_top_left", layout="bhsd")

    given = [operands(q_len=5 + at, kv_len=20) for at in range(MANY)]
    turned = [[x.transpose(1, 2).contiguous().transpose(1, 2) for x in each] for each in given]
    for _ in range(4):
        straight.clear()
        for each in (*given, *turned):
            close(call(each), plain(*each))
    assert len(straight) == 2 * MANY


def test_gradients_of_many_sizes(straight):  # noqa: F811
    given = [[x.requires_grad_() for x in operands(q_len=5 + at, kv_len=20)] for at in range(MANY)]
    for _ in range(4):
        straight.clear()
        for each in given:
            out = attune.attention(*each, mask="causal_top_left", layout="bhsd")
            found = torch.autograd.grad(out.sin().sum(), each)
            for mine, wanted in zip(found, torch.autograd.grad(plain(*each).sin().sum(), each), strict=True):
                close(mine, wanted.double())
    assert len(straight) == MANY


@pytest.mark.skipif(_native._functions() is None, reason="libattune_calls.so is not there")
def test_native_code_finds_them(straight):  # noqa: F811
    # Of float32 a GPU asks torch for its precision at each call where the call leaves it open.
    words = {"mask": "causal_top_left", "layout": "bhsd", "precision": "strict"}
    bias = "score + bias[q_idx]"
    rows = [{}, {"score": bias, "tensors": True}, {"cu_q": True}]
    for row in rows:
        given = [operands(q_len=5 + at, kv_len=20) for at in range(MANY)]
        said = []
        for q, k, v in given:
            each = {**words, **row}
            if "tensors" in row:
                each["tensors"] = {"bias": torch.zeros(q.shape[2])}
            if "cu_q" in row:
                q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
                each = {
                    "mask": "causal",
                    "precision": "strict",
                    "cu_q": torch.tensor([0, 3, q.shape[0]], dtype=torch.int32),
                }
                each["cu_kv"] = torch.tensor([0, 3, 20], dtype=torch.int32)
            said.append((q, k, v, each))
        for _ in range(3):
            for q, k, v, each in said:
                attune.attention(q, k, v, **each)
        met, _ = _native.enter_attention(_met.function_of_calls)
        if _met.find is not None:
            assert all(met(q, k, v, **each) is not None for q, k, v, each in said)


@every_call
def test_what_has_no_sizes_is_refused_by_name(call):
    """As it is before there are many sizes among which to look."""
    strided = torch.nested.nested_tensor([torch.randn(2, 5, 16)], layout=torch.strided)
    given = [operands(q_len=5 + at, kv_len=20) for at in range(MANY)]
    errors = []
    for count in (0, 3):
        for _ in range(count):
            for each in given:
                call(*each)
        for at in range(3):
            each = list(given[0])
            each[at] = strided
            with pytest.raises(Exception) as found:
                call(*each)
            errors.append((type(found.value), str(found.value)))
    assert errors[:3] == errors[3:]
    assert errors[0][0] in (attune.BadInputError, NotImplementedError) and "ested" in errors[0][1]
