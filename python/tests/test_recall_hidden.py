"""What leads past the names of a mask's code to what it sees: modules' own `__getattr__`, wrappers bound to an object,
dunder names, formats, classes of torch's that a program's class is of. Each case is a mask and what changes it."""

import builtins
import collections
import datetime
import functools
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_recall import check, translations  # noqa: E402, F401
from test_recall_ways import met  # noqa: E402
from test_recall_unnamed import is_seen, near, of_text  # noqa: E402
from torch.nn.attention.flex_attention import and_masks  # noqa: E402

TEXTS = {
    "an operator that is no function": "class A:\n __mul__ = functools.partialmethod(lambda s, x, y: width * y, 1)\n"
    "def mask_mod(b, h, i, j): return near(i, j, A() * 1)",
    "an operator that is an object": "class D:\n def __init__(s, f): s.f = f\n"
    " def __get__(s, o, t=None): return functools.partial(s.f, o)\n"
    "class A:\n @D\n def __neg__(s): return width\n"
    "def mask_mod(b, h, i, j): return near(i, j, -A())",
    "a metaclass of enums": "import enum\nclass M(enum.EnumMeta):\n"
    " def __getitem__(c, n): return c._member_map_['A' if width == 3 else 'B']\n"
    "class K(enum.Enum, metaclass=M):\n A = 3\n B = 6\n"
    "def mask_mod(b, h, i, j): return near(i, j, K['A'].value)",
    "__repr__ of an enum": "import enum\nclass K(enum.Enum):\n A = 1\n def __repr__(s): return 'a' * width\nk = K.A\n"
    "def mask_mod(b, h, i, j): return near(i, j, len(repr(k)))",
    "__repr__ of a namedtuple": "import typing\nclass P(typing.NamedTuple):\n w: int\n"
    " def __repr__(s): return 'a' * width\np = P(1)\n"
    "def mask_mod(b, h, i, j): return near(i, j, len(repr(p)))",
    "a percent sign": "class A:\n def __repr__(s): return 'a' * width\na = A()\n"
    "def mask_mod(b, h, i, j): return near(i, j, len('%s' % a))",
    "__globals__": "def g(): pass\ndef mask_mod(b, h, i, j): return near(i, j, g.__globals__['width'])",
    "a class of properties": "class P(property):\n def __get__(s, o, t=None): return width\n"
    "class A:\n w = P(lambda s: 0)\na = A()\ndef mask_mod(b, h, i, j): return near(i, j, a.w)",
    "a class of static methods": "class S(staticmethod):\n def __get__(s, o, t=None): return lambda: width\n"
    "class A:\n w = S(lambda: 0)\na = A()\ndef mask_mod(b, h, i, j): return near(i, j, a.w())",
}


class Holder:
    width = 3


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.window = 3


def held():
    holder = Holder()
    holder.width = 3
    return holder, lambda: setattr(holder, "width", 6)


def a_field_of_a_format():
    holder, change = held()
    return lambda b, h, i, j: near(i, j, int("{0.width}".format(holder))), change  # noqa: UP032


def state_of_an_object():
    holder, change = held()
    return lambda b, h, i, j: near(i, j, holder.__reduce_ex__(2)[2]["width"]), change


def a_bound_wrapper():
    holder, change = held()
    read = holder.__getattribute__
    return lambda b, h, i, j: near(i, j, read("width")), change


def a_wrapper():
    holder, change = held()
    read = object.__getattribute__
    return lambda b, h, i, j: near(i, j, read(holder, "width")), change


def a_wrapper_of_a_list():
    several = [1, 2, 3]
    length = several.__len__
    return lambda b, h, i, j: near(i, j, length()), lambda: several.extend([1, 2])


def builtins_of_its_own():
    own = {"width": 3}
    namespace = {"__builtins__": own, "near": near, "__name__": "program"}
    exec("def mask_mod(b, h, i, j): return near(i, j, width)", namespace)
    return namespace["mask_mod"], lambda: own.update(width=6)


