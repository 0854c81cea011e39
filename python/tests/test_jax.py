"""JAX's arrays, on the CPU."""

import numpy as np
import pytest
import reference

import attune

jax = pytest.importorskip("jax", reason="jax is not installed")
SHAPE = (2, 20, 4, 32)


def operands(rng, dtype="float32"):
    return [jax.numpy.asarray(rng.standard_normal(SHAPE, dtype=np.float32)).astype(dtype) for _ in range(3)]


def expected(q, k, v, **words):
    o, _ = reference.attention(*(np.asarray(x, np.float32).swapaxes(1, 2) for x in (q, k, v)), **words)
    return o.swapaxes(1, 2)


@pytest.mark.parametrize("dtype,tolerance", [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_every_dtype(dtype, tolerance, rng):
    q, k, v = operands(rng, dtype)
    o, lse = attune.attention(q, k, v, return_lse=True)
    assert isinstance(o, jax.Array) and o.dtype == q.dtype
    assert isinstance(lse, jax.Array) and lse.shape == (2, 4, 20) and lse.dtype == np.float32
    np.testing.assert_allclose(np.asarray(o, np.float32), expected(q, k, v), atol=tolerance)


def test_tensors_of_a_mask(rng):
    q, k, v = operands(rng)
    documents = np.repeat(np.arange(4, dtype=np.int32), 5)[None].repeat(2, 0)
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    words = {"mask": "causal and document(doc)", "score": "score - slope[h] * (q_idx - kv_idx)"}
    o = attune.attention(
        q, k, v, tensors={"doc": jax.numpy.asarray(documents), "slope": jax.numpy.asarray(slopes)}, **words
    )
    plain = attune.attention(*(np.asarray(x) for x in (q, k, v)), tensors={"doc": documents, "slope": slopes}, **words)
    np.testing.assert_array_equal(np.asarray(o), plain)


def test_nothing_to_attend_to(rng):
    q, k, v = operands(rng, "bfloat16")
    o, lse = attune.attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert o.shape == SHAPE and not np.asarray(o, np.float32).any() and np.isneginf(np.asarray(lse)).all()


@pytest.mark.parametrize("way", [jax.jit, jax.vmap, jax.grad])
def test_traced_arrays_are_refused_by_name(way, rng):
    q, k, v = operands(rng)
    with pytest.raises(attune.UnsupportedError, match=r"`q` is traced by JAX(.|\n)*outside of jax\.jit"):
        way(lambda traced: attune.attention(traced, k, v).sum())(q)
    documents = jax.numpy.zeros((2, 20), "int32")
    with pytest.raises(attune.UnsupportedError, match="`doc` is traced by JAX"):
        way(lambda traced: attune.attention(q, k, v, mask="document(doc)", tensors={"doc": traced}))(
            documents if way is not jax.grad else documents.astype("float32")
        )


def test_a_sharding_of_q_alone(rng):
    """LSE has other dims than q."""
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None, None, None))
    q, k, v = (jax.device_put(x, sharding) for x in operands(rng))
    o, lse = attune.attention(q, k, v, return_lse=True)
    assert o.devices() == lse.devices() == q.devices()


def test_keys_of_random_numbers_are_no_arrays(rng):
    q, k, v = operands(rng)
    with pytest.raises(attune.BadInputError, match="`live`"):
        attune.attention(q, k, v, mask="live[kv_idx] > 0", tensors={"live": jax.random.key(0)})
