"""What a walk over all that Python functions can see has met so far (_walk.py)."""

from __future__ import annotations

import types
from typing import Any

import torch

from attune.torch._route import Route
from attune.torch._telling import SHOWS

# Where a number stands: a kind of place, the address of what has the place, and which one it is.
Place = tuple[str, int, Any]

# Ends what is as long as it is: else what follows it might be taken for a part of it, and two programs for one.
END = ("end",)


class Unknown(Exception):
    """The function sees something that cannot be followed."""


class Walked:
    """Of functions, at this moment.

    Attributes:
        parts: hashable; equal for functions that mean the same but for the tensors that they see.
        kept: what `parts` names by address; no function, for with it would stay what it sees.
        tensors: those that the functions see, each once.
        numbers: ints and floats that `parts` tells nothing of but their types.
        places: of each number, where it stands; of those that are tensors without dims on the CPU, `of_tensors` has the
            tensors' addresses.
        whole: classes of modules that the parts tell all of, for functions may call them.
        sees_modules: whether there is any module of torch's.
        opened: addresses of functions and objects that numbers stand in, or may.
        is_bound: whether every value stands in a cell or under a global name, cannot change where it stands, and leads
            to no function that was met before.
        cells, globals, functions: what was met where: cells and global names with their values, functions with what
            they are made of.
        met: the names that any of the code used; `asks` is whether those that the walk was given matter.
        route: the way to all of it.
        is_reached_twice: whether a number that is left open was met where none may be, too.
    """

    def __init__(self, opens: bool, names: frozenset[str]) -> None:
        """`opens`: whether numbers are left out of the parts where they can be. `names`: those that any of the code
        uses, for what holds an object may hand it on; a guess at first."""
        self._names = names
        self._shown = frozenset(("__repr__",)) if names & SHOWS else frozenset[str]()
        self.met: set[str] = set()
        self.asks = False
        self._sees_numpy = self._sees_narrow = False
        self.whole: set[type] = set()
        self.sees_modules = False
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.places: dict[Place, int] = {}
        self.of_tensors: dict[int, int] = {}
        self.opened: set[int] = set()
        self.kept: list[Any] = []
        self.is_bound = True
        self.cells: list[tuple[types.CellType, Any]] = []
        self.globals: list[tuple[dict[str, Any], str, Any]] = []
        self.functions: list[tuple[Any, ...]] = []
        self.route = Route()
        self.parts: list[Any] = []
        self._seen: dict[int, int] = {}
        self._at: dict[int, str] = {}  # where the route has what was seen
        self._count = 0
        self._closed = not opens
        self.is_reached_twice = False

    def _value(self, value: Any, at: str, place: Place | None = None) -> None:
        """`at`: where the route has it. `place`: where it stands, if a number can be left open there."""
        raise NotImplementedError

    def _by_address(self, value: Any, at: str) -> None:
        self.route.same(at, value)
        self.parts.append(id(value))
        self.kept.append(value)

    def _own_attributes(self, attributes: dict[str, Any], at: str) -> None:
        """Those that a program gave a tensor, a function or a partial; most have none."""
        if attributes:
            self._attributes(attributes, self.route.namespace(f"{at}.__dict__", attributes))
        else:
            self.route.empty(f"{at}.__dict__")

    def _attributes(self, namespace: Any, at: str, names: frozenset[str] | None = None) -> None:
        """Of what an instance is not copied with: numbers are what they are. `names`: where not those of the code."""
        if names is None:
            self.asks, names = True, self._names
        was_closed, self._closed, self.is_bound = self._closed, True, False
        self.route.absent(at, names - namespace.keys())
        for name in sorted(names & namespace.keys()):
            self.parts.append(name)
            self._value(namespace[name], self.route.item(at, name))
        self.parts.append(END)
        self._closed = was_closed
