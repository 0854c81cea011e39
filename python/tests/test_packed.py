"""Layout thd: packed sequences against each of them by itself."""

import numpy as np
import pytest
import reference

import attune

HEADS, KV_HEADS, DIM = 4, 2, 32
LENGTHS_Q, LENGTHS_KV = (5, 0, 70, 1, 33), (9, 4, 70, 0, 40)


def offsets(lengths):
    return np.cumsum([0, *lengths]).astype(np.int32)


def operands(rng, spare=3, heads=HEADS, kv_heads=KV_HEADS, v_dim=DIM):
    tokens_q, tokens_kv = sum(LENGTHS_Q) + spare, sum(LENGTHS_KV) + spare
    q = rng.standard_normal((tokens_q, heads, DIM), dtype=np.float32)
    k = rng.standard_normal((tokens_kv, kv_heads, DIM), dtype=np.float32)
    v = rng.standard_normal((tokens_kv, kv_heads, v_dim), dtype=np.float32)
    for x in (q, k, v):
        x[len(x) - spare :] = np.nan  # of no sequence
    return q, k, v


def sequences(q, k, v, of_one, lengths_q=LENGTHS_Q, lengths_kv=LENGTHS_KV, used_q=None, used_kv=None):
    """O and LSE; of_one(number) gives mask and score of a sequence."""
    o = np.zeros((len(q), q.shape[1], v.shape[2]))
    lse = np.full((q.shape[1], len(q)), -np.inf)
    begin_q, begin_kv = offsets(lengths_q), offsets(lengths_kv)
    for number in range(len(lengths_q)):
        own_q = slice(begin_q[number], begin_q[number] + (used_q or lengths_q)[number])
        own_kv = slice(begin_kv[number], begin_kv[number] + (used_kv or lengths_kv)[number])
        one = [x[own].swapaxes(0, 1)[None] for x, own in ((q, own_q), (k, own_kv), (v, own_kv))]
        if one[0].shape[2] and one[1].shape[2]:
            mine, of_rows = reference.attention(*one, **of_one(number, begin_kv[number]))
            o[own_q], lse[:, own_q] = mine[0].swapaxes(0, 1), of_rows[0]
    return o, lse


def plain(number, begin):
    return {}


def causal(number, begin):
    shift = LENGTHS_KV[number] - LENGTHS_Q[number]
    return {"mask": lambda b, h, i, j: j <= i + shift}


def call(arrays, **words):
    return attune.attention(
        *arrays, layout="thd", cu_q=offsets(LENGTHS_Q), cu_kv=offsets(LENGTHS_KV), return_lse=True, **words
    )


@pytest.mark.parametrize(("words", "of_one"), [({}, plain), ({"mask": "causal"}, causal)])
def test_each_sequence_is_by_itself(words, of_one, rng):
    arrays = operands(rng)
    o, lse = call(arrays, **words)
    assert o.shape == arrays[0].shape and lse.shape == (HEADS, len(arrays[0]))
    reference.check(o, lse, *sequences(*arrays, of_one))


def test_values_of_another_width_and_many_heads(rng):
    arrays = operands(rng, heads=3, kv_heads=3, v_dim=64)
    reference.check(*call(arrays), *sequences(*arrays, plain))


def test_tensors_of_sequences_and_of_tokens(rng):
    """A dim `batch` has an entry a sequence, a dim `kv_len` one a token of all."""
    arrays = operands(rng)
    doc = rng.integers(0, 3, len(arrays[1])).astype(np.int32)
    reach = rng.integers(1, 30, len(LENGTHS_Q)).astype(np.int32)

    def of_one(number, begin):
        def mask(b, h, i, j):
            return (doc[begin + j] != 1) & (j < reach[number])

        return {"mask": mask, "score": lambda s, b, h, i, j: s - 0.1 * h * (i - j)}

    found = call(
        arrays,
        mask="doc[kv_idx] != 1 and kv_idx < reach[b]",
        score="score - 0.1 * h * (q_idx - kv_idx)",
        tensors={"doc": doc, "reach": reach},
        dims={"doc": "kv_len", "reach": "batch"},
    )
    reference.check(*found, *sequences(*arrays, of_one))


