"""Dropout whose seed and offset lie in the device's memory, here the CPU's; and calls that are captured in a graph, as
far as a CPU can tell: what says that one is being captured is replaced."""

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402

import attune  # noqa: E402
from attune.torch import _dropout, flex_attention  # noqa: E402

DIM = 32
SEEDS = [(5, 0), (2**64 - 3, 2**63 + 1), (0, 7)]


def specs(**words):
    own = {"mask": "causal", "dtype": "fp32", "head_dim": DIM, "layout": "bhsd", "dropout": 0.25} | words
    return attune.Spec(**own), attune.Spec(**own, seed_on_device=True)


def operands():
    torch.manual_seed(3)
    return [torch.randn(BATCH, HEADS, LENGTH, DIM).requires_grad_() for _ in range(3)]


def gradients(out, given, weights):
    return torch.autograd.grad((out * weights).sum(), given, retain_graph=True)


def test_a_spec_says_it():
    of_launch, of_device = specs()
    assert not of_launch.seed_on_device and of_device.seed_on_device
    assert "dropout: {p: 0.25, seed: device}" in of_device.yaml
    assert of_launch.hash != of_device.hash
    assert of_launch.with_device_seed.hash == of_device.hash and of_device.with_device_seed is of_device
    assert attune.Spec.from_yaml(of_launch.with_device_seed.reference).hash == of_device.hash
    named = attune.Spec.from_file("models/gpt2")
    assert named.with_device_seed.seed_on_device and named.with_device_seed.dropout == named.dropout
    with pytest.raises(attune.BadInputError, match="no dropout"):
        _ = attune.Spec.from_file("causal").with_device_seed
    with pytest.raises(attune.BadInputError, match="nothing is dropped"):
        attune.Spec(dtype="fp32", head_dim=DIM, seed_on_device=True)


@pytest.mark.parametrize(("seed", "offset"), SEEDS)
def test_the_same_bits(seed, offset):
    of_launch, of_device = specs()
    given = operands()
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)
    wanted = attune.attention(*given, spec=of_launch, seed=seed, offset=offset)
    for _ in range(4):  # found again by what the caller said
        found = attune.attention(*given, spec=of_device, seed=seed, offset=offset)
        assert torch.equal(found, wanted)
        for mine, reference in zip(gradients(found, given, weights), gradients(wanted, given, weights), strict=True):
            assert torch.equal(mine, reference)
    arrays = [x.detach().numpy() for x in given]
    assert numpy.array_equal(attune.attention(*arrays, spec=of_device, seed=seed, offset=offset), wanted.detach())


def test_of_torchs_generator():
    _, of_device = specs()
    given = operands()
    torch.manual_seed(1)
    first, second = (attune.attention(*given, spec=of_device) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(attune.attention(*given, spec=of_device), first) and not torch.equal(first, second)


def test_packed_sequences():
    of_launch, of_device = specs(layout="thd")
    given = [torch.randn(9, HEADS, DIM).requires_grad_() for _ in range(3)]
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    found = []
    for spec in (of_launch, of_device):
        out = attune.attention(*given, spec=spec, cu_q=cu, cu_kv=cu, seed=5, offset=6)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for mine, reference in zip(*found, strict=True):
        assert torch.equal(mine, reference)


def test_an_operator():
    of_launch, of_device = specs()
    given = operands()
    state = torch.tensor([7, 3])

    def call(spec):
        return torch.ops.attune.attention(*given, [], spec.reference, [], [], None, None, state)[0]

    found, wanted = call(of_device), call(of_launch)
    assert torch.equal(found, wanted)
    weights = torch.randn_like(found)
    for mine, reference in zip(gradients(found, given, weights), gradients(wanted, given, weights), strict=True):
        assert torch.equal(mine, reference)


def by_words(q, k, v):
    return attune.attention(q, k, v, mask="causal", layout="bhsd", dropout=0.25)


def by_functions(q, k, v):
    return flex_attention(q, k, v, mods.alibi(), mask_mod=mods.causal, dropout=0.25, strict=True)


def by_a_spec(q, k, v):
    return attune.attention(q, k, v, spec=SPEC)


SPEC = attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="bhsd", dropout=0.5)


@pytest.fixture
def captured(monkeypatch):
    """Draws on the device, which are counted, and none of the host."""
    draws = []

    def randint(*args, **kwargs):
        draws.append(original(*args, **kwargs))
        return draws[-1]

    original = torch.randint
    monkeypatch.setattr(_dropout, "is_captured", lambda device: True)
    monkeypatch.setattr(torch, "randint", randint)
    return draws


@pytest.mark.parametrize("function", [by_words, by_functions, by_a_spec])
def test_a_captured_call_reads_what_was_drawn(function, captured, monkeypatch):
    given = operands()
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)
    outs = []
    for _ in range(5):
        out = function(*given)
        _, _, of_v = gradients(out, given, weights)
        torch.testing.assert_close((out * weights).sum(), (given[2].detach() * of_v).sum(), atol=1e-3, rtol=1e-4)
        with torch.no_grad():
            outs += [out.detach(), function(*given)]
    assert len(captured) == 10
    assert all(not torch.equal(outs[0], other) for other in outs[1:])
    # What a replay does: the same launches, and another number where they read it.
    monkeypatch.undo()
    seed, offset = captured[0].tolist()
    if function is by_a_spec:
        assert torch.equal(attune.attention(*given, spec=SPEC, seed=seed, offset=offset), outs[0])


def test_a_captured_call_of_packed_sequences(captured):
    given = [torch.randn(9, HEADS, DIM).requires_grad_() for _ in range(3)]
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    weights = torch.randn(9, HEADS, DIM)
    outs = []
    for _ in range(2):
        outs.append(attune.attention(*given, mask="causal", dropout=0.5, cu_q=cu, cu_kv=cu))
        (of_v,) = torch.autograd.grad((outs[-1] * weights).sum(), given[2:])
        torch.testing.assert_close((outs[-1] * weights).sum(), (given[2].detach() * of_v).sum(), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        outs += [attune.attention(*given, mask="causal", dropout=0.5, cu_q=cu, cu_kv=cu) for _ in range(3)]
    assert len(captured) == 5 and not torch.equal(outs[0], outs[1]) and not torch.equal(outs[2], outs[3])
    seed, offset = captured[0].tolist()
    again = attune.attention(*given, mask="causal", dropout=0.5, cu_q=cu, cu_kv=cu, seed=seed, offset=offset)
    assert torch.equal(again, outs[0])


def test_a_seed_that_the_caller_gives_is_the_caller_s(captured):
    given = operands()
    wanted = attune.attention(*given, spec=SPEC, seed=5)
    assert torch.equal(attune.attention(*given, spec=SPEC, seed=5), wanted) and not captured


def test_compiled_code_that_is_captured_warns(captured):
    given = [x.detach() for x in operands()]
    state = torch.tensor([7, 3])
    with pytest.warns(RuntimeWarning, match="each replay drops the same"):
        torch.ops.attune.attention(*given, [], SPEC.reference, [], [], None, None, state)
