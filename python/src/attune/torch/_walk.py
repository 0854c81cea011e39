"""A walk over all that Python functions can see, from what code names to what objects hold."""

from __future__ import annotations

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
from attune.torch._kinds import NAMESPACES, functions_of, is_fixed_class, is_named_tuple, part_of, state_of
from attune.torch._numbers import may_be_brought, plain
from attune.torch._positions import FromTheEnd
from attune.torch._telling import HOLDERS, NARROW, OPERATORS, PLAIN, READERS, TELLS_NUMPYS, TELLS_TYPES, WIDE
from attune.torch._walk_classes import ClassWalk
from attune.torch._walked import END, Place, Unknown

_MAX_VALUES = 256
MISSING = object()


class Walk(ClassWalk):
    """Of functions, at this moment."""

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
            self.parts.append(END)
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
            self.parts.append(END)
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
        self.parts.append(END)
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
        self.parts.append(END)

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
