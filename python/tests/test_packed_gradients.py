"""Gradients of packed sequences, layout thd and nested tensors, against each sequence by itself in float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import on_device  # noqa: E402

import attune  # noqa: E402

HEADS, KV_HEADS, DIM = 4, 2, 32
LENGTHS_Q, LENGTHS_KV = (5, 0, 70, 1, 33), (9, 4, 70, 0, 40)
USED_Q, USED_KV = (3, 0, 64, 1, 33), (9, 4, 20, 0, 0)
SPARE = 3  # tokens behind the last sequence


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)
    with on_device():
        yield


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def spoiled(x, lengths, used):
    """NaN in all that is of no sequence."""
    live = torch.zeros(len(x), dtype=torch.bool)
    for begin, count in zip(offsets(lengths).tolist(), used, strict=False):
        live[begin : begin + count] = True
    x[~live] = torch.nan
    return x


def operands(used_q=LENGTHS_Q, used_kv=LENGTHS_KV, dtype=torch.float32):
    q = spoiled(torch.randn(sum(LENGTHS_Q) + SPARE, HEADS, DIM), LENGTHS_Q, used_q)
    k, v = (spoiled(torch.randn(sum(LENGTHS_KV) + SPARE, KV_HEADS, DIM), LENGTHS_KV, used_kv) for _ in range(2))
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def one(q, k, v, causal, bias, sink):
    """O [length, heads, dim] and LSE [heads, length] of one sequence."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
    s = q @ k.transpose(-1, -2) * DIM**-0.5
    rows, columns = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    if bias is not None:
        s = s + bias[:, (rows - columns).clamp(0, bias.shape[1] - 1)]
    if causal:
        s = s.masked_fill(columns > rows + s.shape[-1] - s.shape[-2], -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(-1, s.shape[1], 1)], -1)
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp()[..., : v.shape[1]]
    return (p @ v).transpose(0, 1), lse


def wanted(arrays, d_o, d_lse, used_q=LENGTHS_Q, used_kv=LENGTHS_KV, causal=False, bias=None, sink=None):
    """Gradients of all that is given, in float64, zero where nothing depends on it."""
    given = [x.detach().double().requires_grad_() for x in (*arrays, bias, sink) if x is not None]
    q, k, v, *learned = given
    learned = dict(zip([name for name, x in (("bias", bias), ("sink", sink)) if x is not None], learned, strict=True))
    total = torch.zeros((), dtype=torch.float64)
    for i, (begin_q, begin_kv) in enumerate(
        zip(offsets(LENGTHS_Q).tolist(), offsets(LENGTHS_KV).tolist(), strict=True)
    ):
        if i == len(LENGTHS_Q) or not used_q[i] or not (used_kv[i] or sink is not None):
            continue
        own_q, own_kv = slice(begin_q, begin_q + used_q[i]), slice(begin_kv, begin_kv + used_kv[i])
        o, lse = one(q[own_q], k[own_kv], v[own_kv], causal, learned.get("bias"), learned.get("sink"))
        total = total + (o * d_o[own_q].double()).sum()
        if d_lse is not None:
            total = total + (lse * d_lse[:, own_q].double()).sum()
    return torch.autograd.grad(total, given, allow_unused=True)


def check(found, expected, tolerance=3e-5):
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), reference, atol=tolerance, rtol=tolerance)


def call(arrays, **words):
    return attune.attention(*arrays, layout="thd", cu_q=offsets(LENGTHS_Q), cu_kv=offsets(LENGTHS_KV), **words)


@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_is_by_itself(causal):
    arrays = operands()
    o, lse = call(arrays, mask="causal" if causal else None, return_lse=True)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    # A causal mask leaves some rows without a key, whose LSE is -inf.
    d_lse[lse.detach().isinf()] = 0
    found = torch.autograd.grad([o, lse], arrays, [d_o, d_lse])
    if not causal:
        check(found, wanted(arrays, d_o, d_lse))
    found = torch.autograd.grad(call(arrays, mask="causal" if causal else None), arrays, d_o)
    check(found, wanted(arrays, d_o, None, causal=causal))


def test_only_some_of_the_tokens_are_there():
    """Padding within the packed arrays is NaN here, and has gradients of zero."""
    arrays = operands(USED_Q, USED_KV)
    o = call(arrays, used_q=torch.tensor(USED_Q, dtype=torch.int32), used_kv=torch.tensor(USED_KV, dtype=torch.int32))
    d_o = torch.randn_like(o)
    found = torch.autograd.grad(o, arrays, d_o)
    check(found, wanted(arrays, d_o, None, USED_Q, USED_KV))


