"""What a function sees without naming it: methods that run where objects are made, compared or shown, builtins, what
torch's own objects hold. Each case is a mask and what changes it; the next call must see it."""

import abc
import builtins
import collections
import dataclasses
import enum
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_recall import LENGTH, check, translations  # noqa: E402, F401
from test_recall_ways import met  # noqa: E402


def near(i, j, window):
    return (i - j).abs() < window


def of_text(text, name="program"):
    """The mask of a program's text, whose `width` changes."""
    namespace = {"near": near, "width": 3} | ({"__name__": name} if name else {})
    exec(text, namespace)
    return namespace["mask_mod"], lambda: namespace.update(width=6)


TEXTS = {
    "__init__": "class A:\n def __init__(s, x): s.x = x + width\ndef mask_mod(b, h, i, j): return A(i).x >= j",
    "__new__": "class A:\n def __new__(c): a = object.__new__(c); a.x = width; return a\n"
    "def mask_mod(b, h, i, j): return near(i, j, A().x)",
    "an operator": "class A:\n def __mul__(s, x): return width * x\n"
    "def mask_mod(b, h, i, j): return near(i, j, A() * 1)",
    "__repr__": "class A:\n def __repr__(s): return 'a' * width\na = A()\n"
    "def mask_mod(b, h, i, j): return near(i, j, len(repr(a)))",
    "a formatted string": "class A:\n def __repr__(s): return 'a' * width\na = A()\n"
    "def mask_mod(b, h, i, j): return near(i, j, len(f'{a}'))",
    "__hash__": "class A:\n def __hash__(s): return width\na = A()\n"
    "def mask_mod(b, h, i, j): return near(i, j, hash(a))",
    "__eq__": "class A:\n def __eq__(s, x): return width == 3\na, c = A(), A()\n"
    "def mask_mod(b, h, i, j): return near(i, j, 3 if a == c else 6)",
    "in": "class A:\n def __eq__(s, x): return width == 3\na, c = A(), [A()]\n"
    "def mask_mod(b, h, i, j): return near(i, j, 3 if a in c else 6)",
    "type": "class A:\n def __init__(s): s.x = width\na = A()\n"
    "def mask_mod(b, h, i, j): return near(i, j, type(a)().x)",
}


def of_equality(kind):
    one, other = kind(1), kind(1)
    return lambda b, h, i, j: near(i, j, 3 if one == other else 6), lambda: setattr(kind, "__eq__", lambda *_: False)


def equality():
    class Own:
        def __init__(self, x):
            self.x = x

        def __eq__(self, other):
            return self.x == other.x

    return of_equality(Own)


def equality_of_a_dataclass():
    return of_equality(dataclasses.make_dataclass("Own", ["x"]))


def equality_of_a_frozen_one():
    return of_equality(dataclasses.make_dataclass("Own", ["x"], frozen=True))


def equality_of_an_enum():
    class Own(enum.Enum):
        ONE = 1
        TWO = 2

    one, two = Own.ONE, Own.TWO
    return lambda b, h, i, j: near(i, j, 6 if one == two else 3), lambda: setattr(Own, "__eq__", lambda *_: True)


def default_of_a_dataclass():
    @dataclasses.dataclass
    class Own:
        width: int = 3

    return lambda b, h, i, j: near(i, j, Own().width), lambda: setattr(Own.__init__, "__defaults__", (6,))


def field_of_a_namedtuple():
    kind = collections.namedtuple("Own", "width")
    held = types.SimpleNamespace(own=kind(3))
    return lambda b, h, i, j: near(i, j, held.own.width), lambda: setattr(kind, "width", property(lambda _: 6))


def bases():
    base, other = type("Base", (), {}), type("Other", (), {})
    kind = type("Own", (base,), {})
    own = kind()
    return lambda b, h, i, j: near(i, j, 6 if isinstance(own, other) else 3), lambda: setattr(
        kind, "__bases__", (base, other)
    )


def class_that_is_registered():
    kind, own = abc.ABCMeta("Kind", (), {}), type("Own", (), {})()
    return lambda b, h, i, j: near(i, j, 6 if isinstance(own, kind) else 3), lambda: kind.register(type(own))


def name_of_a_function():
    def named():
        pass

    named.__name__ = "one"
    return lambda b, h, i, j: near(i, j, len(named.__name__)), lambda: setattr(named, "__name__", "longer")


