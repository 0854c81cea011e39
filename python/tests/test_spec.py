"""attune.Spec: how it is made, what it says of itself."""

import numpy as np
import pytest

import attune

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
