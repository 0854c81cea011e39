"""What a function sees becomes something of another kind, or is what nobody can look at twice: the next call tells."""

import abc
import dataclasses
import enum
import functools
import gc
import types
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402
from test_recall import LENGTH, by_definition, operands, translations  # noqa: E402, F401
from test_recall_unnamed import is_seen, near, of_a_new_attribute  # noqa: E402

from attune.torch import _recall, flex_attention  # noqa: E402


class Held:
    """An object of which an attribute is replaced."""

    def __init__(self, value):
        self.value = value


class Words(dict):
    def __getitem__(self, name):
        return 2 * super().__getitem__(name)


class Got(dict):
    def get(self, name):
        return 6


class Pair(tuple):
    def __iter__(self):
        return iter((6,))


def replaced(value, instead, window):
    """`window` of the value is another of what stands in its place."""
    held = Held(value)
    return lambda b, h, i, j: near(i, j, window(held.value)), lambda: setattr(held, "value", instead)


class Like:
    """A method, by its attributes."""

    def __init__(self, method):
        self.__func__, self.__self__ = method.__func__, method.__self__

    def __call__(self):
        return 6


def _three_more(*given):
    return 3 + 3 * len(given)


_method = types.MethodType(lambda _: 3, 1)


class Sized(list):
    def __getitem__(self, at):
        return 2 * super().__getitem__(at)


class Options(types.SimpleNamespace):
    def __getattribute__(self, name):
        return 6 if name == "width" else super().__getattribute__(name)


class Part(functools.partial):
    def __call__(self):
        return 6


REPLACED = {
    "a list by one of another class": ([3], Sized([3]), lambda x: x[0]),
    "a dict by one of another class": ({"width": 3}, Got(width=3), lambda x: x.get("width")),
    "a namespace by one of another class": (types.SimpleNamespace(width=3), Options(width=3), lambda x: x.width),
    "a partial by one of another class": (functools.partial(int, 3), Part(int, 3), lambda x: x()),
    "a method by what is like one": (_method, Like(_method), lambda x: x()),
    "a function by a method": (_three_more, types.MethodType(_three_more, 1), lambda x: x()),
    "an int by a float": (3, 3.0, lambda x: 6 if isinstance(x, float) else 3),
    "an int by a bool": (1, True, lambda x: 6 if x is True else 3),
    "an int by one that no launch brings": (3, 2**40, lambda x: x % 7),
    "NumPy's by NumPy's": (np.int64(3), np.int64(6), int),
    "a tuple by a longer one": ((3,), (3, 6), lambda x: x[-1]),
    "a tuple by one of another class": ((3,), Pair((3,)), lambda x: [*x][0]),
    "a frozenset": (frozenset((3,)), frozenset((6,)), max),
    "a list by a tuple": ([3], (3,), lambda x: 6 if isinstance(x, tuple) else 3),
    "a string": ("abc", "abcdef", len),
    "bytes": (b"\3", b"\6", lambda x: x[0]),
    "None by a number": (None, 6, lambda x: 3 if x is None else x),
    "a range by an equal one": (range(0, 5, 3), range(0, 4, 3), lambda x: x.stop),
    "a complex number": (complex(3, 0.0), complex(3, -0.0), lambda x: 6 if str(x.imag)[0] == "-" else 3),
    "a tensor by a number": (torch.tensor(3), 6, lambda x: x),
    "a tensor by None": (torch.zeros(3), None, lambda x: 6 if x is None else 3),
    "a type": (torch.float32, torch.float64, lambda x: x.itemsize - 1),
}


def set_in_place():
    held = {3}

    def change():
        held.clear()
        held.add(6)

    return lambda b, h, i, j: near(i, j, max(held)), change


