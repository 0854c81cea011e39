"""Tensors that a traced function looks up, as auxiliary tensors of a spec."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from attune import _advice
from attune.torch._auxiliary import OF_16_BITS, type_of
from attune.torch._expression import Expression, Type, Untranslatable, binary, conditional, literal, name
from attune.torch._numbers import Number, Recipe, is_number
from attune.torch._sizes import Sizes, is_symbolic
from attune.torch._table_dims import DIM_OF_INDEX, computed_dim
from attune.torch._transforms import is_transformed, wants_gradient

_MAX_DIMS = 4
_DTYPE_NAMES: dict[Type, str] = {"bool": "bool", "int": "int32", "float": "float32"}


def is_int(value: Any) -> bool:
    """Whether a number of a launch is an int, with a value or without."""
    return isinstance(value, (int, torch.SymInt))


def _lies_somewhere(tensor: torch.Tensor) -> bool:
    """Whether it is memory with values, and neither a tensor of a trace nor one of a transform."""
    return not is_symbolic(tensor) and not is_transformed(tensor)


@dataclasses.dataclass
class _Captured:
    tensor: torch.Tensor
    type: Type
    name: str
    sizes: tuple[Any, ...]
    indices: list[dict[str, Expression]]  # of each dim, what it was looked up by, by its text


class CapturedTensors:
    """The tensors that one trace looks up, named `t0`, `t1`, ... in the order in which it meets them, and the numbers
    without a value yet, named `n0`, `n1`, ...

    Attributes:
        reads_values: whether the trace depends on what stands in a tensor.
        records: whether gradients come through what is traced; none does through a mask.
    """

    def __init__(self, shape: Sizes, device: torch.device) -> None:
        self._shape, self._device = shape, device
        self._by_memory: dict[tuple[object, ...], _Captured] = {}
        self._numbers: list[Any] = []  # SymInt, SymFloat, Number
        self.reads_values = self.records = False

    def look_up(self, tensor: torch.Tensor, indices: Sequence[Expression]) -> Expression:
        """tensor[indices...], one index a dim. A negative index counts from the end, as torch's does."""
        captured = self._capture(tensor)
        if self.is_paused() and wants_gradient(tensor):
            raise Untranslatable("a tensor that learns, under torch.no_grad()")
        written = []
        for dim, index in enumerate(indices):
            index = self._from_the_start(index, tensor.shape[dim])
            captured.indices[dim][index.text] = index
            self._tell_of_short(tensor, dim, index.text)
            written.append(index.text)
        return name(f"{captured.name}[{', '.join(written)}]", captured.type)

    def is_paused(self) -> bool:
        """Whether the function has switched off what was recorded where it was called."""
        return self.records and not torch.is_grad_enabled()

    def has_gradient(self, expression: Expression) -> bool:
        """Whether one is recorded of it."""
        if not self.records or expression.type != "float":
            return False
        learned = [each.name for each in self._by_memory.values() if wants_gradient(each.tensor)]
        return re.search(rf"\b({'|'.join(['score', *learned])})\b", expression.text) is not None

    def _tell_of_short(self, tensor: torch.Tensor, dim: int, index: str) -> None:
        """Of a tensor that ends before the positions by which it is looked up. torch's eager code raises there."""
        if index not in DIM_OF_INDEX or torch.compiler.is_dynamo_compiling():
            return
        size, positions = tensor.shape[dim], getattr(self._shape, DIM_OF_INDEX[index])
        if type(size) is type(positions) is int and 1 < size < positions:
            _advice.warn(
                f"attune: a captured tensor of shape {tuple(tensor.shape)} is looked up by `{index}`, of which there "
                f"are {positions}: those behind its end read its last entry"
            )

    def scalar(self, tensor: torch.Tensor) -> Expression:
        """A tensor without dims: what changes it is no new kernel."""
        if tensor.dim() != 0:
            raise Untranslatable(f"a captured tensor of shape {tuple(tensor.shape)} that is not looked up")
        if _lies_somewhere(tensor):
            is_read = self.reads_values  # what is done here to look at it is no operation of the function's
            learns = torch.is_grad_enabled() and wants_gradient(tensor)  # that a constant of the kernel does not
            if not learns and (
                tensor.device != self._device or (tensor.device.type == "cpu" and not tensor.isfinite())
            ):
                self.reads_values = True
                return literal(tensor.item())
            self.reads_values = is_read
        captured = self._capture(tensor)
        return name(f"{captured.name}[0]", captured.type)

    def captured_number(self, value: Number) -> Expression:
        """A number that the function captured, and the launch brings."""
        known = [each.recipe if is_number(each) else None for each in self._numbers]
        if value.recipe not in known:
            known.append(value.recipe)
            self._numbers.append(value)
        return name(f"n{known.index(value.recipe)}", "int" if value.of_type() is int else "float")

    def number(self, value: torch.SymInt | torch.SymFloat) -> Expression:
        """A number that a compiled graph leaves open: a length of the launch, or one that the launch brings."""
        if isinstance(value, torch.SymInt):
            known = value.node.maybe_as_int()
            if known is not None:
                return literal(known)
            for dim in ("q_len", "kv_len"):
                size = getattr(self._shape, dim)
                if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr:
                    return name(dim, "int", 0, None)
        for at, other in enumerate(self._numbers):
            if type(other) is type(value) and other.node.expr == value.node.expr:
                break
        else:
            at = len(self._numbers)
            self._numbers.append(value)
        return name(f"n{at}", "int" if isinstance(value, torch.SymInt) else "float")

    def _capture(self, tensor: torch.Tensor) -> _Captured:
        if tensor.device != self._device and (tensor.dim() or not is_symbolic(tensor)):
            raise Untranslatable(f"a captured tensor on {tensor.device}, beside operands on {self._device}")
        if tensor.dim() > _MAX_DIMS or 0 in tensor.shape:
            raise Untranslatable(f"a captured tensor of shape {tuple(tensor.shape)}")
        # What is captured stays alive, so no other tensor comes to lie there.
        memory: tuple[object, ...] = (id(tensor),)
        if _lies_somewhere(tensor):
            memory = (
                tensor.data_ptr(),
                tensor.dtype,
                tensor.shape,
                tensor.stride(),
                tensor.requires_grad,
                tensor.is_neg(),
            )
        known = self._by_memory.get(memory)
        if known is None:
            sizes = tuple(tensor.shape) or (1,)
            known = _Captured(tensor, type_of(tensor.dtype), f"t{len(self._by_memory)}", sizes, [{} for _ in sizes])
            self._by_memory[memory] = known
        return known

    def tensors(self) -> dict[str, torch.Tensor]:
        """As they were captured, by name."""
        return {captured.name: captured.tensor for captured in self._by_memory.values()}

    def numbers(self) -> dict[str, Any]:
        """What a launch brings, by name: a SymInt or a SymFloat, an int or a float."""
        return {f"n{at}": each.peek() if is_number(each) else each for at, each in enumerate(self._numbers)}

    def recipes(self) -> dict[str, tuple[Recipe, type]]:
        """How captured numbers become scalars, by the scalars' names, and their types."""
        return {f"n{at}": (each.recipe, each.of_type()) for at, each in enumerate(self._numbers) if is_number(each)}

    def declarations(self, expressions: Iterable[str | None]) -> dict[str, str]:
        """What a spec says of the tensors: of those that want a gradient, too, where torch records any and one of these
        expressions, through which gradients come, reads them."""
        read = set(re.findall(r"\bt\d+\b", " ".join([each for each in expressions if each is not None])))
        records = torch.is_grad_enabled()
        found = {}
        for captured in self._by_memory.values():
            learns = records and captured.name in read and wants_gradient(captured.tensor)
            dtype = _DTYPE_NAMES[captured.type]
            if not learns:
                dtype = OF_16_BITS.get(captured.tensor.dtype, dtype)
            found[captured.name] = f"{dtype}[{self._dims(captured)}]" + (" grad" if learns else "")
        return found

    def scalars(self) -> dict[str, type[int] | type[float]]:
        """What a spec says of the numbers."""
        return {name: int if is_int(value) else float for name, value in self.numbers().items()}

    def _dims(self, captured: _Captured) -> str:
        """A dim that positions run over is called by them, so that another length is no other spec."""
        learned = torch.is_grad_enabled() and wants_gradient(captured.tensor)
        dims = zip(captured.sizes, captured.indices, strict=True)
        return ", ".join(self._dim(size, indices, learned) for size, indices in dims)

    def _dim(self, size: Any, indices: dict[str, Expression], learned: bool) -> str:
        for index in ("kv_idx", "q_idx", "h", "b"):
            if index in indices and getattr(self._shape, DIM_OF_INDEX[index]) == size:
                return DIM_OF_INDEX[index]
        computed = computed_dim(size, indices.values(), self._shape, learned)
        return str(int(size) if computed is None else computed)  # a symbol becomes a number of the graph

    def _from_the_start(self, index: Expression, size: Any) -> Expression:
        if index.type != "int":
            raise Untranslatable(f"an index that is a {index.type}")
        if index.low is not None and index.low >= 0:
            return index
        from_the_end = binary("+", index, self.number(size) if is_symbolic(size) else literal(size), "int")
        if index.high is not None and index.high < 0:
            return from_the_end
        return conditional(binary("<", index, literal(0), "bool"), from_the_end, index)
