"""A walk over all that Python functions can see, from what code names to what objects hold."""

from __future__ import annotations

import abc
import enum
import functools
import math
import operator
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from attune.torch import _called_modules
from attune.torch._code import is_fixed, is_fixed_function, is_random, read
from attune.torch._kinds import (
    HARMLESS, NAMESPACES, OF_FROZEN, can_be_copied, functions_of, is_frozen, is_its_attributes, is_named_tuple,
)  # fmt: skip
from attune.torch._numbers import may_be_brought, plain
from attune.torch._positions import FromTheEnd

# Where a number stands: a kind of place, the address of what has the place, and which one it is.
Place = tuple[str, int, Any]

_MAX_VALUES = 256
# What reads attributes by names that are values, whatever it is called.
_READERS = frozenset(
    id(each)
    for each in (
        getattr, hasattr, setattr, delattr, vars, dir, eval, exec, globals, locals, operator.attrgetter,
        operator.methodcaller,
    )
)  # fmt: skip
# What tells the types of numbers apart: a stand-in is of none, and NumPy's become Python's.
_TELLS_TYPES = frozenset(("type",))
_TELLS_NUMPYS = frozenset(
    "isinstance issubclass __class__ integer floating generic number signedinteger inexact isscalar issubdtype".split()
)
# NumPy's numbers that wrap around, or round, where Python's do not.
_NARROW = frozenset(
    "int8 int16 uint8 uint16 uint32 uint64 float16 byte ubyte short ushort uintc uint ulong ulonglong half".split()
)
_WIDE = frozenset(("int32", "int64", "float32", "float64"))
_OPERATORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_PLAIN = (
    range,
    int,
    bool,
    str,
    bytes,
    type(None),
    complex,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    type(...),
)
_OF_ENUM = frozenset(
    "_value_ _name_ __objclass__ _sort_order_ _inverted_ _hashable_values_ _unhashable_values_".split()
)
MISSING = object()
# Ends what is as long as it is: else what follows it might be taken for a part of it, and two programs for one.
_END = ("end",)


def _part_of(value: Any, own: type) -> tuple[Any, ...]:
    """Of one of _PLAIN: what is equal may not be the same."""
    if type(value) is range:
        return own, value.start, value.stop, value.step  # two that are equal may have other ends
    if type(value) is complex:
        return own, value.real.hex(), value.imag.hex()  # 0.0 is not -0.0
    return own, value


class Unknown(Exception):
    """The function sees something that cannot be followed."""


