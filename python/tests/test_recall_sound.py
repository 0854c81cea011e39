"""Calls are recalled only where all that a function reads is the same, whoever reads it."""

import enum
import functools
import operator
import random
import types
from typing import NamedTuple

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_recall import check, translations  # noqa: E402, F401


def near(i, j, options):
    return (i - j).abs() < options.window


class Near:
    def __init__(self, window):
        self.window, self.factor = window, 0.5

    def mask_mod(self, b, h, i, j):
        return near(i, j, self)

    def score_mod(self, score, b, h, i, j):
        return score * self.factor


class Inner(torch.nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, distance):
        return distance.abs() < self.window


class Words(dict):
    pass


class Sizes(NamedTuple):
    window: int
    scale = 1


def by_helper(window):
    options = types.SimpleNamespace(window=window)
    return None, lambda b, h, i, j: near(i, j, options)


def by_two_methods(window):
    each = Near(window)
    return each.score_mod, each.mask_mod


def by_module_that_is_called(window):
    inner = Inner(window)
    return None, lambda b, h, i, j: inner(i - j)


def by_dict_of_ones_own(window):
    words = Words(window=window)
    return None, lambda b, h, i, j: (i - j).abs() < words["window"]


def by_attrgetter(window):
    options, get = types.SimpleNamespace(window=window), operator.attrgetter
    return None, lambda b, h, i, j: (i - j).abs() < get("window")(options)


def by_match(window):
    options = Near(window)

    def mask_mod(b, h, i, j):
        match options:
            case Near(window=size):
                return (i - j).abs() < size

    return None, mask_mod


def by_function_attribute(window):
    def mask_mod(b, h, i, j):
        return (i - j).abs() < mask_mod.window

    mask_mod.window = window
    return None, mask_mod


def by_class_of_a_named_tuple(window):
    Sizes.scale = window
    sizes = Sizes(1)
    return None, lambda b, h, i, j: (i - j).abs() < sizes.window * sizes.scale


def by_value_of_an_enum(window):
    Kind.A.value[0] = window
    return None, lambda b, h, i, j: (i - j).abs() < Kind.A.value[0]


class Kind(enum.Enum):
    A = [3]


def by_narrow_numbers(window):
    few, more = numpy.uint8(window), numpy.uint8(253)
    return None, lambda b, h, i, j: (i - j).abs() < int(few + more)


def by_type_of_numpy(window):
    size = numpy.int64(window)
    return None, lambda b, h, i, j: (i - j).abs() < (size if isinstance(size, numpy.integer) else 1)


WAYS = [
    by_helper, by_two_methods, by_module_that_is_called, by_dict_of_ones_own, by_attrgetter, by_match,
    by_function_attribute, by_class_of_a_named_tuple, by_value_of_an_enum, by_narrow_numbers, by_type_of_numpy,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("make", WAYS)
def test_other_numbers_are_seen(make, translations):  # noqa: F811
    chosen = random.Random(3)
    for _ in range(4):
        functions = make(chosen.randint(4, 12))
        for _ in range(2):
            check(*functions)


@pytest.mark.parametrize("seed", range(3))
def test_a_program_that_is_changed(seed, translations):  # noqa: F811
    """Made once; its object, and what its helper is, are others from call to call."""
    chosen = random.Random(seed)
    each = Near(5)

    def helper(i, j, by=3):
        return (i - j).abs() < by

    def mask_mod(b, h, i, j):
        return near(i, j, each) | helper(i, j)

    for _ in range(6):
        match chosen.randrange(4):
            case 0:
                each.window = chosen.randint(1, 12)
            case 1:
                helper.__defaults__ = (chosen.randint(1, 12),)
            case 2:
                helper.__code__ = (lambda i, j, by=3: i - j < by).__code__
            case 3:
                each.factor = chosen.random()
        for _ in range(2):
            check(each.score_mod, mask_mod)


def test_random_numbers_are_drawn_anew(translations):  # noqa: F811
    for _ in range(3):
        numpy.random.seed(len(translations))
        factor = functools.partial(numpy.random.uniform, 0.5, 1.5)
        torch.manual_seed(2)
        from attune.torch import flex_attention

        given = [torch.randn(1, 1, 8, 16) for _ in range(3)]
        flex_attention(*given, lambda score, b, h, i, j: score * numpy.random.uniform(), strict=True)
        assert factor() > 0
    assert len(translations) == 3


def test_what_is_handed_on_is_recalled(translations):  # noqa: F811
    for _ in range(3):
        check(*by_helper(5))
    assert len(translations) == 1


@pytest.mark.parametrize("function", [torch.logaddexp, torch.logaddexp2])
def test_sums_of_no_exponentials(function):
    """Of two -inf is -inf, not NaN."""
    from attune.torch import flex_attention

    table = torch.tensor([-torch.inf, 0.0])
    given = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 2, 16), torch.ones(1, 1, 2, 16)
    _, lse = flex_attention(*given, lambda s, b, h, i, j: function(table[j], table[j]), return_lse=True, strict=True)
    torch.testing.assert_close(lse.flatten(), function(table, table)[1:], atol=1e-5, rtol=1e-5)
