"""attune.Spec: how it is made, what it says of itself."""

import numpy as np
import pytest

import reference

import attune
from attune._dims import guess_dims

YAML = """
attune: 1
name: mine
dtype: fp32
head_dim: {qk: 32, v: 64}
layout: bhsd
scalars: {window: 12, cap: float, first: int}
tensors:
  slope: {dtype: float32, dims: [heads], grad: true}
  doc: {dtype: int32, dims: [batch, kv_len]}
mask: causal and document(doc) and (q_pos - kv_idx < window or kv_idx < first)
score: cap * tanh((score + slope[h]) / cap)
softmax_scale: float
dropout: float
passes: [forward, backward]
"""


def test_properties():
    spec = attune.Spec.from_yaml(YAML)
    assert spec.name == "mine" and spec.dtype == "float32" and spec.head_dim == (32, 64) and spec.layout == "bhsd"
    assert spec.scale is None and spec.dropout is None
    assert spec.passes == ("forward", "backward")
    assert spec.has_mask and spec.has_score and not spec.has_sink and not spec.deterministic
    assert spec.tensors == (
        attune.TensorInfo("doc", "int32", "batch, kv_len", False),
        attune.TensorInfo("slope", "float32", "heads", True),
    )
    scalars = {scalar.name: scalar for scalar in spec.scalars}
    assert scalars["window"].value == 12 and scalars["cap"].value is None and scalars["first"].dtype == "int32"
    assert spec.tensor_sizes("doc", batch=3, heads=4, q_len=5, kv_len=7) == (3, 7)
    assert spec.tensor_sizes("slope", batch=3, heads=4, q_len=5) == (4,)
    assert len(spec.hash) == 32 and spec.hash in repr(spec)


def test_keywords_mean_what_yaml_means():
    spec = attune.Spec(
        "causal and document(doc) and (q_pos - kv_idx < window or kv_idx < first)",
        "cap * tanh((score + slope[h]) / cap)",
        dtype="fp32",
        head_dim=(32, 64),
        layout="bhsd",
        scalars={"window": 12, "cap": float, "first": int},
        tensors={"slope": "float32[heads] grad", "doc": "int32[batch, kv_len]"},
        scale=float,
        dropout=float,
        passes=("forward", "backward"),
    )
    assert spec.hash == attune.Spec.from_yaml(YAML).hash


