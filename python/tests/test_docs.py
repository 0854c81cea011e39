"""The examples of docs/python.md run as they stand, in their order."""

import importlib.util
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"


def test_page(capsys):
    if not PAGE.exists():
        pytest.skip("docs/python.md is missing")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        if "import torch" in block:
            pytest.importorskip("torch", reason="torch is not installed: the page's examples of it are not run")
        if "import attune.torch.transformers" in block and not importlib.util.find_spec("transformers"):
            continue
        exec(compile(block, str(PAGE), "exec"), names)
    assert "did you mean `causal`?" in capsys.readouterr().out


def test_every_translated_operation_is_named():
    pytest.importorskip("torch", reason="torch is not installed")
    from attune.torch._operations import OPERATIONS
    from attune.torch._tracer import _CASTS, _CREATORS

    text = PAGE.read_text()
    listed = set(re.findall(r"[a-z_0-9]+", text[text.index("\n    abs") : text.index("Not translated are")]))
    aliases = {"absolute", "clone", "contiguous", "detach", "divide", "true_divide", "greater", "greater_equal", "less",
               "less_equal", "multiply", "negative", "not_equal", "pos", "positive", "subtract"}  # fmt: skip
    assert listed - {"approximate", "tanh"} == (set(OPERATIONS) | set(_CASTS) | set(_CREATORS)) - aliases - {"tanh"}
