"""append and attention over a cache in compiled code: operators of the graph, which say what they write."""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from serving import HEADS, KV_HEADS, Loop  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402

DEVICE = os.environ.get("ATTUNE_TEST_DEVICE", "cpu")
BF16 = torch.bfloat16
only_on_a_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="of a GPU alone")


@pytest.fixture(autouse=True)
def without_gradients():
    torch.compiler.reset()
    with torch.no_grad():
        yield


def layer(q, k, v, k_cache, v_cache, cu_q, used_kv, page_table, k_scales=None, v_scales=None, words=None):
    """One of a model: new keys into the cache, then attention over it, with an operation of torch's on either side."""
    where = {
        "cu_q": cu_q, "used_kv": used_kv, "page_table": page_table, "k_scales": k_scales, "v_scales": v_scales
    }  # fmt: skip
    q = attune.append(k * 1, v, k_cache, v_cache, q=q, rope="half", rope_base=500.0, **where)
    return attune.attention(q, k_cache, v_cache, **where, **(words or {"mask": "causal"})) * 2


def arguments(loop, counts):
    q, k, v, cu, _ = loop.grow(counts)
    return q, k, v, *loop.caches, cu, loop.int32([len(x[0]) for x in loop.keys]), loop.int32(loop.table)


SPEC = attune.Spec("causal", dtype="bf16", kv_dtype="fp8_e4m3", head_dim=32, layout="paged")
KINDS = {
    "bf16": ({}, {"mask": "causal"}),
    "fp8": ({"scales": "page"}, {"mask": "causal"}),
    "fp8 by a spec": ({"scales": "both"}, {"spec": SPEC}),
    "batch invariant": ({}, {"mask": "causal", "batch_invariant": True}),
    "shared prefixes": ({}, {"mask": "causal", "shared_prefixes": True, "scale": 0.5}),
}


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "aot_eager") for name in KINDS), ("bf16", "inductor"), ("fp8", "inductor")]
)
def test_no_graph_break(name, backend):
    """The bits of eager code, in O and in the caches, step by step, by one graph for prompts and one for tokens."""
    options, words = KINDS[name]
    eager, traced = (Loop(BF16, device=DEVICE, **options) for _ in range(2))
    counter = CompileCounterWithBackend(backend)
    run = torch.compile(layer, backend=counter, fullgraph=True, dynamic=False)
    for counts in [(11, 1, 17), *[(1, 1, 1)] * 3]:
        found = run(*arguments(traced, counts), **traced.scales, words=words)
        wanted = layer(*arguments(eager, counts), **eager.scales, words=words)
        assert torch.equal(found, wanted)
        for mine, other in zip(traced.caches, eager.caches, strict=True):
            assert torch.equal(*(x.view(torch.uint8) for x in (mine, other)))
    assert counter.frame_count == 2


def test_lengths_are_symbols():
    """Another number of tokens is no new graph."""
    loop = Loop(BF16, device=DEVICE)
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for counts in [(11, 1, 17), (4, 2, 3), (2, 2, 2)]:
        q, k, v, cu, queries = loop.grow(counts)
        del queries
        assert run(q, k, v, *loop.caches, cu, **loop.where()).shape == q.shape
    assert counter.frame_count == 1


def test_the_cache_is_one_tensor():
    """K and V are halves of one, of which a graph is given the whole; and queries turn in place."""

    def step(q, k, v, both, cu_q, used_kv, page_table):
        where = {"cu_q": cu_q, "used_kv": used_kv, "page_table": page_table}
        q = q + 0
        attune.append(k, v, both[:, 0], both[:, 1], q=q, q_out=q, rope="interleaved", **where)
        return attune.attention(q, both[:, 0], both[:, 1], mask="causal", **where), both.nan_to_num().sum()

    results = []
    for compiles in (False, True):
        loop = Loop(BF16, device=DEVICE)
        both = torch.stack(loop.caches, 1)
        run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiles else step
        for counts in [(5, 1, 9), (1, 1, 1)]:
            q, k, v, cu, _ = loop.grow(counts)
            found = run(q, k, v, both, cu, **loop.where())
        results.append((*found, both.nan_to_num()))
    assert all(map(torch.equal, *results))


