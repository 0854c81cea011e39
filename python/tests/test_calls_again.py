"""Calls that are made again go straight to their launch: only where nothing that they were made of has changed."""

import gc
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import _bound, _guard, _native, _plain, _recall, create_block_mask, flex_attention  # noqa: E402

HEADS, LENGTH, DIM = 2, 16, 16
# By torch's guard or by reading, and with or without libattune_calls.so.
WAYS = {
    "native": (_guard._by_torch, _native._functions),
    "torch": (_guard._by_torch, lambda: None),
    "reading": (_guard._by_reading, _native._functions),
}


@pytest.fixture(params=WAYS, autouse=True)
def straight(request, monkeypatch):
    """One entry a call that went straight to its launch."""
    check_of, functions = WAYS[request.param]
    monkeypatch.setattr(_guard, "_check_of", check_of)
    monkeypatch.setattr(_native, "_functions", functions)
    monkeypatch.setattr(_met, "find", None)
    forget()
    made = []

    def run(self, *args, **kwargs):
        made.append(self)
        return of_bound(self, *args, **kwargs)

    def go_of(*args):
        go = of_native(*args)

        def counted(*given):
            found = go(*given)
            if found is not None:
                made.append(go)
            return found

        return None if go is None else counted

    of_bound, of_native = _bound.Bound.run, _native.straight
    monkeypatch.setattr(_bound.Bound, "run", run)
    monkeypatch.setattr(_native, "straight", go_of)
    yield made
    forget()


def forget():
    _met.CALLS.clear()
    _recall.forget()


def operands(heads=HEADS, q_len=LENGTH, kv_len=LENGTH, width=DIM, dtype=torch.float32, batch=1):
    torch.manual_seed(q_len + kv_len)
    lengths_widths = ((q_len, DIM), (kv_len, DIM), (kv_len, width))
    return [torch.randn(batch, heads, length, size).to(dtype) for length, size in lengths_widths]


def by_words(q, k, v, **words):
    return attune.attention(q, k, v, **{"mask": "causal", "layout": "bhsd", **words})


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


MASK = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
# A spec's causal mask ends with the sequences, and FlexAttention's begins with them.
SPEC = attune.Spec("causal_top_left", dtype="fp32", head_dim=DIM, layout="bhsd")
CALLS = {
    "words": lambda *given: by_words(*given, mask="causal_top_left"),
    "spec": lambda *given: attune.attention(*given, spec=SPEC),
    "flex_attention": lambda *given: flex_attention(*given, mask_mod=causal, strict=True),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def plain(q, k, v, mask_mod=causal, score_mod=None, scale=None):
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    at = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    s = s if score_mod is None else score_mod(s, *at)
    return s.masked_fill(~mask_mod(*at), -torch.inf).softmax(-1) @ v


def close(out, wanted, tolerance=2e-5):
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)


def settle(call, straight):
    """Made so often that it goes straight."""
    for _ in range(3):
        call()
    straight.clear()
    call()
    assert len(straight) == 1
    straight.clear()


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


def test_other_words(straight):
    given = operands(q_len=8)
    settle(lambda: by_words(*given), straight)

    def last(b, h, q_idx, kv_idx):
        return q_idx + LENGTH - 8 >= kv_idx

    for _ in range(3):
        close(by_words(*given), plain(*given, last))
        close(by_words(*given, mask="causal_top_left"), plain(*given))
        close(by_words(*given, score="2 * score"), plain(*given, last, lambda s, *_: 2 * s))
        close(by_words(*given, scale=0.5), plain(*given, last, scale=0.5))
        close(by_words(*given, scale=0.25), plain(*given, last, scale=0.25))
        with_sink = by_words(*given, sink="0.0", return_lse=True)[1]
        assert (with_sink > by_words(*given, return_lse=True)[1]).all()
        seeds = ((1, 0), (2, 0), (1, 4))
        of_seeds = [by_words(*given, dropout=0.5, seed=seed, offset=offset) for seed, offset in seeds]
        assert len({tuple(x.flatten().tolist()) for x in of_seeds}) == 3
        assert not torch.equal(by_words(*given, dropout=0.25, seed=1), of_seeds[0])
        assert torch.equal(by_words(*given, batch_invariant=True), by_words(*given, batch_invariant=True))
        with pytest.raises(attune.BadInputError, match="there is no layout"):
            by_words(*given, layout="bhds")
        with pytest.raises(attune.BadInputError, match="both `v` and `v_in_k`"):
            by_words(*given, v_in_k=8)
        with pytest.raises(attune.BadInputError, match="precision"):
            by_words(*given, precision="exact")
        with pytest.raises(attune.BadInputError, match="offsets of sequences are given"):
            by_words(*given, cu_q=torch.zeros(2, dtype=torch.int32))
    square = operands(heads=LENGTH)
    turned = [x.transpose(1, 2) for x in square]
    for _ in range(3):
        close(by_words(*square), plain(*square))
        close(by_words(*square, layout="bshd").transpose(1, 2), plain(*turned))


def test_scalars_of_words(straight):
    given = operands()

    def call(**scalars):
        return by_words(*given, mask="causal_top_left", score="score + slope * kv_idx + added", scalars=scalars)

    def wanted(slope, added):
        return plain(*given, score_mod=lambda s, _b, _h, _i, j: s + slope * j + added)

    for slope, added in ((1, 2), (2, 1), (1.5, 1), (0.5, 1), (1, 2)):
        for _ in range(3):
            close(call(slope=slope, added=added), wanted(slope, added))
    with pytest.raises(attune.BadInputError):
        call(slope=1)
    assert straight
    with pytest.raises(attune.BadInputError):
        call(slope=1, added=torch.tensor(2))


