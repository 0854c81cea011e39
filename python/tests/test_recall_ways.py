"""Functions over objects that are recalled by the way back to what they see: every change of it is seen, whatever holds
it, and none of it is kept."""

import enum
import functools
import gc
import threading
import types
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_recall import LENGTH, by_definition, check, operands, translations  # noqa: E402, F401

from attune.torch import _recall, flex_attention  # noqa: E402


class Base:
    window = 3
    wide = False

    def size(self):
        return self.window


class Other(Base):
    def size(self):
        return self.window + 2


class Near(Base):
    def mask_mod(self, b, h, i, j):
        return (i - j).abs() < self.size()


class Layer(torch.nn.Module):
    def __init__(self, window=3):
        super().__init__()
        self.window = window
        self.register_buffer("doc", torch.arange(LENGTH) // 3)

    def mask_mod(self, b, h, i, j):
        return (self.doc[i] == self.doc[j]) | ((i - j).abs() < self.window)


class Kind(enum.Enum):
    NEAR = 3
    FAR = 6


def fresh(base=Base):
    """A class of its own, for what changes it."""
    return type("Fresh", (base,), {"mask_mod": Near.mask_mod, "unused": None})


def near(i, j, window):
    return (i - j).abs() < window


def by_value_in_the_class():
    each = fresh()()
    return each.mask_mod, lambda: setattr(type(each), "window", 5)


def by_value_of_the_base():
    base = type("B", (), {"window": 3, "size": Base.size})
    return fresh(base)().mask_mod, lambda: setattr(base, "window", 5)


def by_shadowed_value():
    each = fresh()()
    return each.mask_mod, lambda: vars(each).update(window=5)


def by_value_that_is_deleted():
    each = fresh()()
    each.window = 5
    return each.mask_mod, lambda: delattr(each, "window")


def by_another_dict():
    each = fresh()()
    each.window = 4
    return each.mask_mod, lambda: setattr(each, "__dict__", {"window": 6})


def by_another_class():
    each = fresh()()
    return each.mask_mod, lambda: setattr(each, "__class__", fresh(Other))


def by_other_bases():
    each = fresh()()
    return each.mask_mod, lambda: setattr(type(each), "__bases__", (Other,))


def by_another_method():
    each = fresh()()
    return each.mask_mod, lambda: setattr(type(each), "size", Other.size)


def by_method_of_the_object():
    each = fresh()()
    return each.mask_mod, lambda: setattr(each, "size", lambda: 6)


def by_other_code():
    kind = fresh(type("B", (Base,), {"size": lambda self: self.window}))
    return kind().mask_mod, lambda: setattr(kind.size, "__code__", Other.size.__code__)


def by_property_that_appears():
    each = fresh()()
    each.window = 4
    return each.mask_mod, lambda: setattr(type(each), "window", property(lambda self: 6))


def by_getattribute_that_appears():
    """As many names in the class as before."""
    each = fresh()()

    def change():
        del type(each).unused
        type(each).__getattribute__ = lambda self, name: 6 if name == "window" else object.__getattribute__(self, name)

    return each.mask_mod, change


def by_getattr_that_is_asked():
    kind = fresh(type("B", (), {"size": Base.size}))
    each = kind()
    each.window = 3

    def change():
        del each.window, kind.unused
        kind.__getattr__ = lambda self, name: 6 if name == "window" else object.__getattr__(self, name)

    return each.mask_mod, change


def by_operator_that_appears():
    kind = type("Size", (), {"unused": None, "half": lambda self: self.size / 2})
    size, one = kind(), 1
    size.size = 6

    def change():
        del kind.unused
        kind.__mul__ = lambda self, other: 6 * other

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, size * one)
        except TypeError:
            return near(i, j, size.half())

    return mask_mod, change


def by_nested_list():
    held = types.SimpleNamespace(sizes=[[1], [3]])
    return lambda b, h, i, j: near(i, j, held.sizes[1][0]), lambda: held.sizes[1].__setitem__(0, 6)


def by_list_that_is_longer():
    sizes = [3]
    return lambda b, h, i, j: near(i, j, sizes[-1]), lambda: sizes.append(6)


def by_dict_of_another_order():
    sizes = {"a": 3, "b": 6}

    def change():
        sizes["a"] = sizes.pop("a")

    return lambda b, h, i, j: near(i, j, [*sizes.values()][0]), change


def by_name_in_a_namespace():
    options = types.SimpleNamespace(size=3)
    return lambda b, h, i, j: near(i, j, options.size + 3 * ("far" in options.__repr__())), lambda: setattr(
        options, "far", 1
    )


def by_named_default():
    def mask_mod(b, h, i, j, *, window=3):
        return near(i, j, window)

    return mask_mod, lambda: mask_mod.__kwdefaults__.update(window=6)


def by_default():
    def mask_mod(b, h, i, j, window=[3]):  # noqa: B006
        return near(i, j, window[0])

    return mask_mod, lambda: mask_mod.__defaults__[0].__setitem__(0, 6)


