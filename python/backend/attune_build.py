"""scikit-build-core, whose wheels are then named after the systems that their binaries run on."""

from __future__ import annotations

import pathlib
from typing import Any

import manylinux
import scikit_build_core.build as made
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

# Without them a resolver compiles everything to read a name and dependencies. Not all versions have them.
for _hook in ("prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel"):
    if hasattr(made, _hook):
        globals()[_hook] = getattr(made, _hook)
        __all__ += [_hook]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """PEP 517's."""
    name = made.build_wheel(wheel_directory, config_settings, metadata_directory)
    return manylinux.rename(pathlib.Path(wheel_directory, name)).name
