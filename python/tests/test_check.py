"""Runtime(check=True) and ATTUNE_CHECK: offsets, lengths and tables of pages that are wrong raise."""

import numpy as np
import pytest

import attune

HEADS, DIM, PAGES, PAGE_SIZE = 2, 16, 5, 4


def int32(*values):
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def checked():
    return attune.Runtime("cpu", check=True)


@pytest.fixture
def paged(rng):
    """Two sequences of 3 and 1 new tokens, with 6 and 1 keys; what calls of attention and of append have in common."""
    cache = [rng.standard_normal((PAGES, PAGE_SIZE, HEADS, DIM), dtype=np.float32) for _ in "kv"]
    new = rng.standard_normal((4, HEADS, DIM), dtype=np.float32)
    lists = {"cu_q": int32(0, 3, 4), "used_kv": int32(6, 1), "page_table": int32([2, 0], [4, -1])}
    return new, cache, lists


WRONG = {
    "page-out-of-range": ({"page_table": int32([2, 0], [5, -1])}, "entry 0 of sequence 1 in `page_table` is page 5"),
    "length-out-of-range": ({"used_kv": int32(6, 9)}, "`used_kv` of sequence 1 is 9, not in 0 to 8"),
    "offsets-descend": ({"cu_q": int32(0, 3, 2)}, "`cu_q` descends: sequence 1 begins at 3 and ends at 2"),
    "offsets-out-of-range": ({"cu_q": int32(0, 3, 5)}, "sequence 1 ends at 5, and shape.q_len is 4"),
}


@pytest.mark.parametrize("error_id", WRONG)
def test_a_cache_in_pages(paged, checked, error_id):
    new, cache, lists = paged
    wrong, message = WRONG[error_id]
    expected = attune.attention(new, *cache, mask="causal", **lists)
    found = attune.attention(new, *cache, mask="causal", runtime=checked, **lists)
    assert np.array_equal(found, expected)
    with pytest.raises(attune.BadInputError) as caught:
        attune.attention(new, *cache, mask="causal", runtime=checked, **lists | wrong)
    assert caught.value.id == error_id and message in caught.value.message and caught.value.hint
    assert np.isfinite(attune.attention(new, *cache, mask="causal", **lists | wrong)).all()

    before = [array.copy() for array in cache]
    with pytest.raises(attune.BadInputError) as caught:
        attune.append(new, new, *cache, runtime=checked, **lists | wrong)
    assert caught.value.id == error_id and message in caught.value.message
    assert all(np.array_equal(array, old) for array, old in zip(cache, before, strict=True))
    attune.append(new, new, *cache, runtime=checked, **lists)
    assert np.array_equal(cache[0][4, 0], new[3])


def test_padding_is_fine(paged, checked):
    new, cache, lists = paged
    lists |= {"used_kv": int32(6, 0), "page_table": int32([2, 0], [-1, 99])}
    o = attune.attention(new, *cache, mask="causal", runtime=checked, **lists)
    assert not o[3].any() and o[:3].any()


def test_packed_sequences(rng, checked):
    q, k, v = (rng.standard_normal((8, HEADS, DIM), dtype=np.float32) for _ in "qkv")
    attune.attention(q, k, v, layout="thd", cu_q=int32(0, 5, 8), used_q=int32(5, 2), runtime=checked)
    with pytest.raises(attune.BadInputError, match="`used_q` of sequence 1 is 4, not in 0 to 3"):
        attune.attention(q, k, v, layout="thd", cu_q=int32(0, 5, 8), used_q=int32(5, 4), runtime=checked)
    with pytest.raises(attune.BadInputError, match="`cu_kv` leads out of the tensors: sequence 0 ends at 9"):
        attune.attention(q, k, v, layout="thd", cu_q=int32(0, 8), cu_kv=int32(0, 9), runtime=checked)


def test_torchs_tensors(paged):
    torch = pytest.importorskip("torch")
    import attune.torch  # noqa: F401

    new, cache, lists = paged
    checked = attune.Runtime("cpu", check=True)
    arrays = [torch.from_numpy(array) for array in (new, *cache)]
    where = {name: torch.from_numpy(array) for name, array in lists.items()}
    attune.attention(*arrays, mask="causal", runtime=checked, **where)
    where["page_table"][0, 1] = -2
    with pytest.raises(attune.BadInputError, match="entry 1 of sequence 0 in `page_table` is page -2"):
        attune.attention(*arrays, mask="causal", runtime=checked, **where)


def test_the_environment_asks_for_it(paged, monkeypatch):
    new, cache, lists = paged
    lists["page_table"][0, 0] = PAGES
    monkeypatch.setenv("ATTUNE_CHECK", "1")
    runtime = attune.Runtime("cpu")
    monkeypatch.setenv("ATTUNE_CHECK", "0")
    assert runtime.status()["check"] is True and attune.Runtime("cpu").status()["check"] is False
    with pytest.raises(attune.BadInputError, match="entry 0 of sequence 0 in `page_table` is page 5"):
        attune.attention(new, *cache, runtime=runtime, **lists)
