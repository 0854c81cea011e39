"""Functions with Numbers in the place of the numbers that they captured."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from attune.torch._code import is_fixed_function, names_of
from attune.torch._fingerprint import Fingerprint
from attune.torch._kinds import NAMESPACES, is_named_tuple
from attune.torch._numbers import Captured, plain
from attune.torch._walked import Place


class _Cycle(Exception):
    """Something holds itself."""


def open_numbers(functions: tuple[Any, ...], fingerprint: Fingerprint, captured: Captured) -> tuple[Any, ...] | None:
    """Copies of the functions that see Numbers where the fingerprint has open places; None: there can be none."""
    opener = _Opener(fingerprint, captured)
    try:
        opened = tuple(opener.value(function, None) for function in functions)
    except _Cycle:
        return None
    # What another path leads to, too, is what that path shows.
    captured.decided.update(set(fingerprint.places.values()) - opener.reached)
    return opened


class _Opener:
    """Walks what a Fingerprint walks, and returns things as they are where nothing inside changes."""

    def __init__(self, fingerprint: Fingerprint, captured: Captured) -> None:
        self.fingerprint, self.captured = fingerprint, captured
        self.reached: set[int] = set()
        self._done: dict[int, tuple[Any, Any]] = {}  # by id: what it was, which it keeps, and what it became
        self._within: set[int] = set()
        self._by_type: dict[type, Callable[[Any], Any]] = {
            types.FunctionType: self._function,
            types.MethodType: self._method,
            functools.partial: self._partial,
            tuple: self._sequence,
            list: self._sequence,
            dict: self._dict,
        }

    def value(self, value: Any, place: Place | None) -> Any:
        number = plain(value)
        kind = type(number)
        if kind is int or kind is float:
            at = self.fingerprint.places.get(place) if place is not None else None
            if at is None:
                return value
            self.reached.add(at)
            return self.captured.number(at)
        is_tuple = kind is tuple or is_named_tuple(kind)
        if not is_tuple and id(value) not in self.fingerprint.opened:
            return value
        copy = self._by_type.get(tuple if is_tuple else kind, self._instance)
        done = self._done.get(id(value))
        if done is None:
            if id(value) in self._within:
                raise _Cycle
            self._within.add(id(value))
            done = self._done[id(value)] = value, copy(value)
            self._within.remove(id(value))
        return done[1]

    def _function(self, function: types.FunctionType) -> Any:
        mine = id(function)
        by_place, by_name = function.__defaults__ or (), function.__kwdefaults__ or {}
        cells = [
            (cell, self.value(cell.cell_contents, ("cell", mine, at)))
            for at, cell in enumerate(function.__closure__ or ())
        ]
        defaults = tuple(self.value(each, ("default", mine, at)) for at, each in enumerate(by_place))
        named = {name: self.value(each, ("default", mine, name)) for name, each in by_name.items()}
        namespace, found = function.__globals__, {}
        if not is_fixed_function(function):
            for name in names_of(function.__code__) & namespace.keys():
                found[name] = self.value(namespace[name], ("global", mine, name))
        changed = {name: each for name, each in found.items() if each is not namespace[name]}
        if not (
            changed
            or any(each is not cell.cell_contents for cell, each in cells)
            or any(new is not old for new, old in zip(defaults, by_place, strict=True))
            or any(each is not by_name[name] for name, each in named.items())
        ):
            return function
        copy = types.FunctionType(
            function.__code__,
            {**namespace, **changed} if changed else namespace,
            function.__name__,
            defaults or None,
            tuple(types.CellType(each) for _, each in cells) or None,
        )
        copy.__kwdefaults__ = named or None
        copy.__dict__.update(function.__dict__)
        copy.__module__ = function.__module__
        return copy

    def _method(self, method: types.MethodType) -> Any:
        function, owner = self.value(method.__func__, None), self.value(method.__self__, None)
        if function is method.__func__ and owner is method.__self__:
            return method
        return types.MethodType(function, owner)

    def _partial(self, partial: functools.partial[Any]) -> Any:
        parts = [self.value(each, None) for each in (partial.func, partial.args, partial.keywords)]
        if all(new is old for new, old in zip(parts, (partial.func, partial.args, partial.keywords), strict=True)):
            return partial
        return functools.partial(parts[0], *parts[1], **parts[2])

    def _sequence(self, values: tuple[Any, ...] | list[Any]) -> Any:
        found = [self.value(each, ("item", id(values), at)) for at, each in enumerate(values)]
        if all(new is old for new, old in zip(found, values, strict=True)):
            return values
        return type(values)._make(found) if hasattr(values, "_make") else type(values)(found)

    def _dict(self, values: dict[Any, Any]) -> Any:
        found = {key: self.value(each, ("key", id(values), key)) for key, each in values.items()}
        return values if all(each is values[key] for key, each in found.items()) else found

    def _instance(self, instance: Any) -> Any:
        attributes = vars(instance)
        found = {name: self.value(each, ("attribute", id(instance), name)) for name, each in attributes.items()}
        if all(each is attributes[name] for name, each in found.items()):
            return instance
        if type(instance) in NAMESPACES:
            return type(instance)(**found)
        copy = object.__new__(type(instance))
        copy.__dict__.update(found)
        return copy
