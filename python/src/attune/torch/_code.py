"""What the code of a function tells of what it can see: names, what it binds, and whether it reads by other names."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from typing import Any, NamedTuple

# Packages whose functions and constants do not change.
_FIXED = frozenset("torch numpy math cmath builtins operator _operator functools _functools itertools typing".split())
# What reads names that stand nowhere in the code.
DYNAMIC = frozenset(
    "getattr hasattr setattr delattr attrgetter methodcaller vars dir eval exec globals locals __dict__ "
    "__getattribute__ __import__ import_module __name__ __qualname__ __annotations__ __type_params__ __globals__ "
    "__builtins__ __subclasses__ data_ptr __getstate__ __reduce__ __reduce_ex__ __dir__ __doc__ format_map".split()
) | frozenset(
    # What tells how torch is set: another answer at another time.
    "get_default_dtype get_default_device get_num_threads get_rng_state initial_seed is_inference_mode_enabled "
    "is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype "
    "are_deterministic_algorithms_enabled is_anomaly_enabled get_float32_matmul_precision current_device "
    "current_stream backends".split()
)
_STORES = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"))


class Code(NamedTuple):
    """Attributes:
    names: of globals and attributes, in the code and in that of functions inside.
    assigned: names of globals, and of variables shared with other functions, that the code binds anew.
    can_be_followed: whether it reads nothing but by these names.
    """

    names: frozenset[str]
    assigned: frozenset[str]
    can_be_followed: bool


@functools.lru_cache(maxsize=4096)
def read(code: types.CodeType) -> Code:
    instructions = list(dis.get_instructions(code))
    names = frozenset(code.co_names)
    is_formatted = "format" in names  # a field of `str.format` names attributes
    if any(each.opname.startswith("FORMAT_") for each in instructions) or any(
        isinstance(each, str) and "%" in each for each in code.co_consts
    ):
        names |= {"format"}
    if any(
        each.opname == "IS_OP" and (before.opname, before.argval) != ("LOAD_CONST", None)
        for before, each in itertools.pairwise(instructions)
    ):
        names |= {"is"}
    assigned = frozenset(each.argval for each in instructions if each.opname in _STORES)
    can_be_followed = not is_formatted and not names & DYNAMIC and not any(
        each.opname == "MATCH_CLASS"  # its attributes' names are constants
        or (each.opname == "IMPORT_NAME" and not (is_fixed(each.argval) and not is_random(each.argval)))
        for each in instructions
    )
    inside = [read(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return Code(
        names.union(*(each.names for each in inside)),
        assigned.union(*(each.assigned for each in inside)),
        can_be_followed and all(each.can_be_followed for each in inside),
    )


def names_of(code: types.CodeType) -> frozenset[str]:
    return read(code).names


def is_fixed(module: str | None) -> bool:
    """Whether the functions and constants of a module never change."""
    return module is not None and module.partition(".")[0] in _FIXED


def is_random(module: str | None) -> bool:
    """Whether what the module's functions give is another number each time, which no trace shows."""
    return module is not None and module.startswith("numpy.random")


def is_fixed_function(function: types.FunctionType) -> bool:
    """Whether it is of a module that never changes, whatever module functools.wraps says that it is of."""
    name: Any = function.__globals__.get("__name__")
    return type(name) is str and is_fixed(name)
