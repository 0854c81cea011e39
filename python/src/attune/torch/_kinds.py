"""What kinds of classes there are among those whose objects a function can see, and what of a class is the
program's."""

from __future__ import annotations

import argparse
import functools
import operator
import types
from typing import Any

import torch

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


def is_fixed_class(kind: type) -> bool:
    """Whether it is of a module that never changes; one that a program without a name made says that it is builtin."""
    return is_fixed(kind.__module__) and not (kind.__module__ == "builtins" and kind.__flags__ & 1 << 9)


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


def is_of_dataclasses(kind: type, member: Any) -> bool:
    """Whether a method of a class is one that dataclasses wrote, to compare fields: it reads no more than these."""
    fields = vars(kind).get("__dataclass_fields__")
    if fields is None or not isinstance(member, types.FunctionType) or member.__code__.co_filename != "<string>":
        return False
    return {*fields, "__class__", "hash", "NotImplemented"}.issuperset(member.__code__.co_names)


def reads_unnamed(kind: type) -> bool:
    """Whether code that is not the program's may read an object's attributes, by names of its own: torch's classes do,
    and a `__getattr__` or `__getattribute__` that is not a plain object's or a module's."""
    return (
        kind.__getattribute__ is not object.__getattribute__
        or getattr(kind, "__getattr__", None) not in (None, torch.nn.Module.__getattr__)
        or any(
            is_fixed_class(each) and each.__module__ != "typing" and not issubclass(each, torch.nn.Module)
            for each in kind.__mro__[:-1]
        )
    )


def state_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a function may ask a tensor beside its elements."""
    layout = tensor.dtype, tensor.shape, tensor.stride(), tensor.device
    return *layout, tensor.requires_grad, tensor.is_neg(), tensor.is_conj()


def _code_of(member: Any) -> types.CodeType | None:
    """What runs where an attribute of a class is asked for."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member.__code__ if isinstance(member, types.FunctionType) else None


def _is_of_maker(member: Any) -> bool:
    """Whether namedtuple or Enum wrote a function."""
    return isinstance(member, types.FunctionType) and member.__globals__.get("__name__") in ("enum", "collections")


def functions_of(kind: type) -> list[str]:
    """Names of what a class has of the program's own: all that runs, but what its kind of class is made of."""
    return [
        name
        for each in kind.__mro__
        if not is_fixed_class(each) and each.__module__ not in ("enum", "collections")
        for name, member in vars(each).items()
        if _code_of(member) is not None and not (name in _OF_MADE and (name != "__repr__" or _is_of_maker(member)))
    ]


@functools.lru_cache(maxsize=4096)
def _made_of(kind: type) -> tuple[Any, ...] | None:
    """The class's attributes, where it is a namedtuple and nothing else."""
    if kind.__mro__[1:] != (tuple, object) or not hasattr(kind, "_fields") or functions_of(kind):
        return None
    own = vars(kind).keys() - _OF_NAMED_TUPLE - frozenset(kind._fields)  # type: ignore[attr-defined]
    return None if own else tuple(vars(kind).values())


def is_named_tuple(kind: type) -> bool:
    """Whether it is a namedtuple to which nothing was added, neither in its class nor later."""
    if kind.__base__ is not tuple:
        return False
    known, now = _made_of(kind), vars(kind).values()
    return known is not None and len(known) == len(now) and all(map(operator.is_, known, now))


def runs_unnamed(kind: type) -> frozenset[str]:
    """Methods of a class's own that no code names where they run: where an object is made of it, or compared."""
    return frozenset(
        name
        for name, member in vars(kind).items()
        if name.startswith("__") and name.endswith("__") and name not in ("__repr__", "__dict__", "__weakref__")
        and (_code_of(member) is not None or callable(member) or hasattr(type(member), "__get__"))
    )


def part_of(value: Any, own: type) -> tuple[Any, ...]:
    """A hashable part of a key, of what cannot change: what is equal may not be the same."""
    if type(value) is range:
        return own, value.start, value.stop, value.step  # two that are equal may have other ends
    if type(value) is complex:
        return own, value.real.hex(), value.imag.hex()  # 0.0 is not -0.0
    return own, value
