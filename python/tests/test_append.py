"""attune.append of NumPy's arrays, and what it and attention over a cache refuse."""

import numpy as np
import pytest
import reference

import attune

HEADS, KV_HEADS, DIM = 4, 2, 32
PAGES, PAGE_SIZE = 5, 4


def zeros(*sizes, dtype=np.float16):
    return np.zeros(sizes, dtype)


def int32(*values):
    return np.array(values, np.int32)


def batch(rng, cache_dtype=np.float16, dtype=np.float16):
    """Two sequences of 3 and 1 new tokens, in pages."""
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    new = {name: rng.standard_normal((4, count, DIM)).astype(dtype) for name, count in heads.items()}
    return {
        **new,
        "k_cache": zeros(PAGES, PAGE_SIZE, KV_HEADS, DIM, dtype=cache_dtype),
        "v_cache": zeros(PAGES, PAGE_SIZE, KV_HEADS, DIM, dtype=cache_dtype),
        "cu_q": int32(0, 3, 4),
        "used_kv": int32(6, 1),
        "page_table": int32([2, 0], [4, -1]),
    }


def test_rows_of_a_cache(rng):
    """float16 into pages and into a batch of rows, without a rotation: to the bit."""
    given = batch(rng)
    assert np.array_equal(attune.append(**given), given["q"])
    for name in "kv":
        wanted = zeros(PAGES, PAGE_SIZE, KV_HEADS, DIM)
        wanted[2, 3], wanted[0, :2], wanted[4, 0] = given[name][0], given[name][1:3], given[name][3]
        assert np.array_equal(given[f"{name}_cache"], wanted)
    del given["page_table"], given["q"]
    given |= {"k_cache": zeros(2, 8, KV_HEADS, DIM), "v_cache": zeros(2, 8, KV_HEADS, DIM)}
    assert attune.append(**given) is None
    assert np.array_equal(given["k_cache"][0, 3:6], given["k"][:3])
    assert np.array_equal(given["v_cache"][1, 0], given["v"][3])


def test_bytes_of_fp8(rng):
    """uint8 holds what is stored: 1 is 0x38; and attention reads it times its scale."""
    given = batch(rng, np.uint8) | {"k_scales": np.full((), 0.5, np.float32), "v_scales": np.array([2, 4], np.float32)}
    given["v"][:] = 2
    given["k"][:] = np.array([0.5, -0.5], np.float16)[:, None]
    attune.append(**given)
    assert set(given["k_cache"][2, 3].ravel()) == {0x38, 0xB8} and not given["k_cache"][3].any()
    assert (given["v_cache"][4, 0] == np.array([0x38, 0x30], np.uint8)[:, None]).all()
    lists = {name: given[name] for name in ("cu_q", "used_kv", "page_table", "k_scales", "v_scales")}
    o = attune.attention(given["q"][:1], given["k_cache"], given["v_cache"], **lists | {"cu_q": int32(0, 0, 1)})
    assert (o == 2).all()


def test_latent_rows(rng):
    """V in the columns of K: no values apart from the keys."""
    cache, k = zeros(2, 6, 1, 48, dtype=np.float32), rng.standard_normal((6, 1, 48), dtype=np.float32)
    attune.append(k, None, cache, None, cu_q=int32(0, 4, 6), used_kv=int32(4, 2))
    q = rng.standard_normal((2, 3, HEADS, 48), dtype=np.float32)
    spec = attune.Spec(dtype="fp32", head_dim=(48, 32), v_in_k=True)
    o = attune.attention(q, cache, None, spec=spec)
    one = [x.swapaxes(1, 2) for x in (q, cache, cache[..., :32])]
    reference.check(o, None, reference.attention(*one)[0].swapaxes(1, 2), None)
    assert np.array_equal(o, attune.attention(q, cache, None, v_in_k=32))


def test_nothing_to_do(rng):
    given = batch(rng)
    del given["q"]
    given |= {name: given[name][:0] for name in "kv"} | {"cu_q": int32(0), "used_kv": int32()}
    attune.append(**given | {"page_table": given["page_table"][:0]})
    given |= {"cu_q": int32(0, 0, 0), "used_kv": int32(4, 4)}
    attune.append(**given)
    assert not given["k_cache"].any()


