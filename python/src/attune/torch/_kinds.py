"""What kinds of classes there are among those whose objects a function can see, and what of a class is the
program's."""

from __future__ import annotations

import argparse
import functools
import types
from typing import Any

from attune.torch._code import is_fixed

# Methods of a class that an operation without a name does not call, or that tell objects apart by all they have.
HARMLESS = frozenset(
    "__init__ __post_init__ __call__ __repr__ __eq__ __hash__ __module__ __doc__ __dict__ __weakref__ __annotations__ "
    "__dataclass_fields__ __dataclass_params__ __match_args__ __qualname__ __replace__ __static_attributes__ "
    "__firstlineno__".split()
)
# What a frozen dataclass has beside them: they refuse, whatever is asked.
OF_FROZEN = frozenset(("__setattr__", "__delattr__"))
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
# Those whose subclasses hold more than attributes, some without room for it that shows.
_CONTENTS = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)


@functools.lru_cache(maxsize=4096)
def can_be_copied(kind: type) -> bool:
    """Whether an instance is its __dict__ and nothing else."""
    return all(each.__flags__ & 1 << 9 and "__slots__" not in vars(each) for each in kind.__mro__[:-1])


@functools.lru_cache(maxsize=4096)
def is_its_attributes(kind: type) -> bool:
    """Whether an instance is what its attributes are, and has no contents beside: room for a dict and weak
    references."""
    return not issubclass(kind, _CONTENTS) and kind.__basicsize__ <= object.__basicsize__ + 2 * tuple.__itemsize__


def is_frozen(kind: type) -> bool:
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


def functions_of(kind: type) -> list[str]:
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
    if kind.__mro__[1:] != (tuple, object) or not hasattr(kind, "_fields") or functions_of(kind):
        return -1
    own = vars(kind).keys() - _OF_NAMED_TUPLE - frozenset(kind._fields)  # type: ignore[attr-defined]
    return -1 if own else len(vars(kind))


def is_named_tuple(kind: type) -> bool:
    """Whether it is a namedtuple to which nothing was added, neither in its class nor later."""
    return kind.__base__ is tuple and len(vars(kind)) == _size_of_named_tuple(kind)
