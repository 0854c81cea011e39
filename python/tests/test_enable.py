"""attune.torch.enable: code of torch's names, imported before and after."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402
from test_gradients import plain_attention  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention  # noqa: E402

import attune.torch  # noqa: E402

DIM = 32


@pytest.fixture(autouse=True)
def enabled():
    torch.manual_seed(13)
    attune.torch.enable()
    yield
    attune.torch.disable()


@pytest.fixture
def launches(monkeypatch):
    """How often each pass ran on Attune, however it was reached."""
    from attune.torch._plans import BackwardPlan, ForwardPlan

    counts = {"forward": 0, "backward": 0}

    def count(of_pass, run):
        def counted(*args, **kwargs):
            counts[of_pass] += 1
            return run(*args, **kwargs)

        return counted

    monkeypatch.setattr(ForwardPlan, "run", count("forward", ForwardPlan.run))
    monkeypatch.setattr(BackwardPlan, "run", count("backward", BackwardPlan.run))
    return counts


def operands():
    return [torch.randn(BATCH, HEADS, LENGTH, DIM).requires_grad_() for _ in range(3)]


def train(attend, leaves, create):
    """O, LSE, and gradients of a loss of both, of a document mask and a slope that learns."""
    slopes = torch.full((HEADS,), -0.1, dtype=leaves[0].dtype, requires_grad=True)
    leaves = [x.detach().requires_grad_() for x in leaves]
    mask = create(mods.document_mask(), BATCH, None, LENGTH, LENGTH, device="cpu")
    o, aux = attend(*leaves, lambda s, b, h, i, j: s + slopes[h] * (i - j), mask, return_aux=AuxRequest(lse=True))
    (o.sin().sum() + aux.lse.cos().sum()).backward()
    return [o.detach(), aux.lse.detach()] + [x.grad for x in (*leaves, slopes)]


def expected(leaves):
    def attend(q, k, v, score_mod, mask, return_aux):
        o, lse = plain_attention(q, k, v, score_mod, mods.document_mask())
        return o, torch_flex.AuxOutput(lse=lse, max_scores=None)

    return train(attend, [x.detach().double() for x in leaves], lambda *_, **__: None)


def assert_close(found, wanted):
    for mine, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), reference, atol=5e-4, rtol=5e-4)


def late(*args, **kwargs):
    return torch_flex.flex_attention(*args, **kwargs)


@pytest.mark.parametrize("create", [create_block_mask, lambda *a, **k: torch_flex.create_block_mask(*a, **k)])
@pytest.mark.parametrize("attend", [flex_attention, late])
def test_eager(attend, create, launches):
    leaves = operands()
    assert_close(train(attend, leaves, create), expected(leaves))
    assert launches == {"forward": 1, "backward": 1}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("attend", [flex_attention, late])
def test_compiled(attend, backend, launches):
    leaves = operands()
    run = torch.compile(attend, backend=backend, fullgraph=True)
    assert_close(train(run, leaves, torch_flex.create_block_mask), expected(leaves))
    assert launches == {"forward": 1, "backward": 1}


@pytest.mark.parametrize(("dynamic", "graphs"), [(True, 1), (None, 2)])
@pytest.mark.parametrize("attend", [flex_attention, late])
def test_another_length_of_a_mask_of_blocks_is_no_other_graph(attend, dynamic, graphs):
    """torch's own block mask holds a table of `length // 128` blocks. Without dynamic=True graph 2 has symbols."""
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(attend, backend=counter, fullgraph=True, dynamic=dynamic)
    for length in (2048, 1536, 482):
        given = [torch.randn(BATCH, HEADS, length, DIM) for _ in range(3)]
        blocks = create_block_mask(mods.window(200), None, None, length, length, device="cpu")
        wanted = plain_attention(*(x.double() for x in given), None, mods.window(200))[0]
        torch.testing.assert_close(run(*given, block_mask=blocks).double(), wanted, atol=2e-5, rtol=2e-5)
    assert counter.frame_count == graphs


def test_what_was_compiled_before_and_after(launches):
    attune.torch.disable()
    run = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    given = [x.detach() for x in operands()]
    before = run(*given)
    assert launches["forward"] == 0
    attune.torch.enable()
    torch.testing.assert_close(run(*given), before, atol=1e-5, rtol=1e-5)
    assert launches["forward"] == 1
    attune.torch.disable()
    assert torch.equal(run(*given), before) and launches["forward"] == 1


def test_what_cannot_be_translated_stays_torchs(launches, monkeypatch):
    monkeypatch.setattr("attune.torch._compiled._warned", set())
    given = [x.detach() for x in operands()]

    def score_mod(score, *_):
        return torch.asinh(score)

    wanted = plain_attention(*(x.double() for x in given), score_mod)[0]
    with pytest.warns(UserWarning, match="score_mod uses `asinh`"):
        for attend in (flex_attention, late):
            torch.testing.assert_close(attend(*given, score_mod).double(), wanted, atol=2e-5, rtol=2e-5)
    assert launches["forward"] == 0


def test_torch_has_its_own_back():
    attune.torch.enable()  # a second time
    assert torch_flex.flex_attention is attune.torch.flex_attention
    attune.torch.disable()
    attune.torch.disable()
    assert torch_flex.flex_attention is flex_attention
    assert torch_flex.create_block_mask is create_block_mask
    with pytest.raises(NotImplementedError, match="CPU"):
        flex_attention(*operands())


def test_a_block_mask_that_torch_compiles(launches):
    """As transformers makes them, by a name that it imported before."""
    leaves = operands()
    q, k, v = [x.detach() for x in leaves]
    for length in (LENGTH, LENGTH - 8):
        mask_mod = mods.document_mask()
        with pytest.warns(DeprecationWarning, match="_compile"):
            mask = create_block_mask(mask_mod, BATCH, None, length, length, device="cpu", _compile=True)
        operands_here = [x[:, :, :length] for x in (q, k, v)]
        o = flex_attention(*operands_here, block_mask=mask)
        torch.testing.assert_close(o, plain_attention(*operands_here, None, mask_mod)[0], atol=1e-5, rtol=1e-5)
    assert launches["forward"] == 2


def test_options_of_a_block_mask_by_place():
    mask = torch_flex.create_block_mask(mods.document_mask(), BATCH, None, LENGTH, LENGTH, "cpu", 16, False, False)
    assert mask.full_kv_num_blocks is None