class Walk:
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
        is_bound: whether every value stands in a cell or under a global name, and cannot change where it stands.
        met: the names that any of the code used; `asks` is whether those that the walk was given matter.
        cells, globals, functions: what was met where: cells and global names with their values, functions with what
            they are made of.
        is_reached_twice: whether a number that is left open was met where none may be, too.
    """

    def __init__(self, opens: bool, names: frozenset[str]) -> None:
        """`opens`: whether numbers are left out of the parts where they can be. `names`: those that any of the code
        uses, for what holds an object may hand it on; a guess at first."""
        self._names = names
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
        self.parts: list[Any] = []
        self._seen: dict[int, int] = {}
        self._count = 0
        self._closed = not opens
        self.is_reached_twice = False

    def follow(self, functions: Iterable[Any]) -> None:
        """Raises Unknown where they see something that cannot be followed."""
        for function in functions:
            self._value(function)

    def refuse_hidden(self) -> None:
        """Raises Unknown where all that was met together may lead to more."""
        if self.sees_modules and self.met & _called_modules.READERS:
            raise Unknown
        if self._sees_numpy and "random" in self.met:
            raise Unknown

    def tells_numbers_apart(self) -> bool:
        """Whether a function may find that a stand-in is no number of the type that it was."""
        return bool(self.met & _TELLS_TYPES) or (
            self._sees_numpy and (self._sees_narrow or not self.met.isdisjoint(_TELLS_NUMPYS | _NARROW))
        )

    def _value(self, value: Any, place: Place | None = None) -> None:
        """`place`: where it stands, if a number can be left open there."""
        own = type(value)
        if own.__module__ == "numpy":
            self._sees_numpy = True
            value = plain(value)
        kind = type(value)
        is_own = kind is own or own.__name__ in _WIDE
        self._sees_narrow |= not is_own
        if (
            place is not None
            and not self._closed
            and is_own
            and (kind is int or kind is float)
            and may_be_brought(value)
        ):
            self.places[place] = len(self.numbers)
            self.numbers.append(value)
            self.parts.append((kind, "open"))
        elif kind in _PLAIN:
            self.parts.append(_part_of(value, own))
        elif kind is float:
            self.parts.append((own, value.hex()))  # 0.0 is not -0.0
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif kind is tuple or (kind.__base__ is tuple and is_named_tuple(kind)):
            self.parts.append((kind, len(value)))
            for at, each in enumerate(value):
                self._value(each, ("item", id(value), at))
        elif kind in (set, frozenset) and all(type(each) in _PLAIN for each in value):
            self.is_bound &= kind is frozenset
            self.parts.append((kind, frozenset(_part_of(each, type(each)) for each in value)))
        elif isinstance(value, enum.Enum) and not functions_of(kind):
            self._enum(value, kind)
        else:
            self._object(value, kind)

    def _enum(self, value: enum.Enum, kind: type) -> None:
        self._by_address(value)
        if vars(value).keys() - _OF_ENUM or id(value) in self._seen:
            if id(value) not in self._seen:
                raise Unknown
            return
        self._seen[id(value)] = 0
        was_closed, self._closed = self._closed, True
        self._value(value._value_)
        self._closed = was_closed
        for each in kind.__mro__:
            if not is_fixed(each.__module__) and each.__module__ != "enum":
                self._attributes(vars(each))

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
            if tensor.is_neg():
                stands += ("negative",)
            if twin is not None:
                stands += (twin,)
            if not tensor.dim() and tensor.device.type == "cpu":
                self.is_bound = False
                value = tensor.item()
                if may_be_brought(value) and not tensor.requires_grad:
                    self.of_tensors[id(tensor)] = len(self.numbers)
                    self.numbers.append(value)
                    stands += (type(value), "open")
                else:
                    stands += (math.isfinite(value),)
            self.parts.append(stands)
        else:
            self.parts.append((torch.Tensor, known))

    def _object(self, value: Any, kind: type) -> None:
        if id(value) in self._seen:
            self.parts.append(("again", self._seen[id(value)]))
            self.is_reached_twice |= self._closed and id(value) in self.opened
            return
        self._count += 1
        if self._count > _MAX_VALUES:
            raise Unknown
        self._seen[id(value)] = -self._count
        if not self._closed and kind in (
            types.FunctionType,
            types.MethodType,
            list,
            dict,
            functools.partial,
            *NAMESPACES,
        ):
            self.opened.add(id(value))
        if kind is types.FunctionType:
            self._function(value)
        elif kind is types.MethodType:
            self.is_bound = False
            if not self._closed:
                self.opened.add(id(value.__func__))
            self.parts.append(kind)
            self._function(value.__func__)
            self._value(value.__self__)
        elif kind is types.ModuleType:
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif kind is types.BuiltinFunctionType:
            self._builtin(value)
        elif kind in (list, dict):
            self.is_bound = False
            self.parts.append((kind, len(value)))
            for at, each in value.items() if kind is dict else enumerate(value):
                if kind is dict:
                    self._value(at)
                self._value(each, ("key" if kind is dict else "item", id(value), at))
        elif kind is functools.partial:
            self.parts.append(kind)
            for each in (value.func, value.args, value.keywords):
                self._value(each)
            if vars(value):
                self._attributes(vars(value))
            self.parts.append(_END)
        elif kind in NAMESPACES:
            self.is_bound, self.asks = False, True
            self.parts.append((kind, *vars(value)))  # of Namespace it can be asked which there are
            for name in sorted(self._names & vars(value).keys()):
                self.parts.append(name)
                self._value(vars(value)[name], ("attribute", id(value), name))
            self.parts.append(_END)
        elif kind is FromTheEnd:  # what it adds is the launch's
            self.parts.append(kind)
        elif kind in _OPERATORS or kind.__module__ == "torch._ops":
            self._by_address(value)
        elif is_fixed(kind.__module__) and not isinstance(value, torch.nn.Module):
            raise Unknown
        else:
            self._instance(value, kind)

    def _by_address(self, value: Any) -> None:
        self.parts.append(id(value))
        self.kept.append(value)

    def _module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if is_random(name):
            raise Unknown
        self._sees_numpy |= name.partition(".")[0] == "numpy"
        self._by_address(module)
        if not is_fixed(name):
            self._attributes(vars(module))

    def _class(self, kind: type) -> None:
        if id(kind) in _READERS or is_random(kind.__module__):
            raise Unknown
        self._sees_numpy |= kind.__module__ == "numpy"
        self._by_address(kind)
        if is_fixed(kind.__module__):
            return
        if issubclass(kind, enum.Enum):
            for name, member in kind.__members__.items():
                self.parts.append(name)
                self._value(member)
        elif type(kind) not in (type, abc.ABCMeta):  # its own attributes may be computed
            raise Unknown
        for each in kind.__mro__:
            if not is_fixed(each.__module__) and each.__module__ != "enum":
                self._attributes(vars(each))

    def _builtin(self, function: types.BuiltinFunctionType) -> None:
        owner, module = function.__self__, getattr(function, "__module__", None)
        if id(function) in _READERS or is_random(module) or is_random(type(owner).__module__):
            raise Unknown
        if isinstance(owner, types.ModuleType):
            if not is_fixed(owner.__name__):  # time.time, which is another each time
                raise Unknown
        elif owner is not None and not isinstance(owner, type) and not is_fixed(module):
            raise Unknown
        self._by_address(function)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._by_address(code)
        names, assigned, can_be_followed = read(code)
        fixed = is_fixed_function(function)
        if not can_be_followed and not fixed:
            raise Unknown
        self.met |= names
        mine = id(function)
        by_place, by_name, attributes = function.__defaults__, function.__kwdefaults__, function.__dict__
        self.functions.append((weakref.ref(function), code, by_place, by_name, attributes, len(attributes)))
        if not fixed:
            if attributes:
                self._attributes(attributes)
            self.parts.append(_END)
        self.parts.append((len(by_place or ()), len(by_name or {})))
        for at, default in enumerate(by_place or ()):
            self._value(default, ("default", mine, at))
        if by_name:
            self.is_bound = False  # it can be changed in place
            for name, default in by_name.items():
                self.parts.append(name)
                self._value(default, ("default", mine, name))
        for at, cell in enumerate(function.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Unknown from None
            self.cells.append((cell, value))
            is_fixed_here = code.co_freevars[at] in assigned
            self._value(value, None if is_fixed_here else ("cell", mine, at))
        if not fixed:
            self._names_of(function, names, assigned)
        self.parts.append(_END)

    def _names_of(self, function: types.FunctionType, names: Iterable[str], assigned: Iterable[str]) -> None:
        """What its code's names stand for among its globals."""
        namespace, mine = function.__globals__, id(function)
        for name in sorted(names):
            value = namespace.get(name, MISSING)
            self.globals.append((namespace, name, value))
            if value is MISSING:
                self.parts.append((name, "missing"))  # a builtin, it may be
            else:
                self.parts.append(name)
                self._value(value, None if name in assigned else ("global", mine, name))

    def _attributes(self, namespace: Any, names: frozenset[str] | None = None) -> None:
        """Of what an instance is not copied with: numbers are what they are. `names`: where not those of the code."""
        if names is None:
            self.asks, names = True, self._names
        was_closed, self._closed = self._closed, True
        for name in sorted(names & namespace.keys()):
            self.is_bound = False
            self.parts.append(name)
            self._value(namespace[name])
        self.parts.append(_END)
        self._closed = was_closed

    def _instance(self, value: Any, kind: type) -> None:
        """An object of a class of the program's own: the attributes that are named by code which sees it."""
        self.is_bound, self.asks, names = False, True, self._names
        classes = [each for each in kind.__mro__ if not is_fixed(each.__module__)]
        is_module = isinstance(value, torch.nn.Module)
        dunders = {name for each in classes for name in vars(each) if name.startswith("__") and name.endswith("__")}
        if is_frozen(kind):
            dunders -= OF_FROZEN
        if (
            not hasattr(value, "__dict__")
            or type(kind) is not type
            or dunders - HARMLESS
            or not is_its_attributes(kind)
        ):
            raise Unknown
        members = {name: member for each in reversed(classes) for name, member in vars(each).items()}
        self._by_address(kind)
        attributes = vars(value)
        seen = frozenset(attributes) if "__eq__" in dunders else names
        is_whole = False
        if is_module:
            self.sees_modules = True
            is_whole = "forward" in names or _called_modules.is_whole(kind)
            if is_whole:
                if _called_modules.has_hooks(value):
                    raise Unknown
                self.whole.add(kind)
                seen, names = frozenset(attributes) - _called_modules.OF_ALL, names | {"forward"}
        if self._closed or not can_be_copied(kind):
            self._attributes(attributes, seen)
        else:
            self.opened.add(id(value))
            for name in sorted(seen & attributes.keys()):
                self.parts.append(name)
                self._value(attributes[name], ("attribute", id(value), name))
            self.parts.append(_END)
        was_closed, self._closed = self._closed, True
        if is_module:
            for table in (value._parameters, value._buffers, value._modules):
                self._attributes(table, frozenset(table) if is_whole else None)
        for name in sorted((names | {"__call__"}) & members.keys()):
            member = members[name]
            self.parts.append(name)
            if isinstance(member, property):
                self.parts.append(property)
                member = member.fget
            elif isinstance(member, (classmethod, staticmethod)):
                self.parts.append(type(member))
                member = member.__func__
            self._value(member)
        self.parts.append(_END)
        self._closed = was_closed
