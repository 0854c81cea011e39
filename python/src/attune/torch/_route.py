"""The way that a walk took to all that it saw, as a function that goes it again and tells whether all is as it was.

A walk asks hundreds of questions of which most are about kinds. The way back asks only for what was found: of plain
values that they are equal, of classes, code and modules that they are the same, of what holds others that it is of the
same class and holds as much. It keeps alive none of the functions, objects and tensors that it leads to.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from attune.torch._guard import check_of, may_be_met
from attune.torch._kinds import is_named_tuple
from attune.torch._numbers import may_be_brought

_MAX_LINES = 1000
_NAMESPACES = (dict, OrderedDict)

# The tensors that the functions see, and their open numbers, as a walk has them; None: something is not as it was.
Found = tuple[tuple[torch.Tensor, ...], tuple[float, ...]] | None
Again = Callable[..., Found]
Way = Callable[[], Again]  # which compiles it


class Route:
    """Is told by a walk where each value stands: the name that it has in the function, of which `f0` and so on are the
    functions that the walk begins with."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {
            "may_be_brought": may_be_brought,
            "same": operator.is_,
            "isfinite": math.isfinite,
        }
        self._known: dict[int, str] = {}  # constants
        self._tensors: list[str] = []
        self._numbers: list[str] = []
        self._by_class: dict[type, list[str]] = {}
        self._classes: set[tuple[type, bool]] = set()
        self._is_open = True

    def refuse(self) -> None:
        """There is something that may change unseen."""
        self._is_open = False

    def constant(self, value: Any) -> str:
        """A name of what is kept: nothing that could lead to a function."""
        name = self._known.get(id(value))
        if name is None:
            name = self._known[id(value)] = f"c{len(self._names)}"
            self._names[name] = value
        return name

    def get(self, expression: str) -> str:
        name = f"x{len(self._lines)}"
        self._lines.append(f"{name} = {expression}")
        return name

    def item(self, at: str, key: Any) -> str:
        return self.get(f"{at}[{self.constant(key)}]")

    def _none_if(self, condition: str) -> None:
        self._lines.append(f"if {condition}: return None")

    def same(self, at: str, value: Any) -> None:
        self._none_if(f"{at} is not {self.constant(value)}")

    def is_twice(self, at: str, where: str) -> None:
        """What stood at another place, too."""
        self._none_if(f"{at} is not {where}")

    def plain(self, at: str, value: Any) -> None:
        """What cannot change."""
        kind = type(value)
        if kind in (int, str) or (kind is float and value and math.isfinite(value)):
            is_other = f"type({at}) is not {self.constant(kind)} or {at} != {self.constant(value)}"
            self._none_if(f"{at} is not {self.constant(value)} and ({is_other})")
        else:  # what is equal may not be the same
            self.same(at, value)

    def number(self, at: str, given: Any, value: float) -> None:
        """An open one; `value` is the plain one of `given`."""
        if given is value:
            self._none_if(f"type({at}) is not {self.constant(type(value))} or not may_be_brought({at})")
            self._numbers.append(at)
        else:
            self.same(at, given)
            self._numbers.append(self.constant(value))

    def tensor(self, at: str, has_twin: bool) -> None:
        self._tensors.append(at)
        if has_twin:
            self.refuse()

    def value_of_tensor(self, at: str, value: Any, is_open: bool, learns: bool) -> None:
        """Of one without dims on the CPU."""
        number = self.get(f"{at}.item()")
        if is_open:
            self.number(number, value, value)
            return
        if not learns:
            self._none_if(f"may_be_brought({number})")
        self._none_if(f"isfinite({number}) is not {math.isfinite(value)}")

    def one_of(self, at: str, kind: type) -> None:
        """An object of a class, which is no other object that was met."""
        self.is_a(at, kind)
        self._by_class.setdefault(kind, []).append(at)

    def is_a(self, at: str, kind: type) -> None:
        self._none_if(f"type({at}) is not {self.constant(kind)}")

    def length(self, at: str, length: int) -> None:
        self._none_if(f"len({at}) != {length}")

    def names(self, at: str, keys: Iterable[Any]) -> None:
        """All keys of a dict, in order."""
        keys = tuple(keys)
        self.length(at, len(keys))
        if keys:
            self._none_if(f"not all(map(same, {at}, {self.constant(keys)}))")

    def keys(self, at: str, values: Mapping[Any, Any]) -> None:
        """The same of a dict whose keys may be anything."""
        if not all([type(key) in (str, int) for key in values]):
            self.refuse()
        self.names(at, values)

    def a_tuple(self, at: str, value: tuple[Any, ...]) -> None:
        """Also a namedtuple."""
        kind = self.constant(type(value))
        self._none_if(f"type({at}) is not {kind}")
        if type(value) is not tuple:
            self._names["is_named_tuple"] = is_named_tuple
            self._none_if(f"not is_named_tuple({kind})")
        self.length(at, len(value))

    def made_of(self, at: str, member: Any, part: str) -> str:
        """What a property, or another wrapper in a class, is of."""
        self._none_if(f"type({at}) is not {self.constant(type(member))}")
        return self.get(f"{at}.{part}")

    def empty(self, at: str) -> None:
        self._none_if(at)

    def namespace(self, at: str, namespace: Mapping[str, Any]) -> str:
        """A dict, looked up as such."""
        if type(namespace) not in _NAMESPACES:
            self.refuse()
        name = self.get(at)
        self._none_if(f"type({name}) is not {self.constant(type(namespace))}")
        return name

    def absent(self, at: str, names: frozenset[str]) -> None:
        """Keys that a dict has not."""
        if len(names) == 1:
            self._none_if(f"{self.constant(*names)} in {at}")
        elif names:
            self._none_if(f"not {at}.keys().isdisjoint({self.constant(names)})")

    def a_class(self, kind: type, written: Sequence[type]) -> None:
        """What a class is made of: `written` are those of its classes that the program wrote."""
        if (kind, False) not in self._classes:
            self._classes.add((kind, False))
            name = self.constant(kind)
            self._none_if(f"type({name}) is not {self.constant(type(kind))}")
            self._none_if(f"{name}.__mro__ is not {self.constant(kind.__mro__)}")
        for each in written:
            if (each, True) not in self._classes:
                self._classes.add((each, True))
                self.names(self.constant(vars(each)), vars(each))

    def token(self) -> None:
        """No class is said to be of another."""
        self._names["token"] = abc.get_cache_token
        self._none_if(f"token() != {self.constant(abc.get_cache_token())}")

    def way(self, count: int, tensors: Sequence[torch.Tensor]) -> Way:
        """Back to what so many functions see; `tensors` are those that they see now."""
        if not self._is_open or len(self._lines) > _MAX_LINES or not may_be_met(tensors):
            return lambda: _never
        for several in self._by_class.values():
            if len(several) > 1:
                self._none_if(f"len({{{', '.join([f'id({at})' for at in several])}}}) != {len(several)}")
        if tensors:
            self._names["as_they_were"] = check_of(tensors)
            self._none_if(f"not as_they_were({', '.join(self._tensors)})")
        return functools.partial(_compiled, count, self._lines, self._tensors, self._numbers, self._names)


def _never(*_: Any) -> None:
    """Where there is no way."""


def _compiled(
    count: int, lines: Sequence[str], tensors: Sequence[str], numbers: Sequence[str], names: dict[str, Any]
) -> Again:
    given = ", ".join([f"f{at}" for at in range(count)])
    found = ", ".join([f"({''.join([f'{at}, ' for at in each])})" for each in (tensors, numbers)])
    body = "\n  ".join([*lines, f"return {found}"])
    # What is not there any more is not as it was.
    made: dict[str, Again] = {}  # a thread's own
    exec(f"def again({given}):\n try:\n  {body}\n except Exception:\n  return None", names, made)
    return made["again"]
