"""What tells a walk that a function may see more than its code names, and the values that cannot change."""

from __future__ import annotations

import functools
import operator
import types

import torch

# What reads attributes by names that are values, or tells where an object is, whatever it is called.
READERS = frozenset(
    id(each)
    for each in (
        getattr, hasattr, setattr, delattr, vars, dir, eval, exec, globals, locals, operator.attrgetter,
        operator.methodcaller, id,
    )
)  # fmt: skip
# What tells numbers apart by more than their values: a stand-in is of no type and no number's object, and NumPy's
# become Python's. `is` stands for the operator, beside anything but None.
TELLS_TYPES = frozenset(("type", "is", "is_"))
TELLS_NUMPYS = frozenset(
    "isinstance issubclass __class__ integer floating generic number signedinteger inexact isscalar issubdtype".split()
)
# NumPy's numbers that wrap around, or round, where Python's do not.
NARROW = frozenset(
    "int8 int16 uint8 uint16 uint32 uint64 float16 byte ubyte short ushort uintc uint ulong ulonglong half".split()
)
WIDE = frozenset(("int32", "int64", "float32", "float64"))
# What shows an object by its __repr__, and what tells its class.
SHOWS = frozenset("repr ascii str format print".split())
TELLS_CLASS = frozenset(("type", "__class__"))
OPERATORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
HOLDERS = (types.FunctionType, types.MethodType, list, dict, functools.partial)  # numbers may stand in them
PLAIN = (
    range, int, bool, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size, torch.layout, type(...),
)  # fmt: skip
OF_ENUM = frozenset(
    "_value_ _name_ __objclass__ _sort_order_ _inverted_ _hashable_values_ _unhashable_values_".split()
)
