"""Arrays as they come: strided, misaligned, read-only, empty, of other frameworks."""

import subprocess
import sys

import numpy as np
import pytest
import reference

import attune


class Foreign:
    """An array of a framework of its own, which speaks DLPack and the array API and no more."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        class Namespace:
            from_dlpack = staticmethod(lambda array: Foreign(np.from_dlpack(array)))

        return Namespace


def expected(q, k, v):
    return reference.attention(*(x.swapaxes(1, 2) for x in (q, k, v)))[0].swapaxes(1, 2)


def test_any_dlpack_array(rng):
    q, k, v = (rng.standard_normal((2, 20, 2, 32), dtype=np.float32) for _ in range(3))
    doc = np.repeat(np.arange(4, dtype=np.int32), 5)[None].repeat(2, 0)
    words = {"mask": "document(doc) and live[kv_idx] > 0"}
    live = (np.arange(20) % 7 - 3).astype(np.int32)
    plain = attune.attention(q, k, v, tensors={"doc": doc, "live": live}, **words)
    foreign = attune.attention(
        Foreign(q), Foreign(k), Foreign(v), tensors={"doc": Foreign(doc), "live": Foreign(live)}, **words
    )
    assert isinstance(foreign, Foreign)
    np.testing.assert_array_equal(foreign.array, plain)


def test_bfloat16_that_numpy_hands_to_nobody(rng):
    """A framework of its own has no bfloat16 that NumPy could make for it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q = Foreign(torch.zeros(1, 4, 2, 16, dtype=torch.bfloat16))
    with pytest.raises(attune.UnsupportedError, match="no bfloat16 to this framework"):
        attune.attention(q, q, q)


def test_a_strided_dlpack_array(rng):
    q, k, v = (rng.standard_normal((2, 20, 2, 64), dtype=np.float32)[..., ::2] for _ in range(3))
    o = attune.attention(Foreign(q), Foreign(k), Foreign(v))
    np.testing.assert_allclose(o.array, expected(q, k, v), atol=1e-5)


def strided(array):
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def misaligned(array):
    buffer = np.empty(array.nbytes + 32, np.uint8)
    start = -buffer.ctypes.data % 16 + 4
    moved = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def reversed_axis(array):
    return np.ascontiguousarray(array[:, ::-1])[:, ::-1]


def transposed(array):
    return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)


def shared(array):
    return np.broadcast_to(array[:1], array.shape)


def read_only(array):
    array.flags.writeable = False
    return array


def of_a_slice(array):
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 5), array.dtype)
    wide[..., :-5] = array
    return wide[..., :-5]


@pytest.mark.parametrize("lay", [strided, misaligned, reversed_axis, transposed, shared, read_only, of_a_slice])
def test_operands_as_they_lie(lay, rng):
    q, k, v = (lay(rng.standard_normal((2, 20, 4, 32), dtype=np.float32)) for _ in range(3))
    np.testing.assert_allclose(attune.attention(q, k, v), expected(q, k, v), atol=1e-5)


def test_one_position_shared_by_all(rng):
    q = rng.standard_normal((2, 20, 2, 32), dtype=np.float32)
    k, v = (np.broadcast_to(rng.standard_normal(32).astype(np.float32), q.shape) for _ in range(2))
    np.testing.assert_allclose(attune.attention(q, k, v), expected(q, k, v), atol=1e-5)


def test_a_strided_auxiliary_tensor(rng):
    q, k, v = (rng.standard_normal((2, 20, 2, 32), dtype=np.float32) for _ in range(3))
    table = rng.integers(0, 3, (2, 40)).astype(np.int32)
    sliced = attune.attention(q, k, v, mask="document(doc)", tensors={"doc": table[:, ::2]})
    copied = attune.attention(q, k, v, mask="document(doc)", tensors={"doc": table[:, ::2].copy()})
    np.testing.assert_array_equal(sliced, copied)


def test_auxiliary_tensors_of_16_bits_and_of_one_element(rng):
    q, k, v = (rng.standard_normal((2, 20, 2, 32), dtype=np.float32) for _ in range(3))
    half, gain = rng.standard_normal((2, 20)).astype(np.float16), np.array(1.5, np.float16)
    declared = "attune: 1\nname: mixed\ndtype: fp32\nhead_dim: 32\nscore: score * gain + half[h, kv_idx]\ntensors:\n"
    tensors = "  half: {{dtype: {0}, dims: [heads, kv_len]}}\n  gain: {{dtype: {0}, dims: []}}\n"
    narrow, wide = (attune.Spec.from_yaml(declared + tensors.format(dtype)) for dtype in ("fp16", "float32"))
    np.testing.assert_array_equal(
        attune.attention(q, k, v, spec=narrow, tensors={"half": half, "gain": gain}),
        attune.attention(
            q, k, v, spec=wide, tensors={"half": half.astype(np.float32), "gain": gain.astype(np.float32)}
        ),
    )
    assert narrow.tensor_sizes("gain", batch=2, heads=2, q_len=20) == ()


@pytest.mark.parametrize("batch,q_len,kv_len", [(0, 4, 5), (2, 0, 5), (2, 0, 0), (2, 4, 0)])
def test_empty(batch, q_len, kv_len):
    q = np.ones((batch, q_len, 2, 32), np.float32)
    k = np.ones((batch, kv_len, 2, 32), np.float32)
    o, lse = attune.attention(q, k, k, mask="causal", return_lse=True)
    assert o.shape == q.shape and lse.shape == (batch, 2, q_len)
    assert (o == 0).all() and np.isneginf(lse).all()


def test_bytes_in_another_order_are_refused():
    """Of a file, say. They would be read as other numbers."""
    q, documents = np.zeros((1, 8, 2, 16), np.float32), np.zeros((1, 8), ">i4")
    with pytest.raises(attune.BadInputError, match="`q` is >f4"):
        attune.attention(*[q.astype(">f4")] * 3)
    with pytest.raises(attune.BadInputError, match="`d` is >i4"):
        attune.attention(q, q, q, mask="document(d)", tensors={"d": documents})


def test_importing_attune_imports_no_framework():
    check = "import sys, attune; assert not {'numpy', 'torch', 'cupy', 'jax'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_torch_that_nobody_shall_import():
    """None in a module's place, as programs have it that must not load torch."""
    run = (
        "import sys; sys.modules['torch'] = None; import numpy, attune; q = numpy.ones((1, 4, 2, 16), 'float32'); "
        "assert attune.attention(q, q, q).shape == q.shape"
    )
    subprocess.run([sys.executable, "-c", run], check=True)
