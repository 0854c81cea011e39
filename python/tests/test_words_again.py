"""Words and specs of calls that are made again: another one is another call, and each launch brings its own numbers."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from calls_again import (  # noqa: E402
    DIM,
    HEADS,
    LENGTH,
    SPEC,
    by_words,
    causal,
    close,
    operands,
    plain,
    settle,
    straight,  # noqa: F401
)

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune.torch import _plain  # noqa: E402


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
