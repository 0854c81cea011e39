"""Captured numbers: scalars of the launch where that costs nothing, and right at every value wherever they stand."""

import argparse
import collections
import enum
import functools
import itertools
import math
import types

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_gradients import plain_attention  # noqa: E402

import attune  # noqa: E402
from attune.torch import _recall, create_block_mask, flex_attention  # noqa: E402
from attune.torch._expression import literal  # noqa: E402
from attune.torch._plans import variant_of  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 1, 2, 24, 16
WINDOW = 3  # changed by a test
VALUES = (3, 5, 4, 9, 1)


@pytest.fixture(autouse=True)
def fresh():
    _recall.forget()
    variant_of.cache_clear()
    torch.manual_seed(3)


def compiles():
    """Kernels that this process has had so far: compiled, or read from a cache file."""
    counters = attune.default_runtime("cpu").status()["counters"]
    return counters["compiles"] + counters["from_cache"]


def check(score_mod=None, mask_mod=None, tolerance=2e-5):
    given = [torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3)]
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cpu")
    with torch.no_grad():
        out = flex_attention(*given, score_mod, mask, strict=True)
    wanted = plain_attention(*(x.double() for x in given), score_mod, mask_mod)[0]
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)


def specs():
    """Of the calls that were translated since the test began."""
    return variant_of.cache_info().currsize


def by_closure():
    return lambda window: lambda b, h, i, j: (i - j).abs() < window


def by_global():
    def near(b, h, i, j):
        return (i - j).abs() < WINDOW

    def make(window):
        global WINDOW
        WINDOW = window
        return near

    return make


def by_default():
    def make(window):
        def near(b, h, i, j, window=window):
            return (i - j).abs() < window

        return near

    return make


def by_keyword_default():
    def make(size):
        def near(b, h, i, j, *, window=size):
            return (i - j).abs() < window

        return near

    return make


def by_partial():
    def near(window, b, h, i, j):
        return (i - j).abs() < window

    return lambda window: functools.partial(near, window)


def by_keyword_of_a_partial():
    def near(b, h, i, j, window):
        return (i - j).abs() < window

    return lambda window: functools.partial(near, window=window)


