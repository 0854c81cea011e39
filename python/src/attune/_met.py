"""Calls of attune.attention that were made before, by what their callers said. attune.torch fills it."""

from __future__ import annotations

from typing import Any

CALLS: dict[Any, tuple[Any, ...]] = {}