def by_keyword_of_a_partial():
    each = functools.partial(lambda b, h, i, j, window: near(i, j, window), window=3)
    return each, lambda: each.keywords.update(window=6)


def by_state_of_a_partial():
    each = functools.partial(lambda window, b, h, i, j: near(i, j, window), 3)
    return each, lambda: each.__setstate__((each.func, (6,), {}, {}))


def by_global_that_hides_a_builtin():
    namespace = {"near": near}
    exec("def mask_mod(b, h, i, j): return near(i, j, abs(-3))", namespace)
    return namespace["mask_mod"], lambda: namespace.update(abs=lambda x: 6)


def by_global():
    namespace = {"near": near, "window": 3}
    exec("def mask_mod(b, h, i, j): return near(i, j, window)", namespace)
    return namespace["mask_mod"], lambda: namespace.update(window=6)


def by_method_of_a_closure():
    options = types.SimpleNamespace(window=3)
    method = types.MethodType(lambda self, b, h, i, j: near(i, j, self.window), options)
    return lambda b, h, i, j: method(b, h, i, j), lambda: setattr(options, "window", 6)


def by_two_that_become_one():
    one, two = [3], [3]
    held = types.SimpleNamespace(one=one, two=two)
    return lambda b, h, i, j: near(i, j, 6 if held.one is held.two else 3), lambda: setattr(held, "two", one)


def by_one_that_becomes_two():
    one = [3]
    held = types.SimpleNamespace(one=one, two=one)
    return lambda b, h, i, j: near(i, j, 3 if held.one is held.two else 6), lambda: setattr(held, "two", [3])


def by_tensor_that_becomes_two():
    one = torch.arange(LENGTH) // 3
    held = types.SimpleNamespace(one=one, two=one)
    return lambda b, h, i, j: held.one[i] == held.two[j], lambda: setattr(held, "two", one // 2)


def by_dict_of_another_class():
    class Words(dict):
        def __getitem__(self, name):
            return 6

    held = types.SimpleNamespace(options={"window": 3})
    return lambda b, h, i, j: near(i, j, held.options["window"]), lambda: setattr(held, "options", Words(window=3))


def by_function_of_another_class():
    class Six:
        def __call__(self):
            return 6

    def three():
        return 3

    held = types.SimpleNamespace(size=three)
    return lambda b, h, i, j: near(i, j, held.size()), lambda: setattr(held, "size", Six())


def by_default_that_appears():
    def size(*, window):
        return window

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, size())
        except TypeError:
            return near(i, j, size(window=3))

    return mask_mod, lambda: setattr(size, "__kwdefaults__", {"window": 6})


def by_place_that_has_a_default():
    def size(window):
        return window

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, size())
        except TypeError:
            return near(i, j, size(3))

    return mask_mod, lambda: setattr(size, "__defaults__", (6,))


def by_attribute_that_a_function_gets():
    def size():
        return 3

    def mask_mod(b, h, i, j):
        try:
            return near(i, j, size.window)
        except AttributeError:
            return near(i, j, size())

    return mask_mod, lambda: setattr(size, "window", 6)


def by_zero_of_another_sign():
    held = types.SimpleNamespace(zero=0.0)
    return lambda b, h, i, j: near(i, j, 3 + 3 * (str(held.zero)[0] == "-")), lambda: setattr(held, "zero", -0.0)


def by_truth_that_becomes_a_number():
    held = types.SimpleNamespace(wide=True)
    return lambda b, h, i, j: near(i, j, 3 if held.wide is True else 6), lambda: setattr(held, "wide", 1)


def by_member_of_an_enum():
    held = types.SimpleNamespace(kind=Kind.NEAR)
    return lambda b, h, i, j: near(i, j, held.kind.value), lambda: setattr(held, "kind", Kind.FAR)