def test_packed_and_latent():
    def step(q, row, cache, cu_q, cu_kv, used_kv):
        attune.append(row, None, cache, None, cu_q=cu_q, cu_kv=cu_kv, used_kv=used_kv)
        return attune.attention(
            q, cache, None, v_in_k=32, mask="causal", cu_q=cu_q, cu_kv=cu_kv, used_kv=used_kv, return_lse=True
        )

    cu_q, cu_kv, used = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 5, 6], [0, 9, 20], [7, 3]))
    q, row = (torch.randn(6, heads, 64, dtype=BF16, device=DEVICE) for heads in (4, 1))
    run = torch.compile(step, backend="aot_eager", fullgraph=True)
    caches = [torch.zeros(20, 1, 64, dtype=BF16, device=DEVICE) for _ in range(2)]
    found, wanted = run(q, row, caches[0], cu_q, cu_kv, used), step(q, row, caches[1], cu_q, cu_kv, used)
    assert all(map(torch.equal, found, wanted)) and torch.equal(*caches)


def operator_arguments(loop):
    q, k, v, cu, _ = loop.grow((5, 1, 9))
    where, scales = loop.where(), loop.scales
    lists = (cu, None, None, where["used_kv"], where["page_table"])
    append = (
        q, k, v, torch.zeros_like(q), *loop.caches, *lists, None, None, None, scales.get("k_scales"),
        scales.get("v_scales"), "half", None, None, None, None,
    )  # fmt: skip
    kind = "kv_dtype: fp8_e4m3\n" if scales else ""
    text = f"attune: 1\nname: t\ndtype: bf16\n{kind}head_dim: 32\nlayout: paged\nmask: causal\n"
    over = (
        q, *loop.caches, cu, None, None, where["used_kv"], where["page_table"], scales.get("k_scales"),
        scales.get("v_scales"), [], text, [], [], None, None, None,
    )  # fmt: skip
    return append, over


@pytest.mark.parametrize("scales", [None, "both"])
def test_opcheck(scales):
    """Schemas say what is written, fake kernels have the sizes, strides and types of what comes out."""
    loop = Loop(BF16, device=DEVICE, scales=scales)
    # Bytes stand for fp8, of which torch's own check knows no comparison.
    loop.caches = [torch.zeros_like(x, dtype=torch.uint8 if scales else None) for x in loop.caches]
    append, over = operator_arguments(loop)
    torch.library.opcheck(torch.ops.attune.append, append)
    torch.ops.attune.append(*append)
    torch.library.opcheck(torch.ops.attune.attention_over_cache, over)


def test_schema():
    schema = torch.ops.attune.append.default._schema
    assert [x.name for x in schema.arguments if x.is_write] == ["q_out", "k_cache", "v_cache"]
    assert not any(x.is_write for x in torch.ops.attune.attention_over_cache.default._schema.arguments)


def test_fake_tensors():
    with FakeTensorMode():
        q = torch.empty(3, HEADS, 32, dtype=BF16, device=DEVICE)
        cache = torch.empty(9, 8, KV_HEADS, 32, dtype=BF16, device=DEVICE)
        lists = [torch.empty(n, dtype=torch.int32, device=DEVICE) for n in (3, 2)]
        where = {
            "cu_q": lists[0],
            "used_kv": lists[1],
            "page_table": torch.empty(2, 4, dtype=torch.int32, device=DEVICE),
        }
        out = attune.append(q[:, :KV_HEADS], q[:, :KV_HEADS], cache, cache.clone(), q=q, **where)
        o, lse = attune.attention(out, cache, cache, mask="causal", return_lse=True, **where)
    assert (out.shape, o.shape, lse.shape) == (q.shape, q.shape, (HEADS, 3)) and lse.dtype == torch.float32