def test_scalars_of_a_spec(straight):
    spec = attune.Spec(
        "q_idx - kv_idx <= back and kv_idx - q_idx <= ahead", dtype="fp32", head_dim=DIM, layout="bhsd",
        scalars={"back": int, "ahead": int},
    )  # fmt: skip
    given = operands()

    def call(**scalars):
        return attune.attention(*given, spec=spec, scalars=scalars)

    settle(lambda: call(back=1, ahead=2), straight)
    for back, ahead in ((1, 2), (2, 1), (5, 0)):
        wanted = plain(*given, lambda b, h, i, j, back=back, ahead=ahead: (i - j <= back) & (j - i <= ahead))
        close(call(back=back, ahead=ahead), wanted)
        close(call(ahead=ahead, back=back), wanted)
    with pytest.raises(attune.BadInputError, match="int of 32 bits"):
        call(back=2**31, ahead=0)
    for scalars in ({}, {"back": 1}, {"back": 1, "ahed": 2}):
        with pytest.raises(attune.BadInputError, match="the launch brings"):
            call(**scalars)


def test_scale_and_dropout_of_a_spec(straight):
    spec = attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="bhsd", scale=float, dropout=float)
    given = operands()

    def call(**numbers):
        return attune.attention(*given, spec=spec, **numbers)

    for scale in (0.5, 0.25, torch.tensor(0.5), 0.5):
        for _ in range(3):
            close(call(scale=scale, dropout=0.0), plain(*given, scale=float(scale)))
            if isinstance(scale, torch.Tensor):
                scale.mul_(2)
    same = [call(scale=0.5, dropout=0.5, seed=3) for _ in range(3)]
    assert torch.equal(same[0], same[2]) and not torch.equal(same[0], call(scale=0.5, dropout=0.25, seed=3))
    with pytest.raises(attune.BadInputError, match="scale"):
        call(dropout=0.0)


def test_tensors(straight):
    given = operands()
    left, right = torch.randn(2, HEADS)

    def call(dims=None, **tensors):
        return by_words(*given, score="score + left[h] * kv_idx + right[h]", tensors=tensors, dims=dims)

    def wanted(left, right):
        return plain(*given, score_mod=lambda s, b, h, i, j: s + left[h] * j + right[h])

    settle(lambda: call(left=left, right=right), straight)
    close(call(left=right, right=left), wanted(right, left))
    close(call(right=right, left=left), wanted(left, right))
    left.mul_(3)
    close(call(left=left, right=right), wanted(left, right))
    assert len(straight) == 2  # of three: another order of names is another call
    for bad, says in ((left.double(), "float64"), (left.to("meta"), "is on meta")):
        with pytest.raises(attune.BadInputError, match=says):
            call(left=bad, right=right)
    for _ in range(3):
        gaps = torch.randn(2 * HEADS)[::2]
        close(call(left=gaps, right=right), wanted(gaps, right))
        close(call(left=left, right=left), wanted(left, left))
        close(call(right=right, left=left), wanted(left, right))
        close(call({"left": "heads"}, left=left, right=right), wanted(left, right))
        with pytest.raises(attune.BadInputError):
            call({"left": "kv_len"}, left=left, right=right)
        with pytest.raises(attune.BadInputError):
            call(left=left)
    learned = left.clone().requires_grad_()
    for _ in range(3):
        call(left=learned, right=right).sin().sum().backward()
        found, learned.grad = learned.grad, None
        wanted(learned, right).sin().sum().backward()
        close(found, learned.grad.double(), 1e-4)
        learned.grad = None
        assert not call(left=left, right=right).requires_grad


def narrow(width):
    mask = f"q_idx - kv_idx >= 0 and q_idx - kv_idx < {width}"
    return attune.Spec(mask, dtype="fp32", head_dim=DIM, layout="bhsd")


def is_of(width, out, given):
    close(out, plain(*given, lambda b, h, i, j: (i >= j) & (i - j < width)))


def test_a_spec_beside_another(straight):
    given, specs = operands(), {width: narrow(width) for width in (1, 2, 3)}
    for _ in range(4):
        for width, spec in specs.items():
            is_of(width, attune.attention(*given, spec=spec), given)
    assert straight


def test_a_spec_in_the_place_of_another(straight):
    """At an address that a dead spec would have left."""
    given = operands()
    for width in (1, 2, 3) * 4:
        spec = narrow(width)
        for _ in range(3):
            is_of(width, attune.attention(*given, spec=spec), given)
        _plain._calls.clear()  # what else keeps it
        del spec
        gc.collect()


def test_a_spec_and_words_are_refused(straight):
    given = operands()
    settle(lambda: attune.attention(*given, spec=SPEC), straight)
    for words in ({"mask": "causal"}, {"layout": "bhsd"}, {"batch_invariant": False}):
        with pytest.raises(attune.BadInputError, match="both `spec` and"):
            attune.attention(*given, spec=SPEC, **words)


def test_a_runtime_of_the_callers_own(straight):
    given = operands()
    settle(lambda: attune.attention(*given, spec=SPEC), straight)
    attune.attention(*given, spec=SPEC, runtime=attune.Runtime("cpu", cache_file=""))
    assert not straight


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
