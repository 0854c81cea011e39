"""Backward passes of calls that are made again: the same gradients, whatever is not as it was the time before."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device, one_thread  # noqa: E402

import torch.utils.checkpoint  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import _gradients, _plans, _recall, flex_attention  # noqa: E402

DTYPE = torch.float32
HEADS, LENGTH, DIM = 2, 40, 16
KEYS = {"dtype": "fp32", "head_dim": DIM, "layout": "bhsd"}
SPECS = {
    "causal": attune.Spec("causal", **KEYS),
    "scalar": attune.Spec("q_idx - kv_idx <= back", scalars={"back": int}, **KEYS),
    "learned": attune.Spec(
        "document(doc)", "score + slope[h] * kv_idx",
        tensors={"doc": "int32[batch, kv_len]", "slope": "float32[heads] grad"}, **KEYS,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def anew():
    with on_device(), one_thread():
        torch.manual_seed(3)
        _met.CALLS.clear()
        _recall.forget()
        yield
        _met.CALLS.clear()
        _recall.forget()


def leaves(turned=False, batch=1):
    sizes = (batch, LENGTH, HEADS, DIM) if turned else (batch, HEADS, LENGTH, DIM)
    made = [torch.randn(sizes, dtype=DTYPE) for _ in range(3)]
    return [(x.transpose(1, 2) if turned else x).requires_grad_() for x in made]


def given(name):
    if name == "scalar":
        return {"scalars": {"back": 5}}
    if name == "learned":
        doc = torch.arange(LENGTH, dtype=torch.int32)[None] // 8
        return {"tensors": {"doc": doc, "slope": torch.rand(HEADS, requires_grad=True)}}
    return {}


def runs_in_python(monkeypatch):
    """Counts the backward launches that Python makes."""
    counted = []
    run = _plans.BackwardPlan.run
    monkeypatch.setattr(_plans.BackwardPlan, "run", lambda *args: counted.append(1) or run(*args))
    return counted


def reference(q, k, v, d_o, name="causal", **more):
    """By float64's autograd, of the mask and score that the spec names."""
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    at = torch.arange(LENGTH)
    tensors = more.get("tensors", {})
    slope = tensors["slope"].detach().double().requires_grad_() if "slope" in tensors else None
    s = doubles[0] @ doubles[1].transpose(-1, -2) * DIM**-0.5
    if name == "learned":
        s = s + slope[:, None, None] * at
        live = tensors["doc"][0][:, None] == tensors["doc"][0]
    else:
        back = at[:, None] - at
        live = back <= more["scalars"]["back"] if name == "scalar" else back >= 0
    o = s.masked_fill(~live, -torch.inf).softmax(-1) @ doubles[2]
    return torch.autograd.grad(o, [*doubles, *([] if slope is None else [slope])], d_o.double())


def assert_close(found, wanted):
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_the_same_without_bytecode(name, monkeypatch):
    counted = runs_in_python(monkeypatch)
    more = given(name)
    learning = [more["tensors"]["slope"]] if name == "learned" else []
    for _ in range(6):
        q, k, v = leaves()
        d_o = torch.randn_like(q)
        o = attune.attention(q, k, v, spec=SPECS[name], **more)
        found = torch.autograd.grad(o, [q, k, v, *learning], d_o)
        assert_close(found, reference(q, k, v, d_o, name, **more))
        assert [x.stride() for x in found[:3]] == [x.stride() for x in (q, k, v)]
    if _gradients._native.forward() is not None and name != "scalar":  # a scalar that calls bring is Python's
        assert len(counted) < 6


