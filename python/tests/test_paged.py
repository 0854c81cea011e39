"""Layout paged: keys in pages of a cache against each sequence by itself."""

import numpy as np
import pytest
import reference

import attune

HEADS, KV_HEADS, DIM = 4, 2, 32
LENGTHS_Q, LENGTHS_KV = (1, 0, 20, 1, 3), (9, 4, 70, 0, 40)
ROOM = 80


def offsets(lengths):
    return np.cumsum([0, *lengths]).astype(np.int32)


class Batch:
    """Sequences of known keys, and a cache in which they lie; NaN elsewhere."""

    def __init__(self, rng, page_size=16, v_dim=DIM):
        counts = [-(-length // page_size) for length in LENGTHS_KV]
        pages = sum(counts) + 3
        order = rng.permutation(pages)
        self.q = rng.standard_normal((sum(LENGTHS_Q) + 2, HEADS, DIM), dtype=np.float32)
        self.table = np.full((len(LENGTHS_KV), -(-ROOM // page_size)), -1, np.int32)
        self.cache = [np.full((pages, page_size, KV_HEADS, dim), np.nan, np.float32) for dim in (DIM, v_dim)]
        self.keys = []
        for number, (length, count) in enumerate(zip(LENGTHS_KV, counts, strict=True)):
            own, order = order[:count], order[count:]
            self.table[number, :count] = own
            rows = [rng.standard_normal((length, KV_HEADS, dim), dtype=np.float32) for dim in (DIM, v_dim)]
            self.keys.append(rows)
            for cache, values in zip(self.cache, rows, strict=True):
                for index, value in enumerate(values):
                    cache[own[index // page_size], index % page_size] = value

    def call(self, cache=None, **words):
        k, v = self.cache if cache is None else cache
        lists = {"cu_q": offsets(LENGTHS_Q), "used_kv": np.array(LENGTHS_KV, np.int32), "page_table": self.table}
        return attune.attention(self.q, k, v, return_lse=True, **{**lists, **words})

    def expected(self, of_one=lambda number: {}):
        o = np.zeros((len(self.q), HEADS, self.cache[1].shape[3]))
        lse = np.full((HEADS, len(self.q)), -np.inf)
        for number, begin in enumerate(offsets(LENGTHS_Q)[:-1]):
            own = slice(begin, begin + LENGTHS_Q[number])
            one = [x.swapaxes(0, 1)[None] for x in (self.q[own], *self.keys[number])]
            if one[0].shape[2] and one[1].shape[2]:
                mine, of_rows = reference.attention(*one, **of_one(number))
                o[own], lse[:, own] = mine[0].swapaxes(0, 1), of_rows[0]
        return o, lse


def causal(number):
    shift = LENGTHS_KV[number] - LENGTHS_Q[number]
    return {"mask": lambda b, h, i, j: j <= i + shift}


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_each_sequence_has_the_keys_of_its_pages(page_size, rng):
    batch = Batch(rng, page_size)
    reference.check(*batch.call(layout="paged"), *batch.expected())
    reference.check(*batch.call(mask="causal"), *batch.expected(causal))


def test_orders_of_a_cache(rng):
    batch = Batch(rng)
    heads_first = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in batch.cache]
    reference.check(*batch.call(heads_first), *batch.expected())
    together = np.stack(batch.cache, axis=1)
    reference.check(*batch.call((together[:, 0], together[:, 1])), *batch.expected())


def test_values_of_another_width(rng):
    batch = Batch(rng, v_dim=64)
    reference.check(*batch.call(), *batch.expected())


def test_tensors_go_by_the_position_in_the_sequence(rng):
    batch = Batch(rng)
    doc = rng.integers(0, 3, (len(LENGTHS_KV), ROOM)).astype(np.int32)
    found = batch.call(mask="doc[b, kv_idx] != 1", tensors={"doc": doc}, dims={"doc": "batch, kv_len"})
    reference.check(*found, *batch.expected(lambda number: {"mask": lambda b, h, i, j: doc[number][j] != 1}))


def test_a_spec(rng):
    batch = Batch(rng)
    spec = attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="paged")
    reference.check(*batch.call(spec=spec), *batch.expected(causal))


def test_pages_that_are_none_are_not_read(rng):
    batch = Batch(rng)
    batch.table[2] = [-1, 10**6, -(2**31), 2**31 - 1, 99]
    o, _ = batch.call()
    begin = offsets(LENGTHS_Q)
    assert np.all(o[begin[2] : begin[3]] == 0)
    assert np.isfinite(o).all()


def test_what_does_not_fit_is_refused(rng):
    batch = Batch(rng)
    k, v = batch.cache

    def refused(text, **words):
        with pytest.raises(attune.BadInputError, match=text):
            batch.call(**words)

    refused("wants `cu_q`", cu_q=None)
    refused("wants `used_kv`", used_kv=None)
    refused("wants `page_table`", page_table=None, layout="paged")
    refused("`cu_kv` is given", cu_kv=offsets(LENGTHS_KV))
    refused("`page_table` is int64", page_table=batch.table.astype(np.int64))
    refused("`page_table` is", page_table=batch.table[:2])
    refused("`k` has 3 dims", cache=(k[0], v[0]))
    refused("`v` is", cache=(k, v[:3]))
    refused("which no kernel walks", cache=(np.asfortranarray(k), v))
    refused('of layout "paged"|layout `bshd`', layout="bshd")
    with pytest.raises(attune.BadInputError, match="a table of pages is given"):
        batch.call(spec=attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="thd"))
