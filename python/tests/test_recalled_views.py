"""Views that functions make themselves of what they captured: such a call is not translated again either, and sees the
tensor as it is now. On ATTUNE_TEST_DEVICE."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import importlib  # noqa: E402

import devices  # noqa: E402
from test_recall import BATCH, HEADS, LENGTH, by_definition, check, operands  # noqa: E402

from attune.torch import _recall, flex_attention  # noqa: E402

_entry = importlib.import_module("attune.torch.flex_attention")


@pytest.fixture(autouse=True)
def translations(monkeypatch):
    """One entry a translation."""
    _recall.forget()
    made = []
    original = _entry.spec_text
    monkeypatch.setattr(_entry, "spec_text", lambda *args: made.append(args) or original(*args))
    with devices.on_device():
        yield made
    _recall.forget()


def documents(shift=2):
    return (torch.arange(LENGTH) // shift).repeat(BATCH, 1)


KINDS = {
    "itself": lambda doc: lambda b, h, i, j: doc[b, i] == doc[b, j],
    "row": lambda doc: lambda b, h, i, j: doc[0][i] == doc[0][j],
    "flat": lambda doc: lambda b, h, i, j: doc.view(-1)[b * LENGTH + i] == doc.reshape(-1)[b * LENGTH + j],
    "shifted": lambda doc: lambda b, h, i, j: doc[:, 1:][b, torch.clamp(j - 1, min=0)] == doc[b, i],
    "turned": lambda doc: lambda b, h, i, j: doc.T[i, b] == doc.transpose(0, 1)[j, b],
    "every second": lambda doc: lambda b, h, i, j: doc[0, ::2][j // 2] == doc.unsqueeze(0)[0, b, i],
    "narrow": lambda doc: lambda b, h, i, j: doc.narrow(0, 1, 1)[0, i] >= doc.select(0, 0)[j],
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_views(kind, dtype, translations):
    for shift in (2, 3, 4):
        doc = documents(shift).to(dtype)
        mask = KINDS[kind](doc)
        for _ in range(2):
            check(None, mask)
        doc.copy_(documents(5))
        check(None, mask)
        for _ in range(3):
            doc.data = documents(7).to(dtype)  # memory of another
            check(None, mask)
    assert len(translations) == 1


def test_other_strides_are_another_call(translations):
    whole = documents()
    for doc in (whole, documents(3).T.contiguous().T, whole):
        check(None, lambda b, h, i, j, doc=doc: doc[1][i] >= doc[1][j])
    assert len(translations) == 2


def test_a_part_of_a_larger_tensor():
    """What the function captured is a view itself: the offset is from where that begins."""
    whole = torch.randint(0, 3, (4, LENGTH), dtype=torch.int32)
    for row in range(3):
        part = whole[row : row + 2]
        check(None, lambda b, h, i, j, part=part: part[1][i] == part[1][j])


def test_what_is_computed_is_translated_at_each_call(translations):
    """A copy, which nothing tells to follow from what was captured."""
    doc = documents()
    for at in range(2):
        check(None, lambda b, h, i, j: (doc * 2)[b, i] == (2 * doc).clone()[b, j])
        assert len(translations) == at + 1
        doc //= 2


def test_a_number_of_a_view_that_is_not_finite(translations):
    slopes = torch.tensor([1.0, 0.5])
    for value in (1.0, float("inf"), 2.0):
        slopes[0] = value
        given = operands()

        def score_mod(score, b, h, i, j):
            return torch.minimum(score, slopes[0])

        out = flex_attention(*given, score_mod, strict=True)
        torch.testing.assert_close(out.double(), by_definition(*given, score_mod, None), atol=2e-5, rtol=2e-5)


def test_gradients_reach_the_tensor(translations):
    table = torch.randn(2, HEADS, requires_grad=True)
    weights = torch.randn(BATCH, HEADS, LENGTH, 16)

    def score_mod(score, b, h, i, j):
        return score + table[1][h] * (i - j) * 0.1

    for _ in range(3):
        given = operands()
        (wanted,) = torch.autograd.grad((by_definition(*given, score_mod, None) * weights).sum(), table)
        (found,) = torch.autograd.grad((flex_attention(*given, score_mod, strict=True) * weights).sum(), table)
        torch.testing.assert_close(found, wanted.to(found.dtype), atol=1e-3, rtol=1e-4)
    assert len(translations) == 1
