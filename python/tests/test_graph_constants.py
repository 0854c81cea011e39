"""Importing the package does not import Dynamo, and its own mark is torch's."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from attune.torch._graph_constants import constant_in_graphs  # noqa: E402


def test_no_import_of_dynamo():
    program = "import sys, attune.torch; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_call_of_numpys_arrays_does_not_import_what_is_for_torchs():
    program = (
        "import sys, numpy, torch, attune; x = numpy.ones((1, 8, 2, 16), numpy.float32); attune.attention(x, x, x);"
        "assert not [name for name in sys.modules if name.startswith('attune.torch')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_mark_is_torchs():
    def ours():
        pass

    def theirs():
        pass

    assert constant_in_graphs(ours) is ours
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs) != {}
