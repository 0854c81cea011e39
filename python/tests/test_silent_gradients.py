"""No gradient is silently zero or left out: it is right, or something is raised where it is asked for."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
numpy = pytest.importorskip("numpy")

from devices import DEVICE, on_device  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import attune  # noqa: E402
from attune.torch import Untranslatable, flex_attention  # noqa: E402

HEADS, LENGTH, DIM = 2, 24, 16
SCORE = "score + bias[h, kv_idx]"
BACKENDS = ("eager", "aot_eager")


@pytest.fixture(autouse=True)
def small():
    torch.compiler.reset()
    with on_device():
        torch.manual_seed(7)
        yield


def dense():
    return [torch.randn(1, LENGTH, HEADS, DIM) for _ in range(3)]


def packed():
    return [torch.randn(LENGTH, HEADS, DIM) for _ in range(3)]


def by_spec(given, bias, grad=""):
    is_packed = given[0].dim() == 3
    spec = attune.Spec(
        dtype="fp32", head_dim=DIM, layout="thd" if is_packed else "bshd", score="score + bias[h]",
        tensors={"bias": f"float32[heads]{grad}"},
    )  # fmt: skip
    offsets = {"cu_q": torch.tensor([0, 10, LENGTH], dtype=torch.int32, device=DEVICE)} if is_packed else {}
    return attune.attention(*given, spec=spec, tensors={"bias": bias}, **offsets)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operands", [dense, packed])
def test_a_spec_without_grad_in_a_graph(operands, backend):
    given, bias = operands(), torch.zeros(HEADS, requires_grad=True)
    with pytest.raises(Exception, match="`bias` requires a gradient"):
        torch.compile(by_spec, backend=backend)(given, bias)
    compiled = torch.compile(by_spec, backend=backend)
    with torch.no_grad():
        compiled(given, bias)
    compiled(given, bias.detach())
    compiled(given, bias, " grad").sum().backward()
    assert bias.grad is not None


@pytest.mark.parametrize("words", [True, False])
def test_a_graph_of_tensors_that_did_not_learn(words):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(HEADS, LENGTH))

        def forward(self, q, k, v):
            if words:
                return attune.attention(q, k, v, score=SCORE, tensors={"bias": self.bias}, layout="bhsd")
            return flex_attention(q, k, v, lambda s, b, h, i, j: s + self.bias[h, j])

    given = [x.transpose(1, 2) for x in dense()]
    with torch.no_grad():
        exported = torch.export.export(Model(), tuple(given)).module()
        exported(*given)
    with pytest.raises(attune.BadInputError, match="makes those that were wanted where it was traced"):
        exported(*given)
    learning = torch.export.export(Model(), tuple(given)).module()
    learning(*given).square().sum().backward()
    assert learning.bias.grad.any()


@pytest.mark.parametrize("operands", [dense, packed])
def test_no_second_derivative_of_the_operator(operands):
    given = [x.requires_grad_() for x in operands()]
    offsets = {"cu_q": torch.tensor([0, 10, LENGTH], dtype=torch.int32, device=DEVICE)} if given[0].dim() == 3 else {}
    found = torch.compile(lambda q, k, v: attune.attention(q, k, v, mask="causal", **offsets), backend="eager")(*given)
    gradients = torch.autograd.grad(found.sum(), given, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        sum((x**2).sum() for x in gradients).backward()


@pytest.mark.parametrize("operands", [dense, packed])
def test_forward_mode_in_a_graph(operands):
    q, k, v = operands()
    offsets = {"cu_q": torch.tensor([0, 10, LENGTH], dtype=torch.int32, device=DEVICE)} if q.dim() == 3 else {}

    def tangent():
        return torch.func.jvp(lambda q: attune.attention(q, k, v, mask="causal", **offsets), (q,), (q,))[1]

    with pytest.raises(Exception, match="no forward-mode derivative"):
        torch.compile(tangent, backend="aot_eager")()


@pytest.mark.parametrize("times", [0, 4])
@pytest.mark.parametrize("operands", [dense, packed])
def test_numbers_that_learn(operands, times):
    given, number = operands(), torch.tensor(0.3, device="cpu", requires_grad=True)
    is_packed = given[0].dim() == 3
    spec = attune.Spec(
        dtype="fp32", head_dim=DIM, layout="thd" if is_packed else "bshd", score="score * c", scalars={"c": float}
    )
    offsets = {"cu_q": torch.tensor([0, 10, LENGTH], dtype=torch.int32, device=DEVICE)} if is_packed else {}
    for _ in range(times):  # a call that is found again
        attune.attention(*given, spec=spec, scalars={"c": 0.3}, **offsets)
    with pytest.raises(attune.BadInputError, match="`c` requires a gradient"):
        attune.attention(*given, spec=spec, scalars={"c": number}, **offsets)
    attune.attention(*given, spec=spec, scalars={"c": number.detach()}, **offsets)
    with torch.no_grad():
        attune.attention(*given, spec=spec, scalars={"c": number}, **offsets)


def test_an_array_of_numpy_beside_packed_operands_that_learn():
    given = [x.requires_grad_() for x in packed()]
    if DEVICE != "cpu":
        pytest.skip("of a CPU alone")
    by_spec(given, numpy.zeros(HEADS, dtype="float32")).sum().backward()
    assert given[2].grad.any()


def test_a_scale_that_learns():
    q, k, v = (x.transpose(1, 2) for x in dense())
    scale = torch.tensor(0.3, requires_grad=True)
    with pytest.raises(attune.BadInputError, match="`scale` requires a gradient"):
        flex_attention(q, k, v, scale=scale)
    with torch.no_grad():
        flex_attention(q, k, v, scale=scale)
    found = flex_attention(q, k, v, lambda s, b, h, i, j: s * scale, scale=1.0, strict=True)
    found.square().sum().backward()
    wanted = torch.tensor(0.3, requires_grad=True)
    ((q @ k.transpose(-1, -2) * wanted).softmax(-1) @ v).square().sum().backward()
    torch.testing.assert_close(scale.grad, wanted.grad)


@pytest.mark.parametrize("times", [1, 3])
def test_a_scale_that_begins_to_learn(times):
    q, k, v = (x.transpose(1, 2) for x in dense())
    scale = torch.tensor(0.3)
    for _ in range(times):  # a call that is found again
        flex_attention(q, k, v, scale=scale, strict=True)
    scale.requires_grad_()
    with pytest.raises(attune.BadInputError, match="`scale` requires a gradient"):
        flex_attention(q, k, v, scale=scale, strict=True)
    with torch.no_grad():
        flex_attention(q, k, v, scale=scale, strict=True)


def test_a_scale_that_learns_in_compiled_code():
    torch.compiler.reset()
    q, k, v = (x.transpose(1, 2) for x in dense())
    scale = torch.nn.Parameter(torch.tensor(0.3))
    compiled = torch.compile(lambda: flex_attention(q, k, v, scale=scale, strict=True), backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(), flex_attention(q, k, v, scale=0.3))
        scale.data.fill_(0.5)
        torch.testing.assert_close(compiled(), flex_attention(q, k, v, scale=0.5))
    with pytest.raises(Exception, match="`scale` requires a gradient"):
        compiled()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_in_a_level_of_forward_mode(backend):
    torch.compiler.reset()
    q, k, v = (x.transpose(1, 2) for x in dense())
    compiled = torch.compile(
        lambda q: flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j, strict=True), backend=backend
    )
    wanted = compiled(q)
    with forward_ad.dual_level():
        assert torch.equal(compiled(q), wanted)
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            compiled(forward_ad.make_dual(q, q))


def test_an_infinite_number_that_learns():
    q, k, v = (x.transpose(1, 2) for x in dense())
    bound = torch.tensor(float("inf"), requires_grad=True)
    found = flex_attention(q, k, v, lambda s, b, h, i, j: torch.where(i >= j, s, -bound), strict=True)
    assert torch.autograd.grad(found.sum(), bound)[0] == 0


@pytest.mark.skipif(DEVICE != "cuda", reason="of a GPU alone")
def test_a_number_on_another_device_that_learns():
    q, k, v = (x.transpose(1, 2) for x in dense())
    number = torch.tensor(0.3, device="cpu", requires_grad=True)
    with pytest.raises(attune.torch.Untranslatable, match="on cpu"):
        flex_attention(q, k, v, lambda s, b, h, i, j: s * number, strict=True)


@torch.no_grad()
def under_no_grad(function):
    return function()


class Reversed(torch.autograd.Function):
    """Of which a trace sees no operation."""

    @staticmethod
    def forward(ctx, score):
        return score

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Straight(torch.autograd.Function):
    """Its backward pass is not the derivative of its forward pass."""

    @staticmethod
    def forward(ctx, score):
        return torch.tanh(score)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def under_another_name():
    turn = Reversed.apply
    return lambda score, b, h, i, j: turn(score)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = Reversed.apply

    def forward(self, score, b, h, i, j):
        return self.turn(score)


class OfFive(Reversed):
    @staticmethod
    def forward(ctx, score, b, h, i, j):
        return score


CUT = {
    "a function of autograd": lambda bias: lambda score, b, h, i, j: Straight.apply(score),
    "one that gives back what it was given": lambda bias: lambda score, b, h, i, j: Reversed.apply(score),
    "under another name": lambda bias: under_another_name(),
    "of a layer": lambda bias: Layer(),
    "the score_mod itself": lambda bias: OfFive.apply,
    "the score_mod itself, by a partial": lambda bias: functools.partial(OfFive.apply),
    "straight through": lambda bias: lambda score, b, h, i, j: score + (torch.tanh(score) - score).detach(),
    "a learned one": lambda bias: lambda score, b, h, i, j: score * 2 + bias[h].detach(),
    "no_grad": lambda bias: lambda score, b, h, i, j: score * under_no_grad(lambda: torch.tanh(score)),
    "by keyword": lambda bias: lambda score, b, h, i, j: score * under_no_grad(lambda: torch.tanh(input=score)),
    "of several": lambda bias: lambda score, b, h, i, j: score * under_no_grad(lambda: torch.stack([score, score]))[0],
    "no_grad of a learned one": lambda bias: lambda score, b, h, i, j: score + under_no_grad(lambda: bias[h]),
}


@pytest.mark.parametrize("name", CUT)
def test_what_a_function_cuts_off(name):
    """Torch's own has to do it; where nothing is recorded there is nothing to cut off."""
    operands = [x.transpose(1, 2) for x in dense()]
    bias = torch.randn(HEADS)
    score_mod = CUT[name](bias)
    with torch.no_grad():
        for _ in range(3):
            flex_attention(*operands, score_mod, strict=True)
    leaves = [x.clone().requires_grad_() for x in operands]
    bias.requires_grad_()
    for _ in range(2):
        with pytest.raises(Untranslatable, match=r"detach|no_grad|autograd"):
            flex_attention(*leaves, score_mod, strict=True)


def test_what_brings_no_gradient_may_be_cut_off():
    """Masks, and what is no float."""
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in dense())
    width = torch.full((HEADS,), 5.0, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.where(under_no_grad(lambda: score > 0), score, 2 * score) * (score < 9).detach()

    def mask_mod(b, h, q_idx, kv_idx):
        return under_no_grad(lambda: q_idx - kv_idx < width[h]) & (kv_idx - q_idx < width[h].detach())

    flex_attention(q, k, v, score_mod, mask_mod=mask_mod, strict=True).sum().backward()
    assert width.grad is None
