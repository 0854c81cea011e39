"""The tutorial notebook runs from its first cell to its last, and is kept without outputs."""

import json
import pathlib

import pytest

NOTEBOOK = pathlib.Path(__file__).parents[2] / "docs" / "notebooks" / "tutorial.ipynb"


def output_of(cell):
    """What a cell printed and showed, as text, pictures too."""
    texts = []
    for each in cell["outputs"]:
        texts.append(each.get("text", ""))
        texts += [text for kind, text in each.get("data", {}).items() if kind in ("text/plain", "image/svg+xml")]
    return "\n".join(texts)


def test_it_is_kept_without_outputs():
    if not NOTEBOOK.exists():
        pytest.skip("docs/notebooks/tutorial.ipynb is missing")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells) >= 10
    for cell in cells:
        assert not cell.get("outputs") and not cell.get("execution_count")


def test_it_runs():
    if not NOTEBOOK.exists():
        pytest.skip("docs/notebooks/tutorial.ipynb is missing")
    for module in ("torch", "ipykernel"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    import attune
    from attune import _command

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    picture, tiles, first, by_hand, bias, flex, clock = (
        output_of(cell) for cell in notebook.cells if cell.cell_type == "code"
    )
    try:
        _command.command()
        assert "<svg" in picture and "<svg" in tiles and "partial:" in tiles
    except attune.UnavailableError as missing:
        assert "attune.Spec" in picture and missing.message in tiles
    assert "(1, 4096, 8, 64)" in first and "(1, 8, 4096)" in first
    assert float(by_hand.rpartition("(")[2].rstrip(")")) < 1e-5
    before, after = (float(word) for word in bias.splitlines()[0].removeprefix("loss ").split(" -> "))
    assert after < 0.01 * before
    assert "[1, 4, 1024, 64]" in flex
    assert "Attune" in clock and "FlexAttention" in clock
