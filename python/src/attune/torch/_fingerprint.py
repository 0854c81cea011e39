"""What a Python function can see: the values that its translation depends on, told apart from tensors, which a launch
brings, and from numbers, which it may bring.

Two calls of functions with one fingerprint have one translation, at least for the same numbers. What cannot be followed
has no fingerprint, and is translated at every call.
"""

from __future__ import annotations

import argparse
import dis
import enum
import functools
import math
import types
from collections.abc import Iterable
from typing import Any

import torch

from attune.torch._numbers import may_be_brought, plain
from attune.torch._positions import FromTheEnd

# Where a number stands: a kind of place, the address of what has the place, and which one it is.
Place = tuple[str, int, Any]

_MAX_VALUES = 256
# Packages whose functions and constants do not change.
_FIXED = frozenset(("torch", "numpy", "math", "cmath", "builtins", "operator", "functools", "itertools", "typing"))
# What reads names that stand nowhere in the code.
_DYNAMIC = frozenset(("getattr", "setattr", "vars", "eval", "exec", "globals", "locals", "__dict__", "__getattribute__"))
# Methods of a class that an operation without a name does not call, or that tell objects apart by all they have.
_HARMLESS = frozenset(
    "__init__ __post_init__ __call__ __repr__ __eq__ __hash__ __module__ __doc__ __dict__ __weakref__ __annotations__ "
    "__dataclass_fields__ __dataclass_params__ __match_args__ __qualname__ __replace__ __static_attributes__ "
    "__firstlineno__".split()
)
# What a frozen dataclass has beside them: they refuse, whatever is asked.
_OF_FROZEN = frozenset(("__setattr__", "__delattr__"))
# What namedtuple and Enum write into the classes that they make.
_OF_MADE = frozenset(
    "_make _replace __replace__ _asdict __repr__ __new__ __getnewargs__ _generate_next_value_ __reduce_ex__".split()
)
# Objects that are their attributes.
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_OPERATORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_PLAIN = (range, int, bool, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size, torch.layout, type(...))
_MISSING = object()


