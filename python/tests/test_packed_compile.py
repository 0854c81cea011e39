"""attune.attention of packed sequences in compiled code, with gradients: an operator of the graph, and no break."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402

CU = [0, 30, 31, 31, 70]
KV = [0, 40, 45, 45, 84]
WORDS = {
    "causal": {"mask": "causal"},
    "slopes": {"mask": "local(12, 0)", "score": "score - slope[h] * abs(kv_idx - q_pos)"},
}


def operands():
    torch.manual_seed(2)
    with devices.on_device():
        q, k, v = torch.randn(72, 4, 16), torch.randn(84, 2, 16), torch.randn(84, 2, 16)  # two rows of no sequence
        return [x.requires_grad_() for x in (q, k, v, torch.rand(4))]


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("name", WORDS)
def test_gradients(name, with_lse):
    def attend(q, k, v, slope, cu_q, cu_kv):
        tensors = {"slope": slope} if name == "slopes" else {}
        given = {"layout": "thd", "cu_q": cu_q, "cu_kv": cu_kv, "tensors": tensors, "return_lse": with_lse}
        found = attune.attention(2 * q, k, v, **given, **WORDS[name])
        # Rows of no sequence have an LSE of -inf.
        return (
            found[0].square().sum() + found[1][:, :70].nan_to_num(neginf=0).sum() if with_lse else found.square().sum()
        )

    offsets = [torch.tensor(each, dtype=torch.int32, device=devices.DEVICE) for each in (CU, KV)]
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    leaves = operands() if name == "slopes" else operands()[:3]
    for _ in range(2):
        results = []
        for function in (attend, compiled):
            out = function(*leaves, *([None] if name != "slopes" else []), *offsets)
            results.append([out, *torch.autograd.grad(out, leaves)])
        for mine, wanted in zip(*results, strict=True):
            torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)
        assert not results[1][1][70:].any()


def test_keys_in_pages_have_none():
    cache = torch.randn(4, 8, 2, 16)
    where = {"cu_q": torch.tensor([0, 1], dtype=torch.int32), "used_kv": torch.tensor([9], dtype=torch.int32)}
    table = torch.tensor([[2, 0]], dtype=torch.int32)

    def attend(q):
        return attune.attention(q, cache, cache, mask="causal", page_table=table, **where)

    with pytest.raises(Exception, match="no backward pass"):
        attend(torch.randn(1, 4, 16, requires_grad=True))


SPECS = {
    "words": {"mask": "causal", "layout": "thd", "dropout": 0.5},
    "spec": {"spec": attune.Spec("causal", dtype="fp32", head_dim=16, layout="thd", dropout=0.5)},
    "at launch": {
        "spec": attune.Spec("causal", dtype="fp32", head_dim=16, layout="thd", dropout=float),
        "dropout": 0.5,
    },
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", SPECS)
def test_dropout(name, backend):
    """O is linear in v: where both passes drop the same elements, <w, O> is <v, dV>."""

    def attend(q, k, v, cu, **seed):
        return attune.attention(q, k, v, cu_q=cu, **SPECS[name], **seed)

    torch.compiler.reset()
    with devices.on_device():
        torch.manual_seed(4)
        given = [torch.randn(70, 4, 16, requires_grad=True) for _ in range(3)]
        cu, weights = torch.tensor(CU, dtype=torch.int32), torch.randn(70, 4, 16)
    run = torch.compile(attend, fullgraph=True, backend=backend)
    outs = []
    for _ in range(3):
        out = run(*given, cu)
        (of_v,) = torch.autograd.grad((out * weights).sum(), given[2:])
        torch.testing.assert_close((out * weights).sum(), (given[2] * of_v).sum(), atol=1e-3, rtol=1e-4)
        outs.append(out.detach())
    torch.manual_seed(4)
    again = [run(*given, cu) for _ in range(2)]
    torch.manual_seed(4)
    assert torch.equal(run(*given, cu), again[0]) and not torch.equal(*again)
    assert all(not torch.equal(x, y) for x, y in zip(outs, outs[1:], strict=False))
    assert torch.equal(run(*given, cu, seed=7, offset=3), attend(*given, cu, seed=7, offset=3))


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("seeds", [(2**63 + 5, 2**64 - 1), (7, 2**63 + 5, 9, 2**63 + 6)])
def test_seeds_that_int64_does_not_hold(seeds, is_packed):
    """As the first one, which a graph has for a constant, and as a later one, which it leaves open."""
    torch.compiler.reset()
    with devices.on_device():
        x, cu = torch.randn(70, 2, 16), torch.tensor(CU, dtype=torch.int32)

    def attend(x, cu, seed):
        if is_packed:
            return attune.attention(x, x, x, cu_q=cu, dropout=0.5, seed=seed, offset=3)
        return attune.attention(x[None], x[None], x[None], dropout=0.5, seed=seed, offset=3)

    run = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for seed in seeds:
        assert torch.equal(run(x, cu, seed), attend(x, cu, seed))


def test_a_seed_stays_open():
    torch.compiler.reset()
    with devices.on_device():
        x, cu = torch.randn(70, 2, 16), torch.tensor(CU, dtype=torch.int32)

    def attend(seed):
        return attune.attention(x, x, x, cu_q=cu, dropout=0.5, seed=seed)

    run = torch.compile(attend, fullgraph=True, backend="aot_eager")
    run(7), run(8)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(run(-9), attend(-9))


def test_dropout_over_pages():
    torch.compiler.reset()
    with devices.on_device():
        q, cache = torch.randn(2, 4, 16), torch.randn(4, 8, 2, 16)
        where = {"cu_q": torch.tensor([0, 1, 2], dtype=torch.int32), "used_kv": torch.tensor([9, 5], dtype=torch.int32)}
        table = torch.tensor([[2, 0], [1, -1]], dtype=torch.int32)

    def attend(q):
        return attune.attention(q, cache, cache, mask="causal", page_table=table, dropout=0.5, seed=3, **where)

    assert torch.equal(torch.compile(attend, fullgraph=True, backend="aot_eager")(q), attend(q))
