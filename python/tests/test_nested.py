"""Packed sequences of torch: tensors with offsets, and jagged nested tensors."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device  # noqa: E402

import attune  # noqa: E402
from attune.torch import _nested, flex_attention  # noqa: E402

HEADS, KV_HEADS, DIM = 4, 2, 32
LENGTHS_Q, LENGTHS_KV = (5, 70, 33), (9, 70, 40)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)


def nested(lengths, heads, dtype=torch.float32):
    with on_device():
        return torch.nested.nested_tensor(
            [torch.randn(length, heads, DIM) for length in lengths], layout=torch.jagged, dtype=dtype
        )


def dense(q, k, v, causal=False):
    """One sequence, [length, heads, dim], in float64."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    s = q @ k.transpose(-1, -2) * DIM**-0.5
    if causal:
        rows, columns = (torch.arange(n, device=s.device) for n in s.shape[-2:])
        live = columns <= rows[:, None] + s.shape[-1] - s.shape[-2]
        s = s.masked_fill(~live, -torch.inf)
    return (s.softmax(-1) @ v).transpose(0, 1), s.logsumexp(-1)


def operands():
    q = nested(LENGTHS_Q, HEADS)
    k = nested(LENGTHS_KV, KV_HEADS)
    return q, k, torch.nested.nested_tensor_from_jagged(torch.randn_like(k.values()), k.offsets())