def test_what_is_learned():
    arrays = operands()
    bias = torch.randn(HEADS, 16, requires_grad=True)
    sink = torch.randn(HEADS, requires_grad=True)
    words = {"score": "score + bias[h, max(0, min(15, q_idx - kv_idx))]", "sink": "sinks[h]"}
    o = call(arrays, **words, tensors={"bias": bias, "sinks": sink}, dims={"bias": "heads, 16", "sinks": "heads"})
    d_o = torch.randn_like(o)
    found = torch.autograd.grad(o, [*arrays, bias, sink], d_o)
    check(found, wanted(arrays, d_o, None, bias=bias, sink=sink), 1e-4)


def test_dropout_drops_what_the_forward_pass_dropped():
    arrays = operands()
    o = call(arrays, dropout=0.5, seed=3)
    # Of v, in which O is linear.
    d_o = torch.randn_like(o)
    (d_v,) = torch.autograd.grad(o, arrays[2:], d_o)
    live = ~arrays[2].detach().isnan()
    v = arrays[2].detach()
    assert torch.allclose((d_v[live] * v[live]).sum(), (o.detach() * d_o).sum(), rtol=1e-3, atol=1e-3)


def test_nested_tensors():
    lengths_q, lengths_kv = (5, 70, 33), (9, 70, 40)
    q = torch.nested.nested_tensor([torch.randn(n, HEADS, DIM) for n in lengths_q], layout=torch.jagged)
    k, v = (
        torch.nested.nested_tensor([torch.randn(n, KV_HEADS, DIM) for n in lengths_kv], layout=torch.jagged)
        for _ in range(2)
    )
    v = torch.nested.nested_tensor_from_jagged(v.values(), k.offsets())
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    for layout in ("bshd", "bhsd"):
        turned = [x.transpose(1, 2) for x in given] if layout == "bhsd" else given
        o = attune.attention(*turned, mask="causal", layout=layout)
        d_o = torch.randn_like(o.values())
        found = torch.autograd.grad((o.values() * d_o).sum(), given)
        if layout == "bhsd":
            d_o = d_o.transpose(0, 1)
        plain = [x.detach().values().double().requires_grad_() for x in given]
        total = torch.zeros((), dtype=torch.float64)
        begin_q = begin_kv = 0
        for n, m in zip(lengths_q, lengths_kv, strict=True):
            own_q, own_kv = slice(begin_q, begin_q + n), slice(begin_kv, begin_kv + m)
            mine, _ = one(plain[0][own_q], plain[1][own_kv], plain[2][own_kv], True, None, None)
            total = total + (mine * d_o[own_q].double()).sum()
            begin_q, begin_kv = begin_q + n, begin_kv + m
        assert all(x.is_nested for x in found)
        check([x.values() for x in found], torch.autograd.grad(total, plain))


def test_a_spec_and_strides():
    arrays = operands()
    spec = attune.Spec(
        "causal", dtype="fp32", head_dim=DIM, layout="thd", scale=float, score="score + slope[h] * kv_idx",
        tensors={"slope": "float32[heads] grad"},
    )  # fmt: skip
    slope = torch.full((HEADS,), 0.01, requires_grad=True)
    wide = torch.full((HEADS, len(arrays[0]), DIM + 8), torch.nan)
    wide[:, :, :DIM] = arrays[0].detach().transpose(0, 1)
    strided = wide[:, :, :DIM].transpose(0, 1).requires_grad_()
    given = {"spec": spec, "cu_q": offsets(LENGTHS_Q), "cu_kv": offsets(LENGTHS_KV), "tensors": {"slope": slope}}
    o = attune.attention(*arrays, **given, scale=DIM**-0.5)
    d_o = torch.randn_like(o)
    found = torch.autograd.grad(o, [*arrays, slope], d_o)
    again = attune.attention(strided, *arrays[1:], **given, scale=DIM**-0.5)
    turned = d_o.transpose(0, 1).contiguous().transpose(0, 1)
    assert all(
        torch.equal(x, y)
        for x, y in zip(torch.autograd.grad(again, [strided, *arrays[1:], slope], turned), found, strict=True)
    )
    assert found[3].shape == slope.shape and found[3].isfinite().all() and found[3].any()


def test_half_precision():
    arrays = operands(dtype=torch.bfloat16)
    o = call(arrays, mask="causal")
    d_o = torch.randn_like(o)
    found = torch.autograd.grad(o, arrays, d_o)
    assert [x.dtype for x in found] == [torch.bfloat16] * 3
    check(found, wanted(arrays, d_o, None, causal=True), 5e-2)


