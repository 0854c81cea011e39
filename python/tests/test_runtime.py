"""attune.Runtime and its kernels."""

import numpy as np
import pytest

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


def test_a_kernel_is_told_lengths_and_shares():
    runtime, shape = attune.Runtime("cpu"), Shape(3, 2, 2, 3, 96)
    kernel = runtime.kernel(attune.Spec("causal", dtype="fp32", head_dim=32, layout="thd"), shape)
    kernel.tell_lengths(shape, [64, 16, 16])
    kernel.tell_lengths(shape, np.array([32, 32, 32]))
    for lengths in ([32, 32], [97, 0, 0], [64, 64, 64], [-1, 5, 5], [2**40, 0, 0], ["a", 1, 1]):
        with pytest.raises(attune.BadInputError):
            kernel.tell_lengths(shape, lengths)
    with pytest.raises(attune.BadInputError, match="page_size"):
        kernel.tell_lengths(shape, [32, 32, 32], page_size=16)
    kernel.tell_shares(0.5, 0.25)
    with pytest.raises(attune.BadInputError):
        kernel.tell_shares(0.25, 0.5)
    dense = runtime.kernel(attune.Spec("causal", dtype="fp32", head_dim=32), Shape(3, 2, 2, 32, 32))
    with pytest.raises(attune.BadInputError, match="layout"):
        dense.tell_lengths(Shape(3, 2, 2, 32, 32), [32, 32, 32])