def test_only_some_of_the_tokens_are_there(rng):
    arrays = operands(rng)
    used_q, used_kv = (3, 0, 64, 0, 33), (9, 4, 1, 0, 17)
    for x, lengths, used in zip(arrays[1:], (LENGTHS_KV, LENGTHS_KV), (used_kv, used_kv), strict=True):
        for begin, length, live in zip(offsets(lengths), lengths, used, strict=False):
            x[begin + live : begin + length] = np.nan
    given = {"used_q": np.array(used_q, np.int32), "used_kv": np.array(used_kv, np.int32)}
    reference.check(*call(arrays, **given), *sequences(*arrays, plain, used_q=used_q, used_kv=used_kv))


def test_a_spec_and_strides(rng):
    q, k, v = operands(rng)
    wide = np.full((HEADS, len(q), DIM + 8), np.nan, np.float32)
    wide[:, :, :DIM] = q.swapaxes(0, 1)
    odd = np.asfortranarray(v)
    spec = attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="thd", scale=float)
    strided = wide[:, :, :DIM].swapaxes(0, 1), k, odd
    given = {"cu_q": offsets(LENGTHS_Q), "cu_kv": offsets(LENGTHS_KV)}
    o = attune.attention(*strided, spec=spec, scale=DIM**-0.5, **given)
    reference.check(o, None, sequences(q, k, v, causal)[0], None)


def test_the_same_offsets_for_keys(rng):
    q, k, v = (rng.standard_normal((12, 2, DIM), dtype=np.float32) for _ in range(3))
    lengths = 7, 5
    o = attune.attention(q, k, v, layout="thd", cu_q=offsets(lengths))
    reference.check(o, None, sequences(q, k, v, plain, lengths, lengths)[0], None)


@pytest.mark.parametrize("lengths", [(), (0, 0)])
def test_nothing_at_all(lengths, rng):
    q = rng.standard_normal((4, 2, DIM), dtype=np.float32)
    o, lse = attune.attention(q, q, q, layout="thd", cu_q=offsets(lengths), return_lse=True)
    assert not o.any() and np.isneginf(lse).all()
    o, lse = attune.attention(q, q[:0], q[:0], layout="thd", cu_q=offsets((4,)), cu_kv=offsets((0,)), return_lse=True)
    assert not o.any() and np.isneginf(lse).all()


def refused(problem, *arrays, **given):
    with pytest.raises(attune.BadInputError, match=problem):
        attune.attention(*arrays, **given)


def test_what_does_not_fit_is_refused(rng):
    q, k, v = operands(rng)
    cu_q, cu_kv = offsets(LENGTHS_Q), offsets(LENGTHS_KV)
    refused("thd wants `cu_q`", q, k, v, layout="thd")
    refused("layout `bshd`", q, k, v, layout="bshd", cu_q=cu_q)
    refused("`cu_q` is int64", q, k, v, layout="thd", cu_q=cu_q.astype(np.int64))
    refused(r"`cu_kv` is \(4,\), not \[6\]", q, k, v, layout="thd", cu_q=cu_q, cu_kv=cu_kv[:4])
    refused(r"`used_q` is \(6,\), not \[5\]", q, k, v, layout="thd", cu_q=cu_q, used_q=cu_q)
    refused("has 4 dims, not the 3", q[None], k, v, layout="thd", cu_q=cu_q)
    refused("`v` is", q, k, v[:5], layout="thd", cu_q=cu_q)
    refused("no multiple", q[:, :3], k, v, layout="thd", cu_q=cu_q)
    dense = attune.Spec(dtype="fp32", head_dim=DIM)
    refused("of layout bshd", q, k, v, spec=dense, cu_q=cu_q)
    packed = attune.Spec(dtype="fp32", head_dim=DIM, layout="thd")
    refused("thd wants `cu_q`", q[None], k[None], v[None], spec=packed)
