"""Copies of captured tensors in types that kernels take: of what stands in the tensors now."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from mods import LENGTH  # noqa: E402
from test_flex_attention import operands  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

from attune.torch import Untranslatable, _auxiliary, flex_attention  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.bfloat16, torch.float64])
def test_values_that_change_unseen(dtype, monkeypatch):
    """A CUDA tensor's are looked at once a version: what is written past torch (`tensor.data`, a collective, the replay
    of a graph) is none, and counts all the same."""
    monkeypatch.setattr(_auxiliary, "_tells_its_changes", lambda tensor: True)
    tensor = torch.arange(8).to(dtype)
    for value in (3, 5):
        version = tensor._version
        tensor.data.fill_(value)
        assert tensor._version == version
        assert (_auxiliary.as_auxiliary(tensor) == value).all()


def test_values_are_looked_at_once_a_version(monkeypatch):
    tensor, looked = torch.arange(8), []
    monkeypatch.setattr(_auxiliary, "_tells_its_changes", lambda tensor: True)
    monkeypatch.setattr(torch.Tensor, "max", lambda self: looked.append(self) or 7)
    for _ in range(2):
        _auxiliary.as_auxiliary(tensor)
    assert len(looked) == 1
    tensor += 1
    _auxiliary.as_auxiliary(tensor)
    assert len(looked) == 2
    monkeypatch.undo()
    tensor += 2**40
    with pytest.raises(Untranslatable, match="beyond int32"):
        _auxiliary.as_auxiliary(tensor)
    monkeypatch.setattr(_auxiliary, "is_captured", lambda device: True)
    _auxiliary.as_auxiliary(tensor)  # to look would end the capture


@pytest.mark.filterwarnings("ignore")
def test_values_that_no_longer_fit_fall_back():
    """As at a first call, whose functions nobody knew."""
    q, k, v = operands()
    table = torch.zeros(LENGTH, dtype=torch.int64)

    def large(score, b, h, q_idx, kv_idx):
        return torch.where(table[kv_idx] > 2**35, score + 1, score)

    for _ in range(4):
        flex_attention(q, k, v, large, strict=True)
    table[3] = 2**40
    for _ in range(2):
        assert (flex_attention(q, k, v, large) - torch_flex.flex_attention(q, k, v, large)).abs().max() < 1e-2
    with pytest.raises(Untranslatable, match="beyond int32"):
        flex_attention(q, k, v, large, strict=True)