def by_tensor_of_a_layer():
    layer = Layer()
    return layer.mask_mod, lambda: setattr(layer, "doc", torch.arange(LENGTH) // 5)


def by_tensor_of_another_type():
    layer = Layer()
    return layer.mask_mod, lambda: setattr(layer, "doc", (torch.arange(LENGTH) // 5).float())


def by_data_of_another_shape():
    held = types.SimpleNamespace(table=torch.arange(2 * LENGTH).view(2, LENGTH) % 5)

    def change():
        held.table.data = torch.arange(4 * LENGTH).view(2, 2 * LENGTH) % 7

    return lambda b, h, i, j: (held.table[1, i] == held.table[1, j]) | (i == j), change


def by_tensor_that_is_another_too():
    held = types.SimpleNamespace(one=torch.arange(LENGTH) // 3, two=torch.arange(LENGTH) // 5)
    return lambda b, h, i, j: held.one[i] == held.two[j], lambda: setattr(held, "two", held.one)


def by_view_of_the_other():
    held = types.SimpleNamespace(one=torch.arange(LENGTH) // 3, two=torch.arange(LENGTH) // 5)
    return lambda b, h, i, j: held.one[i] == held.two[j], lambda: setattr(held, "two", held.one.view(-1))


def by_number_of_a_tensor():
    held = types.SimpleNamespace(window=torch.tensor(3))
    return lambda b, h, i, j: near(i, j, held.window), lambda: held.window.fill_(6)


def by_infinite_number_of_a_tensor():
    held = types.SimpleNamespace(far=torch.tensor(3.0))
    return lambda b, h, i, j: (i - j).abs() * 1.0 < held.far, lambda: held.far.fill_(torch.inf)


WAYS = [each for name, each in list(globals().items()) if name.startswith("by_") and name != "by_definition"]


def met(mask_mod):
    return _recall.recall(None, None, mask_mod, None)


@pytest.mark.parametrize("make", WAYS)
def test_a_change_is_seen(make, translations):  # noqa: F811
    mask_mod, change = make()
    for _ in range(4):
        check(mask_mod=mask_mod)
    assert met(mask_mod) is not None and len(translations) == 1
    change()
    for _ in range(4):
        check(mask_mod=mask_mod)


def test_layers_of_one_class_share_a_way(translations):  # noqa: F811
    layers = [Layer(2 + at % 5) for at in range(10)]
    for _ in range(4):
        for layer in layers:
            check(mask_mod=layer.mask_mod)
    assert len(translations) <= 2 and len(_recall._programs) == 1  # the second number is seen to vary
    layers[7].window = 9
    check(mask_mod=layers[7].mask_mod)
    check(mask_mod=layers[6].mask_mod)


def test_a_function_made_anew_is_met(translations):  # noqa: F811
    layer = Layer()
    for at in range(6):
        layer.doc = torch.arange(LENGTH) // (2 + at)
        doc = torch.arange(LENGTH) // (3 + at)
        check(mask_mod=lambda b, h, i, j, doc=doc: layer.mask_mod(b, h, i, j) | (doc[i] == doc[j]))
    assert len(translations) == 1
    assert met(lambda b, h, i, j: layer.mask_mod(b, h, i, j)) is None  # other code


def test_a_method_of_what_is_no_function(translations):  # noqa: F811
    held = types.MethodType(functools.partial(lambda self, b, h, i, j: near(i, j, self.window)), Near())
    for _ in range(3):
        check(mask_mod=lambda b, h, i, j: held(b, h, i, j))


@pytest.mark.parametrize("stands", ["in a cell", "in itself", "method", "hook"])
def test_what_functions_see_ends(stands, translations):  # noqa: F811
    layer = Layer()
    mask_mod = layer.mask_mod
    if stands != "method":
        mask_mod = lambda b, h, i, j: layer.mask_mod(b, h, i, j)  # noqa: E731
    if stands == "in itself":
        layer.made = mask_mod
    if stands == "hook":
        layer.doc = torch.zeros(LENGTH, requires_grad=True)
        layer.doc.register_hook(mask_mod)
    for _ in range(4):
        flex_attention(*operands(), mask_mod=mask_mod, strict=True)
    translations.clear()
    ended = [weakref.ref(each) for each in (layer, layer.doc, mask_mod)]
    del layer, mask_mod
    gc.collect()
    assert [each() for each in ended] == [None] * 3


def test_a_function_that_sees_itself_ends(translations):  # noqa: F811
    def mask_mod(b, h, i, j):
        return (i >= j) & (mask_mod is not None)

    for _ in range(4):
        flex_attention(*operands(), mask_mod=mask_mod, strict=True)
    translations.clear()
    ended = weakref.ref(mask_mod)
    del mask_mod
    gc.collect()
    assert ended() is None


def test_no_table_grows_for_ever(translations, monkeypatch):  # noqa: F811
    for name in ("_MAX_PLACES", "_MAX_NUMBERS", "_MAX_FINGERPRINTS"):
        monkeypatch.setattr(_recall, name, 8)
    layers, given = [Layer(at) for at in range(2, 40)], operands()
    for at, layer in enumerate(layers):
        for _ in range(2):
            flex_attention(*given, mask_mod=layer.mask_mod, strict=True)
            flex_attention(*given, mask_mod=lambda b, h, i, j, name=str(at): near(i, j, len(name)), strict=True)
        assert max(map(len, (_recall._programs, _recall._by_place, _recall._by_code))) <= 8
        assert max([len(each._seen) for each in _recall._programs.values()]) <= 8
        assert max(map(len, _recall._by_code.values())) <= _recall._MAX_OF_CODE
    for layer in layers[::7]:
        check(mask_mod=layer.mask_mod)


def test_threads_change_what_they_see(translations):  # noqa: F811
    """Each its own object, of one class and one code."""
    given, problems = operands(), []
    wanted = {window: by_definition(*given, None, Layer(window).mask_mod) for window in range(1, 9)}

    def run(seed):
        layer = Layer()
        try:
            for at in range(60):
                layer.window = 1 + (at * seed) % 8
                for _ in range(2):
                    out = flex_attention(*given, mask_mod=layer.mask_mod, strict=True)
                    torch.testing.assert_close(out.double(), wanted[layer.window], atol=2e-5, rtol=2e-5)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 3, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems
