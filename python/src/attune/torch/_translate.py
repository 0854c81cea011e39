"""From a score_mod and a mask_mod to a spec's expressions and tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from attune.torch._captured import CapturedTensors
from attune.torch._expression import Expression, as_bool, as_float, binary, literal, name, negation, value_of
from attune.torch._numbers import Captured
from attune.torch._sizes import Sizes
from attune.torch._tracer import Trace

SCORE = name("score", "float")


@dataclasses.dataclass(frozen=True)
class Translation:
    """What a spec says for the functions of one launch. None: it need not say anything."""

    mask: str | None
    score: str | None
    sink: str | None
    captured: CapturedTensors

    def declarations(self) -> dict[str, str]:
        """What a spec says of the tensors."""
        return self.captured.declarations((self.score, self.sink))


def translate(
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    shape: Sizes,
    device: torch.device,
    *,
    factor: float = 1.0,
    sink: torch.Tensor | None = None,
    numbers: Captured | None = None,
) -> Translation:
    """Of functions with torch's signatures, at a launch of this shape; `factor` multiplies the score first, `sink` has
    a logit a head, `numbers` are those of the functions.

    Raises:
        Untranslatable: naming the operation.
    """
    trace = Trace(shape, device, numbers)
    live: list[Expression] = []
    score = SCORE if factor == 1 else binary("*", SCORE, literal(factor), "float")
    if score_mod is not None:
        score, live = _without_dead_keys(as_float(trace.run("score_mod", score_mod, score)))
    if mask_mod is not None:
        live.append(as_bool(trace.run("mask_mod", mask_mod)))
    mask: Expression | None = None
    for each in live:
        mask = each if mask is None else binary("and", mask, each, "bool")
    return Translation(
        None if mask is None or mask.text == "true" else mask.text,
        None if score.text == "score" else score.text,
        None if sink is None else as_float(trace.captured.look_up(sink, [name("h", "int", 0)])).text,
        trace.captured,
    )


def _without_dead_keys(score: Expression) -> tuple[Expression, list[Expression]]:
    """A score that is -inf where a condition fails is a mask: the kernel then never loads what is dead.

    Returns:
        The score where all of the conditions hold, and the conditions.
    """
    if score.operation == "if":
        condition, left, right = score.operands
        if right.operation == "-inf":
            rest, conditions = _without_dead_keys(left)
            return rest, [condition, *conditions]
        if left.operation == "-inf":
            rest, conditions = _without_dead_keys(right)
            return rest, [negation(condition), *conditions]
    if score.operation == "*" and (value_of(score.operands[1]) or 0) > 0:
        rest, conditions = _without_dead_keys(score.operands[0])
        return (binary("*", rest, score.operands[1], "float"), conditions) if conditions else (score, [])
    if score.operation == "+":
        parts = [_without_dead_keys(each) for each in score.operands]
        if any(conditions for _, conditions in parts):
            (left, of_left), (right, of_right) = parts
            return binary("+", left, right, "float"), of_left + of_right
    return score, []