def view_that_is_one_no_more():
    one = torch.arange(LENGTH) // 3
    held = Held(one.view(-1))
    return lambda b, h, i, j: one[i] == held.value[j], lambda: setattr(held, "value", torch.arange(LENGTH) // 5)


def infinite_number_of_a_tensor(now=3.0):
    far = torch.tensor(torch.inf)
    return lambda b, h, i, j: (i - j).abs() * 1.0 < far, lambda: far.fill_(now)


def infinite_number_that_is_none():
    return infinite_number_of_a_tensor(0.0)


def infinite_number_of_a_tensor_that_learns():
    held = Held(torch.tensor(3.0, requires_grad=True))

    def change():
        held.value.data.fill_(torch.inf)

    return lambda b, h, i, j: (i - j).abs() * 1.0 < held.value, change


def buffers_of_another_class():
    layer = torch.nn.Module()
    layer.register_buffer("doc", torch.arange(LENGTH) // 3)

    def change():
        layer._buffers = Words(doc=torch.arange(LENGTH) // 6)  # a factor of 2 changes nothing, the other list does

    return lambda b, h, i, j: layer.doc[i] == layer.doc[j], change


def buffers_that_are_computed():
    class Computed(dict):
        def __getitem__(self, name):
            return found[0]

    found = [torch.arange(LENGTH) // 3]
    layer = torch.nn.Module()
    layer.register_buffer("doc", found[0])
    layer._buffers = Computed(layer._buffers)
    return lambda b, h, i, j: layer.doc[i] == layer.doc[j], lambda: found.__setitem__(0, torch.arange(LENGTH) // 5)


def property_of_another_kind():
    class Six:
        def __init__(self, fget):
            self.fget = fget

        def __get__(self, *_):
            return 6

    kind = type("Own", (Held,), {"width": property(lambda self: self.value)})
    own = kind(3)
    return lambda b, h, i, j: near(i, j, own.width), lambda: setattr(kind, "width", Six(vars(kind)["width"].fget))


def class_of_a_class():
    class Meta(abc.ABCMeta):
        def __instancecheck__(cls, _):
            return True

    kind, own = abc.ABCMeta("Kind", (), {}), Held(3)
    return lambda b, h, i, j: near(i, j, 6 if isinstance(own, kind) else 3), lambda: setattr(kind, "__class__", Meta)


def attribute_of_an_enum_member():
    class Kind(enum.Enum):
        NEAR = 3

    held = Held(Kind.NEAR)

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, held.value.width)
        except AttributeError:
            return near(i, j, held.value.value)

    return mask_mod, lambda: setattr(Kind.NEAR, "width", 6)


def value_of_an_enum_member():
    class Kind(enum.Enum):
        NEAR = 3

    held = Held(Kind.NEAR)
    return lambda b, h, i, j: near(i, j, held.value.value), lambda: setattr(Kind.NEAR, "_value_", 6)


def global_of_a_module():
    module = types.ModuleType("options")
    module.width = 3
    return lambda b, h, i, j: near(i, j, module.width), lambda: setattr(module, "width", 6)


def function_of_another_module():
    """Of the same code, which names what only one of the two has."""
    code = compile("def size(): return abs(width)", "options", "exec")
    one, other = {"width": 3, "__name__": "one"}, {"width": 3, "abs": lambda _: 6, "__name__": "other"}
    exec(code, one)
    exec(code, other)
    other["size"].__code__ = one["size"].__code__
    held = Held(one["size"])
    return lambda b, h, i, j: near(i, j, held.value()), lambda: setattr(held, "value", other["size"])


def keyword_that_gets_a_default():
    def size(*, width, other):
        return width + other

    size.__kwdefaults__ = {"width": 3}
    held = Held(size)

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, held.value())
        except TypeError:
            return near(i, j, held.value(other=0))

    return mask_mod, lambda: size.__kwdefaults__.update(other=3)


def global_that_a_module_gets():
    return of_a_new_attribute(types.ModuleType("options"))


def attribute_that_an_equality_meets():
    class Own:
        def __eq__(self, other):
            try:
                return self.width == 6
            except AttributeError:
                return False

    one, other = Own(), Own()
    return lambda b, h, i, j: near(i, j, 6 if one == other else 3), lambda: setattr(one, "width", 6)


def default_that_is_one_more():
    def size(one, two=3):
        return two

    held = Held(size)

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, held.value())
        except TypeError:
            return near(i, j, held.value(1))

    return mask_mod, lambda: setattr(size, "__defaults__", (1, 6))


def partial_that_gets_an_attribute():
    held = Held(functools.partial(lambda: 3))

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, held.value.width)
        except AttributeError:
            return near(i, j, held.value())

    return mask_mod, lambda: setattr(held.value, "width", 6)


def member_of_an_enum_that_appears():
    class Kind(enum.Enum):
        NEAR = 3

    def mask_mod(b, h, i, j):
        return near(i, j, 3 * len(list(Kind)))

    def change():
        Kind._member_map_["FAR"] = Kind.NEAR
        Kind._member_names_.append("FAR")

    return mask_mod, change


def field_of_an_object_that_is_compared():
    held = Held(dataclasses.make_dataclass("Own", ["x"])(1))
    other = type(held.value)(1)
    return lambda b, h, i, j: near(i, j, 3 if held.value == other else 6), lambda: setattr(other, "x", 2)


def function_of_a_module_that_changes():
    """Of torch nothing does."""
    code = compile("def size(): return width", "options", "exec")
    one, other = {"width": 3, "__name__": "torch.options"}, {"width": 6, "__name__": "options"}
    exec(code, one)
    exec(code, other)
    other["size"].__code__ = one["size"].__code__
    held = Held(one["size"])
    return lambda b, h, i, j: near(i, j, held.value()), lambda: setattr(held, "value", other["size"])


CASES = [
    function_of_a_module_that_changes,
    keyword_that_gets_a_default, default_that_is_one_more, partial_that_gets_an_attribute,
    global_that_a_module_gets, attribute_that_an_equality_meets,
    member_of_an_enum_that_appears, field_of_an_object_that_is_compared,
    set_in_place, view_that_is_one_no_more, infinite_number_of_a_tensor, infinite_number_that_is_none,
    infinite_number_of_a_tensor_that_learns, buffers_of_another_class, buffers_that_are_computed,
    property_of_another_kind, class_of_a_class, attribute_of_an_enum_member, value_of_an_enum_member,
    global_of_a_module, function_of_another_module,
]  # fmt: skip


# What has to be walked over at each call.
WALKED = frozenset("set_in_place view_that_is_one_no_more buffers_that_are_computed".split())


@pytest.mark.parametrize("make", CASES)
def test_a_change_is_seen(make, translations):  # noqa: F811
    is_seen(*make(), make.__name__ not in WALKED)


@pytest.mark.parametrize("kind", REPLACED)
def test_what_is_replaced_is_seen(kind, translations):  # noqa: F811
    is_seen(*replaced(*REPLACED[kind]))


def test_with_autocast_and_without(translations):  # noqa: F811
    """Each has a way of its own: none is compiled anew at each call."""
    held, given = Held(torch.arange(LENGTH) // 3), operands()
    for at in range(12):
        held.value = torch.arange(LENGTH) // (2 + at % 3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=at % 2 == 0):
            out = flex_attention(*given, mask_mod=lambda b, h, i, j: held.value[i] == held.value[j], strict=True)
        wanted = by_definition(*given, None, lambda b, h, i, j: held.value[i] == held.value[j])
        torch.testing.assert_close(out.double(), wanted, atol=0.05, rtol=0.05)
    assert len(translations) == 2
    (program,) = _recall._programs.values()
    assert program._count == 2


def test_a_key_of_a_dict_ends(translations):  # noqa: F811
    layer = torch.nn.Identity()
    widths = {layer: 3}
    for _ in range(4):
        flex_attention(*operands(), mask_mod=lambda b, h, i, j: near(i, j, [*widths.values()][0]), strict=True)
    translations.clear()
    ended = weakref.ref(layer)
    del layer, widths
    gc.collect()
    assert ended() is None
