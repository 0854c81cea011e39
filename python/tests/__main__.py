"""Runs the tests of this folder, or what the arguments say to pytest; exit code 77,
and a line that says why, where there is nothing to run them with."""

import importlib.util
import pathlib
import sys

missing = [name for name in ("pytest", "numpy") if importlib.util.find_spec(name) is None]
if missing:
    print(f"Skipped: Python has no {' and no '.join(missing)}")
    sys.exit(77)

import pytest  # noqa: E402

chosen = sys.argv[1:] or [str(pathlib.Path(__file__).parent)]
sys.exit(pytest.main(["-q", "-rfEs", "-p", "no:cacheprovider", *chosen]))
