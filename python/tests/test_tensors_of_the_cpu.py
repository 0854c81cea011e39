"""Tensors without dims that lie on the CPU, captured by functions of a GPU's launch: numbers that it brings."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device  # noqa: E402
from test_gradients import plain_attention  # noqa: E402

import attune  # noqa: E402
from attune.torch import _recall, flex_attention  # noqa: E402
from attune.torch._plans import variant_of  # noqa: E402
from attune.torch._sizes import Sizes  # noqa: E402
from attune.torch._translate import translate  # noqa: E402

HEADS, LENGTH, DIM = 2, 40, 16
only_on_a_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="of a GPU alone")


@pytest.fixture(autouse=True)
def fresh():
    _recall.forget()
    variant_of.cache_clear()
    torch.manual_seed(5)


def number(value, dtype=None):
    return torch.tensor(value, dtype=dtype, device="cpu")


def functions(window, factor):
    def score_mod(score, b, h, i, j):
        return score * factor

    def mask_mod(b, h, i, j):
        return (i - j < window) & (i >= j)

    return score_mod, mask_mod


def translated(score_mod, mask_mod):
    """Of a launch on a GPU, which need not be there: mask, score and numbers, and the tensors that are left."""
    seen = _recall.look_at(score_mod, None, mask_mod, None)
    opened, numbers = seen.open((score_mod, None, mask_mod))
    sizes = Sizes(1, HEADS, HEADS, LENGTH, LENGTH)
    found = translate(opened[0], opened[2], sizes, torch.device("cuda"), numbers=numbers)
    return found, numbers


def test_another_value_is_the_same_text():
    first, _ = translated(*functions(number(7), number(2.0)))
    assert first.captured.numbers() == {"n0": 7} and not first.captured.tensors() and not first.captured.reads_values
    assert "n0" in first.mask and "2" in first.score  # a factor is a constant, until it is seen to vary
    second, numbers = translated(*functions(number(9), number(3.0)))
    assert not numbers.decided and sorted(second.captured.numbers().values()) == [3.0, 9]
    third, _ = translated(*functions(number(5), number(-0.5)))
    assert (third.score, third.mask) == (second.score, second.mask)
    assert sorted(third.captured.numbers().values()) == [-0.5, 5]


def test_the_launch_brings_what_stands_there_now():
    window = number(7)
    score_mod, mask_mod = functions(window, 1.0)
    first, _ = translated(score_mod, mask_mod)
    window.fill_(11)
    second, _ = translated(score_mod, mask_mod)
    assert second.mask == first.mask and second.captured.numbers() == {"n0": 11}


@pytest.mark.parametrize("value", [0.0, float("inf")])
def test_what_no_launch_can_bring_is_a_constant(value):
    given = number(value)
    found, _ = translated(lambda s, b, h, i, j: torch.where(i > j, s, given), None)
    assert not found.captured.numbers() and not found.captured.tensors() and found.captured.reads_values


def test_one_that_learns_stays_torchs():
    factor = torch.nn.Parameter(number(2.0))
    with pytest.raises(attune.torch.Untranslatable, match="on cpu, beside operands on cuda"):
        translated(lambda s, b, h, i, j: s * factor, None)


@only_on_a_gpu
@pytest.mark.parametrize("learns", [False, True])
def test_values_that_change_on_a_gpu(learns):
    runtime = attune.default_runtime("cuda:0")
    with on_device():
        given = [torch.randn(1, HEADS, LENGTH, DIM).bfloat16().requires_grad_(learns) for _ in range(3)]
        window, factor = number(3), number(1.5)
        compiled = []
        for step in range(8):
            window.fill_(3 + step)
            for keep in (factor, factor + step / 4):  # in place, and another object
                score_mod, mask_mod = functions(window, keep)
                for _ in range(3):
                    out = flex_attention(*given, score_mod, mask_mod=mask_mod, strict=True)
                    wanted = plain_attention(*(x.detach().double() for x in given), score_mod, mask_mod)[0]
                    torch.testing.assert_close(out.detach().double(), wanted, atol=0.02, rtol=0)
            found = runtime.status()["counters"]
            compiled.append(found["compiles"] + found["from_cache"])
        assert compiled[2:] == compiled[2:3] * 6


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.float16, torch.float64])
def test_types(dtype):
    found, _ = translated(*functions(number(3, dtype), 1.0))
    assert found.captured.numbers() == {"n0": 3} and found.mask.startswith("(((q_idx - kv_idx) < n0)")