def a_builtin_number(monkeypatch):
    monkeypatch.setattr(builtins, "width_of_all", 3, raising=False)
    return (
        lambda b, h, i, j: near(i, j, width_of_all),  # noqa: F821
        lambda: monkeypatch.setattr(builtins, "width_of_all", 6),
    )


def a_module_that_answers():
    module = types.ModuleType("settings")
    exec("_v = {'w': 3}\ndef __getattr__(name):\n if name == 'width': return _v['w']\n raise AttributeError(name)",
         vars(module))  # fmt: skip
    return lambda b, h, i, j: near(i, j, module.width), lambda: module._v.update(w=6)


def the_class_of_a_module():
    module = types.ModuleType("settings")
    module.width = 3

    class Other(types.ModuleType):
        width = property(lambda _: 6)

    return lambda b, h, i, j: near(i, j, module.width), lambda: setattr(module, "__class__", Other)


def the_class_of_a_namedtuple():
    kind = collections.namedtuple("Window", "width")
    window = kind(3)
    return lambda b, h, i, j: near(i, j, window.width), lambda: setattr(kind, "width", property(lambda _: 6))


def an_attribute_of_torchs_function():
    both = and_masks(lambda b, h, i, j: i >= j)
    both.width = 3
    return lambda b, h, i, j: near(i, j, both.width), lambda: setattr(both, "width", 6)


def subclasses():
    class Base:
        pass

    class First(Base):
        width = 3

    kept = [First]

    def change():
        class Second(Base):
            width = 6

        kept.append(Second)

    return lambda b, h, i, j: near(i, j, Base.__subclasses__()[-1].width), change


def a_docstring():
    def documented():
        "abc"

    return lambda b, h, i, j: near(i, j, len(documented.__doc__)), lambda: setattr(documented, "__doc__", "abcdef")


def a_compiled_layer():
    layer = Layer()
    compiled = torch.compile(layer)
    return lambda b, h, i, j: near(i, j, compiled.window), lambda: setattr(layer, "window", 6)


def a_schedule_of_torchs():
    class Schedule(torch.optim.lr_scheduler.LambdaLR):
        pass

    of = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3.0)
    schedule = Schedule(of, lambda epoch: 1.0 if epoch == 0 else 2.0)

    def change():
        of.step()
        schedule.step()

    return lambda b, h, i, j: near(i, j, schedule.get_last_lr()[0]), change


def conjugation():
    tensor = torch.zeros(4, dtype=torch.complex64)
    held = [tensor]
    return (
        lambda b, h, i, j: near(i, j, 6 if held[0].is_conj() else 3),
        lambda: held.__setitem__(0, tensor.conj()),
    )


def an_emptied_cell():
    width = 3

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, width)
        except NameError:
            return near(i, j, 6)

    def change():
        nonlocal width
        del width

    return mask_mod, change


def of_a_base(read):
    """What a subclass hides."""
    base = type("Base", (), {"window": lambda self: 3})
    hiding = type("Hiding", (base,), {"window": lambda self: 1})()
    return lambda b, h, i, j: near(i, j, read(hiding)), lambda: setattr(base, "window", lambda self: 6)


def a_base_by_super():
    return of_a_base(lambda hiding: super(type(hiding), hiding).window())


def a_base_by_mro():
    return of_a_base(lambda hiding: type(hiding).__mro__[1].window(hiding))


def a_base_by_bases():
    return of_a_base(lambda hiding: hiding.__class__.__bases__[0].window(hiding))


def a_clock():
    """Another number each time: nothing changes it."""
    now = datetime.datetime.now
    mask_mod = lambda b, h, i, j: near(i, j, 3 + 0 * now().year)  # noqa: E731
    for _ in range(4):
        check(mask_mod=mask_mod)
    assert met(mask_mod) is None
    return mask_mod, lambda: None


def where_a_tensor_lies():
    held = [torch.zeros(4)]
    at, kept = held[0].data_ptr(), list(held)
    return (
        lambda b, h, i, j: near(i, j, 3 if held[0].data_ptr() == at else 6),
        lambda: held.__setitem__(0, torch.zeros(4)) or kept,
    )


