"""Calls that are not translated again: only where nothing that a function sees has changed."""

import dataclasses
import functools
import gc
import types
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import importlib  # noqa: E402

import mods  # noqa: E402

from attune.torch import Untranslatable, _recall, create_block_mask, flex_attention  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 2, 2, 16, 16
WINDOW = 3  # changed by a test
_entry = importlib.import_module("attune.torch.flex_attention")


@pytest.fixture
def translations(monkeypatch):
    """One entry a translation."""
    _recall.forget()
    made = []

    def counted(*args):
        made.append(args)
        return _operator_call(*args)

    _operator_call = _entry.spec_text
    monkeypatch.setattr(_entry, "spec_text", counted)
    yield made
    _recall.forget()


def operands():
    return [torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3)]


def check(score_mod=None, mask_mod=None):
    """One call, right at this moment."""
    given = operands()
    out = flex_attention(*given, score_mod, mask_mod=mask_mod, strict=True)
    reference = by_definition(*given, score_mod, mask_mod)
    torch.testing.assert_close(out.double(), reference, atol=2e-5, rtol=2e-5)


def by_definition(q, k, v, score_mod, mask_mod):
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.transpose(-1, -2) * DIM**-0.5
    indices = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    if score_mod is not None:
        s = score_mod(s, *indices)
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(*indices), -torch.inf)
    alive = s.isfinite().any(-1, keepdim=True)
    return (torch.where(alive, s, 0.0).softmax(-1) * alive) @ v


def test_the_same_function_is_translated_once(translations):
    for _ in range(3):
        check(mods.softcap(3.0), mods.causal)
    assert len(translations) == 1


