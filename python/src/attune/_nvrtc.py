"""Lets libattune find the NVRTC that a Python package brought: torch's, or nvidia-cuda-nvrtc."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import pathlib

# Newest first: beside `nvidia`, where the packages of CUDA 13 and 12 put it.
_PATTERNS = ("cu13/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*")


def _packaged() -> list[pathlib.Path]:
    namespace = importlib.util.find_spec("nvidia")
    roots = [pathlib.Path(root) for root in (namespace.submodule_search_locations or [])] if namespace else []
    return [path for pattern in _PATTERNS for root in roots for path in sorted(root.glob(pattern))]


@functools.cache
def preload() -> None:
    """Loads it, so that the library's own search by name meets it. ATTUNE_NVRTC, where it is set, is left to that."""
    if os.environ.get("ATTUNE_NVRTC"):
        return
    for path in _packaged():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue  # of another platform; the library says what is missing
