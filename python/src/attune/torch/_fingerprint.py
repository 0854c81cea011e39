"""What a Python function can see: the values that its translation depends on, told apart from tensors, which a launch
brings, and from numbers, which it may bring.

Two calls of functions with one fingerprint have one translation, at least for the same numbers. What cannot be followed
has no fingerprint, and is translated at every call.
"""

from __future__ import annotations

import abc
import argparse
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
from attune.torch._numbers import may_be_brought, plain
from attune.torch._positions import FromTheEnd

# Where a number stands: a kind of place, the address of what has the place, and which one it is.
Place = tuple[str, int, Any]

_MAX_VALUES = 256
# What reads attributes by names that are values, whatever it is called.
_READERS = frozenset(
    map(id, (getattr, hasattr, setattr, delattr, vars, dir, eval, exec, globals, locals, operator.attrgetter, operator.methodcaller))
)
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
_OF_NAMED_TUPLE = _OF_MADE | frozenset(
    "_fields _field_defaults _field_types __doc__ __slots__ __match_args__ __module__ __annotations__ __orig_bases__ "
    "__qualname__ __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__".split()
)
# Objects that are their attributes.
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_OPERATORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_PLAIN = (range, int, bool, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size, torch.layout, type(...))
_MISSING = object()
# Those whose subclasses hold more than attributes, some without room for it that shows.
_CONTENTS = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
_OF_ENUM = frozenset("_value_ _name_ __objclass__ _sort_order_ _inverted_ _hashable_values_ _unhashable_values_".split())
_MAX_HINTS = 1024
# By addresses of functions' code: the names that all code used when they were last walked. Where it is wrong, the walk
# is done again.
_hints: dict[tuple[int, ...], frozenset[str]] = {}


class Unknown(Exception):
    """The function sees something that cannot be followed."""


@functools.lru_cache(maxsize=4096)
def _can_be_copied(kind: type) -> bool:
    """Whether an instance is its __dict__ and nothing else."""
    return all(each.__flags__ & 1 << 9 and "__slots__" not in vars(each) for each in kind.__mro__[:-1])


@functools.lru_cache(maxsize=4096)
def _is_its_attributes(kind: type) -> bool:
    """Whether an instance is what its attributes are, and has no contents beside: room for a dict and weak references."""
    return not issubclass(kind, _CONTENTS) and kind.__basicsize__ <= object.__basicsize__ + 2 * tuple.__itemsize__


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
def _size_of_named_tuple(kind: type) -> int:
    """Of the class's attributes, where it is a namedtuple and nothing else; otherwise -1."""
    if kind.__mro__[1:] != (tuple, object) or not hasattr(kind, "_fields") or _functions_of(kind):
        return -1
    own = vars(kind).keys() - _OF_NAMED_TUPLE - frozenset(kind._fields)  # type: ignore[attr-defined]
    return -1 if own else len(vars(kind))


def is_named_tuple(kind: type) -> bool:
    """Whether it is a namedtuple to which nothing was added, neither in its class nor later."""
    return kind.__base__ is tuple and len(vars(kind)) == _size_of_named_tuple(kind)


