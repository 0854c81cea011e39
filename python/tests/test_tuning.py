"""Searches for plans, on a call's own data and by the `attune` command: skipped where that is not there."""

import pytest

np = pytest.importorskip("numpy")

import attune  # noqa: E402
from attune import _command, tuning  # noqa: E402

DOCUMENTS = np.repeat(np.arange(4), 32).astype(np.int32)[None]


@pytest.fixture(autouse=True)
def _has_command():
    try:
        _command.command()
    except attune.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def operands(rng):
    return tuple(rng.standard_normal((1, 128, 2, 32), dtype=np.float32) for _ in range(3))


def test_a_call_is_tuned_on_its_own_data(operands, tmp_path):
    runtime = attune.Runtime("cpu", tmp_path / "own.db")
    call = {"mask": "causal and document(doc)", "tensors": {"doc": DOCUMENTS}, "runtime": runtime}
    seen = []
    done = attune.tune(*operands, **call, max_candidates=2, progress=seen.append).result
    assert done.state == tuning.State.DONE
    assert done.measured == 2 and done.best_us > 0 and done.plan
    assert done.live_share == 1.0 and done.full_share == 0.0  # a tile of 128 by 128
    assert seen[-1].done == 2 and seen[-1].best_plan
    expected = attune.attention(*operands, mask=call["mask"], tensors=call["tensors"])
    np.testing.assert_allclose(attune.attention(*operands, **call), expected, atol=1e-5)
    assert [kernel["source"] for kernel in runtime.status()["kernels"]] == ["measured"]
    again = attune.tune(*operands, **call, max_candidates=2, background=True)
    assert again.wait().from_cache >= 1


def test_the_backward_pass(operands, tmp_path):
    runtime = attune.Runtime("cpu", tmp_path / "backward.db")
    done = attune.tune(*operands, mask="causal", d_o=operands[0], max_candidates=1, runtime=runtime).result
    assert done.measured == 1 and "backward" in done.plan
    with pytest.raises(attune.BadInputError, match="`d_o` is"):
        attune.tune(*operands, d_o=operands[0][:, 1:], runtime=runtime)


def test_what_stops_it(operands, tmp_path):
    with pytest.raises(attune.BadInputError, match="no cache file"):
        attune.tune(*operands, runtime=attune.Runtime("cpu", ""))

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attune.tune(*operands, progress=stop, runtime=attune.Runtime("cpu", tmp_path / "stopped.db"))


def test_shapes_by_the_command(tmp_path):
    spec = attune.Spec(mask="causal", dtype="fp32", head_dim=32)
    shapes = [{"batch": 1, "heads": 1, "q_len": length} for length in (64, 96)]
    found = spec.tune(shapes, device="cpu", cache_file=tmp_path / "shapes.db", max_candidates=1, shows=False)
    assert [one["shape"] for one in found] == [
        "batch=1,heads=1,kv_heads=1,q_len=64,kv_len=64",
        "batch=1,heads=1,kv_heads=1,q_len=96,kv_len=96",
    ]
    assert all(one["stored"] and one["plan"] for one in found)
    with pytest.raises(attune.BadInputError, match="q_lem"):
        spec.tune([{"q_lem": 64}], device="cpu", cache_file=tmp_path / "shapes.db", shows=False)
