"""The table of torch's operations that can be translated, by torch's names."""

from __future__ import annotations

from collections.abc import Callable

from attune.torch._expression import Expression

Translator = Callable[..., Expression]

# Each has the argument names of torch's operation, and takes Expressions.
OPERATIONS: dict[str, Translator] = {}

_DUNDERS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}


def canonical_name(name: str) -> str:
    """The table's name for an operator's method: "div" for "__truediv__"; and for what torch.special calls its own."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        return _DUNDERS.get(name, name)
    return name.removeprefix("special_")


def operation(*names: str) -> Callable[[Translator], Translator]:
    """Puts a function into the table."""

    def add(function: Translator) -> Translator:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return add
