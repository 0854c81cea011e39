"""The autograd function: what it hands a backward launch, by a kernel that computes with torch in float64; and a real
launch, where the CPU family has a backward pass."""

import ctypes
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402
from mods import BATCH, HEADS, LENGTH, MODS  # noqa: E402

import attune  # noqa: E402
from attune._structs import Pass, Shape  # noqa: E402
from attune.torch import flex_attention  # noqa: E402
from attune.torch import _plans, _recall  # noqa: E402
from attune.torch._plans import backward_kernel, variant_of  # noqa: E402

DIM, KV_HEADS = 32, 2


@pytest.fixture(autouse=True)
def fresh():
    """No plan of another test, whose kernel may be an oracle."""
    variant_of.cache_clear()
    _recall.forget()
    yield
    variant_of.cache_clear()
    _recall.forget()


class OracleKernel:
    """Reads and writes the arguments of a launch as att_backward would, for attention without mods."""

    workspace_bytes = 48

    @torch.enable_grad()
    def backward(self, args, stream):
        shape = args.shape
        assert args.workspace and args.workspace_bytes == self.workspace_bytes and stream is None

        def operand(name, heads, length):
            strides = getattr(args, f"{name}_strides")
            return self._array(
                getattr(args, name),
                (shape.batch, heads, length, DIM),
                (strides.batch, strides.head, strides.seq, 1),
            )

        of_q, of_k = (shape.heads, shape.q_len), (shape.kv_heads, shape.kv_len)
        q, k, v = (
            torch.from_numpy(operand(name, *sizes).astype(np.float64)).requires_grad_()
            for name, sizes in (("q", of_q), ("k", of_k), ("v", of_k))
        )
        o, lse = plain_attention(q, k, v)
        rows = (shape.batch, shape.heads, shape.q_len)
        np.testing.assert_allclose(operand("o", *of_q), o.detach(), atol=1e-5)
        np.testing.assert_allclose(self._array(args.lse, rows, None), lse.detach(), atol=1e-5)
        loss = (o * torch.from_numpy(operand("d_o", *of_q).copy())).sum()
        if args.d_lse:
            loss = loss + (lse * torch.from_numpy(self._array(args.d_lse, rows, None).copy())).sum()
        loss.backward()
        operand("d_q", *of_q)[...] = q.grad
        operand("d_k", *of_k)[...] = k.grad
        operand("d_v", *of_k)[...] = v.grad

    @staticmethod
    def _array(pointer, sizes, strides):
        strides = strides or np.empty(sizes, np.int8).strides
        reach = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        flat = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (reach,))
        return np.lib.stride_tricks.as_strided(flat, sizes, [4 * stride for stride in strides])


