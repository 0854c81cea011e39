"""Runs a score_mod or mask_mod on symbolic scalars, and keeps what it computes as an expression.

The function sees objects that answer to operators, methods and torch's functions as scalar tensors do. Captured
tensors stay tensors: a TorchFunctionMode notices where one is looked up by a symbolic index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attune.torch import _small
from attune.torch._captured import CapturedTensors
from attune.torch._casts import CASTS, CREATORS, cast, created
from attune.torch._expression import Expression, Untranslatable, literal, name
from attune.torch._numbers import Captured, constants, is_number, plain
from attune.torch._operations import OPERATIONS, canonical_name
from attune.torch._sizes import Sizes, is_symbolic
from attune.torch._traced import PartialLookUp, Small, Symbolic, Traced, holds_traced, is_cut

# What a function may ask a captured tensor without depending on its values.
_METADATA = frozenset(
    "size dim numel stride nelement ndimension is_contiguous is_floating_point is_complex __len__ shape dtype device "
    "ndim requires_grad is_cuda is_cpu is_meta is_neg is_conj layout itemsize nbytes data_ptr".split()
)
# What makes a view of a captured tensor, or a copy, which is told from a view by where it lies.
_VIEWS = frozenset(
    "view view_as reshape reshape_as flatten unflatten squeeze unsqueeze expand expand_as transpose swapaxes swapdims "
    "permute movedim moveaxis t T mT select narrow diagonal unbind unfold split chunk getitem __getitem__".split()
)
# Where a captured number stays a constant of the kernel: another value is another algorithm, or divisions that
# constants turn into products and shifts.
_BY_CONSTANTS = frozenset(
    "remainder floor_divide pow bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
)
_FACTORS = frozenset(("mul", "multiply", "div", "divide", "true_divide"))


def _asked(func: Any) -> str:
    """The name of a function of torch; of a property, the property's."""
    return func.__self__.__name__ if func.__name__ == "__get__" else func.__name__