class Unknown(Exception):
    """The function sees something that cannot be followed."""


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> frozenset[str]:
    """Of globals and attributes, in the code and in that of functions inside."""
    inside = (names_of(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(code.co_names).union(*inside)


@functools.lru_cache(maxsize=4096)
def _assigned(code: types.CodeType) -> frozenset[str]:
    """Names of globals, and of variables shared with other functions, that the code binds anew."""
    stores = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")
    found = {each.argval for each in dis.get_instructions(code) if each.opname in stores}
    inside = (_assigned(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(found).union(*inside)


@functools.lru_cache(maxsize=4096)
def _can_be_copied(kind: type) -> bool:
    """Whether an instance is its __dict__ and nothing else."""
    return all(each.__flags__ & 1 << 9 and "__slots__" not in vars(each) for each in kind.__mro__[:-1])


def _is_frozen(kind: type) -> bool:
    """Whether it is a frozen dataclass whose own methods are those that dataclasses give it."""
    parameters = vars(kind).get("__dataclass_params__")
    return parameters is not None and parameters.frozen


def _code_of(member: Any) -> types.CodeType | None:
    """What runs where an attribute of a class is asked for."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member.__code__ if isinstance(member, types.FunctionType) else None


def _functions_of(kind: type) -> list[str]:
    """Names of what a class has of the program's own: all that runs, but what its kind of class is made of."""
    return [
        name
        for each in kind.__mro__
        if not is_fixed(each.__module__) and each.__module__ not in ("enum", "collections")
        for name, member in vars(each).items()
        if name not in _OF_MADE and _code_of(member) is not None
    ]


@functools.lru_cache(maxsize=4096)
def is_named_tuple(kind: type) -> bool:
    """Whether it is a namedtuple and nothing else."""
    return kind.__mro__[1:] == (tuple, object) and hasattr(kind, "_fields") and not _functions_of(kind)


def is_fixed(module: str | None) -> bool:
    """Whether the functions and constants of a module never change."""
    return module is not None and module.partition(".")[0] in _FIXED


class Fingerprint:
    """Of functions, at this moment.

    Attributes:
        key: hashable; equal for functions that mean the same but for the tensors that they see.
        kept: what `key` names by address; no function, for with it would stay what it sees.
        tensors: those that the functions see, each once.
        numbers: ints and floats that `key` tells nothing of but their types.
        places: of each number, where it stands.
        opened: addresses of functions and objects that numbers stand in, or may.
        is_bound: whether `is_current` can tell: every value stands in a cell or under a global name, and cannot change
            where it stands.
    """

    def __init__(self, functions: Iterable[Any], opens: bool = True) -> None:
        """`opens`: whether numbers are left out of the key where they can be."""
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.places: dict[Place, int] = {}
        self.opened: set[int] = set()
        self.kept: list[Any] = []
        self.is_bound = True
        self._cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._parts: list[Any] = []
        self._seen: dict[int, int] = {}
        self._count = 0
        self._closed = not opens
        self._is_reached_twice = False
        functions = tuple(functions)
        for function in functions:
            self._value(function, frozenset())
        if self._is_reached_twice and self.numbers:
            self.__init__(functions, opens=False)  # type: ignore[misc]
            return
        self.key = tuple(self._parts)
        self._learns = [(tensor, tensor.requires_grad) for tensor in self.tensors]

    def is_current(self) -> bool:
        """Whether the functions still see the objects that they saw."""
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                return False
        for namespace, name, value in self._globals:
            if namespace.get(name, _MISSING) is not value:
                return False
        for tensor, learns in self._learns:
            if tensor.requires_grad is not learns:
                return False
        return True

    def _value(self, value: Any, names: frozenset[str], place: Place | None = None) -> None:
        """`names`: those that the code which sees the value uses, as attributes perhaps. `place`: where it stands, if a
        number can be left open there."""
        value = plain(value)
        kind = type(value)
        if place is not None and not self._closed and (kind is int or kind is float) and may_be_brought(value):
            self.places[place] = len(self.numbers)
            self.numbers.append(value)
            self._parts.append((kind, "open"))
        elif kind in _PLAIN:
            self._parts.append((kind, value))
        elif kind is float:
            self._parts.append((kind, value.hex()))  # 0.0 is not -0.0
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif kind is tuple or is_named_tuple(kind):
            self._parts.append((kind, len(value)))
            for at, each in enumerate(value):
                self._value(each, names, ("item", id(value), at))
        elif kind in (set, frozenset) and all(type(each) in _PLAIN for each in value):
            self.is_bound &= kind is frozenset
            self._parts.append((kind, frozenset((type(each), each) for each in value)))
        elif isinstance(value, enum.Enum) and not _functions_of(kind):
            self._by_address(value)
        else:
            self._object(value, kind, names)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise Unknown
        known = self._seen.get(id(tensor))
        if known is None:
            # Views of one memory are one tensor of a launch.
            place = tensor.data_ptr()
            twin = next((at for at, other in enumerate(self.tensors) if other.data_ptr() == place), None)
            known = self._seen[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            stands: tuple[Any, ...] = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)
            if twin is not None:
                stands += (twin,)
            if not tensor.dim() and tensor.device.type == "cpu":
                self.is_bound = False
                stands += (math.isfinite(tensor.item()),)
            self._parts.append(stands)
        else:
            self._parts.append((torch.Tensor, known))

    def _object(self, value: Any, kind: type, names: frozenset[str]) -> None:
        if id(value) in self._seen:
            self._parts.append(("again", self._seen[id(value)]))
            self._is_reached_twice |= self._closed and id(value) in self.opened
            return
        self._count += 1
        if self._count > _MAX_VALUES:
            raise Unknown
        self._seen[id(value)] = -self._count
        if not self._closed and kind in (types.FunctionType, types.MethodType, list, dict, functools.partial, *NAMESPACES):
            self.opened.add(id(value))
        if kind is types.FunctionType:
            self._function(value)
        elif kind is types.MethodType:
            self.is_bound = False
            if not self._closed:
                self.opened.add(id(value.__func__))
            self._function(value.__func__)
            self._value(value.__self__, names_of(value.__func__.__code__))
        elif kind is types.ModuleType:
            self._by_address(value)
            if not is_fixed(value.__name__):
                self._attributes(vars(value), names)
        elif isinstance(value, type):
            self._by_address(value)
            if not is_fixed(value.__module__):
                for each in value.__mro__:
                    self._attributes(vars(each), names)
        elif kind is types.BuiltinFunctionType:
            if not (value.__self__ is None or isinstance(value.__self__, (types.ModuleType, type))) and not is_fixed(
                getattr(value, "__module__", None)
            ):
                raise Unknown
            self._by_address(value)
        elif kind in (list, dict):
            self.is_bound = False
            self._parts.append((kind, len(value)))
            for at, each in value.items() if kind is dict else enumerate(value):
                if kind is dict:
                    self._value(at, names)
                self._value(each, names, ("key" if kind is dict else "item", id(value), at))
        elif kind is functools.partial:
            self._parts.append(kind)
            for each in (value.func, value.args, value.keywords):
                self._value(each, names)
        elif kind in NAMESPACES:
            self.is_bound = False
            self._parts.append(kind)
            for name in sorted(names & vars(value).keys()):
                self._parts.append(name)
                self._value(vars(value)[name], names, ("attribute", id(value), name))
        elif kind is FromTheEnd:  # what it adds is the launch's
            self._parts.append(kind)
        elif kind in _OPERATORS or kind.__module__ == "torch._ops":
            self._by_address(value)
        elif is_fixed(kind.__module__) and not isinstance(value, torch.nn.Module):
            raise Unknown
        else:
            self._instance(value, kind, names)

    def _by_address(self, value: Any) -> None:
        self._parts.append(id(value))
        self.kept.append(value)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._by_address(code)
        names = names_of(code)
        if names & _DYNAMIC and not is_fixed(function.__module__):
            raise Unknown
        assigned = _assigned(code)
        mine = id(function)
        self._parts.append((len(function.__defaults__ or ()), len(function.__kwdefaults__ or {})))
        for at, default in enumerate(function.__defaults__ or ()):
            self._value(default, names, ("default", mine, at))
        for name, default in (function.__kwdefaults__ or {}).items():
            self._parts.append(name)
            self._value(default, names, ("default", mine, name))
        for at, cell in enumerate(function.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Unknown from None
            self._cells.append((cell, value))
            is_fixed_here = code.co_freevars[at] in assigned
            self._value(value, names, None if is_fixed_here else ("cell", mine, at))
        if is_fixed(function.__module__):
            return
        namespace = function.__globals__
        for name in sorted(names):
            value = namespace.get(name, _MISSING)
            self._globals.append((namespace, name, value))
            if value is not _MISSING:
                self._parts.append(name)
                self._value(value, names, None if name in assigned else ("global", mine, name))

    def _attributes(self, namespace: Any, names: frozenset[str]) -> None:
        """Of what an instance is not copied with: numbers are what they are."""
        was_closed, self._closed = self._closed, True
        for name in sorted(names):
            value = namespace.get(name, _MISSING)
            if value is not _MISSING:
                self.is_bound = False
                self._parts.append(name)
                self._value(value, names)
        self._closed = was_closed

    def _instance(self, value: Any, kind: type, names: frozenset[str]) -> None:
        """An object of a class of the program's own: the attributes that are named by code which sees it."""
        self.is_bound = False
        classes = [each for each in kind.__mro__ if not is_fixed(each.__module__)]
        is_module = isinstance(value, torch.nn.Module)
        dunders = {name for each in classes for name in vars(each) if name.startswith("__") and name.endswith("__")}
        if _is_frozen(kind):
            dunders -= _OF_FROZEN
        if not hasattr(value, "__dict__") or type(kind) is not type or dunders - _HARMLESS:
            raise Unknown
        members = {name: member for each in reversed(classes) for name, member in vars(each).items()}
        called = {"__call__"} | names
        while True:  # methods name attributes, which may be methods
            methods = [_code_of(members[name]) for name in called & members.keys()]
            more = called.union(*(names_of(code) for code in methods if code is not None))
            if more == called:
                break
            called = more
        names = frozenset(called)
        self._by_address(kind)
        attributes = vars(value)
        seen = frozenset(attributes) if "__eq__" in dunders else names
        if self._closed or not _can_be_copied(kind):
            self._attributes(attributes, seen)
        else:
            self.opened.add(id(value))
            for name in sorted(seen & attributes.keys()):
                self._parts.append(name)
                self._value(attributes[name], names, ("attribute", id(value), name))
        was_closed, self._closed = self._closed, True
        if is_module:
            for table in (value._parameters, value._buffers, value._modules):
                self._attributes(table, names)
        for name in sorted(names & members.keys()):
            member = members[name]
            self._parts.append(name)
            if isinstance(member, property):
                self._parts.append(property)
                member = member.fget
            elif isinstance(member, (classmethod, staticmethod)):
                self._parts.append(type(member))
                member = member.__func__
            self._value(member, names)
        self._closed = was_closed