def which_object_it_is():
    held = [Holder()]
    first, kept = id(held[0]), list(held)
    return (
        lambda b, h, i, j: near(i, j, 3 if id(held[0]) == first else 6),
        lambda: held.__setitem__(0, Holder()) or kept,
    )


def which_number_it_is():
    """A stand-in is another object than the number."""
    held = [3]
    whole = held[0]
    return lambda b, h, i, j: near(i, j, 3 if whole is held[0] else 6), lambda: held.__setitem__(0, 4)


def how_torch_watches(request):
    request.addfinalizer(lambda: torch.autograd.set_detect_anomaly(False))
    return (
        lambda b, h, i, j: near(i, j, 6 if torch.is_anomaly_enabled() else 3),
        lambda: torch.autograd.set_detect_anomaly(True),
    )


CASES = [
    a_base_by_super, a_base_by_mro, a_base_by_bases, a_clock, where_a_tensor_lies, which_object_it_is,
    which_number_it_is, how_torch_watches,
    a_field_of_a_format, state_of_an_object, a_bound_wrapper, a_wrapper, a_wrapper_of_a_list, builtins_of_its_own,
    a_builtin_number, a_module_that_answers, the_class_of_a_module, the_class_of_a_namedtuple,
    an_attribute_of_torchs_function, subclasses, a_docstring, a_compiled_layer, a_schedule_of_torchs, conjugation,
    an_emptied_cell,
]  # fmt: skip


RECALLED = frozenset(
    "a_builtin_number a_module_that_answers the_class_of_a_module the_class_of_a_namedtuple "
    "a_base_by_super a_base_by_mro a_base_by_bases which_number_it_is an_attribute_of_torchs_function conjugation an_emptied_cell".split()
)


@pytest.mark.parametrize("make", CASES)
def test_a_change_is_seen(make, request, translations):  # noqa: F811
    wants = make.__code__.co_varnames[: make.__code__.co_argcount]
    mask_mod, change = make(*[request if name == "request" else request.getfixturevalue(name) for name in wants])
    is_seen(mask_mod, change, make.__name__ in RECALLED)


@pytest.mark.parametrize("text", TEXTS)
def test_what_no_name_leads_to(text, translations):  # noqa: F811
    mask_mod, change = of_text(f"import functools\n{TEXTS[text]}")
    is_seen(mask_mod, change, text == "a percent sign")


def test_a_tensor_that_is_not_strided(translations):  # noqa: F811
    sparse = torch.zeros(3, 4).to_sparse()
    for _ in range(3):
        check(mask_mod=lambda b, h, i, j: near(i, j, sparse.shape[0]))


def test_a_method_of_what_has_no_hash(translations):  # noqa: F811
    class Mask:
        __hash__ = None

        def __call__(self, owner, b, h, i, j):
            return near(i, j, 3)

    for _ in range(3):
        check(mask_mod=types.MethodType(Mask(), object()))


def test_a_callable_whose_attributes_raise(translations):  # noqa: F811
    class Mask:
        def __getattr__(self, name):
            return {}[name]

        def __call__(self, b, h, i, j):
            return near(i, j, 3)

    for _ in range(3):
        check(mask_mod=Mask())


class Window:
    def __init__(self, width):
        self.width = width

    def mask_mod(self, b, h, i, j):
        return (i - j).abs() < self.width


def test_two_methods_of_one_function_are_recalled(translations):  # noqa: F811
    """One function stands twice in what the mask sees, and two objects are of one class."""
    narrow, wide = Window(3), Window(5)
    for _ in range(3):
        check(mask_mod=and_masks(narrow.mask_mod, wide.mask_mod))
    assert met(and_masks(narrow.mask_mod, wide.mask_mod)) is not None
    assert len(translations) == 1
    narrow.width = 2
    check(mask_mod=and_masks(narrow.mask_mod, wide.mask_mod))