def check(o, wanted):
    assert o.is_nested and len(o.unbind()) == len(wanted)
    for mine, reference in zip(o.unbind(), wanted, strict=True):
        torch.testing.assert_close(mine.double(), reference, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("layout", [None, "bshd", "bhsd"])
def test_nested_tensors(layout):
    q, k, v = operands()
    given = [x.transpose(1, 2) for x in (q, k, v)] if layout == "bhsd" else [q, k, v]
    o, lse = attune.attention(*given, mask="causal", layout=layout, return_lse=True)
    wanted = [dense(*one, causal=True) for one in zip(q.unbind(), k.unbind(), v.unbind(), strict=True)]
    assert o.shape == given[0].shape
    check(o.transpose(1, 2) if layout == "bhsd" else o, [each for each, _ in wanted])
    check(lse, [each for _, each in wanted])
    assert (o + given[0]).shape == o.shape  # it has q's own lengths
    assert torch.equal(attune.attention(*given, mask="causal", layout=layout).values(), o.values())


def test_nested_tensors_with_holes():
    """Of a padded tensor, as torch.nested.narrow makes them."""
    with on_device():
        padded = [torch.randn(3, 50, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        starts, lengths = torch.tensor([0, 7, 2]), torch.tensor([40, 3, 21])
    q, k, v = (torch.nested.narrow(x, 1, starts, lengths, layout=torch.jagged) for x in padded)
    o = attune.attention(q, k, v)
    for at, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        own = slice(start, start + length)
        begin = int(o.offsets()[at])
        mine = o.values()[begin : begin + length]
        torch.testing.assert_close(mine.double(), dense(*(x[at, own] for x in padded))[0], atol=2e-5, rtol=2e-5)


def test_offsets_and_a_spec():
    q, k, v = operands()
    spec = attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="thd")
    o = attune.attention(q, k, v, spec=spec)
    packed = [x.values() for x in (q, k, v)]
    cu_q, cu_kv = (x.offsets().to(torch.int32) for x in (q, k))
    assert torch.equal(attune.attention(*packed, spec=spec, cu_q=cu_q, cu_kv=cu_kv), o.values())
    assert torch.equal(attune.attention(*packed, mask="causal", layout="thd", cu_q=cu_q, cu_kv=cu_kv), o.values())


def test_dropout_is_of_the_generator():
    q, k, v = operands()
    torch.manual_seed(1)
    first, second = (attune.attention(q, k, v, dropout=0.5).values() for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(attune.attention(q, k, v, dropout=0.5).values(), first)
    assert not torch.equal(first, second)


def test_what_does_not_fit_is_refused():
    q, k, v = operands()
    with pytest.raises(attune.BadInputError, match="has offsets of its own"):
        attune.attention(q, k, v, cu_q=torch.tensor([0, 3], dtype=torch.int32, device=DEVICE))
    with pytest.raises(attune.BadInputError, match="`k` is no nested tensor"):
        attune.attention(q, k.values(), v)
    strided = torch.nested.nested_tensor([torch.randn(5, HEADS, DIM, device=DEVICE)], layout=torch.strided)
    for given in ((strided, k, v), (q, strided, v)):
        for _ in range(2):
            with pytest.raises(attune.BadInputError, match="is a nested tensor of layout"):
                attune.attention(*given)
    with pytest.raises(attune.BadInputError, match="heads, lengths"):
        attune.attention(q, k, v, layout="bhsd")
    with pytest.raises(attune.BadInputError, match="other lengths"):
        attune.attention(q, k, nested((8, 71, 40), KV_HEADS))
    with pytest.raises(NotImplementedError, match="does not support NestedTensor"):
        flex_attention(q, k, v)


def test_in_compiled_code_it_stands_beside_the_graph():
    q, k, v = operands()
    packed = [x.values() for x in (q, k, v)]
    cu_q, cu_kv = (x.offsets().to(torch.int32) for x in (q, k))

    def layer(q, k, v):
        return attune.attention(q * 2, k, v, layout="thd", cu_q=cu_q, cu_kv=cu_kv) + 1

    torch.compiler.reset()
    found = torch.compile(layer, backend="eager")(*packed)
    torch.testing.assert_close(found, layer(*packed))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_in_compiled_code_they_train_without_a_break(backend, layout):
    torch.compiler.reset()
    project = torch.randn(16, 3 * HEADS * DIM, device=DEVICE, requires_grad=True)

    def layer(x):
        qkv = [each.unflatten(-1, (HEADS, DIM)) for each in (x @ project).chunk(3, -1)]
        qkv = [each.transpose(1, 2) for each in qkv] if layout == "bhsd" else qkv
        o, lse = attune.attention(*qkv, mask="causal", layout=layout, return_lse=True)
        o = o.transpose(1, 2) if layout == "bhsd" else o
        return o.values(), lse.values()

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for lengths in ((5, 70, 33), (20, 3)):
        rows = [torch.randn(length, 16, device=DEVICE) for length in lengths]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        results = []
        for function in (layer, compiled):
            o, lse = function(x)
            results.append([o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), [project])])
        for mine, wanted in zip(*results, strict=True):
            torch.testing.assert_close(mine, wanted, atol=1e-3, rtol=1e-3)


def test_values_are_needed():
    q = torch.nested.nested_tensor([torch.randn(n, 2, 32) for n in (5, 3)], layout=torch.jagged)
    with pytest.raises(attune.BadInputError, match="`v` is None"):
        attune.attention(q, q, None, v_in_k=16)


def test_offsets_are_converted_once_a_call(monkeypatch):
    q, k, v = operands()
    k, v = (
        torch.nested.nested_tensor_from_jagged(torch.randn(108, KV_HEADS, DIM, device=DEVICE), q.offsets())
        for _ in "kv"
    )
    given, convert = [], _nested._in_int32
    monkeypatch.setattr(_nested, "_in_int32", lambda *lists: given.append(convert(*lists)) or given[-1])
    attune.attention(q, k, v)
    (cu_q, cu_kv), used = given
    assert cu_q is cu_kv and cu_q.dtype is torch.int32 and used == [None, None]


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x.data, lambda x: torch.from_dlpack(x)])
def test_offsets_that_change_are_seen(change):
    """In place, and behind torch's back: no version tells of it."""
    q, k, v = operands()
    for _ in range(4):
        first = attune.attention(q, k, v, mask="causal")
    change(q.offsets()).copy_(torch.tensor([0, 4, 74, 108]))
    wanted = [dense(*one, causal=True)[0] for one in zip(q.unbind(), k.unbind(), v.unbind(), strict=True)]
    again = attune.attention(q, k, v, mask="causal")
    check(again, wanted)
    assert not torch.equal(again.values(), first.values())
