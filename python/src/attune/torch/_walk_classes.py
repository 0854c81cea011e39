"""Classes and objects of the program's own, as a walk meets them (_walk.py)."""

from __future__ import annotations

import abc
import enum
from typing import Any

import torch

from attune.torch import _called_modules
from attune.torch._code import is_random
from attune.torch._kinds import (
    HARMLESS, OF_FROZEN, can_be_copied, is_fixed_class, is_frozen, is_its_attributes, is_of_dataclasses,
    reads_unnamed, runs_unnamed,
)  # fmt: skip
from attune.torch._telling import OF_ENUM, READERS, TELLS_CLASS
from attune.torch._walked import END, Unknown, Walked


class ClassWalk(Walked):
    """Of what classes have, and what objects hold."""

    def _enum(self, value: enum.Enum, kind: type, at: str) -> None:
        self._by_address(value, at)
        self.route.names(self.route.get(f"{at}.__dict__"), vars(value))
        if vars(value).keys() - OF_ENUM or id(value) in self._seen:
            if id(value) not in self._seen:
                raise Unknown
            return
        self._seen[id(value)] = 0
        was_closed, self._closed = self._closed, True
        self._value(value._value_, self.route.get(f"{at}._value_"))
        self._closed = was_closed
        self._attributes_of_class(kind)

    def _class(self, kind: type, at: str) -> None:
        if id(kind) in READERS or is_random(kind.__module__):
            raise Unknown
        self._sees_numpy |= kind.__module__ == "numpy"
        self._by_address(kind, at)
        if is_fixed_class(kind):
            return
        if issubclass(kind, enum.Enum):
            if type(kind) is not enum.EnumMeta:
                raise Unknown
            members = self.route.get(f"{at}.__members__")
            self.route.names(members, kind.__members__)
            for name, member in kind.__members__.items():
                self.parts.append(name)
                self._value(member, self.route.item(members, name))
        elif type(kind) not in (type, abc.ABCMeta):  # its own attributes may be computed
            raise Unknown
        self._attributes_of_class(kind)

    def _attributes_of_class(self, kind: type) -> None:
        """And what runs where an object of it is made or compared."""
        self.is_bound, self.asks = False, True
        classes = [each for each in kind.__mro__ if not is_fixed_class(each) and each.__module__ != "enum"]
        self._made_of(kind, classes)
        for each in classes:
            unnamed = frozenset() if issubclass(kind, enum.Enum) else runs_unnamed(each) | self._shown
            self._attributes(vars(each), self.route.constant(vars(each)), self._names | unnamed)

    def _made_of(self, kind: type, classes: list[type]) -> None:
        """`classes`: those of its classes that the program wrote."""
        self.parts.append(tuple([id(each) for each in kind.__mro__]))
        self.kept.extend(kind.__mro__)
        self.route.a_class(kind, classes)
        if isinstance(kind, abc.ABCMeta):  # of which any class may be said to be
            self.parts.append(abc.get_cache_token())
            self.route.token()

    def _instance(self, value: Any, kind: type, at: str) -> None:
        """An object of a class of the program's own: the attributes that are named by code which sees it."""
        self.is_bound, self.asks, names = False, True, self._names
        self.route.one_of(at, kind)
        classes = [each for each in kind.__mro__ if not is_fixed_class(each)]
        is_module = isinstance(value, torch.nn.Module)
        dunders = {name for each in classes for name in vars(each) if name.startswith("__") and name.endswith("__")}
        if is_frozen(kind):
            dunders -= OF_FROZEN
        if (
            not hasattr(value, "__dict__")
            or type(kind) is not type
            or dunders - HARMLESS
            or reads_unnamed(kind)
            or not is_its_attributes(kind)
        ):
            raise Unknown
        tells_class = bool(names & TELLS_CLASS)
        owners: dict[str, list[int]] = {}  # the first of them is the one that an attribute is of
        for place, each in enumerate(classes):
            for name in vars(each):
                if tells_class or name not in owners:
                    owners.setdefault(name, []).append(place)
        self._made_of(kind, classes)
        attributes = vars(value)
        within = self.route.namespace(f"{at}.__dict__", attributes)
        seen = frozenset(attributes) if "__eq__" in dunders else names
        is_whole = False
        if is_module:
            self.sees_modules = True
            is_whole = "forward" in names or _called_modules.is_whole(kind)
            if is_whole:
                if _called_modules.has_hooks(value):
                    raise Unknown
                self.route.refuse()  # hooks may be added
                self.whole.add(kind)
                seen, names = frozenset(attributes) - _called_modules.OF_ALL, names | {"forward"}
        if self._closed or not can_be_copied(kind):
            self._attributes(attributes, within, seen)
        else:
            self.opened.add(id(value))
            self.route.absent(within, seen - attributes.keys())
            for name in sorted(seen & attributes.keys()):
                self.parts.append(name)
                self._value(attributes[name], self.route.item(within, name), ("attribute", id(value), name))
            self.parts.append(END)
        if "__eq__" in dunders:
            self.route.names(within, attributes)
        was_closed, self._closed = self._closed, True
        if is_module:
            for name in ("_parameters", "_buffers", "_modules"):
                table = getattr(value, name)
                where = self.route.namespace(f"{at}.{name}", table)
                self._attributes(table, where, frozenset(table) if is_whole else None)
        unnamed = self._shown | {"__call__", "__eq__", "__hash__"}
        if tells_class:
            unnamed |= {"__init__", "__post_init__"}
        for name in sorted((names | unnamed) & owners.keys()):
            for place in owners[name]:
                self.parts.append((name, place))
                self._member(classes[place], name)
        self.parts.append(END)
        self._closed = was_closed

    def _member(self, owner: type, name: str) -> None:
        """What a class has by a name, for its objects."""
        member = vars(owner)[name]
        where = self.route.item(self.route.constant(vars(owner)), name)
        if type(member) is property:
            self.parts.append(property)
            where = self.route.made_of(where, member, "fget")
            member = member.fget
        elif type(member) in (classmethod, staticmethod):
            self.parts.append(type(member))
            where = self.route.made_of(where, member, "__func__")
            member = member.__func__
        if name in ("__eq__", "__hash__") and is_of_dataclasses(owner, member):  # of what was seen above
            self._by_address(member.__code__, self.route.get(f"{where}.__code__"))
        else:
            self._value(member, where)
