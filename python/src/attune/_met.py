"""Calls of attune.attention that were made before, by what their callers said. attune.torch fills it."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Given = Mapping[str, Any]  # arguments by name

CALLS: dict[Any, tuple[Any, ...]] = {}

_ARRAYS = ("cu_q", "cu_kv", "used_q", "used_kv", "page_table", "k_scales", "v_scales")
_NO_ARRAYS = (None,) * len(_ARRAYS)
_OF_LAUNCH = ("seed", "offset", "return_lse")
_BY_PARTS = ("tensors", "scalars", "dims")
_MAX_NAMES = 1024

# torch's own, once attune.torch is there: until then there is nothing to meet.
_is_compiling: Callable[[], bool] = bool
_is_grad_enabled: Callable[[], bool] = bool


def begin(is_compiling: Callable[[], bool], is_grad_enabled: Callable[[], bool]) -> None:
    """attune.torch is there."""
    global _is_compiling, _is_grad_enabled
    _is_compiling, _is_grad_enabled = is_compiling, is_grad_enabled


class _Names:
    """How calls that give arguments of these names are told from each other.

    Attributes:
        values: of arguments that are what they are by value.
        parts: what tells of the others; None: there are none.
        arrays: those beside q, k and v, in the order of _ARRAYS; None: there are none.
        says_more: whether there is something for the launch beside q, k and v.
    """

    __slots__ = ("arrays", "parts", "says_more", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        by_value = [name for name in names if name not in (*_ARRAYS, *_OF_LAUNCH, *_BY_PARTS)]
        self.values: Callable[[Given], Any] = operator.itemgetter(*by_value) if by_value else lambda given: None
        arrays, others = ([name for name in every if name in names] for every in (_ARRAYS, _BY_PARTS))
        self.arrays = (lambda given: tuple([given.get(name) for name in _ARRAYS])) if arrays else None
        self.parts: Callable[[Given], Any] | None = None
        if arrays or others:
            self.parts = functools.partial(_parts, tuple(arrays), tuple(others))
        self.says_more = len(by_value) < len(names)


def _parts(arrays: tuple[str, ...], others: tuple[str, ...], given: Given) -> tuple[Any, ...]:
    """Whether arrays are there, for theirs is what a guard looks at; the same of tensors, by their names. Scalars of a
    spec are the launch's."""
    found: list[Any] = [given[name] is None for name in arrays]
    for name in others:
        each = given[name]
        if name == "dims":
            found.append(None if each is None else tuple(each.items()))
        elif not each:
            found.append(None)
        elif name == "tensors" or given.get("spec") is not None:
            found.append(tuple(each))
        else:  # by their text: 0.0 is not -0.0, and 1 is no float
            found.append(tuple([(key, type(value), repr(value)) for key, value in each.items()]))
    return tuple(found)


_names: dict[tuple[str, ...], _Names | None] = {}


def _look_at(names: tuple[str, ...]) -> _Names | None:
    """None: such calls are not remembered."""
    if len(_names) >= _MAX_NAMES:
        _names.clear()
    found = _names[names] = None if "runtime" in names else _Names(names)
    return found


def remembered(function: Function) -> Function:
    """A function of q, k, v and arguments by name, the last of which is `key`, by which its call may be found again: a
    call that is in CALLS goes straight to its launch, and to the others their key is handed."""

    @functools.wraps(function)
    def met(q: Any, k: Any, v: Any, **given: Any) -> Any:
        if _is_compiling():
            return function(q, k, v, **given)
        said = tuple(given)
        try:
            names = _names[said]
        except KeyError:
            names = _look_at(said)
        if names is None:
            return function(q, k, v, **given)
        key: Any
        if names.parts is None:
            key = names, names.values(given), v is None, _is_grad_enabled()
        else:
            key = names, names.values(given), v is None, _is_grad_enabled(), names.parts(given)
        try:
            calls = CALLS.get(key)
        except TypeError:  # something that has no hash
            calls = key = None
        if calls is not None:
            tensors, with_lse, scalars = (), False, None
            if names.says_more:
                tensors, with_lse, scalars = given.get("tensors"), given.get("return_lse", False), given.get("scalars")
                tensors = tuple(tensors.values()) if tensors else ()
            for bound in calls:
                if bound.go is not None:
                    found = bound.go(q, k, v, tensors, with_lse, scalars)
                    if found is not None:
                        return found
                    continue
                arrays = (q, k, v, *(_NO_ARRAYS if names.arrays is None else names.arrays(given)))
                if bound.check(*bound.present(arrays), *tensors) and (bound.holds is None or bound.holds()):
                    return bound.run(arrays, tensors, with_lse, given.get("seed"), given.get("offset", 0), scalars)
        return function(q, k, v, key=key, **given)

    declared = inspect.signature(function)
    of_callers = [each for name, each in declared.parameters.items() if name != "key"]
    met.__signature__ = declared.replace(parameters=of_callers)  # type: ignore[attr-defined]
    return met  # type: ignore[return-value]