class Near:
    def __init__(self, window):
        self.window = window

    def __call__(self, b, h, i, j):
        return self.is_near(i - j)

    def mask_mod(self, b, h, i, j):
        return self.is_near(i - j)

    def is_near(self, distance):
        return distance.abs() < self.window


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("doc", torch.arange(LENGTH) // 11)
        self.window = 3

    def mask_mod(self, b, h, i, j):
        return (self.doc[i] == self.doc[j]) & ((i - j).abs() < self.window)


def by_layer():
    layer = Layer()

    def make(window):
        layer.window = window
        return layer.mask_mod

    return make


def by_object_in_a_cell():
    near = Near(3)

    def make(window):
        near.window = window
        return lambda b, h, i, j: near.is_near(i - j)

    return make


def by_item():
    windows = [0, 3]

    def make(window):
        windows[1] = window
        return lambda b, h, i, j: (i - j).abs() < windows[1]

    return make


def by_key():
    return lambda window: (lambda options: lambda b, h, i, j: (i - j).abs() < options["window"])({"window": window})


def by_inner_function():
    def make(window):
        def near(distance):
            return distance.abs() < window

        return lambda b, h, i, j: near(i - j)

    return make


def by_combination():
    def make(window):
        from attune.torch import and_masks, or_masks

        near = by_closure()(window)
        return and_masks(or_masks(near, lambda b, h, i, j: j < window // 2), lambda b, h, i, j: i >= j)

    return make


def by_arithmetic():
    return lambda window: lambda b, h, i, j: ((i - j).abs() < (window + 1) // 2 + window**2 % 7) | (j < abs(-window))


def by_float():
    return lambda window: lambda b, h, i, j: (i - j).abs() * 0.5 < window + 0.25


def by_bounds():
    return lambda window: lambda b, h, i, j: (i - j).clamp(-window, window).abs() + torch.maximum(j, i) > window - 1


def by_index():
    table = torch.arange(LENGTH) % 5 < 3
    return lambda window: lambda b, h, i, j: table[window] | table[(i - window).clamp(min=0)] | (i == j)


def by_number_of_numpy():
    return lambda window: by_closure()(numpy.int32(window))


def by_float_of_numpy():
    def make(window):
        window = numpy.float32(window)
        return lambda b, h, i, j: (i - j).abs() * numpy.float32(0.5) < window + numpy.float64(0.25)

    return make


Sizes = collections.namedtuple("Sizes", ["window", "unused"])


def by_named_tuple():
    return lambda window: (lambda sizes: lambda b, h, i, j: (i - j).abs() < sizes.window)(Sizes(window, 2))


def by_namespace():
    def make(window):
        options = argparse.Namespace(window=window, folder="/tmp")
        others = types.SimpleNamespace(window=window)
        return lambda b, h, i, j: (i - j).abs() < options.window + others.window

    return make


class Halved:
    def __init__(self, window):
        self._whole = window

    @property
    def window(self):
        return self.doubled(self._whole) // 2

    @staticmethod
    def doubled(window):
        return 2 * window

    def mask_mod(self, b, h, i, j):
        return (i - j).abs() < self.window


def by_property():
    return lambda window: Halved(window).mask_mod


WAYS = [
    *(by_closure, by_global, by_default, by_keyword_default, by_partial, by_keyword_of_a_partial, by_layer),
    *(by_object_in_a_cell, by_item, by_key, by_inner_function, by_combination, by_arithmetic, by_float, by_bounds),
    *(by_number_of_numpy, by_float_of_numpy, by_named_tuple, by_namespace, by_property),
    *(by_index, lambda: Near, lambda: lambda window: Near(window).mask_mod),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_five_values_are_one_kernel(way):
    make = way()
    before = compiles()
    for window in (*VALUES, *VALUES[:2]):
        check(mask_mod=make(window))
    assert specs() == 1
    assert compiles() <= before + 1


class Kind(enum.Enum):
    CAUSAL = 1
    WHOLE = 2


def test_what_is_no_number_is_told_apart():
    """Members of enumerations, sets."""

    def make(kind, kept):
        def mask_mod(b, h, i, j):
            if kind is Kind.CAUSAL and 3 in kept:
                return i >= j
            return (i - j).abs() < 40

        return mask_mod

    for kind, kept in itertools.product(Kind, ({3}, {4}, frozenset((3, 4)), frozenset())):
        check(mask_mod=make(kind, kept))
        assert _recall.look_at(None, None, make(kind, kept), None) is not None
    assert specs() == 2


def test_five_values_are_built_once():
    """Of a kernel that nobody else asks for."""
    before = compiles()
    for window in VALUES:
        check(mask_mod=lambda b, h, i, j, window=window: (i - j).abs() + 12345 < window + 12345)
    assert compiles() == before + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda cap: lambda score, b, h, i, j: cap * torch.tanh(score / cap),
        lambda cap: lambda score, b, h, i, j: score - cap * (i - j).abs(),
        lambda cap: lambda score, b, h, i, j: score * (cap / 7) + 3 / (cap + score.abs()),
    ],
)
def test_a_factor_is_a_constant_until_it_varies(make):
    """Kernels fold constant factors; one that varies costs a second kernel, and no third."""
    for cap in (2.0, 2.0):
        check(make(cap))
    assert specs() == 1
    for cap in (3.5, 0.75, 4.0, 2.0, -1.5):
        check(make(cap))
    assert specs() == 2


def of_structure():
    def loop(count):
        def score_mod(score, b, h, i, j):
            for step in range(count):
                score = score * 0.5 + torch.sin(j * (step + 0.5))
            return score

        return score_mod

    def branch(count):
        return lambda score, b, h, i, j: torch.where(i >= j, score, -1e4) if count > 4 else score

    def shortest(count):
        return lambda score, b, h, i, j: score + min(count, 4)

    def function(count):
        return lambda score, b, h, i, j: score * math.sqrt(count) + float(count) + int(str(count))

    def remainder(count):
        return lambda score, b, h, i, j: score + (i % count) - (j // count) + (i >> (count % 3)) + (j & count)

    def power(count):
        return lambda score, b, h, i, j: score.abs() ** count * 0.01 + 2.0 ** (-count)

    def stretch(count):
        return lambda score, b, h, i, j: score - (count * i - j).abs()

    def table(count):
        values = torch.arange(LENGTH * 1.0)
        return lambda score, b, h, i, j: score + values[:count].sum() * 0 + values[: count + 1][0] + values[i] * 0.1

    def list_of_steps(count):
        steps = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
        return lambda score, b, h, i, j: score + steps[count] * j * 0.1

    return [loop, branch, shortest, function, remainder, power, stretch, table, list_of_steps]


@pytest.mark.parametrize("make", of_structure(), ids=lambda make: make.__name__)
def test_what_decides_structure_is_right_at_every_value(make):
    for count in (3, 5, 1, 3):
        check(make(count), tolerance=2e-4)


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0, 0, 0.0, -0.0),
        (2**31 - 1, 2**40, -(2**31), 3),
        (1.5, math.inf, -math.inf, 1e39),
    ],
    ids=["kinds", "large", "infinite"],
)
def test_values_that_no_launch_can_bring(values):
    for value in (*values, *values):
        check(mask_mod=lambda b, h, i, j, value=value: (i - j <= value) | (i == j))


def test_ints_of_classes_of_their_own():
    """A range would look for such a one by going through all that it holds."""

    class Width(enum.IntEnum):
        narrow, wide = 3, 2**40

    assert literal(Width.narrow) == literal(3) and literal(Width.wide) == literal(2**40)
    for width in Width:
        check(mask_mod=lambda b, h, i, j: i - j < width)  # noqa: B023


def test_a_derived_value_that_no_launch_can_bring():
    def make(n):
        return lambda b, h, i, j: i - j < 10 // n if n != 3 else i >= j

    for n in (1, 2, 3, 5):
        check(mask_mod=make(n))

    def large(n):
        return lambda b, h, i, j: i - j <= n * n

    for n in (1, 70_000, 2, 2_000_000):
        check(mask_mod=large(n))


def test_more_numbers_than_a_launch_has_scalars():
    def make(*numbers):
        def mask_mod(b, h, i, j):
            live = i == j
            for number in numbers:
                live = live | (i - j == number)
            return live

        return mask_mod

    for shift in range(3):
        check(mask_mod=make(*range(shift, shift + 20)))


def test_numbers_that_a_second_path_leads_to():
    """Through a class, whose functions are never copied."""
    near = Near(3)

    class Both:
        def __init__(self):
            self.near = near

        def __call__(self, b, h, i, j):
            return self.near.is_near(i - j) & (self.twice(i - j) > -50)

        def twice(self, distance):
            return distance - near.window * 2 + near.window

    both = Both()
    for window in VALUES:
        near.window = window
        check(mask_mod=both)
        check(mask_mod=lambda b, h, i, j: near.is_near(i - j) & both(b, h, i, j))


def test_a_function_that_changes_what_it_captures():
    calls = 0

    def mask_mod(b, h, i, j):
        nonlocal calls
        calls += 1
        return i - j < 5

    for _ in range(3):
        check(mask_mod=mask_mod)
    assert calls > 3


def test_a_function_that_calls_itself():
    def make(window):
        def near(distance, depth=2):
            return near(distance, depth - 1) if depth else distance < window

        return lambda b, h, i, j: near(i - j)

    for window in VALUES:
        check(mask_mod=make(window))


def test_gradients_with_a_scalar():
    for window in VALUES:
        given = [torch.randn(BATCH, HEADS, LENGTH, DIM, requires_grad=True) for _ in range(3)]
        exact = [x.detach().double().requires_grad_() for x in given]

        def score_mod(score, b, h, i, j, window=window):
            return torch.where((i - j).abs() < window, score, score - window)

        out = flex_attention(*given, score_mod, strict=True)
        wanted = plain_attention(*exact, score_mod, None)[0]
        out.square().sum().backward()
        wanted.square().sum().backward()
        for mine, reference in zip(given, exact, strict=True):
            torch.testing.assert_close(mine.grad.double(), reference.grad, atol=1e-4, rtol=1e-4)
    assert specs() == 1


def test_two_functions_share_a_cell():
    def make(window):
        def score_mod(score, b, h, i, j):
            return torch.where(i - j < window, score, score + 1)

        return score_mod, lambda b, h, i, j: (i - j).abs() < window

    for window in VALUES:
        check(*make(window))
    assert specs() == 1


def test_layers_with_windows_of_their_own():
    """Layers that take turns share one kernel."""
    layers = [by_closure()(window) for window in VALUES]
    for mask_mod in itertools.chain(layers, layers):
        check(mask_mod=mask_mod)
    assert specs() == 1
