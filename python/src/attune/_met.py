"""Calls of attune.attention that were made before, by what their callers said. attune.torch fills it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from attune import _advice
from attune._recent import Recent

Function = TypeVar("Function", bound=Callable[..., Any])
Given = Mapping[str, Any]  # arguments by name

# By key. Of more than a few sizes that one key has had: by the key and `sizes_of` the arrays, and by the key itself
# nothing.
CALLS: Recent[Any, tuple[Any, ...]] = Recent(2048)

_ARRAYS = ("cu_q", "cu_kv", "used_q", "used_kv", "page_table", "k_scales", "v_scales")
_NO_ARRAYS = (None,) * len(_ARRAYS)
_MAX_NAMES = 1024

# What an argument is: python/native/finder.cpp has these, too. Of arrays each has its own, from _ARRAY on.
_BY_VALUE, _OF_LAUNCH, _LSE, _TENSORS, _SCALARS, _ARRAY = range(6)
_DIMS = _ARRAY + len(_ARRAYS)
_KINDS = {
    "seed": _OF_LAUNCH, "offset": _OF_LAUNCH, "return_lse": _LSE, "tensors": _TENSORS, "scalars": _SCALARS,
    "dims": _DIMS, **{name: _ARRAY + at for at, name in enumerate(_ARRAYS)},
}  # fmt: skip


def sizes_of(arrays: Iterable[Any]) -> tuple[Any, ...]:
    """Of those that are there, in the order of a call's arrays and then its tensors. `find` makes the same."""
    return tuple([x.shape for x in arrays if x is not None])


def _yes() -> bool:
    return True


# torch's own, once attune.torch is there: until then there is nothing to meet.
_is_compiling: Callable[[], bool] = _yes
_is_grad_enabled: Callable[[], bool] = _yes
_forward_mode: Any = None  # its module; what is met tells nothing of tangents
# What finds calls and makes them, of q, k, v, arguments by name, and their kinds. None: it is not there, or there are
# no calls yet.
find: Callable[..., Any] | None = None
_arguments: frozenset[str] = frozenset()  # of attune.attention, by name
function_of_calls: Callable[..., Any] | None = None  # attune.attention, which is `remembered`


def begin(is_compiling: Callable[[], bool], is_grad_enabled: Callable[[], bool], forward_mode: Any) -> None:
    """attune.torch is there."""
    global _is_compiling, _is_grad_enabled, _forward_mode
    _is_compiling, _is_grad_enabled, _forward_mode = is_compiling, is_grad_enabled, forward_mode


class _Names:
    """How calls that give arguments of these names are told from each other.

    Attributes:
        kinds: this, and what each argument is, for `find`; None: it does not know them.
        has_arrays: whether there are any beside q, k and v.
    """

    __slots__ = ("_kinds", "has_arrays", "kinds")

    def __init__(self, names: tuple[str, ...]) -> None:
        self._kinds = tuple([_KINDS.get(name, _BY_VALUE) for name in names])
        self.has_arrays = any([name in _ARRAYS for name in names])
        # Scalars of words are constants, which are told apart by more than their values.
        is_known = _DIMS not in self._kinds and ("spec" in names or _SCALARS not in self._kinds)
        self.kinds = (self, *self._kinds) if is_known else None

    def key_of(self, v: Any, records: bool, given: Given) -> tuple[Any, ...]:
        """All that a call says beside tensors, of which it says whether they are there, and how the spec's are called.
        Scalars of a spec are the launch's. `find` makes the same."""
        key: list[Any] = [self, v is None, records]
        for kind, value in zip(self._kinds, given.values(), strict=True):
            if kind == _BY_VALUE:
                key.append(value)
            elif kind == _TENSORS or (kind == _SCALARS and given.get("spec") is not None):
                key.append(tuple(value) if value else None)
            elif kind == _SCALARS:  # by their text: 0.0 is not -0.0, and 1 is no float
                key.append(tuple([(name, type(x), repr(x)) for name, x in value.items()]) if value else None)
            elif kind == _DIMS:
                key.append(None if value is None else tuple(value.items()))
            else:
                key.append(value is None if kind >= _ARRAY or kind == _OF_LAUNCH else None)
        return tuple(key)


_names: dict[tuple[str, ...], _Names | None] = {}


def _look_at(names: tuple[str, ...]) -> _Names | None:
    """None: such calls are not remembered. Raises TypeError where one is no argument."""
    _advice.refuse_unknown(names, _arguments)
    if len(_names) >= _MAX_NAMES:
        _names.clear()
    found = _names[names] = None if "runtime" in names else _Names(names)
    return found


def _of_sizes(key: Any, arrays: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return CALLS.recall((key, sizes_of((*arrays, *tensors)))) or ()
    except Exception:  # no arrays, or such as have no sizes: each framework has errors of its own for that
        return ()


def remembered(function: Function) -> Function:
    """A function of q, k, v and arguments by name, the last of which is `key`, by which its call may be found again: a
    call that is in CALLS goes straight to its launch, and to the others their key is handed."""

    @functools.wraps(function)
    def met(q: Any, k: Any, v: Any, **given: Any) -> Any:
        if _is_compiling() or _forward_mode._current_level >= 0:
            return function(q, k, v, **given)
        said = tuple(given)
        try:
            names = _names[said]
        except KeyError:
            names = _look_at(said)
        if names is None:
            return function(q, k, v, **given)
        if find is not None and names.kinds is not None:
            found = find(q, k, v, given, names.kinds)
            if found is not None:
                return found
        key: Any = names.key_of(v, _is_grad_enabled(), given)
        try:
            calls = CALLS.recall(key)
        except TypeError:  # something that has no hash
            calls = key = None
        if calls is not None:
            tensors, scalars = given.get("tensors"), given.get("scalars")
            tensors, with_lse = tuple(tensors.values()) if tensors else (), given.get("return_lse", False)
            arrays = (q, k, v, *([given.get(name) for name in _ARRAYS] if names.has_arrays else _NO_ARRAYS))
            if not calls:
                calls = _of_sizes(key, arrays, tensors)
            for bound in calls:
                if bound.go is not None:
                    found = bound.go(q, k, v, tensors, with_lse, scalars, arrays)
                    if found is not None:
                        return found
                elif bound.check(*bound.present(arrays), *tensors) and (bound.holds is None or bound.holds()):
                    return bound.run(arrays, tensors, with_lse, given.get("seed"), given.get("offset", 0), scalars)
        return function(q, k, v, key=key, **given)

    declared = inspect.signature(function)
    of_callers = [each for name, each in declared.parameters.items() if name != "key"]
    met.__signature__ = declared.replace(parameters=of_callers)  # type: ignore[attr-defined]
    global function_of_calls, _arguments
    function_of_calls, _arguments = met, frozenset(each.name for each in of_callers)
    return met  # type: ignore[return-value]