def test_what_is_written_is_a_new_version():
    """autograd notices that a cache was changed that it had saved."""
    loop = Loop(torch.float32, device=DEVICE)
    q, k, v, cu, _ = loop.grow((2, 1, 1))
    loop.caches = [torch.zeros_like(x) for x in loop.caches]
    weight = torch.ones((), requires_grad=True, device=DEVICE)
    with torch.enable_grad():
        product = (loop.caches[0] * weight).sum()
    versions = [x._version for x in (*loop.caches, k)]
    loop.append(q, k, v, cu)
    assert [x._version for x in (*loop.caches, k)] == [versions[0] + 1, versions[1] + 1, versions[2]]
    loop.append(q, k, v, cu, runtime=attune.default_runtime("cpu" if DEVICE == "cpu" else "cuda:0"))
    assert [x._version for x in (*loop.caches, k)] == [versions[0] + 2, versions[1] + 2, versions[2]]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_gradients_are_refused():
    loop = Loop(torch.float32, device=DEVICE)
    q, k, v, cu, _ = loop.grow((2, 1, 1))
    with torch.enable_grad():
        with pytest.raises(attune.UnsupportedError, match="`k` requires a gradient"):
            loop.append(q, k.requires_grad_(), v, cu)
        with pytest.raises(attune.UnsupportedError, match="`q` requires a gradient"):
            loop.attend(q.requires_grad_(), cu)
        q = q.detach()
        loop = Loop(BF16, device=DEVICE, scales="head")
        loop.scales["v_scales"].requires_grad_()
        with pytest.raises(attune.UnsupportedError, match="a gradient"):
            loop.attend(q.bfloat16(), cu)
    with torch.inference_mode():
        loop.append(q, k, v, cu)


def test_devices_are_not_mixed():
    loop = Loop(torch.float32, device=DEVICE)
    q, k, v, cu, _ = loop.grow((2, 1, 1))
    elsewhere = cu.to("meta" if DEVICE == "cpu" else "cpu")
    for _ in range(2):  # a plan that is known is none for another device
        with pytest.raises(attune.BadInputError, match=r"`cu_q` is on|a tensor is on"):
            loop.append(q, k, v, elsewhere)
        with pytest.raises(attune.BadInputError, match=r"`cu_q` is on|a tensor is on"):
            loop.attend(q, elsewhere)
        loop.append(q, k, v, cu)
        loop.attend(q, cu)


def test_refused_in_a_graph():
    """What does not fit is an error of the launch, with its hint; nothing has been written."""
    loop = Loop(BF16, device=DEVICE)
    given = arguments(loop, (2, 1, 1))
    run = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with pytest.raises(attune.BadInputError, match="K and V are not of fp8"):
        one = torch.ones((), device=DEVICE)
        run(*given, k_scales=one, v_scales=one)
    assert all(x.isnan().all() for x in loop.caches)


@only_on_a_gpu
@pytest.mark.parametrize("scales", [None, "both"])
def test_cuda_graph(scales):
    """Captured once, replayed with other lengths, tables and tokens."""
    loop, beside = (Loop(BF16, device=DEVICE, scales=scales) for _ in range(2))
    given = list(arguments(loop, (1, 1, 1)))
    layer(*given, **loop.scales)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(*given, **loop.scales)
    layer(*arguments(beside, (1, 1, 1)), **beside.scales)
    for _ in range(12):
        new = arguments(loop, (1, 1, 1))
        for place in (0, 1, 2, 5, 6, 7):
            given[place].copy_(new[place])
        graph.replay()
        wanted = layer(*arguments(beside, (1, 1, 1)), **beside.scales)
        assert torch.equal(found, wanted)


@only_on_a_gpu
def test_reduce_overhead():
    """torch's own graphs, of a cache that stays where it is."""
    loop, beside = (Loop(BF16, device=DEVICE) for _ in range(2))
    for cache in loop.caches:
        torch._dynamo.mark_static_address(cache)
    run = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    for counts in [(1, 1, 1)] * 6:
        torch.compiler.cudagraph_mark_step_begin()
        found = run(*arguments(loop, counts)).clone()
        assert torch.equal(found, layer(*arguments(beside, counts)))