def test_dims_that_are_computed(rng):
    spec = attune.Spec(
        "live[q_idx // 16, kv_idx // 32] or kv_idx < first[b + 1]",
        "score + far[h, q_idx - kv_idx + kv_len - 1]",
        dtype="fp32",
        head_dim=32,
        tensors={
            "live": "bool[(q_len + 15) // 16, -(-kv_len//32)]",
            "first": "int32[batch+1]",
            "far": "float32[heads, 2 * kv_len - 1]",
        },
    )
    dims = {tensor.name: tensor.dims for tensor in spec.tensors}
    assert dims == {
        "live": "(q_len + 15) // 16, (kv_len + 31) // 32", "first": "batch + 1", "far": "heads, 2 * kv_len - 1",
    }  # fmt: skip
    for q_len, kv_len in ((40, 70), (33, 33)):
        sizes = {"batch": 2, "heads": 2, "q_len": q_len, "kv_len": kv_len}
        q, k, v = (rng.standard_normal((2, length, 2, 32), dtype=np.float32) for length in (q_len, kv_len, kv_len))
        live = rng.random(spec.tensor_sizes("live", **sizes)) < 0.5
        first = np.array([0, 3, 9], np.int32)
        far = rng.standard_normal(spec.tensor_sizes("far", **sizes)).astype(np.float32)
        wanted, _ = reference.attention(
            *(x.transpose(0, 2, 1, 3) for x in (q, k, v)),
            mask=lambda b, h, i, j, live=live: live[i // 16, j // 32] | (j < first[b + 1]),
            score=lambda s, b, h, i, j, far=far: s + far[h, i - j + far.shape[1] // 2],
        )
        tensors = {"live": live, "first": first, "far": far}
        found = attune.attention(q, k, v, spec=spec, tensors=tensors)
        np.testing.assert_allclose(found.transpose(0, 2, 1, 3), wanted, atol=1e-5)
    tensors["far"] = far[:, :-1]
    with pytest.raises(attune.BadInputError, match=r"2 \* kv_len - 1"):
        attune.attention(q, k, v, spec=spec, tensors=tensors)


def test_dims_are_told_by_sizes():
    shape = attune._structs.Shape(3, 4, 2, 100, 90)
    assert guess_dims((3, 90), shape) == "batch, kv_len"
    assert guess_dims((4, 179), shape) == "heads, 2 * kv_len - 1"
    assert guess_dims((101,), shape) == "q_len + 1"
    assert guess_dims((199, 91), shape, learned=True) == "199, 91"
    assert guess_dims((5, 32), shape) == "5, 32"
    short = attune._structs.Shape(1, 1, 1, 16, 16)
    assert guess_dims((31, 17), short) == "31, 17"  # more likely numbers


def test_library_of_specs_and_files(tmp_path):
    assert attune.Spec.from_file("models/llama3_8b").head_dim == (128, 128)
    (tmp_path / "mine.yaml").write_text(YAML)
    assert attune.Spec.from_file(tmp_path / "mine.yaml").name == "mine"


def test_an_expression_of_several_lines_stays_one_expression():
    spec = attune.Spec("causal\n  and kv_idx < 5\nor b == 1", dtype="fp32", head_dim=32)
    assert spec.hash == attune.Spec("causal and kv_idx < 5 or b == 1", dtype="fp32", head_dim=32).hash


def test_launch_time_values(rng):
    spec = attune.Spec.from_yaml(YAML)
    q, k = (rng.standard_normal((2, 4, 20, 32), dtype=np.float32) for _ in range(2))
    v = rng.standard_normal((2, 4, 20, 64), dtype=np.float32)
    doc, slope = np.zeros((2, 20), np.int32), np.ones(4, np.float32)

    def call(**changed):
        values = {"scalars": {"cap": 2.0, "first": 3}, "scale": 0.1, "dropout": 0.0} | changed
        return attune.attention(q, k, v, spec=spec, tensors={"doc": doc, "slope": slope}, **values)

    words = attune.attention(
        q,
        k,
        v,
        layout="bhsd",
        mask="causal and (q_pos - kv_idx < 12 or kv_idx < 3)",
        score="2 * tanh((score + 1) / 2)",
        scale=0.1,
    )
    np.testing.assert_allclose(call(), words, atol=1e-6)
    for changed in ({"scale": 0.4}, {"scalars": {"cap": 0.5, "first": 3}}, {"dropout": 0.5}):
        assert not np.allclose(call(**changed), words, atol=1e-3)
    with pytest.raises(attune.BadInputError, match="left to the launch"):
        call(scale=None)
    with pytest.raises(attune.BadInputError, match="scalars"):
        call(scalars={"cap": 2.0})
    with pytest.raises(attune.BadInputError, match="an int"):
        call(scalars={"cap": 2.0, "first": 3.5})


def test_a_spec_of_the_library_by_name(rng):
    q, k, v = (rng.standard_normal((1, 20, 2, 128), dtype=np.float32) for _ in range(3))
    with pytest.raises(attune.BadInputError, match="bfloat16"):
        attune.attention(q, k, v, spec="causal")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays of NumPy need ml_dtypes")
    o = attune.attention(*(x.astype(ml_dtypes.bfloat16) for x in (q, k, v)), spec="causal")
    assert o.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(o.astype(np.float32), attune.attention(q, k, v, mask="causal"), atol=3e-2)


def test_precision():
    strict = attune.Spec("causal", dtype="fp32", head_dim=64)
    tf32 = attune.Spec("causal", dtype="fp32", head_dim=64, precision="tf32")
    assert attune.Spec("causal", dtype="fp32", head_dim=64, precision="strict").hash == strict.hash != tf32.hash
    assert "precision: tf32\n" in tf32.yaml
    with pytest.raises(attune.BadInputError) as error:
        attune.Spec(dtype="bf16", head_dim=64, precision="tf32")
    assert error.value.id == "spec-precision"
    with pytest.raises(attune.BadInputError):
        attune.Spec(dtype="fp32", head_dim=64, precision="high")


def test_a_cache_of_its_own_kind():
    spec = attune.Spec.from_yaml("attune: 1\nname: t\ndtype: bf16\nkv_dtype: fp8_e4m3\nhead_dim: 64\n")
    assert (spec.dtype, spec.kv_dtype, spec.is_scaled, spec.v_in_k) == ("bfloat16", "float8_e4m3fn", True, False)
    assert spec.hash == attune.Spec(dtype="bf16", kv_dtype="fp8_e4m3", head_dim=64).hash
    latent = attune.Spec(dtype="bf16", head_dim=(576, 512), v_in_k=True)
    assert latent.v_in_k and latent.kv_dtype == "bfloat16" and latent.head_dim == (576, 512)
    plain = attune.Spec(dtype="bf16", head_dim=64, layout="paged")
    for key in ("shared_prefixes", "batch_invariant"):
        assert attune.Spec(dtype="bf16", head_dim=64, layout="paged", **{key: True}).hash != plain.hash
    with pytest.raises(attune.AttuneError, match="kv_dtype"):
        attune.Spec(dtype="fp32", kv_dtype="fp8_e4m3", head_dim=64)
    with pytest.raises(attune.BadInputError, match="head_dim"):
        attune.Spec(dtype="bf16", head_dim=(512, 576), v_in_k=True)
