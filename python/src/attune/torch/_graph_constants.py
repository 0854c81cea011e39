"""Functions whose results are constants of a graph, marked without Dynamo: importing it takes longer than torch does,
and who compiles nothing needs none of it."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def constant_in_graphs(function: Function) -> Function:
    """As torch.compiler.assume_constant_result, which imports Dynamo to set this."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
