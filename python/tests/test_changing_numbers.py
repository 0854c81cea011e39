"""Numbers of words that change from call to call: no kernel for each of them."""

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import _plain, _plans, _varied  # noqa: E402

LENGTH, HEADS, DIM = 40, 2, 16
DTYPE = torch.float32


@pytest.fixture(autouse=True)
def anew():
    with on_device():
        torch.manual_seed(2)
        for known in (_met.CALLS, _plain._calls, _varied._families):
            known.clear()
        yield
        for known in (_met.CALLS, _plain._calls, _varied._families):
            known.clear()


@pytest.fixture
def qkv():
    return [torch.randn(1, LENGTH, HEADS, DIM, dtype=DTYPE) for _ in range(3)]


@pytest.fixture
def variants(monkeypatch):
    """Texts of the specs that are asked for."""
    found = []
    make = _plans.variant_of
    monkeypatch.setattr(_plain, "variant_of", lambda text: found.append(text) or make(text))
    return lambda: len(set(found))


def reference(q, k, v, window=LENGTH, cap=None, scale=DIM**-0.5):
    s = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * scale
    s = s if cap is None else cap * torch.tanh(s / cap)
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    s = s.masked_fill((back < 0) | (back >= window), -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v.double())


def assert_close(found, wanted):
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("again", [1, 4])
@pytest.mark.parametrize("kind", [int, numpy.int64])
def test_an_annealed_window(qkv, variants, again, kind):
    for window in range(3, 20):
        for _ in range(again):  # as many layers
            o = attune.attention(*qkv, mask="sliding_window(w)", scalars={"w": kind(window)})
            assert_close(o, reference(*qkv, window=window))
    assert variants() == 3  # two constants, and one that the launch brings


def test_a_scale_of_numpy(qkv, variants):
    for step in range(1, 9):
        scale = numpy.float32(step / 8)
        for _ in range(3):
            assert_close(attune.attention(*qkv, mask="causal", scale=scale), reference(*qkv, scale=float(scale)))
    assert variants() == 3


def test_two_windows_are_constants(qkv, variants):
    for _ in range(5):
        for window in (5, 17):
            o = attune.attention(*qkv, mask="sliding_window(w)", scalars={"w": window})
            assert_close(o, reference(*qkv, window=window))
    assert variants() == 2
    assert len(_met.CALLS) == 2


def test_only_what_changes_is_left_open(qkv, variants):
    texts = set()
    for window in range(3, 9):
        o = attune.attention(
            *qkv,
            mask="sliding_window(w)",
            score="cap * tanh(score / cap)",
            scalars={"w": window, "cap": 0.5},
            scale=0.3,
        )
        assert_close(o, reference(*qkv, window=window, cap=0.5, scale=0.3))
        texts |= {variant.spec for variant, _ in _plain._calls.values()}
    assert {tuple(spec.launch_scalar_slots) for spec in texts} == {(), ("w",)}
    assert variants() == 3


@pytest.mark.parametrize("what", ["cap", "scale", "all"])
def test_floats_with_gradients(qkv, variants, what):
    weights = torch.randn_like(qkv[0])
    for step in range(6):
        more = {"scalars": {"cap": 0.5}}
        if what != "scale":
            more["scalars"] = {"cap": 0.5 + 0.25 * step}
        if what != "cap":
            more["scale"] = 0.1 * (step + 1)
        given = [x.clone().requires_grad_() for x in qkv]
        doubles = [x.double().requires_grad_() for x in qkv]
        o = attune.attention(*given, mask="causal", score="cap * tanh(score / cap)", **more)
        wanted = reference(*doubles, cap=more["scalars"]["cap"], scale=more.get("scale", DIM**-0.5))
        assert_close(o, wanted)
        for mine, exact in zip(
            torch.autograd.grad((o * weights).sum(), given),
            torch.autograd.grad((wanted * weights.double()).sum(), doubles),
            strict=True,
        ):
            torch.testing.assert_close(mine.double(), exact, atol=1e-3, rtol=1e-3)
    assert variants() == 3


def test_an_annealed_dropout(qkv, variants):
    ones = torch.ones_like(qkv[2])
    for step in range(4):
        p = 0.05 * (step + 1)
        o = attune.attention(*qkv[:2], ones, mask="causal", dropout=p, seed=3)
        one = attune.attention(
            *qkv[:2], ones, spec=attune.Spec("causal", dtype="fp32", head_dim=DIM, dropout=p), seed=3
        )
        torch.testing.assert_close(o, one, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(attune.attention(*qkv[:2], ones, mask="causal"), ones, atol=1e-5, rtol=0)
    assert variants() - 4 <= 4


def test_a_mistake_with_operands_fixes_no_number(qkv, variants):
    q, k, v = qkv
    for scale in (0.1, 0.2):
        attune.attention(q, k, v, scale=scale)
    with pytest.raises(attune.BadInputError, match="batch"):
        attune.attention(q, k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1), scale=0.3)
    for step in range(5):
        attune.attention(q, k, v, scale=0.4 + step)
    assert variants() == 3


def test_a_tensor_is_no_number(qkv):
    for _ in range(4):
        with pytest.raises(attune.BadInputError):
            attune.attention(*qkv, score="score * x", scalars={"x": torch.ones(2)})


def test_a_number_that_no_launch_brings(qkv, variants):
    """Another value is another kernel, and right."""
    for power in range(1, 6):
        o = attune.attention(*qkv, score="pow(score, n)", scalars={"n": power}, scale=0.2)
        s = (0.2 * torch.einsum("bihd,bjhd->bhij", qkv[0].double(), qkv[1].double())) ** power
        torch.testing.assert_close(
            o.double(), torch.einsum("bhij,bjhd->bihd", s.softmax(-1), qkv[2].double()), atol=2e-3, rtol=2e-3
        )


def test_other_numbers_stay_what_they_are(qkv):
    for cap in (1e30, 0.25, 0.0, 2.0, 0.5):
        o = attune.attention(*qkv, mask="causal", score="min(score, cap)", scalars={"cap": cap})
        assert o.isfinite().all()
    for wrong in (-1.0, 0.0):
        for scale in (0.1, 0.2, 0.3, 0.4):
            attune.attention(*qkv, scale=scale)
        with pytest.raises(attune.BadInputError, match="not above 0"):
            attune.attention(*qkv, scale=wrong)
    for p in (0.1, 0.2, 0.3, 0.4):
        attune.attention(*qkv, dropout=p)
    with pytest.raises(attune.BadInputError, match="not in 0 to 1"):
        attune.attention(*qkv, dropout=1.5)


@pytest.mark.skipif(DEVICE != "cpu" and torch.__version__ < "2.8", reason="no way to ask")
def test_compiled_code(qkv):
    torch.compiler.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend, fullgraph=True)
    def attend(q, k, v, window):
        return attune.attention(q, k, v, mask="sliding_window(w)", scalars={"w": window})

    for window in range(3, 12):
        assert_close(attend(*qkv, window), reference(*qkv, window=window))
    assert len(graphs) <= 2
