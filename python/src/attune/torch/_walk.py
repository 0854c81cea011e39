"""A walk over all that Python functions can see, from what code names to what objects hold."""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import math
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from attune.torch import _called_modules
from attune.torch._code import DYNAMIC, is_fixed, is_fixed_function, is_random, read
from attune.torch._kinds import (
    HARMLESS, NAMESPACES, OF_FROZEN, can_be_copied, functions_of, is_fixed_class, is_frozen, is_its_attributes,
    is_named_tuple, is_of_dataclasses, part_of, reads_unnamed, runs_unnamed, state_of,
)  # fmt: skip
from attune.torch._numbers import may_be_brought, plain
from attune.torch._positions import FromTheEnd
from attune.torch._route import Route
from attune.torch._telling import (
    HOLDERS, NARROW, OF_ENUM, OPERATORS, PLAIN, READERS, SHOWS, TELLS_CLASS, TELLS_NUMPYS, TELLS_TYPES,
    WIDE,
)  # fmt: skip

# Where a number stands: a kind of place, the address of what has the place, and which one it is.
Place = tuple[str, int, Any]

_MAX_VALUES = 256
MISSING = object()
# Ends what is as long as it is: else what follows it might be taken for a part of it, and two programs for one.
_END = ("end",)


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

    def follow(self, functions: Iterable[Any]) -> None:
        """Raises Unknown where they see something that cannot be followed."""
        for at, function in enumerate(functions):
            self._value(function, f"f{at}")

    def refuse_hidden(self) -> None:
        """Raises Unknown where all that was met together may lead to more."""
        if self.sees_modules and self.met & _called_modules.READERS:
            raise Unknown
        if self._sees_numpy and "random" in self.met:
            raise Unknown

    def tells_numbers_apart(self) -> bool:
        """Whether a function may find that a stand-in is no number of the type that it was."""
        return bool(self.met & TELLS_TYPES) or (
            self._sees_numpy and (self._sees_narrow or not self.met.isdisjoint(TELLS_NUMPYS | NARROW))
        )

    def _value(self, value: Any, at: str, place: Place | None = None) -> None:
        """`at`: where the route has it. `place`: where it stands, if a number can be left open there."""
        given, own = value, type(value)
        if own.__module__ == "numpy":
            self._sees_numpy = True
            value = plain(value)
        kind = type(value)
        is_own = kind is own or own.__name__ in WIDE
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
            self.route.number(at, given, value)
        elif kind in PLAIN:
            if kind is str and "%" in value:
                self.met.add("format")
            self.parts.append(part_of(value, own))
            self.route.plain(at, given)
        elif kind is float:
            self.parts.append((own, value.hex()))  # 0.0 is not -0.0
            self.route.plain(at, given)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, at)
        elif kind is tuple or (kind.__base__ is tuple and is_named_tuple(kind)):
            self.is_bound &= kind is tuple  # the class of a namedtuple may change
            self.parts.append((kind, len(value)))
            self.route.a_tuple(at, value)
            for place_in, each in enumerate(value):
                self._value(each, self.route.item(at, place_in), ("item", id(value), place_in))
        elif kind in (set, frozenset) and all(type(each) in PLAIN for each in value):
            if kind is set:
                self.is_bound = False
                self.route.refuse()
            self.route.same(at, value)
            self.parts.append((kind, frozenset(part_of(each, type(each)) for each in value)))
        elif isinstance(value, enum.Enum) and not functions_of(kind):
            self._enum(value, kind, at)
        else:
            self._object(value, kind, at)

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

    def _tensor(self, tensor: torch.Tensor, at: str) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise Unknown
        known = self._seen.get(id(tensor))
        if known is None:
            # Views of one memory are one tensor of a launch.
            place = tensor.data_ptr()
            twin = next((at for at, other in enumerate(self.tensors) if other.data_ptr() == place), None)
            known = self._seen[id(tensor)] = len(self.tensors)
            self._at[id(tensor)] = at
            self.tensors.append(tensor)
            self.route.tensor(at, twin is not None)
            stands = state_of(tensor)
            if twin is not None:
                stands += (twin,)
            if not tensor.dim() and tensor.device.type == "cpu":
                self.is_bound = False
                value = tensor.item()
                is_open = may_be_brought(value) and not tensor.requires_grad
                self.route.value_of_tensor(at, value, is_open, tensor.requires_grad)
                if is_open:
                    self.of_tensors[id(tensor)] = len(self.numbers)
                    self.numbers.append(value)
                    stands += (type(value), "open")
                else:
                    stands += (math.isfinite(value),)
            attributes = vars(tensor)
            self.parts.append((*stands, bool(attributes)))
            self._own_attributes(attributes, at)
        else:
            self.route.is_twice(at, self._at[id(tensor)])
            self.parts.append((torch.Tensor, known))

    def _object(self, value: Any, kind: type, at: str) -> None:
        if id(value) in self._seen:
            self.route.is_twice(at, self._at[id(value)])
            self.parts.append(("again", self._seen[id(value)]))
            self.is_bound &= kind is not types.FunctionType  # what it sees might keep it alive
            self.is_reached_twice |= self._closed and id(value) in self.opened
            return
        self._count += 1
        if self._count > _MAX_VALUES:
            raise Unknown
        self._seen[id(value)], self._at[id(value)] = -self._count, at
        if not self._closed and (kind in HOLDERS or kind in NAMESPACES):
            self.opened.add(id(value))
        if kind is types.FunctionType:
            self._function(value, at)
        elif kind is types.MethodType:
            self.is_bound = False
            self.route.one_of(at, kind)
            if not self._closed:
                self.opened.add(id(value.__func__))
            self.parts.append(kind)
            of_function = self.route.get(f"{at}.__func__")
            if type(value.__func__) is types.FunctionType:
                self._function(value.__func__, of_function)
            else:
                self._value(value.__func__, of_function)
            self._value(value.__self__, self.route.get(f"{at}.__self__"))
        elif kind is types.ModuleType:
            self._module(value, at)
        elif isinstance(value, type):
            self._class(value, at)
        elif kind is types.BuiltinFunctionType:
            self._builtin(value, at)
        elif kind is list:
            self.is_bound = False
            self.route.one_of(at, kind)
            self.route.length(at, len(value))
            self.parts.append((kind, len(value)))
            for place, each in enumerate(value):
                self._value(each, self.route.item(at, place), ("item", id(value), place))
        elif kind is dict:
            self.is_bound = False
            self.route.one_of(at, kind)
            self.route.keys(at, value)
            self.parts.append((kind, len(value)))
            for key, each in value.items():
                self._value(key, self.route.constant(key))
                self._value(each, self.route.item(at, key), ("key", id(value), key))
        elif kind is functools.partial:
            self.route.one_of(at, kind)
            self.parts.append(kind)
            for name in ("func", "args", "keywords"):
                self._value(getattr(value, name), self.route.get(f"{at}.{name}"))
            self._own_attributes(vars(value), at)
            self.parts.append(_END)
        elif kind in NAMESPACES:
            self.route.one_of(at, kind)
            self.is_bound, self.asks = False, True
            attributes = vars(value)
            within = self.route.namespace(f"{at}.__dict__", attributes)
            self.route.names(within, attributes)
            self.parts.append((kind, *attributes))  # of Namespace it can be asked which there are
            for name in sorted(self._names & attributes.keys()):
                self.parts.append(name)
                self._value(attributes[name], self.route.item(within, name), ("attribute", id(value), name))
            self.parts.append(_END)
        elif kind is FromTheEnd:  # what it adds is the launch's
            self.route.one_of(at, kind)
            self.parts.append(kind)
        elif kind is types.MethodWrapperType or (kind in OPERATORS and value.__name__ in DYNAMIC):
            raise Unknown  # leads to an object, or reads by names that are values
        elif kind in OPERATORS or kind.__module__ == "torch._ops":
            self._by_address(value, at)
        elif is_fixed_class(kind) and not isinstance(value, torch.nn.Module):
            raise Unknown
        else:
            self._instance(value, kind, at)

    def _by_address(self, value: Any, at: str) -> None:
        self.route.same(at, value)
        self.parts.append(id(value))
        self.kept.append(value)

    def _module(self, module: types.ModuleType, at: str) -> None:
        name = module.__name__
        if is_random(name):
            raise Unknown
        self._sees_numpy |= name.partition(".")[0] == "numpy"
        self._by_address(module, at)
        if not is_fixed(name):
            self.route.is_a(at, types.ModuleType)
            self.asks = True
            self._attributes(vars(module), self.route.constant(vars(module)), self._names | {"__getattr__"})

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

    def _builtin(self, function: types.BuiltinFunctionType, at: str) -> None:
        owner, module = function.__self__, getattr(function, "__module__", None)
        if id(function) in READERS or function.__name__ in DYNAMIC:
            raise Unknown
        if is_random(module) or is_random(type(owner).__module__):
            raise Unknown
        if isinstance(owner, types.ModuleType):
            if not is_fixed(owner.__name__):  # time.time, which is another each time
                raise Unknown
        elif owner is not None and not is_fixed(module) and not (isinstance(owner, type) and is_fixed_class(owner)):
            raise Unknown  # of an object, or of a class that a program or another library wrote: datetime.now
        self._by_address(function, at)

    def _function(self, function: types.FunctionType, at: str) -> None:
        code, route = function.__code__, self.route
        (route.one_of if id(function) in self._seen else route.is_a)(at, types.FunctionType)  # methods may share one
        self._by_address(code, route.get(f"{at}.__code__"))
        names, assigned, can_be_followed = read(code)
        fixed = is_fixed_function(function)
        if not can_be_followed and not fixed:
            raise Unknown
        self.met |= names
        mine = id(function)
        by_place, by_name, attributes = function.__defaults__, function.__kwdefaults__, function.__dict__
        self.functions.append((weakref.ref(function), code, by_place, by_name, attributes, len(attributes)))
        within = route.namespace(f"{at}.__globals__", function.__globals__)
        if "__name__" in function.__globals__:  # which tells whether it is fixed
            route.plain(route.item(within, "__name__"), function.__globals__["__name__"])
        else:
            route.absent(within, frozenset(("__name__",)))
        self._own_attributes(attributes, at)
        self.parts.append(_END)
        self.parts.append((len(by_place or ()), len(by_name or {})))
        if by_place:
            defaults = route.get(f"{at}.__defaults__")
            route.length(defaults, len(by_place))
            for place, default in enumerate(by_place):
                self._value(default, route.item(defaults, place), ("default", mine, place))
        else:
            route.empty(f"{at}.__defaults__")
        if by_name:
            self.is_bound = False  # it can be changed in place
            defaults = route.namespace(f"{at}.__kwdefaults__", by_name)
            route.names(defaults, by_name)
            for name, default in by_name.items():
                self.parts.append(name)
                self._value(default, route.item(defaults, name), ("default", mine, name))
        else:
            route.empty(f"{at}.__kwdefaults__")
        for place, cell in enumerate(function.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                raise Unknown from None
            self.cells.append((cell, value))
            is_fixed_here = code.co_freevars[place] in assigned
            where = route.get(f"{at}.__closure__[{place}].cell_contents")
            self._value(value, where, None if is_fixed_here else ("cell", mine, place))
        if not fixed:
            if function.__builtins__ is not vars(builtins):
                raise Unknown
            route.same(route.get(f"{at}.__builtins__"), vars(builtins))
            self._names_of(function, names, assigned, within)
        self.parts.append(_END)

    def _names_of(
        self, function: types.FunctionType, names: frozenset[str], assigned: Iterable[str], within: str
    ) -> None:
        """What its code's names stand for among its globals."""
        namespace, mine = function.__globals__, id(function)
        self.route.absent(within, names - namespace.keys())
        for name in sorted(names):
            value = namespace.get(name, MISSING)
            self.globals.append((namespace, name, value))
            if value is MISSING:
                self.parts.append((name, "missing"))
                builtin = vars(builtins).get(name)
                if name in vars(builtins) and builtin is not NotImplemented:
                    self.globals.append((vars(builtins), name, builtin))
                    self._value(builtin, self.route.item(self.route.constant(vars(builtins)), name))
            else:
                self.parts.append(name)
                place = None if name in assigned else ("global", mine, name)
                self._value(value, self.route.item(within, name), place)

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
        self.parts.append(_END)
        self._closed = was_closed

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
            self.parts.append(_END)
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
        self.parts.append(_END)
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