def plain_attention(q, k, v, score_mod=None, mask_mod=None):
    """O and LSE; torch's own function makes no gradient on a CPU. The mods are run on all indices at once."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    indices = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    if score_mod is not None:
        s = score_mod(s, *indices)
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(*indices), -torch.inf)
    alive = s.isfinite().any(-1, keepdim=True)
    p = torch.where(alive, s, 0.0).softmax(-1) * alive
    return p @ v, s.logsumexp(-1)


def operands(kv_heads=KV_HEADS):
    torch.manual_seed(3)
    q = torch.randn(BATCH, LENGTH, HEADS, DIM).transpose(1, 2)
    return q, *(torch.randn(BATCH, kv_heads, LENGTH + 8, DIM) for _ in range(2))


@pytest.mark.parametrize("uses", ["out", "lse", "both"])
def test_what_a_backward_launch_is_given(uses, monkeypatch):
    monkeypatch.setattr("attune.torch._plans.backward_kernel", lambda *_: OracleKernel())
    found = [x.detach().requires_grad_() for x in operands()]
    wanted = [x.detach().double().requires_grad_() for x in operands()]
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM), torch.randn(BATCH, HEADS, LENGTH)
    for results in (
        flex_attention(*found, enable_gqa=True, return_lse=True, strict=True),
        plain_attention(*wanted),
    ):
        parts = [(result * weight).sum() for result, weight in zip(results, weights, strict=True)]
        {"out": parts[0], "lse": parts[1], "both": parts[0] + parts[1]}[uses].backward()
    for mine, reference in zip(found, wanted, strict=True):
        assert mine.grad.dtype == torch.float32 and mine.grad.stride() == mine.stride()
        expected = torch.zeros_like(reference) if reference.grad is None else reference.grad  # lse knows no v
        torch.testing.assert_close(mine.grad.double(), expected, atol=1e-5, rtol=1e-5)


def test_one_batch_of_keys_sums_its_gradient(monkeypatch):
    monkeypatch.setattr("attune.torch._plans.backward_kernel", lambda *_: OracleKernel())
    q, k, v = operands(HEADS)
    found, wanted = (k[:1].clone().requires_grad_() for _ in range(2))
    flex_attention(q, found, v[:1], strict=True).square().sum().backward()
    plain_attention(q, wanted, v[:1])[0].square().sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad, atol=1e-4, rtol=1e-4)


def test_a_captured_tensor_that_changed_before_the_backward_pass_is_noticed(monkeypatch):
    monkeypatch.setattr("attune.torch._plans.backward_kernel", lambda *_: OracleKernel())
    q, k, v = operands(HEADS)
    slopes = torch.ones(HEADS)
    out = flex_attention(q.requires_grad_(), k, v, lambda score, b, h, i, j: score * slopes[h], strict=True)
    slopes.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def has_backward():
    spec = attune.Spec(dtype="fp32", head_dim=DIM, layout="bhsd")
    try:
        attune.default_runtime("cpu").kernel(spec, Shape(1, 1, 1, 8, 8), Pass.BACKWARD)
    except attune.UnsupportedError:
        return False
    return True


def test_a_gradient_without_a_backward_pass_is_refused():
    if has_backward():
        pytest.skip("the CPU family has a backward pass")
    q, k, v = operands(HEADS)
    with pytest.raises(NotImplementedError, match="a gradient is wanted"):
        flex_attention(q.requires_grad_(), k, v, strict=True)
    with torch.no_grad():
        flex_attention(q, k, v, strict=True)
    flex_attention(q.detach(), k, v, strict=True)


@pytest.mark.parametrize("name", ["softcap", "alibi", "document", "window and dead rows", "mask in the score"])
def test_gradients(name):
    if not has_backward():
        pytest.skip("the CPU family has no backward pass")
    score_mod, mask_mod = MODS[name]()
    inputs = [torch.randn(BATCH, HEADS, LENGTH, DIM).requires_grad_() for _ in range(3)]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)
    o = flex_attention(*inputs, score_mod, mask_mod=mask_mod, strict=True)
    (o * weights).sum().backward()
    (plain_attention(*doubles, score_mod, mask_mod)[0] * weights).sum().backward()
    for found, wanted in zip(inputs, doubles, strict=True):
        torch.testing.assert_close(found.grad.double(), wanted.grad, atol=1e-4, rtol=1e-4)


def wrapping(bias):
    return lambda score, b, h, i, j: score + bias[h, i - j]


def squashed(bias):
    return lambda score, b, h, i, j: 3 * torch.tanh((score + bias[b, h, i, j]) / 3)


LEARNED = {
    "a slope a head": ((HEADS,), lambda x: lambda score, b, h, i, j: score + x[h] * (i - j)),
    "a bias a distance": ((HEADS, 2 * LENGTH), lambda x: lambda score, b, h, i, j: score + x[h, i - j + LENGTH]),
    "negative indices": ((HEADS, 2 * LENGTH), wrapping),
    "a dense bias": ((BATCH, HEADS, LENGTH, LENGTH), squashed),
    "a scalar": ((), lambda x: lambda score, b, h, i, j: score * x),
    "two looks at one": ((HEADS, LENGTH), lambda x: lambda score, b, h, i, j: score + x[h, i] * x[h, j]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LEARNED)
def test_a_captured_tensor_learns(name, dtype):
    if not has_backward():
        pytest.skip("the CPU family has no backward pass")
    torch.manual_seed(1)
    sizes, make = LEARNED[name]
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3))
    learned = (0.1 * torch.randn(sizes)).to(dtype).requires_grad_()
    twin = learned.detach().double().requires_grad_()
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)
    out = flex_attention(q, k, v, make(learned), strict=True)
    (out * weights).sum().backward()
    (plain_attention(*(x.double() for x in (q, k, v)), make(twin))[0] * weights).sum().backward()
    assert learned.grad.dtype == dtype and learned.grad.shape == learned.shape
    tolerance = 2e-4 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(learned.grad.double(), twin.grad, atol=tolerance, rtol=tolerance)


def test_a_captured_tensor_has_its_gradient_where_it_came_from():
    if not has_backward():
        pytest.skip("the CPU family has no backward pass")
    torch.manual_seed(2)
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3))
    parameter = torch.randn(2, HEADS // 2)

    def gradient(attend, cast):
        leaf = cast(parameter).requires_grad_()
        slopes = (0.1 * leaf).exp().view(-1)
        fixed = slopes.detach()  # the same memory, and no gradient
        out = attend(*map(cast, (q, k, v)), lambda score, b, h, i, j: score + slopes[h] * (i - j) + fixed[h] * j)
        out.square().sum().backward()
        return leaf.grad.double()

    found = gradient(lambda *given: flex_attention(*given, strict=True), torch.clone)
    wanted = gradient(lambda *given: plain_attention(*given)[0], torch.Tensor.double)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


def test_a_tensor_that_a_mask_alone_reads_learns_nothing():
    q, k, v = operands(HEADS)
    bias = torch.rand(HEADS, requires_grad=True)

    def near(b, h, i, j):
        return (bias[h] > 0.5) | (i == j)

    leaf = q.clone().requires_grad_()
    out = flex_attention(leaf, k, v, mask_mod=near, strict=True)
    out.sum().backward()
    assert bias.grad is None and leaf.grad is not None  # as a comparison's in torch
    with torch.no_grad():
        torch.testing.assert_close(flex_attention(q, k, v, mask_mod=near, strict=True), out)


def test_the_backward_kernel_is_built_beside_the_forward_one(monkeypatch):
    built_by = []

    def build(*given):
        built_by.append(threading.current_thread().name)
        return backward_kernel(*given)

    monkeypatch.setattr(_plans, "backward_kernel", build)
    q, k, v = (torch.randn(1, 40, 2, DIM) for _ in range(3))
    attune.attention(q, k, v, mask="kv_idx <= q_idx + 3")
    assert not built_by
    attune.attention(q, k.requires_grad_(), v, mask="kv_idx <= q_idx + 4").sum().backward()
    for thread in threading.enumerate():
        if thread.name == "attune-backward":
            thread.join()
    assert built_by.count("attune-backward") == 1


def test_no_backward_kernel_is_built_where_nothing_learns(monkeypatch):
    """A spec that declares a gradient is used for inference, too, and not always under no_grad()."""
    built = []
    monkeypatch.setattr(_plans, "backward_kernel", lambda *given: built.append(given))
    of_spec = {
        "score": "score + 3 * bias[h]",
        "tensors": {"bias": "float32[heads] grad"},
        "head_dim": DIM,
        "dtype": "fp32",
    }
    q, k, v = (torch.randn(1, 40, 2, DIM) for _ in range(3))
    given = {"tensors": {"bias": torch.rand(2)}}
    attune.attention(q, k, v, spec=attune.Spec(**of_spec), **given)
    packed = {"spec": attune.Spec(**of_spec, layout="thd"), "cu_q": torch.tensor([0, 30, 40], dtype=torch.int32)}
    attune.attention(q[0], k[0], v[0], **packed, **given)
    for thread in threading.enumerate():
        if thread.name == "attune-backward":
            thread.join()
    assert not built
