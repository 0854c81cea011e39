"""Calls of FlexAttention's functions that have been translated before."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import Any

import torch

from attune.torch._captured import CapturedTensors
from attune.torch._fingerprint import Fingerprint, Unknown
from attune.torch._plans import ForwardPlan, Variant

_MAX_CALLS = 1024  # of functions with one fingerprint: sizes, types
_MAX_FINGERPRINTS = 1024

Key = tuple[Any, ...]


@dataclasses.dataclass(slots=True)
class Known:
    """A translated call: which of the tensors that its functions see are the spec's, by slot."""

    variant: Variant
    plan: ForwardPlan
    sources: tuple[int, ...]


@dataclasses.dataclass(slots=True)
class Seen:
    """Functions, what they saw when they were last looked at, and the calls that others with their fingerprint had."""

    references: tuple[tuple[Any, int], ...]  # weak, with the function's place among the three
    fingerprint: Fingerprint
    calls: dict[Key, Known]

    def tensors(self, known: Known) -> list[torch.Tensor]:
        """As the functions see them now."""
        return [self.fingerprint.tensors[source] for source in known.sources]

    def remember(
        self, key: Key, variant: Variant, plan: ForwardPlan, captured: CapturedTensors
    ) -> None:
        """A call that was translated just now, unless the translation depends on more than the fingerprint says."""
        if captured.reads_values:
            return
        places = {id(tensor): at for at, tensor in enumerate(self.fingerprint.tensors)}
        named = captured.tensors()
        sources = [places.get(id(named[tensor.name])) for tensor in variant.spec.tensors]
        if None in sources:
            return
        if len(self.calls) >= _MAX_CALLS:
            self.calls.clear()
        self.calls[key] = Known(variant, plan, tuple(source for source in sources if source is not None))


_seen: dict[tuple[int, ...], Seen] = {}
# By fingerprint: the calls, and what keeps the addresses in the fingerprint from naming something else.
_calls: dict[Key, tuple[dict[Key, Known], list[Any]]] = {}


def forget() -> None:
    """Every call is translated anew."""
    _seen.clear()
    _calls.clear()


def look_at(*functions: Any) -> Seen | None:
    """What is known of functions, each of which may be None. None: nothing can be."""
    place = tuple([id(function) for function in functions])
    seen = _seen.get(place)
    if seen is not None:
        for reference, at in seen.references:
            if reference() is not functions[at]:
                break
        else:
            if seen.fingerprint.is_current():
                return seen
    try:
        fingerprint = Fingerprint(functions)
        known = _calls.get(fingerprint.key)
    except (Unknown, TypeError):  # TypeError: a value that cannot be hashed
        return None
    if known is None:
        if len(_calls) >= _MAX_FINGERPRINTS:
            forget()
        known = _calls[fingerprint.key] = {}, fingerprint.kept
    found = Seen((), fingerprint, known[0])
    if fingerprint.is_bound:  # others are looked at anew each time, and nothing keeps what they see
        with contextlib.suppress(TypeError):  # no weak references to a function of this kind
            found.references = tuple(
                (weakref.ref(function, lambda _: _seen.pop(place, None)), at)
                for at, function in enumerate(functions)
                if function is not None
            )
            _seen[place] = found
    return found