def test_functions_made_anew_are_translated_once(translations):
    for shift in range(3):
        doc = (torch.arange(LENGTH) // (shift + 2)).repeat(BATCH, 1)
        slopes = torch.rand(HEADS)
        check(
            lambda score, b, h, i, j, slopes=slopes: score + slopes[h] * (i - j),
            lambda b, h, i, j, doc=doc: (doc[b, i] == doc[b, j]) & (i >= j),
        )
    assert len(translations) == 1


def test_other_sizes_are_other_calls(translations):
    for length in (8, 16, 8):
        q, k, v = (torch.randn(1, HEADS, length, DIM) for _ in range(3))
        flex_attention(q, k, v, mods.softcap(3.0), strict=True)
    assert len(translations) == 2


def by_cell():
    window = 3

    def change():
        nonlocal window
        window = 5

    return lambda b, h, i, j: (i - j).abs() < window, change


def by_global():
    def change():
        global WINDOW
        WINDOW = 9 - WINDOW

    return lambda b, h, i, j: (i - j).abs() < WINDOW, change


def by_list():
    windows = [3]
    return lambda b, h, i, j: (i - j).abs() < windows[0], lambda: windows.__setitem__(0, 5)


def by_dict():
    options = {"window": 3}
    return lambda b, h, i, j: (i - j).abs() < options["window"], lambda: options.update(window=5)


class Near:
    def __init__(self):
        self.window = 3

    def __call__(self, b, h, i, j):
        return self.is_near(i - j)

    def is_near(self, distance):
        return distance.abs() < self.window


def by_object():
    near = Near()
    return near, lambda: setattr(near, "window", 5)


def by_method():
    near = Near()
    return near.__call__, lambda: setattr(near, "window", 5)


def by_object_in_a_cell():
    near = Near()
    return lambda b, h, i, j: near.is_near(i - j), lambda: setattr(near, "window", 5)


def by_class():
    class Options:
        window = 3

    return lambda b, h, i, j: (i - j).abs() < Options.window, lambda: setattr(Options, "window", 5)


def by_module():
    module = types.ModuleType("options")
    module.window = 3
    return lambda b, h, i, j: (i - j).abs() < module.window, lambda: setattr(module, "window", 5)


def by_layer():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("doc", torch.arange(LENGTH) // 3)
            self.window = 3

        def mask_mod(self, b, h, i, j):
            return (self.doc[i] == self.doc[j]) | ((i - j).abs() < self.window)

    layer = Layer()

    def change():
        layer.window = 5
        layer.doc = torch.arange(LENGTH) // 4

    return layer.mask_mod, change


def by_inner_function():
    window = 3

    def near(distance):
        return distance.abs() < window

    def change():
        nonlocal window
        window = 5

    return lambda b, h, i, j: near(i - j), change


def by_partial():
    options = {"window": 3}

    def near(options, b, h, i, j):
        return (i - j).abs() < options["window"]

    return functools.partial(near, options), lambda: options.update(window=5)


def by_getattr():
    near = Near()
    return lambda b, h, i, j: (i - j).abs() < getattr(near, "win" + "dow"), lambda: setattr(near, "window", 5)


def by_property():
    class Options:
        size = 3

        @property
        def window(self):
            return self.size

    options = Options()
    return lambda b, h, i, j: (i - j).abs() < options.window, lambda: setattr(options, "size", 5)


def by_operator():
    class Window:
        size = 3

        def __sub__(self, other):
            return self.size - other

    window = Window()
    return lambda b, h, i, j: window - (i - j).abs() > 0, lambda: setattr(window, "size", 5)


def by_value_of_a_tensor():
    window = torch.tensor([3, 4])
    return lambda b, h, i, j: (i - j).abs() < int(window[0]), lambda: window.fill_(6)


def by_derived_tensor():
    doc = torch.arange(LENGTH)

    def mask_mod(b, h, i, j):
        groups = doc // 3  # made anew in each call
        return groups[i] == groups[j]

    return mask_mod, lambda: doc.mul_(2)


def by_infinity():
    fill = torch.tensor(-torch.inf)
    return lambda b, h, i, j: (i - j).abs() * 1.0 > fill, lambda: fill.fill_(4.0)


@dataclasses.dataclass(frozen=True)
class Options:
    window: int

    @property
    def twice(self):
        return 2 * self.window


def by_frozen_dataclass():
    options = Options(3)

    def change():
        nonlocal options
        options = Options(5)

    return lambda b, h, i, j: (i - j).abs() < options.window, change


def by_property_of_a_frozen_dataclass():
    options = Options(2)

    def change():
        nonlocal options
        options = Options(3)

    return lambda b, h, i, j: (i - j).abs() < options.twice, change


CHANGES = [
    by_cell, by_global, by_list, by_dict, by_object, by_method, by_object_in_a_cell, by_class, by_module, by_layer,
    by_inner_function, by_partial, by_getattr, by_property, by_operator, by_value_of_a_tensor, by_derived_tensor,
    by_infinity, by_frozen_dataclass, by_property_of_a_frozen_dataclass,
]  # fmt: skip


WITH_FINGERPRINT = [
    by_cell, by_global, by_list, by_object, by_layer, by_class, by_partial, by_frozen_dataclass,
]  # fmt: skip


@pytest.mark.parametrize("make", CHANGES)
def test_a_change_is_seen(make, translations):
    mask_mod, change = make()
    for _ in range(2):
        check(mask_mod=mask_mod)
    change()
    for _ in range(2):
        check(mask_mod=mask_mod)


@pytest.mark.parametrize("make", WITH_FINGERPRINT)
def test_what_did_not_change_is_not_translated_again(make, translations):
    mask_mod, _ = make()
    for _ in range(3):
        check(mask_mod=mask_mod)
    assert len(translations) == 1


def test_a_look_at_a_tensor_that_asks_for_no_value(translations):
    """Bracket by bracket, as transformers looks masks up, and a tensor without dims."""
    added, offset, given = torch.randn(BATCH, 1, LENGTH, LENGTH), torch.tensor(3), operands()
    wanted = flex_attention(*given, lambda score, b, h, i, j: score + added[b, 0, i, j])
    for score_mod in (
        lambda score, b, h, i, j: score + added[b][0][i][j],
        lambda score, b, h, i, j: score + added[b, 0, i + offset - offset][j],
    ):
        translations.clear()
        for _ in range(3):
            torch.testing.assert_close(flex_attention(*given, score_mod, strict=True), wanted)
        assert len(translations) == 1


@pytest.mark.parametrize(
    "part",
    [
        lambda table, layer: table[layer],
        lambda table, layer: table[layer, :],
        lambda table, layer: table[layer : layer + 1][0],
        lambda table, layer: table.select(0, layer),
        lambda table, layer: table.narrow(0, layer, 1)[0],
        lambda table, layer: torch.select(table, dim=0, index=layer),
    ],
)
def test_a_part_that_a_tensor_without_dims_picks(part, translations):
    table, layer = torch.randn(4, HEADS), torch.tensor(1)

    def score_mod(score, b, h, i, j):
        return score + part(table, layer)[h] * (i - j)

    for _ in range(2):
        check(score_mod)
    layer.fill_(2)
    for _ in range(2):
        check(score_mod)


@pytest.mark.parametrize("score_mod", [None, mods.softcap(3.0)])
def test_a_scale_that_is_a_tensor_changes_in_place(score_mod, translations):
    scale, given = torch.tensor(0.25), operands()
    wanted = {value: flex_attention(*given, score_mod, scale=value, strict=True) for value in (0.25, 0.5)}
    _recall.forget()  # a tensor is found as the number that it is equal to
    for value in (0.25, 0.5, 0.25):
        scale.fill_(value)
        for _ in range(3):
            assert torch.equal(flex_attention(*given, score_mod, scale=scale, strict=True), wanted[value])


@pytest.mark.parametrize("number", [None, torch.tensor(3)])
def test_what_fails_without_open_numbers_is_tried_once(number, translations):
    def score_mod(score, b, h, i, j):
        return torch.lgamma(score if number is None else score * number)

    for _ in range(2):
        translations.clear()
        with pytest.raises(Untranslatable):
            flex_attention(*operands(), score_mod, strict=True)
        assert len(translations) == 1


def test_tensors_that_are_views_of_one_memory(translations):
    """They are one tensor of a spec, and two once they are not."""

    def call(left, right):
        check(lambda score, b, h, i, j: score + left[i] * right[j])

    table = torch.randn(LENGTH)
    call(table, table.view(-1))
    call(table, torch.randn(LENGTH))
    call(table, table)
    call(torch.randn(LENGTH), torch.randn(LENGTH))


def test_another_tensor_under_the_name(translations):
    table = torch.randn(LENGTH)

    def score_mod(score, b, h, i, j):
        return score + table[j]

    check(score_mod)
    table = torch.randn(LENGTH)
    check(score_mod)
    table.mul_(2)  # in place
    check(score_mod)
    assert len(translations) == 1
    table = torch.randn(LENGTH, 1)[:, 0].double()  # of another type and other strides
    check(score_mod)


def test_a_tensor_that_begins_to_learn(translations):
    slopes = torch.zeros(HEADS)
    given = operands()

    def call():
        return flex_attention(*given, lambda score, b, h, i, j: score + slopes[h] * (i - j), strict=True)

    def same():
        return flex_attention(*given, score_mod, strict=True)

    def score_mod(score, b, h, i, j):
        return score + slopes[h] * (i - j)

    for run in (call, same):
        slopes.requires_grad_(False)
        assert not run().requires_grad
        slopes.requires_grad_()
        out = run()
        out.square().sum().backward()
        assert slopes.grad.abs().sum() > 0
        slopes.grad = None


def test_nothing_that_a_function_sees_is_kept(translations):
    doc = torch.zeros(BATCH, LENGTH, dtype=torch.int32)
    mask = create_block_mask(lambda b, h, i, j: doc[b, i] == doc[b, j], BATCH, None, LENGTH, LENGTH, device="cpu")
    flex_attention(*operands(), None, mask, strict=True)
    flex_attention(*operands(), None, mask, strict=True)
    kept = weakref.ref(doc)
    del doc, mask
    translations.clear()
    gc.collect()
    assert kept() is None
