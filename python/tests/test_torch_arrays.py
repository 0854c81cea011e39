"""attune.attention of torch's tensors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import attune  # noqa: E402


def test_tensors_in_tensor_out(rng):
    arrays = [rng.standard_normal((2, 20, 2, 32), dtype=np.float32) for _ in range(3)]
    doc = np.repeat(np.arange(4, dtype=np.int32), 5)[None].repeat(2, 0)
    words = {"mask": "causal and document(doc)", "return_lse": True}
    tensors = [torch.from_numpy(array) for array in arrays]
    o, lse = attune.attention(*tensors, tensors={"doc": torch.from_numpy(doc)}, **words)
    expected, expected_lse = attune.attention(*arrays, tensors={"doc": doc}, **words)
    assert isinstance(o, torch.Tensor) and o.dtype == torch.float32
    np.testing.assert_array_equal(o.numpy(), expected)
    np.testing.assert_array_equal(lse.numpy(), expected_lse)


def test_bfloat16(rng):
    q, k, v = (torch.randn(1, 20, 2, 128) for _ in range(3))
    o = attune.attention(*(x.bfloat16() for x in (q, k, v)), spec="causal")
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.float(), attune.attention(q, k, v, mask="causal"), atol=3e-2, rtol=3e-2)


def test_strided_tensors():
    q, k, v = (torch.randn(2, 4, 20, 64)[..., ::2].transpose(1, 2) for _ in range(3))
    o = attune.attention(q, k, v)
    assert torch.equal(o, attune.attention(q.contiguous(), k.contiguous(), v.contiguous()))


def attend_with_slopes(q, k, v, slope, sink):
    return attune.attention(
        q, k, v, mask="causal", score="score + slope[h] * (kv_idx - q_idx)", sink="sink[h]",
        tensors={"slope": slope, "sink": sink}, return_lse=True,
    )  # fmt: skip


def by_definition(q, k, v, slope, sink):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    i, j = torch.meshgrid(torch.arange(q.shape[2]), torch.arange(k.shape[2]), indexing="ij")
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + slope[:, None, None] * (j - i)
    s = torch.cat([s.masked_fill(j > i, -torch.inf), sink[:, None, None].expand(*s.shape[:-1], 1)], -1)
    return (s.softmax(-1)[..., :-1] @ v).transpose(1, 2), s.logsumexp(-1)


def gradients(attend, leaves):
    o, lse = attend(*leaves)
    (o.sin().sum() + lse.cos().sum()).backward()
    return [o.detach(), lse.detach()] + [x.grad for x in leaves]


def leaves_of(dtype):
    torch.manual_seed(6)
    leaves = [torch.randn(2, 24, 2, 32) for _ in range(3)] + [torch.rand(2), torch.randn(2)]
    return [x.to(dtype).requires_grad_() for x in leaves]


def test_gradients_of_operands_and_tensors():
    found = gradients(attend_with_slopes, leaves_of(torch.float32))
    for mine, wanted in zip(found, gradients(by_definition, leaves_of(torch.float64)), strict=True):
        torch.testing.assert_close(mine.double(), wanted, atol=1e-4, rtol=1e-4)


def test_compiled():
    torch.compiler.reset()
    run = torch.compile(attend_with_slopes, backend="aot_eager", fullgraph=True)
    found = gradients(run, leaves_of(torch.float32))
    for mine, wanted in zip(found, gradients(attend_with_slopes, leaves_of(torch.float32)), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_another_length_is_no_other_graph(backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()

    def attend(q, k, v, doc):
        return attune.attention(
            q * 1, k, v, mask="causal and document(doc) and q_idx - kv_idx < near", tensors={"doc": doc},
            scalars={"near": 9}, return_lse=True,
        )  # fmt: skip

    counter = CompileCounterWithBackend(backend)
    run = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True)
    for length in (40, 33, 70):
        q, k, v = (torch.randn(3, length, 2, 32) for _ in range(3))
        doc = (torch.arange(length, dtype=torch.int32) // 7).repeat(3, 1)
        for mine, wanted in zip(run(q, k, v, doc), attend(q, k, v, doc), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert counter.frame_count == 1


def test_specs_in_compiled_code():
    torch.compiler.reset()
    spec = attune.Spec(
        mask="q_idx - kv_idx < near", score="factor * score", dtype="fp32", head_dim=32, dropout=0.25, scale=float,
        scalars={"near": int, "factor": float},
    )  # fmt: skip

    def attend(q, k, v):
        return attune.attention(q, k, v, spec=spec, scalars={"near": 5, "factor": 0.5}, scale=0.2, seed=3, offset=4)

    q, k, v = (torch.randn(2, 24, 2, 32) for _ in range(3))
    run = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert torch.equal(run(q, k, v), attend(q, k, v))
    narrow = [x.bfloat16() for x in (torch.randn(1, 16, 2, 128) for _ in range(3))]
    by_name = torch.compile(lambda *x: attune.attention(*x, spec="causal"), backend="aot_eager", fullgraph=True)
    assert torch.equal(by_name(*narrow), attune.attention(*narrow, spec="causal"))


def test_a_tensor_that_a_spec_does_not_learn():
    spec = attune.Spec(score="score + slope[h]", dtype="fp32", head_dim=32, tensors={"slope": "float32[heads]"})
    q = torch.randn(1, 8, 2, 32)
    slope = torch.rand(2, requires_grad=True)
    with pytest.raises(attune.BadInputError, match="requires a gradient"):
        attune.attention(q, q, q, spec=spec, tensors={"slope": slope})
    with torch.no_grad():
        assert attune.attention(q, q, q, spec=spec, tensors={"slope": slope}).shape == q.shape


def test_what_a_call_brings_is_not_remembered():
    """The second call finds a plan, and brings other values."""
    q, k, v = (torch.randn(1, 24, 2, 32) for _ in range(3))

    def call(near, factor):
        words = {"mask": "q_idx - kv_idx < near", "score": "score * factor[0]", "scalars": {"near": near}}
        return attune.attention(q, k, v, **words, tensors={"factor": torch.tensor([factor])})

    first = call(5, 1.0)
    assert torch.equal(first, call(5, 1.0))
    assert not torch.equal(first, call(6, 1.0)) and not torch.equal(first, call(5, 2.0))


def test_dlpack_of_every_type():
    from attune import _dlpack

    for dtype in (torch.bool, torch.int32, torch.float32, torch.float16, torch.bfloat16):
        view = _dlpack.view(torch.zeros(3, 5, dtype=dtype).T)
        assert (view.dtype, view.sizes, view.strides) == (str(dtype).removeprefix("torch."), (5, 3), (1, 5))


def test_other_dtypes_are_named():
    q = torch.zeros(1, 8, 1, 32)
    with pytest.raises(attune.BadInputError, match="float64"):
        attune.attention(q.double(), q.double(), q.double())


def test_tensors_without_memory_have_the_shape_of_what_would_come():
    q = torch.zeros(1, 8, 2, 32, device="meta")
    o, lse = attune.attention(q, q, q, return_lse=True)
    assert o.is_meta and o.shape == q.shape and lse.shape == (1, 2, 8)