def name_of_a_class():
    kind = type("One", (), {})
    return lambda b, h, i, j: near(i, j, len(kind.__name__)), lambda: setattr(kind, "__name__", "Longer")


def builtin(monkeypatch):
    return lambda b, h, i, j: near(i, j, ord("\3")), lambda: monkeypatch.setattr(builtins, "ord", lambda _: 6)


def attribute_of_a_tensor():
    table = torch.zeros(LENGTH)
    table.width = 3
    return lambda b, h, i, j: near(i, j, table.width), lambda: setattr(table, "width", 6)


def of_a_new_attribute(holder):
    def mask_mod(b, h, i, j):
        try:
            return near(i, j, holder.width)
        except AttributeError:
            return near(i, j, 3)

    return mask_mod, lambda: setattr(holder, "width", 6)


def attribute_that_a_tensor_gets():
    return of_a_new_attribute(torch.zeros(LENGTH))


def size_of_a_tensor():
    table = torch.zeros(3)
    return lambda b, h, i, j: near(i, j, table.numel()), lambda: table.resize_(6)


def type_of_a_tensor():
    table = torch.zeros(3)
    return lambda b, h, i, j: near(i, j, 3 if table.dtype == torch.float32 else 6), lambda: setattr(
        table, "data", torch.zeros(3, dtype=torch.float64)
    )


def how_torch_is_set(monkeypatch):
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float32)
    return lambda b, h, i, j: near(i, j, 3 if torch.get_default_dtype() == torch.float32 else 6), lambda: (
        monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    )


def flag_of_a_backend(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    return lambda b, h, i, j: near(i, j, 6 if torch.backends.cudnn.benchmark else 3), lambda: monkeypatch.setattr(
        torch.backends.cudnn, "benchmark", True
    )


class Called(torch.nn.Module):
    def forward(self, x):
        return x + 3


def hook_of_all_modules(request):
    """The first one of a class that is called: nobody knew that it would be."""
    module = type("Own", (Called,), {})()

    def change():
        handle = torch.nn.modules.module.register_module_forward_hook(lambda _, __, out: out - 5)
        request.addfinalizer(handle.remove)

    return lambda b, h, i, j: module(i) >= j, change


def hook_of_a_module():
    module = type("Own", (Called,), {})()
    held = types.SimpleNamespace(module=module)
    return lambda b, h, i, j: held.module(i) >= j, lambda: module.register_forward_hook(lambda _, __, out: out - 5)


CASES = [
    equality, equality_of_a_dataclass, equality_of_a_frozen_one, equality_of_an_enum, default_of_a_dataclass,
    field_of_a_namedtuple, bases, class_that_is_registered, name_of_a_function, name_of_a_class, builtin,
    attribute_of_a_tensor, attribute_that_a_tensor_gets, size_of_a_tensor, type_of_a_tensor, how_torch_is_set,
    flag_of_a_backend, hook_of_all_modules, hook_of_a_module,
]  # fmt: skip


# What has to be walked over, or translated, at each call.
WALKED = {"name_of_a_function", "name_of_a_class", "how_torch_is_set", "flag_of_a_backend", "__new__"}
if sys.version_info >= (3, 13):
    WALKED.add("default_of_a_dataclass")


def is_seen(mask_mod, change, is_recalled=True):
    for _ in range(4):
        check(mask_mod=mask_mod)
    if is_recalled:
        assert met(mask_mod) is not None
    change()
    for _ in range(4):
        check(mask_mod=mask_mod)


@pytest.mark.parametrize("make", CASES)
def test_a_change_is_seen(make, request, translations):  # noqa: F811
    wants = make.__code__.co_varnames[: make.__code__.co_argcount]
    mask_mod, change = make(*[request if name == "request" else request.getfixturevalue(name) for name in wants])
    is_seen(mask_mod, change, make.__name__ not in WALKED)


@pytest.mark.parametrize("text", TEXTS)
def test_a_method_that_no_code_names(text, translations):  # noqa: F811
    is_seen(*of_text(TEXTS[text]), text not in WALKED)


def test_a_program_without_a_name(translations):  # noqa: F811
    """Its classes say that they are builtin."""
    is_seen(*of_text(TEXTS["__init__"], name=None))
