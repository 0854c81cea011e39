"""Mappings that forget what nobody asked for lately."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(dict[Key, Value]):
    """So many entries at most, and those that were there before them: where it is full, all that it has become those,
    and what they were is forgotten. `recall` takes back what it finds among them. So what comes again is there until at
    least as many others have come, and native code reads it as any dict. Threads may lose entries to each other, no
    more."""

    __slots__ = ("_before", "_most")

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._before: dict[Key, Value] = {}

    def put(self, key: Key, value: Value) -> None:
        if len(self) >= self._most and key not in self:
            self._before = dict(self)
            super().clear()
        self[key] = value

    def recall(self, key: Key) -> Value | None:
        found = self.get(key)
        if found is None and self._before:
            found = self._before.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def clear(self) -> None:
        self._before = {}
        super().clear()
