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


def test_no_gradient_is_lost_in_silence():
    q = torch.nn.Parameter(torch.randn(1, 8, 1, 32))
    with pytest.raises(attune.UnsupportedError, match="requires a gradient"):
        attune.attention(q, q, q)
    with torch.no_grad():
        assert attune.attention(q, q, q).shape == q.shape


def test_dlpack_of_every_type():
    from attune import _dlpack

    for dtype in (torch.bool, torch.int32, torch.float32, torch.float16, torch.bfloat16):
        view = _dlpack.view(torch.zeros(3, 5, dtype=dtype).T)
        assert (view.dtype, view.sizes, view.strides) == (str(dtype).removeprefix("torch."), (5, 3), (1, 5))


def test_other_dtypes_and_devices_are_named():
    q = torch.zeros(1, 8, 1, 32)
    with pytest.raises(attune.BadInputError, match="float64"):
        attune.attention(q.double(), q.double(), q.double())
    with pytest.raises(attune.BadInputError, match="meta"):
        attune.attention(*(q.to("meta") for _ in range(3)))
