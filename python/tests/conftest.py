"""Fixtures of all tests. The cache file is a test run's own."""

import os
import tempfile

import pytest

_cache_folder = tempfile.TemporaryDirectory(prefix="attune-tests-")
os.environ.setdefault("ATTUNE_CACHE", os.path.join(_cache_folder.name, "attune.db"))

np = pytest.importorskip("numpy")


@pytest.fixture
def rng(request):
    """Fresh numbers for each test, the same in each run."""
    return np.random.default_rng(abs(hash_of(request.node.nodeid)))


def hash_of(text):
    return sum(ord(character) * 31**place for place, character in enumerate(text)) % 2**32
