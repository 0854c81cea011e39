"""The examples of pages of the documentation run as they stand, in their order."""

import importlib.util
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = DOCS / "python.md"


def run(page):
    """What stands in its blocks of Python."""
    if not page.exists():
        pytest.skip(f"docs/{page.name} is missing")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    names = {}
    for block in blocks:
        if "import torch" in block:
            pytest.importorskip("torch", reason="torch is not installed: the page's examples of it are not run")
        if "import attune.torch.transformers" in block and not importlib.util.find_spec("transformers"):
            continue
        exec(compile(block, str(page), "exec"), names)


def test_page(capsys):
    run(PAGE)
    assert "did you mean `causal`?" in capsys.readouterr().out


def test_page_for_who_comes_from_flash_attention():
    run(DOCS / "from_flash_attention.md")


def test_every_translated_operation_is_named():
    pytest.importorskip("torch", reason="torch is not installed")
    from attune.torch._operations import OPERATIONS
    from attune.torch._casts import CASTS, CREATORS

    text = PAGE.read_text()
    listed = set(re.findall(r"[a-z_0-9]+", text[text.index("\n    abs") : text.index("A part of a captured tensor")]))
    aliases = {"absolute", "clone", "contiguous", "detach", "divide", "true_divide", "greater", "greater_equal", "less",
               "less_equal", "multiply", "negative", "not_equal", "pos", "positive", "subtract", "arctan", "arctan2",
               "arcsin", "arccos", "fmin", "fmax", "log_sigmoid", "expit", "_threshold"}  # fmt: skip
    assert listed - {"approximate", "tanh"} == (set(OPERATIONS) | set(CASTS) | set(CREATORS)) - aliases - {"tanh"}


def test_every_operation_on_small_tensors_is_named():
    pytest.importorskip("torch", reason="torch is not installed")
    from attune.torch._composed import COMPOSED
    from attune.torch._places import JOINS, RESHAPINGS
    from attune.torch._small import REDUCTIONS

    text = PAGE.read_text()
    listed = set(re.findall(r"[a-z_0-9]+", text[text.index("\n    all amax") : text.index("Not translated are")]))
    aliases = {
        "max", "min", "concat", "concatenate", "linalg_norm", "linalg_vector_norm", "swapaxes", "swapdims", "moveaxis",
        "vdot", "inner", "mv", "mm", "bmm", "view_as", "reshape_as", "ravel", "index", "norm",
    }  # fmt: skip
    assert listed == (REDUCTIONS | set(COMPOSED) | JOINS | RESHAPINGS) - aliases