def test_other_scalars_and_lse(monkeypatch):
    for back in (5, 3, 5, 9, 3, 5, 7):
        q, k, v = leaves()
        d_o = torch.randn_like(q)
        more = {"scalars": {"back": back}}
        o, lse = attune.attention(q, k, v, spec=SPECS["scalar"], return_lse=True, **more)
        assert_close(
            torch.autograd.grad(o, [q, k, v], d_o, retain_graph=True), reference(q, k, v, d_o, "scalar", **more)
        )
        (of_lse,) = torch.autograd.grad(lse.sum(), [v], allow_unused=True)
        assert of_lse is None or not of_lse.any()
        o, lse = attune.attention(q, k, v, spec=SPECS["scalar"], return_lse=True, **more)
        both = torch.autograd.grad((o * d_o).sum() + 2 * lse.sum(), [q, k, v])
        assert not torch.equal(both[0], reference(q, k, v, d_o, "scalar", **more)[0])


@pytest.mark.parametrize("turned", [False, True])
def test_strides_of_the_gradient(turned):
    """Contiguous, as another layer's, expanded, of every second column."""
    for _ in range(4):
        q, k, v = leaves(turned)
        for d_o in (
            torch.randn(1, HEADS, LENGTH, DIM),
            torch.randn(1, LENGTH, HEADS, DIM).transpose(1, 2),
            torch.ones(()).expand(1, HEADS, LENGTH, DIM),
            torch.randn(1, HEADS, LENGTH, 2 * DIM)[..., ::2],
            torch.randn(HEADS * LENGTH * DIM + 1)[1:].view(1, HEADS, LENGTH, DIM),
        ):
            o = attune.attention(q, k, v, spec=SPECS["causal"])
            assert_close(torch.autograd.grad(o, [q, k, v], d_o), reference(q, k, v, d_o))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("again", [0, 4])
def test_hooks_that_give_back_other_strides(turned, again):
    """As torch's save_on_cpu does with pinned memory, and offloading of any kind."""
    for _ in range(again):
        q, k, v = leaves(turned)
        torch.autograd.grad(attune.attention(q, k, v, spec=SPECS["causal"]), [q, k, v], torch.randn_like(q))
    pack = lambda x: x.detach().clone(memory_format=torch.contiguous_format)  # noqa: E731
    for _ in range(3):
        q, k, v = leaves(turned)
        d_o = torch.randn_like(q)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            o = attune.attention(q, k, v, spec=SPECS["causal"])
            of_mod = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j)
        assert_close(torch.autograd.grad(o, [q, k, v], d_o), reference(q, k, v, d_o))
        assert_close(torch.autograd.grad(of_mod, [q, k, v], d_o), reference(q, k, v, d_o))


@pytest.mark.parametrize("turned", ["lse", "tensors"])
def test_hooks_that_turn_what_is_read_as_it_lies(turned):
    spec = attune.Spec(
        "causal",
        "score + bias[q_idx, kv_idx]",
        tensors={"bias": "float32[q_len, kv_len]"},
        passes=("forward", "backward"),
        **KEYS,
    )
    bias = torch.randn(LENGTH, LENGTH)
    ndim = {"lse": 3, "tensors": 2}[turned]

    def unpack(x):
        return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() == ndim else x

    for _ in range(3):
        q, k, v = leaves(batch=2)
        d_o = torch.randn_like(q)
        o = attune.attention(q, k, v, spec=spec, tensors={"bias": bias})
        wanted = [x.double() for x in torch.autograd.grad(o, [q, k, v], d_o)]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            o = attune.attention(q, k, v, spec=spec, tensors={"bias": bias})
        assert_close(torch.autograd.grad(o, [q, k, v], d_o), wanted)


