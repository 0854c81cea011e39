"""attune.Runtime and its kernels."""

import numpy as np

import attune
from attune._structs import Shape


def test_status_and_kernels(tmp_path):
    runtime = attune.Runtime("cpu", tmp_path / "own.db")
    assert runtime.device and runtime.device in repr(runtime)
    spec = attune.Spec("causal", dtype="fp32", head_dim=32)
    q = np.ones((1, 20, 2, 32), np.float32)
    attune.attention(q, q, q, spec=spec, runtime=runtime)
    status = runtime.status()
    assert status["counters"]["compiles"] == 1 and status["kernels"][0]["spec"] == "attention"
    kernel = runtime.kernel(spec, Shape(1, 2, 2, 20, 20))
    assert kernel.source == "model" and kernel.plan.startswith("cpu")
    attune.attention(q, q, q, spec=attune.Spec("causal", dtype="fp32", head_dim=32, name="twin"), runtime=runtime)
    assert runtime.status()["counters"]["compiles"] == 1
    runtime.refresh()
    runtime.wait()