def test_nothing_at_all():
    q = torch.randn(4, HEADS, DIM, requires_grad=True)
    k = torch.randn(4, KV_HEADS, DIM, requires_grad=True)
    o = attune.attention(q, k, k, layout="thd", cu_q=offsets(()), cu_kv=offsets(()))
    assert not any(x.any() for x in torch.autograd.grad(o, [q, k], torch.randn_like(o)))
    o = attune.attention(q, k, k, layout="thd", cu_q=offsets((4,)), cu_kv=offsets((0,)))
    assert not any(x.any() for x in torch.autograd.grad(o, [q, k], torch.randn_like(o)))


def test_what_has_no_gradient_is_refused():
    arrays = operands()
    slope = torch.ones(HEADS, requires_grad=True)
    spec = attune.Spec(
        dtype="fp32", head_dim=DIM, layout="thd", score="score * slope[h]", tensors={"slope": "float32[heads]"}
    )
    given = {"cu_q": offsets(LENGTHS_Q), "cu_kv": offsets(LENGTHS_KV), "tensors": {"slope": slope}}
    with pytest.raises(attune.BadInputError, match="`slope` requires a gradient"):
        attune.attention(*arrays, spec=spec, **given)
    table = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(attune.UnsupportedError, match="keys in a cache have no backward pass"):
        attune.attention(
            arrays[0], arrays[1][None], arrays[2][None], layout="paged", cu_q=offsets((5,)),
            used_kv=torch.tensor([3], dtype=torch.int32), page_table=table,
        )  # fmt: skip
    o = call(arrays)
    with torch.no_grad():
        arrays[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_in_compiled_code_it_stands_beside_the_graph():
    arrays = operands()

    def layer(q, k, v):
        return call([q * 2, k, v]) + 1

    torch.compiler.reset()
    d_o = torch.randn(arrays[0].shape)
    found = torch.autograd.grad(torch.compile(layer, backend="eager")(*arrays), arrays, d_o)
    check(found, [x.double() for x in torch.autograd.grad(layer(*arrays), arrays, d_o)])


@pytest.mark.parametrize("what", ["words", "spec", "learned", "dropout", "lse"])
def test_calls_that_are_made_again(what):
    """By plans: with other values, lengths within them, and strides of gradients."""
    bias = torch.randn(HEADS, 16, requires_grad=True)
    words = {"mask": "causal"}
    if what == "spec":
        words = {"spec": attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="thd")}
    elif what == "learned":
        words = {"score": "score + bias[h, max(0, min(15, q_idx - kv_idx))]", "tensors": {"bias": bias}}
        words["dims"] = {"bias": "heads, 16"}
    elif what == "dropout":
        words |= {"dropout": 0.5, "seed": 3}
    learned = [bias] if what == "learned" else []
    of_q, of_kv = offsets(LENGTHS_Q), offsets(LENGTHS_KV)
    given = {"cu_q": of_q, "cu_kv": of_kv, **({} if what == "spec" else {"layout": "thd"})}
    for turned in (False, False, True, False, True, False):
        arrays = operands()
        found = attune.attention(*arrays, **given, **words, return_lse=what == "lse")
        o, lse = found if what == "lse" else (found, None)
        d_o = torch.randn_like(o)
        d_o = d_o.transpose(0, 1).contiguous().transpose(0, 1) if turned else d_o
        if what == "lse":
            d_lse = torch.randn_like(lse).masked_fill(lse.detach().isinf(), 0)
            mine = torch.autograd.grad([o, lse], arrays, [d_o, d_lse])
            alone = call(arrays, mask="causal", return_lse=True, runtime=attune.default_runtime(str(o.device)))
            check(mine, [x.double() for x in torch.autograd.grad(alone, arrays, [d_o, d_lse])])
            continue
        mine = torch.autograd.grad(o, [*arrays, *learned], d_o)
        if what == "dropout":  # by the way that keeps no plans
            alone = attune.attention(*arrays, **given, **words, runtime=attune.default_runtime(str(o.device)))
            assert torch.equal(alone.detach(), o.detach())
            check(mine, [x.double() for x in torch.autograd.grad(alone, arrays, d_o)])
        else:
            check(mine, wanted(arrays, d_o, None, causal=what != "learned", bias=bias if learned else None), 1e-4)


def test_hooks_that_give_back_other_strides():
    for turned in (False, True, True):
        arrays = [x.detach() for x in operands()]
        if turned:
            arrays = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in arrays]
        arrays = [x.requires_grad_() for x in arrays]
        pack = lambda x: x.detach().clone(memory_format=torch.contiguous_format)  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            o = call(arrays, mask="causal")
        d_o = torch.randn_like(o)
        check(torch.autograd.grad(o, arrays, d_o), wanted(arrays, d_o, None, causal=True))


def test_a_second_derivative_is_refused():
    arrays = operands()
    for o in (call(arrays), call(arrays, runtime=attune.default_runtime(str(arrays[0].device)))):
        (found,) = torch.autograd.grad(o.sum(), arrays[:1], create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            found.sum().backward()