def _holds_number(value: Any) -> bool:
    """Whether a tensor without dims is in it, whose value torch takes for an index or a size."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return any([_holds_number(each) for each in value])
    return isinstance(value, torch.Tensor) and not value.dim()


class Trace(TorchFunctionMode):
    """One launch's functions, traced into expressions over the same captured tensors."""

    def __init__(self, shape: Sizes, device: torch.device, numbers: Captured | None = None) -> None:
        super().__init__()
        self.device, self._numbers = device, numbers or Captured()
        self.captured = CapturedTensors(shape, device)
        self._indices = {
            index: name(index, "int", 0, None if is_symbolic(size) else size - 1)
            for index, size in (
                ("b", shape.batch), ("h", shape.heads), ("q_idx", shape.q_len), ("kv_idx", shape.kv_len),
            )
        }  # fmt: skip

    def run(self, what: str, function: Callable[..., Any], score: Expression | None = None) -> Expression:
        """The expression of function([score,] b, h, q_idx, kv_idx).

        Raises:
            Untranslatable: naming the operation.
        """
        arguments = ([score] if score is not None else []) + list(self._indices.values())
        self.captured.records = score is not None and torch.is_grad_enabled()
        try:
            with self:
                given = tuple(Traced(self, argument) for argument in arguments)
                if is_cut(function.func if isinstance(function, functools.partial) else function):
                    self.refuse_cut("an autograd.Function", given)
                found = function(*given)
                if found is None:
                    raise Untranslatable("no `return`: it gave None")
                return self.expression_of(found)
        except Untranslatable as problem:
            raise Untranslatable(f"{what} uses {problem}") from None
        except Exception as problem:
            raise Untranslatable(f"{what} cannot be traced: {type(problem).__name__}: {problem}") from problem

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not holds_traced(args) and not holds_traced(kwargs):
            if not self.captured.reads_values:
                name = _asked(func)
                asks = name in _METADATA or name in _VIEWS
                self.captured.reads_values = not asks or _holds_number(args[1:]) or _holds_number(kwargs)
            return func(*constants(args), **constants(kwargs))
        operation = canonical_name(func.__name__)
        if operation == "getitem" and isinstance(args[0], torch.Tensor):
            return self.look_up(args[0], args[1], (None,) * args[0].dim())
        return self.apply(operation, args, kwargs)

    def apply(self, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """torch's operation of scalars, some of them traced, and of small tensors."""
        result = self._apply(operation, args, kwargs)
        if operation == "detach":
            self.refuse_cut("`detach` of what learns", result)
        elif self.captured.is_paused():
            self.refuse_cut(f"`{operation}` under torch.no_grad()", result)
        return result

    def _apply(self, operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        args = [self._as_number(each) for each in args]
        name = canonical_name(operation)
        if name.endswith("_"):
            return self._apply_in_place(name[:-1], *args, **kwargs)
        is_of_one = name in CASTS or name in CREATORS
        if _small.concerns(name, args[:1] if is_of_one else args, {} if is_of_one else kwargs):
            return _small.apply(self, name, args, kwargs)
        if name in CREATORS:
            return Traced(self, created(self, name, *args, **kwargs))
        if name in CASTS:
            return Traced(self, CASTS[name](self, *args, **kwargs))
        if name not in OPERATIONS:
            raise Untranslatable(f"`{operation}`")
        if name in _BY_CONSTANTS:
            args, kwargs = constants(tuple(args)), constants(dict(kwargs))
        elif name in _FACTORS:
            args, name = self._factors(name, args, kwargs)
        operands = [self._operand(each) for each in args]
        keywords = {key: self._operand(value) for key, value in kwargs.items()}
        return Traced(self, OPERATIONS[name](*operands, **keywords))

    def refuse_cut(self, cut: str, value: Any) -> None:
        """Kernels differentiate all of an expression: none of it can be left out."""
        for each in value if isinstance(value, tuple) else (value,):
            for part in each._elements if isinstance(each, Small) else (each,):
                if isinstance(part, Traced) and self.captured.has_gradient(part._expression):
                    raise Untranslatable(cut)

    def _apply_in_place(self, operation: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        """torch's operation `operation` with "_": what the target is called by elsewhere becomes the result, too."""
        result = self.apply(operation, (target, *args), kwargs)
        if not isinstance(target, (Traced, Small)) or result.shape != target.shape:
            raise Untranslatable(f"`{operation}_` of a captured tensor")
        if isinstance(target, Traced):
            target._expression = cast(result._expression, target.dtype)
        else:
            result = self.apply("to", (result, target.dtype), {})
            target._elements, target._places = result._elements, result._places
        return target

    def _factors(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], str]:
        """Operands of a product or a quotient. A kernel folds constant ones: into the scale of its exponentials where
        they are the score's, into the steps of a position. So a captured number is a constant there, until it is seen
        to vary; a factor of ints, and a quotient that is rounded, always."""
        of_ints = all(self._operand(each).type != "float" for each in args if not is_number(each)) and not any(
            each.of_type() is float for each in args if is_number(each)
        )
        is_rounded = kwargs.get("rounding_mode") is not None
        is_divided = name in ("div", "divide", "true_divide")
        if is_rounded or (of_ints and not is_divided):
            return constants(tuple(args)), name
        args = [each.decide() if is_number(each) and not each.has_varied() else each for each in args]
        if is_divided and len(args) == 2 and is_number(args[1]):
            return [args[0], args[1].reciprocal()], "mul"
        return args, name

    def look_up(self, tensor: torch.Tensor, index: object, known: Sequence[Expression | None]) -> Any:
        """tensor[index], where `known` has the indices that earlier brackets brought, None where none did."""
        given = list(index) if isinstance(index, tuple) else [index]
        free = [dim for dim, each in enumerate(known) if each is None]
        at = next((place for place, each in enumerate(given) if each is Ellipsis), None)
        if at is not None:
            given[at : at + 1] = [slice(None)] * (len(free) - sum(each is not None for each in given) + 1)
        if sum(each is not None for each in given) > len(free):
            raise Untranslatable(f"{len(given)} indices into {len(free)} dims of a captured tensor")
        is_whole = [isinstance(each, slice) and each == slice(None) for each in given]
        if any(
            not whole and (each is None or isinstance(each, slice) or _small.is_small(each))
            for each, whole in zip(given, is_whole, strict=True)
        ):
            return _small.part_of(self, tensor, given, known)
        indices = list(known)
        for dim, each in zip(free, given, strict=False):
            if not isinstance(each, slice):
                indices[dim] = self._operand(each)
        whole = [each for each in indices if each is not None]
        if len(whole) < len(indices):
            return PartialLookUp(self, tensor, indices)
        return Traced(self, self.captured.look_up(tensor, whole))

    def _as_number(self, value: Any) -> Any:
        """A tensor without dims that is the CPU's, of a function of a GPU's launch: a number as others."""
        if isinstance(value, torch.Tensor) and value.device != self.device:
            place = self._numbers.of_tensors.get(id(value))
            return value if place is None else self._numbers.number(place)
        return value

    def _operand(self, value: Any) -> Any:
        """What translations take: an Expression of numbers and tensors; anything else is an option."""
        value = plain(value)
        if is_number(value):
            return self.captured.captured_number(value)
        if isinstance(value, (Traced, torch.Tensor, bool, int, float, torch.SymInt, torch.SymFloat)):
            return self.expression_of(value)
        if isinstance(value, Symbolic):
            raise Untranslatable(f"a tensor of shape {tuple(value.shape)}, where a scalar is wanted")
        return value

    def expression_of(self, value: Any) -> Expression:
        """Of a scalar, traced or not."""
        value = self._as_number(plain(value))
        if is_number(value):
            return self.captured.captured_number(value)
        if isinstance(value, Traced):
            return value._expression
        if isinstance(value, torch.Tensor):
            return self.captured.scalar(value)
        if isinstance(value, (bool, int, float)):
            return literal(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self.captured.number(value)
        if isinstance(value, Symbolic):
            raise Untranslatable(f"a tensor of shape {tuple(value.shape)}, where a scalar is wanted")
        raise Untranslatable(f"a {type(value).__name__} where a scalar is wanted")
