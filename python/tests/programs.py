"""Random programs of FlexAttention as people write them: functions of random expressions, which see tensors of odd
types and strides, numbers, objects, other functions.

A program is Python's text, so that one that fails can be read. try_programs.py runs them.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import textwrap
import types

import torch

INDICES = ("b", "h", "q", "k")
_SIZES = {"b": "B", "h": "H", "q": "M", "k": "N"}
_INTS = ("torch.int32", "torch.int64", "torch.int16", "torch.int8")
_ALL_INTS = (*_INTS, "torch.uint8")  # of which torch wraps around what is below 0, and Attune not
_FLOATS = ("torch.float32", "torch.float16", "torch.bfloat16", "torch.float64")
# What stands before each program. `lay` gives a tensor of the same values other strides.
PRELUDE = """\
import dataclasses, functools, math, operator, types
from collections import namedtuple
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
"""


DEVICE = os.environ.get("ATTUNE_TEST_DEVICE", "cpu")
DIM = 16 if DEVICE == "cpu" else 64


def lay(x: torch.Tensor, way: int) -> torch.Tensor:
    """The same values on the device, elsewhere in memory."""
    x = x.to(DEVICE)
    if way == 1:  # every other element
        wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=DEVICE)
        wide[..., ::2] = x
        return wide[..., ::2]
    if way == 2:  # an offset
        flat = torch.zeros(x.numel() + 3, dtype=x.dtype, device=DEVICE)
        flat[3:] = x.flatten()
        return flat[3:].view(x.shape)
    if way == 3 and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 4:
        return x[:1].expand(x.shape)
    return x.contiguous()


@dataclasses.dataclass
class Program:
    """Attributes:
    text: defines `made(B, H, M, N, g)`, which gives (score_mod, mask_mod), either None, and the tensors that may learn.
    """

    seed: int
    text: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int

    def functions(self):
        module = types.ModuleType(f"program_{self.seed}")
        sys.modules[module.__name__] = module  # dataclasses look there
        namespace = vars(module)
        namespace["lay"] = lay
        exec(compile(self.text, f"<program {self.seed}>", "exec"), namespace)
        generator = torch.Generator("cpu").manual_seed(self.seed)
        return namespace["made"](self.batch, self.heads, self.q_len, self.kv_len, generator)


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.outside: list[str] = []  # statements before the functions
        self.before: list[str] = []  # of the module
        self.locals: list[str] = []  # of the function being written
        self.learning: list[str] = []
        self.is_score = False
        self._count = 0

    def pick(self, *choices):
        return self.random.choice(choices)()

    def one_of(self, *choices: str) -> str:
        return self.random.choice(choices)

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    # -- what is captured

    def number(self, low: int, high: int, is_float: bool = False) -> str:
        value = self.random.randint(low, high)
        said = repr(value + self.random.choice((0.5, 0.25, 0.125))) if is_float else repr(value)
        name = self.fresh("n")
        way = self.random.randrange(12)
        if way == 0:
            return said
        if way == 1:
            self.before.append(f"{name} = {said}")
        elif way == 2:
            self.outside.append(f"{name} = types.SimpleNamespace(value={said})")
            return f"{name}.value"
        elif way == 3:
            self.outside.append(f"{name} = [{said}, 0]")
            return f"{name}[0]"
        elif way == 4:
            self.outside.append(f"{name} = {{'size': {said}}}")
            return f"{name}['size']"
        elif way == 5:
            self.outside.append(f"{name} = np.{'float32' if is_float else 'int64'}({said})")
        elif way == 6:
            self.outside.append(f"{name} = torch.tensor({said})")
        elif way == 7:
            self.before.append(f"@dataclasses.dataclass\nclass C{name}:\n    size: object = {said}")
            self.outside.append(f"{name} = C{name}()")
            return f"{name}.size"
        elif way == 8:
            self.before.append(f"T{name} = namedtuple('T{name}', 'x y')")
            self.outside.append(f"{name} = T{name}({said}, 1)")
            return f"{name}.x"
        else:
            self.outside.append(f"{name} = {said}")
        return name

    def table(self, kind: str, dims: str, low: int = 0, high: int = 4) -> str:
        """A captured tensor over these indices."""
        name = self.fresh("t")
        sizes = ", ".join(_SIZES.get(each, each) for each in dims.split())
        way = self.random.choice((0, 0, 0, 1, 2, 3))
        if kind == "int":
            dtype = self.one_of(*(_ALL_INTS if "max" in dims else _INTS))
            made = f"torch.randint({low}, {high}, ({sizes},), generator=g, device='cpu').to({dtype})"
        elif kind == "bool":
            made = f"torch.rand(({sizes},), generator=g, device='cpu') < 0.7"
        else:
            dtype = self.one_of(*_FLOATS)
            made = f"torch.randn(({sizes},), generator=g, device='cpu').to({dtype})"
            if dtype in _FLOATS[:2] and way == 0 and self.random.random() < 0.3:
                self.learning.append(name)
        learns = ".requires_grad_()" if name in self.learning else ""
        self.outside.append(f"{name} = lay({made}, {way}){learns}")
        return name

    def look_up(self, kind: str) -> str:
        dims = self.one_of("q", "k", "b q", "b k", "h", "b", "b h", "h q", "q k", "b q k", "h q k")
        table = self.table(kind, dims)
        named = dims.split()
        at = ", ".join(named)
        forms = [f"{table}[{at}]"]
        if len(named) == 1 and named[0] in "qk" and self.random.random() < 0.3:
            forms.append(f"{table}[{self._within(named[0])}]")
        if len(named) > 1:
            forms += [
                f"{table}[{']['.join(named)}]",
                f"{table}[{named[0]}, ...][{', '.join(named[1:])}]",
                f"{table}[({at})]",
            ]
        if kind != "bool" and len(named) == 1:
            forms += [f"torch.select({table}.unsqueeze(0), 0, 0)[{at}]", f"{table}.view(-1)[{at}]"]
        found = self.random.choice(forms)
        if kind == "float" and ".requires_grad_" not in self.outside[-1] and self.random.random() < 0.2:
            found += self.one_of(".float()", ".to(torch.float32)", "")
        return found

    def _within(self, index: str) -> str:
        size = _SIZES[index]
        return self.one_of(
            f"{index} // 2", f"({index} + 1) % {size}", f"torch.clamp({index} - 1, min=0)", f"{index} - {size}", "-1"
        )

    # -- expressions

    def int_of(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.pick(
                lambda: self.one_of(*INDICES),
                lambda: self.one_of("q", "k"),
                lambda: self.look_up("int"),
                lambda: self.one_of("q", "k"),
            )
        x = lambda: self.int_of(depth - 1)  # noqa: E731
        c = lambda: self.number(1, 9)  # noqa: E731
        return self.pick(
            lambda: f"({x()} + {x()})",
            lambda: f"({x()} - {x()})",
            lambda: f"({x()} * {self.number(1, 4)})",
            lambda: f"({x()} // {c()})",
            lambda: f"({x()} % {c()})",
            lambda: f"({c()} - {x()})",
            lambda: f"({x()}).abs()",
            lambda: f"torch.abs({x()})",
            lambda: f"torch.minimum({x()}, {x()})",
            lambda: f"torch.maximum({x()}, {x()})",
            lambda: f"torch.where({self.bool_of(depth - 1)}, {x()}, {x()})",
            lambda: f"torch.where({self.bool_of(depth - 1)}, {x()}, {c()})",
            lambda: f"({x()}).clamp(0, {c()})",
            lambda: f"torch.clamp({x()}, max={c()})",
            lambda: f"(({x()}).abs() & {self.one_of('1', '3', '7', '6')})",
            lambda: f"(({x()}).abs() >> {self.one_of('1', '2')})",
            lambda: f"torch.div({x()}, {c()}, rounding_mode='{self.one_of('floor', 'trunc')}')",
            lambda: f"torch.remainder({x()}, {c()})",
            lambda: f"torch.fmod({x()}, {c()})",
            lambda: f"torch.sub({x()}, {x()}, alpha=2)",
            lambda: f"({x()}).to({self.one_of('torch.int32', 'torch.int64')})",
            lambda: f"({x()}){self.one_of('.long()', '.int()', '.clone()', '.sign()')}",
            lambda: f"({self.bool_of(depth - 1)}).int()",
            lambda: f"({self.bool_of(depth - 1)}) * {x()}",
            lambda: f"sum([{x()}, {x()}])",
            lambda: f"-({x()})",
        )

    def bool_of(self, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.15:
            return self.pick(
                lambda: "(q >= k)",
                lambda: f"(q - k {self.one_of('<', '<=')} {self.number(1, 40)})",
                lambda: self.look_up("bool"),
                lambda: self._same_document(),
                lambda: f"(k < {self.table('int', 'b', 8, 40)}[b])",
            )
        x, i = (lambda: self.bool_of(depth - 1)), (lambda: self.int_of(depth - 1))
        return self.pick(
            lambda: f"({x()} & {x()})",
            lambda: f"({x()} | {x()})",
            lambda: f"({x()} ^ {x()})",
            lambda: f"(~{x()})",
            lambda: f"torch.logical_{self.one_of('and', 'or', 'xor')}({x()}, {x()})",
            lambda: f"torch.logical_not({x()})",
            lambda: f"({x()}).logical_or({x()})",
            lambda: f"({i()} {self.one_of('<', '<=', '>', '>=', '==', '!=')} {i()})",
            lambda: f"({i()} {self.one_of('<', '<=', '>', '>=', '==', '!=')} {self.number(0, 12)})",
            lambda: f"torch.{self.one_of('eq', 'ne', 'lt', 'le', 'gt', 'ge')}({i()}, {i()})",
            lambda: f"({i()}).{self.one_of('eq', 'ne', 'lt', 'ge')}({self.number(0, 12)})",
            lambda: f"torch.where({x()}, {x()}, {x()})",
            lambda: f"({i()}).bool()",
            lambda: f"torch.isin({i()}, torch.tensor([0, 2, 5], device=q.device))",
            lambda: self._some_of(),
            lambda: f"functools.reduce(operator.{self.one_of('or_', 'and_')}, [{x()}, {x()}, {x()}])",
            lambda: f"operator.and_({x()}, {x()})",
            lambda: self._helper(),
        )

    def _same_document(self) -> str:
        table = self.table("int", self.one_of("b q_and_k", "q_and_k").replace("q_and_k", "max(M,N)"), 0, 3)
        at = "b, " if f"{table} = lay(torch.randint(0, 3, (B," in self.outside[-1] else ""
        return f"({table}[{at}q] == {table}[{at}k])"

    def _some_of(self) -> str:
        table = self.table("int", "4", 0, 30)
        return self.one_of(
            f"(k == {table}).any()",
            f"({table}[0] <= k)",
            f"({table} <= k).sum() > 1",
            f"torch.searchsorted({table}.sort().values, k) > 1",
        )

    def _helper(self) -> str:
        """A function of their own, seen in one way or another."""
        name, inner = self.fresh("f"), _Writer(self.random.randrange(2**31))
        inner._count = self._count + 100
        body = inner.bool_of(1)
        self.outside += inner.outside
        self.before += inner.before
        self.learning += inner.learning
        self._count = inner._count
        way = self.random.randrange(5)
        if way == 0:
            self.outside.append(f"{name} = lambda b, h, q, k: {body}")
        elif way == 1:
            self.outside.append(f"def {name}(b, h, q, k, *, turned=False):\n    return ~({body}) if turned else {body}")
            return f"{name}(b, h, q, k, turned={self.one_of('True', 'False')})"
        elif way == 2:
            self.outside.append(f"def whole_{name}(least, b, h, q, k):\n    return ({body}) | (q - k < least)")
            self.outside.append(f"{name} = functools.partial(whole_{name}, {self.number(0, 5)})")
        elif way == 3:
            self.outside.append(
                f"class {name.upper()}:\n    def __init__(self, least):\n        self.least = least\n"
                f"    def __call__(self, b, h, q, k):\n        return ({body}) | (q - k < self.least)\n"
                f"{name} = {name.upper()}({self.number(0, 5)})"
            )
        else:
            self.outside.append(
                f"def {name}(b, h, q, k, least={self.number(0, 5)}):\n    return ({body}) | (q - k < least)"
            )
        return f"{name}(b, h, q, k)"

    def float_of(self, depth: int) -> str:
        if depth == 0:
            return self.pick(
                lambda: "score" if self.is_score else "q.float()",
                lambda: "score" if self.is_score else "k.float()",
                lambda: self.look_up("float"),
                lambda: f"(({self.int_of(1)}) * {self.number(0, 1, True)})",
                lambda: f"(({self.int_of(1)}) / {self.number(2, 9)})",
                lambda: f"({self.int_of(0)}).float()",
            )
        x, c = (lambda: self.float_of(depth - 1)), (lambda: self.number(0, 2, True))
        return self.pick(
            lambda: f"({x()} + {x()})",
            lambda: f"({x()} - {x()})",
            lambda: f"({x()} * {c()})",
            lambda: f"({x()} / {self.number(1, 30, True)})",
            lambda: (
                self.one_of(
                    *("torch.tanh", "torch.sin", "torch.cos", "torch.sigmoid", "F.silu", "F.gelu", "torch.erf"),
                    *("F.softplus", "torch.special.expit", "F.relu", "F.elu", "torch.atan", "torch.square"),
                )
                + f"({x()})"
            ),
            lambda: f"{c()} * torch.tanh({x()} / {self.number(1, 30, True)})",
            lambda: f"torch.exp(-({x()}).abs())",
            lambda: f"torch.exp2(-torch.abs({x()}))",
            lambda: f"torch.sqrt(({x()}).abs() + 1)",
            lambda: f"torch.log(({x()}).abs() + {c()})",
            lambda: f"torch.log1p(({x()}).abs())",
            lambda: f"({x()}).clamp(-{c()}, {c()})",
            lambda: f"torch.clamp({x()}, min={c()})",
            lambda: f"torch.maximum({x()}, {x()})",
            lambda: f"torch.where({self.bool_of(1)}, {x()}, {x()})",
            lambda: f"torch.where({self.bool_of(1)}, {x()}, {c()})",
            lambda: f"torch.lerp(({x()}).float(), ({x()}).float(), 0.25)",
            lambda: f"torch.add({x()}, {x()}, alpha={c()})",
            lambda: f"({x()}) ** 2 / 8",
            lambda: f"torch.pow(({x()}).abs() + 1, 0.5)",
            lambda: f"({self.bool_of(1)}) * {c()} + {x()}",
            lambda: f"({x()}).masked_fill({self.bool_of(1)}, {c()})",
            lambda: f"torch.stack([{x()}, {x()}]).{self.one_of('sum()', 'mean()', 'max()', 'amin(0)')}",
            lambda: f"({x()}).to(torch.float32)",
            lambda: f"math.pi * {x()}",
            lambda: f"({x()}).neg()",
        )

    # -- functions

    def body(self, result: str) -> str:
        """Statements that return the expression."""
        lines = []
        way = self.random.randrange(6)
        if way == 0:
            lines += [f"found = {result}", "return found"]
        elif way == 1 and not self.is_score:
            lines += [
                f"found = {result}",
                f"for i in range({self.one_of('2', '3')}):",
                "    found = found | (q - k == i)",
                "return found",
            ]
        elif way == 2 and not self.is_score:
            lines += [f"found = {result}", f"found = found.logical_and({self.bool_of(0)})", "return found"]
        elif way == 2:
            lines += [f"score = score + {self.float_of(0)}", f"return {result}"]
        elif way == 3:
            flag = self.fresh("flag")
            self.outside.append(f"{flag} = {self.one_of('True', 'False', 'None', '0', '3')}")
            other = "score" if self.is_score else "q >= k"
            lines += [f"if {flag}:", f"    return {other}", f"return {result}"]
        elif way == 4:
            lines += [f"def inner():\n    return {result}", "return inner()"]
        else:
            lines += [f"return {result}"]
        return "\n".join(lines)

    def function(self, name: str) -> str:
        """Defines it, and says how it is called."""
        self.is_score = name == "score_mod"
        depth = self.random.choice((1, 1, 2, 2, 3))
        if self.is_score:
            result = self.float_of(depth)
            if self.random.random() < 0.6:
                result = f"score + {result}"
            if self.random.random() < 0.2:
                result = f"torch.where({self.bool_of(1)}, {result}, {self.one_of('-math.inf', '-torch.inf')})"
        else:
            result = self.bool_of(depth)
            if self.random.random() < 0.7:
                result = f"({result}) | (q == k)"
        body = textwrap.indent(self.body(result), "    ")
        first = "score, " if self.is_score else ""
        way = self.random.randrange(8)
        if way == 0:
            return f"def {name}({first}b, h, q, k, extra=None):\n{body}"
        if way == 1:
            return (
                f"def whole_{name}(unused, {first}b, h, q, k):\n{body}\n{name} = functools.partial(whole_{name}, 'x')"
            )
        if way == 2:
            inside = textwrap.indent(body, "    ")
            return (
                f"class Of_{name}(torch.nn.Module):\n    def forward(self, {first}b, h, q, k):\n{inside}\n"
                f"{name} = Of_{name}()"
            )
        if way == 3:
            inside = textwrap.indent(body, "    ")
            return f"class Of_{name}:\n    def method(self, {first}b, h, q, k):\n{inside}\n{name} = Of_{name}().method"
        if way == 4:
            return (
                f"def wrapped_{name}({first}b, h, q, k):\n{body}\n"
                f"@functools.wraps(wrapped_{name})\ndef {name}(*args, **kwargs):\n    return wrapped_{name}(*args, "
                "**kwargs)"
            )
        return f"def {name}({first}b, h, q, k):\n{body}"


def program(seed: int) -> Program:
    writer = _Writer(seed)
    kind = writer.random.choice(("mask", "mask", "score", "both"))
    defined, names = [], []
    for name in ("score_mod", "mask_mod"):
        is_wanted = kind == "both" or (kind == "score") == (name == "score_mod")
        if is_wanted:
            defined.append(writer.function(name))
        names.append(name if is_wanted else "None")
    inside = textwrap.indent("\n".join([*writer.outside, *defined]), "    ")
    text = "\n".join([
        PRELUDE, *writer.before, "def made(B, H, M, N, g):", inside,
        f"    return {names[0]}, {names[1]}, [{', '.join(writer.learning)}]", "",
    ])  # fmt: skip
    chosen = writer.random
    kv_heads = chosen.choice((1, 2))
    heads = kv_heads * chosen.choice((1, 2))
    lengths = (1, 7, 16, 33, 64, 70)
    q_len = chosen.choice(lengths)
    kv_len = q_len if chosen.random() < 0.5 else chosen.choice(lengths)
    return Program(seed, text, chosen.choice((1, 2, 3)), heads, kv_heads, q_len, kv_len)
