"""Calls that are made again go straight to their launch: only where nothing that they were made of has changed."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from calls_again import (  # noqa: E402
    CALLS,
    DIM,
    HEADS,
    LENGTH,
    MASK,
    by_words,
    causal,
    close,
    every_call,
    operands,
    plain,
    settle,
    straight,  # noqa: F401
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune.torch import create_block_mask, flex_attention  # noqa: E402


@every_call
def test_a_call_goes_straight(call, straight):
    given = operands()
    settle(lambda: call(*given), straight)
    for _ in range(2):
        other = [torch.randn_like(x) for x in given]
        close(call(*other), plain(*other))
    assert len(straight) == 2


def strided(x):
    return torch.randn(1, LENGTH, HEADS, DIM).transpose(1, 2).copy_(x)


def with_gaps(x):
    return torch.randn(1, HEADS, LENGTH, 2 * DIM)[..., :DIM].copy_(x)


def every_second(x):
    return torch.randn(1, HEADS, LENGTH, 2 * DIM)[..., ::2].copy_(x)


def misaligned(x):
    return torch.randn(x.numel() + 1)[1:].view(x.shape).copy_(x)


@every_call
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("make", [strided, with_gaps, every_second, misaligned])
def test_operands_that_lie_otherwise(call, place, make, straight):
    given = operands()
    settle(lambda: call(*given), straight)
    for _ in range(3):
        given[place] = make(given[place])
        assert given[place].shape == (1, HEADS, LENGTH, DIM)
        close(call(*given), plain(*given))


@every_call
@pytest.mark.parametrize("sizes", [{"q_len": 8}, {"kv_len": 24}, {"heads": 4}, {"batch": 2}, {"q_len": 8, "kv_len": 8}])
def test_other_sizes(call, sizes, straight):
    settle(lambda: call(*operands()), straight)
    for _ in range(4):
        given = operands(**sizes)
        close(call(*given), plain(*given))
        given = operands()
        close(call(*given), plain(*given))


def test_other_widths_and_types(straight):
    settle(lambda: by_words(*operands()), straight)
    for _ in range(3):
        given = operands(width=32)
        assert by_words(*given).shape == (1, HEADS, LENGTH, 32)
        close(by_words(*given), plain(*given))
        given = operands(dtype=torch.bfloat16)
        assert by_words(*given).dtype == torch.bfloat16
        close(by_words(*given), plain(*given), 0.03)
        mixed = operands()[0], *operands(dtype=torch.bfloat16)[1:]
        with pytest.raises(attune.BadInputError, match="`k` is bfloat16, and `q` is float32"):
            by_words(*mixed)
        with pytest.raises(attune.BadInputError, match="on `meta`"):
            by_words(operands()[0], *(x.to("meta") for x in operands()[1:]))
        assert isinstance(by_words(*(x.numpy() for x in operands())), type(operands()[0].numpy()))


@every_call
@pytest.mark.parametrize("place", range(3))
def test_a_gradient_that_is_wanted_now(call, place, straight):
    given = operands()
    settle(lambda: call(*given), straight)
    for _ in range(3):
        assert not call(*given).requires_grad
        given[place].requires_grad_()
        for _ in range(3):
            with torch.no_grad():
                assert not call(*given).requires_grad
            with torch.inference_mode():
                assert not call(*given).requires_grad
            call(*given).sin().sum().backward()
            found, given[place].grad = given[place].grad, None
            plain(*given).sin().sum().backward()
            close(found, given[place].grad.double())
            given[place].grad = None
        given[place].requires_grad_(False)
    assert straight


@every_call
def test_gradients_that_are_recorded_now(call, straight):
    given = [x.requires_grad_() for x in operands()]
    with torch.no_grad():
        settle(lambda: call(*given), straight)
    assert call(*given).requires_grad
    settle(lambda: call(*given), straight)
    with torch.no_grad():
        assert not call(*given).requires_grad


@every_call
def test_what_was_saved_is_not_changed(call, straight):
    given = [x.requires_grad_() for x in operands()]
    settle(lambda: call(*given), straight)
    out = call(*given)
    with torch.no_grad():
        given[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("call", [CALLS["words"], CALLS["flex_attention"]])
def test_autocast(call, straight):
    given = operands()
    narrow = [x.bfloat16() for x in given]
    settle(lambda: call(*given), straight)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        for operands_now in (given, narrow):
            for _ in range(3):
                with torch.autocast("cpu", dtype=dtype):
                    out = call(*operands_now)
                assert out.dtype == dtype
                close(out, plain(*given), 0.05)
    assert call(*given).dtype == torch.float32 and call(*narrow).dtype == torch.bfloat16


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@every_call
def test_modes_see_the_operator(call, straight):
    given = operands()
    settle(lambda: call(*given), straight)
    with Counting() as mode:
        call(*given)
    assert any("attune.attention" in each for each in mode.seen)


def test_a_function_that_changes(straight):
    width, given = 3, operands()

    def window(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() < width

    mask = create_block_mask(window, None, None, LENGTH, LENGTH, device="cpu")

    def call():
        return flex_attention(*given, None, mask, strict=True)

    for width in (3, 5, 3, 2):  # noqa: B007
        settle(call, straight)
        close(call(), plain(*given, window))


def test_a_block_mask_that_changes(straight):
    given = operands()

    def same_block(b, h, q_idx, kv_idx):
        return q_idx // 8 == kv_idx // 8

    def call(mask):
        return flex_attention(*given, None, mask, strict=True)

    of_causal = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
    settle(lambda: call(of_causal), straight)
    mask = create_block_mask(same_block, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
    settle(lambda: call(mask), straight)
    mask.mask_mod = causal  # which counts in partial blocks, and these are full
    for _ in range(3):
        close(call(mask), plain(*given, same_block))
    for sizes in ((2 * LENGTH, LENGTH), (LENGTH, 2 * LENGTH)):
        other = create_block_mask(causal, None, None, *sizes, device="cpu", BLOCK_SIZE=8)
        with pytest.raises(ValueError, match="block_mask was created for"):
            call(other)


def test_what_else_flex_attention_is_told(straight):
    given = operands()
    grouped = [given[0], *(x[:, :1] for x in given[1:])]
    settle(lambda: flex_attention(*given, None, MASK), straight)
    settle(lambda: flex_attention(*grouped, None, MASK, enable_gqa=True), straight)
    for scale in (0.5, 0.25, None, -1.0):
        for _ in range(3):
            close(flex_attention(*given, None, MASK, scale, strict=True), plain(*given, scale=scale))
    with pytest.raises(ValueError, match="enable_gqa"):
        flex_attention(*grouped, None, MASK)
    out, lse = flex_attention(*given, None, MASK, return_lse=True)
    assert lse.shape == (1, HEADS, LENGTH) and torch.equal(out, flex_attention(*given, None, MASK))
    narrow_ones = operands(dtype=torch.bfloat16)
    settle(lambda: flex_attention(*narrow_ones, None, MASK), straight)
    with pytest.raises(attune.BadInputError, match="precision"):
        flex_attention(*narrow_ones, None, MASK, precision="tf32", strict=True)
    torch.manual_seed(1)
    outs = [flex_attention(*given, None, MASK, dropout=0.5) for _ in range(4)]
    torch.manual_seed(1)
    for out in outs:
        assert torch.equal(out, flex_attention(*given, None, MASK, dropout=0.5))
    assert not torch.equal(outs[2], outs[3])
    sink = torch.zeros(HEADS)
    assert not torch.equal(flex_attention(*given, None, MASK, sink=sink), flex_attention(*given, None, MASK))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_captured_tensor_that_changes_in_place(dtype, straight):
    table, given = torch.randn(LENGTH).to(dtype), operands()

    def bias(score, b, h, q_idx, kv_idx):
        return score + table[kv_idx]

    def call():
        return flex_attention(*given, bias, mask_mod=causal, strict=True)

    settle(call, straight)
    table.mul_(2)
    close(call(), plain(*given, score_mod=bias))
    assert len(straight) == 1
    for memory in (torch.randn(2 * LENGTH)[::2], torch.randn(LENGTH).to(torch.float16), torch.randn(LENGTH + 1)):
        table.data = memory.to(dtype) if memory.stride(0) == 2 else memory
        for _ in range(3):
            if table.shape[0] == LENGTH:
                close(call(), plain(*given, score_mod=bias))
    table.data = torch.randn(LENGTH).to(dtype)
    table.requires_grad_()
    for _ in range(3):
        assert call().requires_grad and not flex_attention(*given, mask_mod=causal).requires_grad


@every_call
def test_threads(call, straight):
    settle(lambda: call(*operands()), straight)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            given = [torch.randn(1, HEADS, LENGTH, DIM, generator=generator) for _ in range(3)]
            if not torch.allclose(call(*given).double(), plain(*given), atol=2e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
