"""Small tensors in traced functions: what is taken out of captured tensors, and what functions make."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from mods import BATCH, HEADS, LENGTH  # noqa: E402
from small_mods import SMALL_MODS  # noqa: E402
from test_flex_attention import assert_close, expected, operands, translation  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

from attune.torch import Untranslatable, flex_attention  # noqa: E402
from attune.torch._sizes import Sizes  # noqa: E402
from attune.torch._tracer import Trace  # noqa: E402


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """torch's own without its compiler, and quiet about that."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.manual_seed(5)


@pytest.mark.parametrize("name", SMALL_MODS)
def test_mod(name):
    score_mod, mask_mod = SMALL_MODS[name]()
    q, k, v = operands()
    found = flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True, strict=True)
    assert_close(found, expected(q, k, v, score_mod, mask_mod))


@pytest.mark.parametrize(
    "name", ["pictures", "sums of truths", "neighbours", "chosen", "distances", "chunks", "embedded"]
)
def test_compiled(name):
    torch.compiler.reset()
    score_mod, mask_mod = SMALL_MODS[name]()
    run = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    q, k, v = operands()
    found = run(q, k, v, score_mod, mask_mod=mask_mod, strict=True)
    torch.testing.assert_close(found, flex_attention(q, k, v, score_mod, mask_mod=mask_mod), atol=1e-5, rtol=1e-5)


def shape_of(function):
    """Of what a function of a table, of q_idx and of h makes."""
    found = []
    trace = Trace(Sizes(BATCH, HEADS, HEADS, LENGTH, LENGTH), torch.device("cpu"))
    table = torch.rand(LENGTH, 3, 4, 2)

    def mask_mod(b, h, q_idx, kv_idx):
        made = function(table, q_idx, h)
        found.append(tuple(made.shape))
        return kv_idx == 0

    trace.run("mask_mod", mask_mod)
    return found[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda t, i, j: t[i, :2],
        lambda t, i, j: t[i][..., None],
        lambda t, i, j: t[i, None, 1, 1:],
        lambda t, i, j: t[i, :, torch.tensor([0, 3])],
        lambda t, i, j: t[i, torch.tensor([[0], [2]]), torch.tensor([0, 3])],
        lambda t, i, j: t[i][:, torch.tensor([0, 3, 1])],
        lambda t, i, j: t[i][:, j],
        lambda t, i, j: t[i].permute(2, 0, 1).flatten(1),
        lambda t, i, j: t[i].sum((0, -1), keepdim=True),
        lambda t, i, j: t[i].mean(1).unsqueeze(0) + t[i, 0, :, 0].view(4, 1, 1),
        lambda t, i, j: torch.stack([t[i], t[i]], dim=1).reshape(-1, 2)[::3],
        lambda t, i, j: torch.cat([t[i, 0], t[i, 1, :2]]).T,
        lambda t, i, j: t[i, 0] @ t[i, 1].T,
        lambda t, i, j: t[i, :, :, 0].matmul(t[i, 0]),
        lambda t, i, j: i.expand(5).unsqueeze(-1) * torch.arange(3),
        lambda t, i, j: list(t[i].unbind(1))[3],
        lambda t, i, j: i[None].clone()[..., 0],
    ],
)
def test_shapes_are_torchs(function):
    wanted = function(torch.rand(LENGTH, 3, 4, 2), torch.tensor(5), torch.tensor(1))
    assert shape_of(function) == tuple(wanted.shape)


@pytest.mark.parametrize(
    "function,message",
    [
        (lambda t, i, j: t[:, i], "no row of at most 128"),
        (lambda t, i, j: torch.stack([i, i])[torch.stack([j, j])], "several traced indices"),
        (lambda t, i, j: t[i].view(torch.int32), "another type"),
        (lambda t, i, j: t[i].max(0).indices + 1, "the place of a largest"),
        (lambda t, i, j: t[i].sort(), "`sort`"),
        (lambda t, i, j: t[i].norm(3), "norm of order 3"),
        (lambda t, i, j: t[i, 0] @ t[i, 0], "a product of shapes"),
        (lambda t, i, j: t[i, 0].flatten()[:, None, None] + t[i].flatten()[:, None] + t[i].flatten(), "of shape"),
        (lambda t, i, j: list(i), "a scalar as a sequence"),
        (lambda t, i, j: t[0].add_(i), "of a captured tensor"),
    ],
)
def test_what_is_refused(function, message):
    with pytest.raises(Untranslatable, match=message):
        shape_of(lambda *args: function(*args) + 0)


def test_elements_that_are_alike_are_made_once():
    found = translation(mask_mod=lambda b, h, q, k: (torch.stack([q, k]).expand(40, 2) % 3 == 0).any()).mask
    assert found.count("q_idx") == 40 and len(found) < 3000


def test_what_a_small_tensor_looks_up_is_followed():
    """Of rows, no call is translated anew; another value counts."""
    kept = torch.tensor([0, 5, 17])
    q, k, v = operands()

    def call():
        return flex_attention(q, k, v, mask_mod=lambda b, h, i, j: (j == kept).any(), strict=True)

    first = call()
    kept += 1
    assert not torch.equal(first, call())
    assert not translation(mask_mod=lambda b, h, i, j: (j == kept).any()).captured.reads_values


def test_what_is_looked_up_learns():
    learned = torch.randn(HEADS, 3)
    waves = torch.tensor([0.1, 0.5, 1.0])
    q, k, v = operands()
    gradients = []
    for attend in (lambda *a: flex_attention(*a, strict=True), None):
        table = learned.clone().requires_grad_()

        def score_mod(score, b, h, i, j, table=table):
            return score + (table[h] * torch.sin(waves * (i - j))).sum(-1)

        if attend is not None:
            out = attend(q, k, v, score_mod)
        else:
            i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
            bias = (table.double()[:, None, None] * torch.sin(waves * (i - j)[..., None])).sum(-1)
            out = torch.softmax(q.double() @ k.double().mT * 32**-0.5 + bias, -1) @ v.double()
        out.double().sin().sum().backward()
        gradients.append(table.grad)
    torch.testing.assert_close(*gradients, atol=5e-4, rtol=5e-4)