def test_what_raises_still_raises():
    for _ in range(5):
        q, k, v = leaves()
        o = attune.attention(q, k, v, spec=SPECS["causal"])
        o.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            o.sum().backward()
        scaled = [x * 1 for x in (q, k, v)]
        o = attune.attention(*scaled, spec=SPECS["causal"])
        scaled[1].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()
        o = attune.attention(q, k, v, spec=SPECS["causal"])
        (d_q,) = torch.autograd.grad(o.sum(), [q], create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            d_q.sum().backward()


def test_an_order_of_sums_that_is_asked_for_later(monkeypatch):
    def gradients():
        q, k, v = leaves()
        return torch.autograd.grad(attune.attention(q, k, v, spec=SPECS["causal"]), [q, k, v], torch.ones_like(q))

    for _ in range(4):
        gradients()
    counted = runs_in_python(monkeypatch)
    torch.use_deterministic_algorithms(True)
    try:
        gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted
    gradients()


def test_a_second_derivative_is_no_zero():
    """Of a hessian, whose inner gradient has a constant for its output's."""
    for _ in range(4):
        q, k, v = leaves()
        (d_q,) = torch.autograd.grad(attune.attention(q, k, v, spec=SPECS["causal"]).sum(), [q], create_graph=True)
        for x in (q, k, v):
            with pytest.raises(NotImplementedError, match="no second derivative"):
                torch.autograd.grad(d_q.sum(), [x], allow_unused=True, retain_graph=True)


def test_gradients_of_a_recorded_backward_pass_are_changed_in_place():
    q, k, v = leaves()
    found = torch.autograd.grad(attune.attention(q, k, v, spec=SPECS["causal"]).sum(), [q, k, v], create_graph=True)
    before = [x.detach().clone() for x in found]
    for x in found:
        x.mul_(0.5)
    assert_close(found, [x.double() * 0.5 for x in before])
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(found[0].sum(), [q])


def test_gradients_in_batches_are_refused():
    for _ in range(4):
        q, k, v = leaves()
        o = attune.attention(q, k, v, spec=SPECS["causal"])
        with pytest.raises(NotImplementedError, match="jacrev"):
            torch.autograd.grad(o, [q], torch.randn(3, *o.shape), is_grads_batched=True)


@pytest.mark.parametrize("again", [0, 4])
def test_what_is_saved_is_asked_for_once(again):
    """As checkpoints want it, whose second forward pass saves other tensors."""

    def layer(q, k, v):
        return attune.attention(q * 1, k, v, spec=SPECS["causal"])

    for _ in range(again):
        q, k, v = leaves()
        torch.autograd.grad(layer(q, k, v), [q, k, v], torch.randn_like(q))
        torch.autograd.grad(attune.attention(q, k, v, spec=SPECS["causal"]), [q, k, v], torch.randn_like(q))
    for _ in range(3):
        q, k, v = leaves()
        d_o = torch.randn_like(q)
        o = torch.utils.checkpoint.checkpoint(layer, q, k, v, use_reentrant=False)
        assert_close(torch.autograd.grad(o, [q, k, v], d_o), reference(q, k, v, d_o))
        turned = torch.randn(1, LENGTH, HEADS, DIM).transpose(1, 2)
        o = torch.utils.checkpoint.checkpoint(layer, q, k, v, use_reentrant=False)
        assert_close(torch.autograd.grad(o, [q, k, v], turned), reference(q, k, v, turned))


def test_compiled_autograd():
    enable = pytest.importorskip("torch._dynamo.compiled_autograd", reason="of newer torch")._enable
    torch.compiler.reset()
    q, k, v = leaves()
    d_o = torch.randn_like(q)
    for _ in range(4):
        attune.attention(q, k, v, spec=SPECS["causal"]).backward(d_o)
    q.grad = k.grad = v.grad = None
    with enable(torch.compile(backend="eager")):
        attune.attention(q, k, v, spec=SPECS["causal"]).backward(d_o)
    assert_close([x.grad for x in (q, k, v)], reference(q, k, v, d_o))


def test_only_one_learns():
    for _ in range(5):
        q, k, v = leaves()
        k.requires_grad_(False), v.requires_grad_(False)
        d_o = torch.randn_like(q)
        (found,) = torch.autograd.grad(attune.attention(q, k, v, spec=SPECS["causal"]), [q], d_o)
        assert_close([found], reference(q, k, v, d_o)[:1])


def test_nothing_is_kept():
    for _ in range(4):
        q, k, v = leaves()
        o = attune.attention(q, k, v, spec=SPECS["causal"])
        o.sum().backward()
        kept = [weakref.ref(x) for x in (q, k, v, o, q.grad)]
    del q, k, v, o
    gc.collect()
    assert DEVICE != "cpu" or not any(each() is not None for each in kept)
