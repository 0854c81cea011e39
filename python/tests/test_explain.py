"""Pictures and tile classes, by the `attune` command: skipped where it is not there."""

import os
import stat
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

import attune  # noqa: E402
from attune import _command  # noqa: E402


@pytest.fixture
def spec():
    try:
        _command.command()
    except attune.UnavailableError as missing:
        pytest.skip(str(missing))
    tensors = {"doc": "int32[batch, kv_len]"}
    return attune.Spec(mask="causal and document(doc)", dtype="fp32", head_dim=64, tensors=tensors)


def test_tiles_are_those_of_the_tensors(spec):
    documents = np.repeat(np.arange(4), 256).astype(np.int32)[None]
    found = spec.explain(q_len=1024, tensors={"doc": documents}, target="cpu")
    live = np.tril(documents[0][:, None] == documents[0])
    assert found.live_share == pytest.approx(live.mean())
    tiles = found.tiles
    counts = {"skip": 0, "partial": 0, "full": 0}
    for q in range(0, 1024, tiles["q"]):
        for k in range(0, 1024, tiles["kv"]):
            share = live[q : q + tiles["q"], k : k + tiles["kv"]].mean()
            counts["skip" if share == 0 else "full" if share == 1 else "partial"] += 1
    assert counts == {name: tiles[name] for name in counts}
    assert f"{tiles['skip']} skipped" in repr(found)
    assert found._repr_svg_().lstrip().startswith("<svg")


def test_another_shape_is_another_picture(spec):
    wide = spec.explain(batch=2, heads=4, kv_heads=2, q_len=128, kv_len=512, target="cpu")
    assert wide.report["shape"] == "batch=2,heads=4,kv_heads=2,q_len=128,kv_len=512"
    assert "kv_len 512" in wide.svg and wide.svg != spec.explain(q_len=128, target="cpu").svg


def test_a_spec_of_the_library(spec):
    by_name = attune.Spec.from_file("sliding_window")
    assert "<svg" in by_name._repr_svg_()


def test_what_is_wrong_is_said(spec):
    with pytest.raises(attune.BadInputError, match="no_such"):
        spec.explain(tensors={"no_such": np.zeros(3, np.int32)})


def test_without_the_command(monkeypatch, tmp_path):
    spec = attune.Spec(mask="causal", dtype="fp32", head_dim=64)
    for name in ("ATTUNE_COMMAND", "ATTUNE_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(attune.UnavailableError, match="ATTUNE_COMMAND"):
        spec.explain()
    assert spec._repr_svg_() is None


def test_where_it_is_looked_for(monkeypatch, tmp_path):
    for folder in ("lib", "bin", "package"):
        (tmp_path / folder).mkdir()
    for place in (tmp_path / "attune", tmp_path / "bin" / "attune", tmp_path / "package" / "attune"):
        place.write_text("#!/bin/sh\n")
        place.chmod(place.stat().st_mode | stat.S_IXUSR)
    monkeypatch.delenv("ATTUNE_COMMAND", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ATTUNE_LIBRARY", str(tmp_path / "lib" / "libattune.so"))
    assert _command.command() == str((tmp_path / "attune").resolve())
    monkeypatch.delenv("ATTUNE_LIBRARY")
    assert _command.command() == str(tmp_path / "bin" / "attune")
    monkeypatch.setattr(_command, "__file__", str(tmp_path / "package" / "_command.py"))
    assert _command.command() == str(tmp_path / "package" / "attune")
    monkeypatch.setenv("ATTUNE_COMMAND", "/elsewhere/attune")
    assert _command.command() == "/elsewhere/attune"


def test_the_entry_point_becomes_the_command(tmp_path):
    program = tmp_path / "command"
    program.write_text('#!/bin/sh\necho "$@"\nexit 2\n')
    program.chmod(0o755)
    line = [sys.executable, "-c", "from attune._command import main; main()", "check", "a b.yaml"]
    done = subprocess.run(line, env=os.environ | {"ATTUNE_COMMAND": str(program)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "check a b.yaml\n")