ANGLES = np.ones((9, DIM // 2), np.float32)
ONE = np.ones((), np.float32)
READ_ONLY = zeros(PAGES, PAGE_SIZE, KV_HEADS, DIM)
READ_ONLY.flags.writeable = False
REFUSED = {
    "no such dtype": ({"k": zeros(4, 2, DIM, dtype=np.float64)}, "new keys are float16"),
    "dtypes apart": ({"v": zeros(4, 2, DIM, dtype=np.float32)}, "`v` is float32, and `k` is float16"),
    "dims of new tokens": ({"k": zeros(4, 2 * DIM)}, "not the 3 of new tokens"),
    "tokens apart": ({"v": zeros(3, 2, DIM)}, "`v` has 3 tokens, and `k` 4"),
    "heads of v": ({"v": zeros(4, 1, DIM)}, "`v"),
    "heads of q": ({"q": zeros(4, 3, DIM)}, "no multiple of the 2"),
    "width of q": ({"q": zeros(4, 4, 16)}, "`q` has head_dim 16"),
    "dtype of a cache": ({"k_cache": zeros(PAGES, PAGE_SIZE, 2, DIM, dtype=np.float32)}, "or the cache of fp8"),
    "dtype of the other": ({"v_cache": zeros(PAGES, PAGE_SIZE, 2, DIM, dtype=np.float32)}, "`v_cache` is float32"),
    "width of a cache": ({"k_cache": zeros(PAGES, PAGE_SIZE, 2, 16)}, r"`k_cache` is .*, and `k` is \(4, 2, 32\)"),
    "dims of a cache": ({"k_cache": zeros(PAGES, 2, DIM)}, r"not \[pages, page_size, kv_heads, head_dim\]"),
    "pages of the other": ({"v_cache": zeros(3, PAGE_SIZE, 2, DIM)}, "`v_cache` is"),
    "a cache that would be copied": ({"k_cache": np.asfortranarray(READ_ONLY)}, "which no kernel walks"),
    "a cache that is read-only": ({"k_cache": READ_ONLY}, "cannot be written"),
    "one of two": ({"v_cache": None}, "`v` is given, and `v_cache` is None"),
    "no cache": ({"k_cache": None, "v": None, "v_cache": None}, "`k_cache` is None"),
    "no keys": ({"k": None, "v": None, "v_cache": None}, "`k` is None"),
    "no offsets": ({"cu_q": None}, "`cu_q` is missing"),
    "offsets of int64": ({"cu_q": np.array([0, 3, 4])}, "`cu_q` is int64"),
    "offsets and table": ({"cu_q": int32(0, 3)}, r"`used_kv` is \(2,\), not \[1\]"),
    "no lengths": ({"used_kv": None}, "wants `used_kv`"),
    "a table of one dim": ({"page_table": int32(2, 4)}, "`page_table` is"),
    "a table beside packed rows": ({"cu_kv": int32(0, 1, 2)}, "keys lie in pages"),
    "a layout beside a table": ({"layout": "bhsd"}, "the cache is of layout bhsd"),
    "no such layout": ({"layout": "sbhd"}, "no layout `sbhd`"),
    "a layout without its list": ({"layout": "thd", "page_table": None}, "wants `cu_kv`"),
    "positions": ({"rope": "half", "positions": int32(1, 2)}, "`positions` is"),
    "positions of nothing": ({"positions": int32(1, 2, 3, 4)}, "nothing turns"),
    "base of nothing": ({"rope_base": 5.0}, "nothing turns"),
    "no such rope": ({"rope": "full"}, "no rope `full`"),
    "an odd number turns": ({"rope": "half", "rotary_dim": 5}, "an even number from 2 to head_dim = 32"),
    "more than there is turns": ({"rope": "half", "rotary_dim": 34}, "an even number"),
    "a base below 0": ({"rope": "half", "rope_base": -1.0}, "a number above 0"),
    "a factor that is none": ({"rope": "half", "rope_factor": float("nan")}, "a number above 0"),
    "one table of angles": ({"rope": "half", "cosines": ANGLES}, "without the other"),
    "width of angles": ({"rope": "half", "cosines": ANGLES[:, :9], "sines": ANGLES[:, :9]}, r"not \[positions, 16\]"),
    "dtype of angles": ({"rope": "half", "cosines": ANGLES, "sines": ANGLES.astype(np.float16)}, "not float32"),
    "angles and a base": ({"rope": "half", "rope_base": 9.0, "cosines": ANGLES, "sines": ANGLES}, "say all of it"),
    "scales without fp8": ({"k_scales": ONE, "v_scales": ONE}, "K and V are not of fp8"),
    "q_out without q": ({"q": None, "q_out": zeros(4, 4, DIM)}, "`q` is None"),
    "sizes of q_out": ({"q_out": zeros(4, 2, DIM)}, "`q_out` is"),
    "a list": ({"k_cache": [1]}, "not an array"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, rng):
    changes, message = REFUSED[what]
    given = batch(rng) | changes
    with pytest.raises(attune.BadInputError, match=message) as caught:
        attune.append(**given)
    assert caught.value.message and "\n" not in caught.value.message
    assert all(not given[name].any() for name in ("k_cache", "v_cache") if isinstance(given[name], np.ndarray))


SCALES = {
    "none": ({"k_scales": None, "v_scales": None}, "wants `k_scales`"),
    "one": ({"v_scales": None}, "wants `v_scales`"),
    "of float64": ({"k_scales": np.ones(())}, "`k_scales` is float64"),
    "sizes": ({"k_scales": np.ones(3, np.float32)}, r"does not broadcast to \[5, 2\]"),
    "of pages in one dim": ({"v_scales": np.ones(PAGES, np.float32)}, "does not broadcast"),
    "backwards": ({"v_scales": np.ones(2, np.float32)[::-1]}, "go backwards"),
    "a number": ({"k_scales": 1.0}, "not an array"),
}


@pytest.mark.parametrize("what", SCALES)
def test_refused_scales(what, rng):
    changes, message = SCALES[what]
    given = batch(rng, np.uint8) | {"k_scales": ONE, "v_scales": ONE} | changes
    with pytest.raises(attune.BadInputError, match=message):
        attune.append(**given)
    assert not given["k_cache"].any()
    words = {name: given[name] for name in ("cu_q", "used_kv", "page_table", "k_scales", "v_scales")}
    with pytest.raises(attune.BadInputError, match=message):
        attune.attention(given["q"], given["k_cache"], given["v_cache"], **words)


def test_refused_by_attention(rng):
    given = batch(rng)
    words = {name: given[name] for name in ("cu_q", "used_kv", "page_table")}
    q, k, v = given["q"], given["k_cache"], given["v_cache"]

    def refused(message, *operands, kind=attune.BadInputError, **changes):
        with pytest.raises(kind, match=message):
            attune.attention(*(operands or (q, k, v)), **words | changes)

    refused("not of fp8", k_scales=ONE, v_scales=ONE)
    refused("v_in_k says how many columns", q, k, None)
    refused("both `v` and `v_in_k`", v_in_k=16)
    latent = attune.Spec(dtype="fp16", head_dim=(DIM, 16), v_in_k=True, layout="paged")
    refused("has v_in_k", spec=latent)
    refused("`v` is None", q, k, None, spec=attune.Spec(dtype="fp16", head_dim=DIM, layout="paged"))
    refused("both `spec` and `batch_invariant`", spec=latent, batch_invariant=True)
    narrow = attune.Spec(dtype="fp16", kv_dtype="fp8_e4m3", head_dim=DIM, layout="paged")
    refused("has k and v of float8_e4m3fn", spec=narrow, k_scales=ONE, v_scales=ONE)
    of_bytes = k.astype(np.uint8)
    refused("`v` is float16, and `k` is uint8", q, of_bytes, v, k_scales=ONE, v_scales=ONE)
    with pytest.raises(attune.AttuneError, match="kv_dtype"):
        attune.attention(q.astype(np.float32), of_bytes, of_bytes, k_scales=ONE, v_scales=ONE, **words)
    with pytest.raises(attune.AttuneError, match="shared_prefixes"):
        attune.attention(*(zeros(1, 4, 2, DIM) for _ in "qkv"), shared_prefixes=True)
    with pytest.raises(attune.BadInputError) as caught:
        attune.attention(q, of_bytes, of_bytes, mask="causl", k_scales=ONE, v_scales=ONE, **words)
    assert caught.value.hint == "did you mean `causal`?" and "^~~~~" in str(caught.value)


def test_a_width_that_one_launch_does_not_append():
    cache, k = zeros(1, 4, 1, 512), zeros(2, 1, 512)
    with pytest.raises(attune.BadInputError, match="one launch at most 256") as caught:
        attune.append(k, None, cache, None, cu_q=int32(0, 2), used_kv=int32(2))
    assert "unflatten" in caught.value.hint