class Fingerprint:
    """Of functions, at this moment.

    Attributes:
        key: hashable; equal for functions that mean the same but for the tensors that they see.
        kept: what `key` names by address; no function, for with it would stay what it sees.
        tensors: those that the functions see, each once.
        numbers: ints and floats that `key` tells nothing of but their types.
        places: of each number, where it stands.
        whole: classes of modules that the key tells all of, for functions may call them.
        sees_modules: whether there is any module of torch's.
        opened: addresses of functions and objects that numbers stand in, or may.
        is_bound: whether `is_current` can tell: every value stands in a cell or under a global name, and cannot change
            where it stands.
    """

    def __init__(
        self, functions: Iterable[Any], opens: bool = True, names: frozenset[str] | None = None
    ) -> None:
        """`opens`: whether numbers are left out of the key where they can be. `names`: those that any of the code uses,
        for what holds an object may hand it on; a guess at first."""
        functions = tuple(functions)
        place = tuple([id(getattr(each, "__code__", None) or type(each)) for each in functions])
        self._names = _hints.get(place, frozenset()) if names is None else names
        self._met: set[str] = set()
        self._asks = False  # whether `_names` matter
        self._sees_numpy = self._sees_narrow = False
        self.whole: set[type] = set()
        self.sees_modules = False
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.places: dict[Place, int] = {}
        self.opened: set[int] = set()
        self.kept: list[Any] = []
        self.is_bound = True
        self._cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._functions: list[tuple[Any, ...]] = []
        self._parts: list[Any] = []
        self._seen: dict[int, int] = {}
        self._count = 0
        self._closed = not opens
        self._is_reached_twice = False
        try:
            for function in functions:
                self._value(function)
        except Unknown:
            if names is None and self._names:  # the guess may be what leads there
                self.__init__(functions, opens, frozenset())  # type: ignore[misc]
                return
            raise
        if self._asks and self._met != self._names:
            # A wrong guess is no beginning: equal functions would have keys that depend on what was met before them.
            again = frozenset() if names is None and self._names else frozenset(self._met)
            self.__init__(functions, opens, again)  # type: ignore[misc]
            return
        if self.sees_modules and self._met & _called_modules.READERS:
            raise Unknown
        if self._sees_numpy and "random" in self._met:
            raise Unknown
        if self.numbers and (self._is_reached_twice or self._tells_numbers_apart()):
            self.__init__(functions, False, self._names if self._asks else frozenset())  # type: ignore[misc]
            return
        if self._asks:
            if len(_hints) >= _MAX_HINTS:
                _hints.clear()
            _hints[place] = self._names
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
        for reference, code, defaults, named, attributes, count in self._functions:
            function = reference()
            if (
                function is None
                or function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not named
                or len(attributes) != count
            ):
                return False
        for tensor, learns in self._learns:
            if tensor.requires_grad is not learns:
                return False
        return True

    def _tells_numbers_apart(self) -> bool:
        """Whether a function may find that a stand-in is no number of the type that it was."""
        return bool(self._met & _TELLS_TYPES) or (
            self._sees_numpy and (self._sees_narrow or not self._met.isdisjoint(_TELLS_NUMPYS | _NARROW))
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
        if place is not None and not self._closed and is_own and (kind is int or kind is float) and may_be_brought(value):
            self.places[place] = len(self.numbers)
            self.numbers.append(value)
            self._parts.append((kind, "open"))
        elif kind in _PLAIN:
            self._parts.append((own, value))
        elif kind is float:
            self._parts.append((own, value.hex()))  # 0.0 is not -0.0
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif kind is tuple or (kind.__base__ is tuple and is_named_tuple(kind)):
            self._parts.append((kind, len(value)))
            for at, each in enumerate(value):
                self._value(each, ("item", id(value), at))
        elif kind in (set, frozenset) and all(type(each) in _PLAIN for each in value):
            self.is_bound &= kind is frozenset
            self._parts.append((kind, frozenset((type(each), each) for each in value)))
        elif isinstance(value, enum.Enum) and not _functions_of(kind):
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
            if twin is not None:
                stands += (twin,)
            if not tensor.dim() and tensor.device.type == "cpu":
                self.is_bound = False
                stands += (math.isfinite(tensor.item()),)
            self._parts.append(stands)
        else:
            self._parts.append((torch.Tensor, known))

    def _object(self, value: Any, kind: type) -> None:
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
            self._value(value.__self__)
        elif kind is types.ModuleType:
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif kind is types.BuiltinFunctionType:
            self._builtin(value)
        elif kind in (list, dict):
            self.is_bound = False
            self._parts.append((kind, len(value)))
            for at, each in value.items() if kind is dict else enumerate(value):
                if kind is dict:
                    self._value(at)
                self._value(each, ("key" if kind is dict else "item", id(value), at))
        elif kind is functools.partial:
            self._parts.append(kind)
            for each in (value.func, value.args, value.keywords):
                self._value(each)
            if vars(value):
                self._attributes(vars(value))
        elif kind in NAMESPACES:
            self.is_bound, self._asks = False, True
            self._parts.append((kind, *vars(value)))  # of Namespace it can be asked which there are
            for name in sorted(self._names & vars(value).keys()):
                self._parts.append(name)
                self._value(vars(value)[name], ("attribute", id(value), name))
        elif kind is FromTheEnd:  # what it adds is the launch's
            self._parts.append(kind)
        elif kind in _OPERATORS or kind.__module__ == "torch._ops":
            self._by_address(value)
        elif is_fixed(kind.__module__) and not isinstance(value, torch.nn.Module):
            raise Unknown
        else:
            self._instance(value, kind)

    def _by_address(self, value: Any) -> None:
        self._parts.append(id(value))
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
                self._parts.append(name)
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
        self._met |= names
        mine = id(function)
        by_place, by_name, attributes = function.__defaults__, function.__kwdefaults__, function.__dict__
        self._functions.append((weakref.ref(function), code, by_place, by_name, attributes, len(attributes)))
        if attributes and not fixed:
            self._attributes(attributes)
        self._parts.append((len(by_place or ()), len(by_name or {})))
        for at, default in enumerate(by_place or ()):
            self._value(default, ("default", mine, at))
        if by_name:
            self.is_bound = False  # it can be changed in place
            for name, default in by_name.items():
                self._parts.append(name)
                self._value(default, ("default", mine, name))
        for at, cell in enumerate(function.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Unknown from None
            self._cells.append((cell, value))
            is_fixed_here = code.co_freevars[at] in assigned
            self._value(value, None if is_fixed_here else ("cell", mine, at))
        if fixed:
            return
        namespace = function.__globals__
        for name in sorted(names):
            value = namespace.get(name, _MISSING)
            self._globals.append((namespace, name, value))
            if value is not _MISSING:
                self._parts.append(name)
                self._value(value, None if name in assigned else ("global", mine, name))

    def _attributes(self, namespace: Any, names: frozenset[str] | None = None) -> None:
        """Of what an instance is not copied with: numbers are what they are. `names`: where not those of the code."""
        if names is None:
            self._asks, names = True, self._names
        was_closed, self._closed = self._closed, True
        for name in sorted(names & namespace.keys()):
            self.is_bound = False
            self._parts.append(name)
            self._value(namespace[name])
        self._closed = was_closed

    def _instance(self, value: Any, kind: type) -> None:
        """An object of a class of the program's own: the attributes that are named by code which sees it."""
        self.is_bound, self._asks, names = False, True, self._names
        classes = [each for each in kind.__mro__ if not is_fixed(each.__module__)]
        is_module = isinstance(value, torch.nn.Module)
        dunders = {name for each in classes for name in vars(each) if name.startswith("__") and name.endswith("__")}
        if _is_frozen(kind):
            dunders -= _OF_FROZEN
        if (
            not hasattr(value, "__dict__")
            or type(kind) is not type
            or dunders - _HARMLESS
            or not _is_its_attributes(kind)
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
        if self._closed or not _can_be_copied(kind):
            self._attributes(attributes, seen)
        else:
            self.opened.add(id(value))
            for name in sorted(seen & attributes.keys()):
                self._parts.append(name)
                self._value(attributes[name], ("attribute", id(value), name))
        was_closed, self._closed = self._closed, True
        if is_module:
            for table in (value._parameters, value._buffers, value._modules):
                self._attributes(table, frozenset(table) if is_whole else None)
        for name in sorted((names | {"__call__"}) & members.keys()):
            member = members[name]
            self._parts.append(name)
            if isinstance(member, property):
                self._parts.append(property)
                member = member.fget
            elif isinstance(member, (classmethod, staticmethod)):
                self._parts.append(type(member))
                member = member.__func__
            self._value(member)
        self._closed = was_closed
