"""Programs that see almost the same: each has a key of its own, and gives what it means."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_recall import check, translations  # noqa: E402, F401

from attune.torch import _fingerprint  # noqa: E402
from attune.torch._fingerprint import Fingerprint  # noqa: E402
from attune.torch._walked import Unknown  # noqa: E402


def many(*given):
    return given[-1] * len(given)


def last(*given):
    return given[-1]


def of_range(values):
    return lambda s, b, h, i, j: s * values.stop


def of_complex(number):
    return lambda s, b, h, i, j: s * (2 if str(number.imag)[0] == "-" else 3)


def of_two(first, second):
    def score_mod(s, b, h, i, j):
        second  # noqa: B018
        return first(s)

    return score_mod


def by_globals(inner, outer):
    """`a` and what calls it, in namespaces of their own; in either `abs` may be another. `a` is looked at first."""
    of_helper, of_mod = {"__name__": "helper"}, {"__name__": "mod"}
    exec(HELPER, of_helper)
    exec(MOD, of_mod)
    of_mod["a"] = of_helper["a"]
    if inner:
        of_helper["abs"] = sevenfold
    if outer:
        of_mod["abs"] = sevenfold
    return of_mod["score_mod"]


def sevenfold(x):
    return x * 7


HELPER = compile("def a(x): return abs(x)", "helper", "exec")
MOD = compile("def score_mod(s, b, h, i, j): return a(s) + 0.5 * abs(s)", "mod", "exec")


class Holder:
    pass


def of_holder(is_of_class):
    each = Holder()
    if "f" in vars(Holder):
        del Holder.f
    if is_of_class:
        Holder.f = many  # of two: itself and the score
    else:
        each.f = many
    return lambda s, b, h, i, j: each.f(s)


PAIRS = {
    "equal ranges": (lambda: of_range(range(0, 3, 2)), lambda: of_range(range(0, 4, 2))),
    "zeros of a complex number": (lambda: of_complex(complex(1, 0.0)), lambda: of_complex(complex(1, -0.0))),
    "a method's object and a function": (
        lambda: of_two(types.MethodType(many, last), "x"), lambda: of_two(many, types.MethodType(last, "x")),
    ),
    "whose global it is": (lambda: by_globals(True, False), lambda: by_globals(False, True)),
    "whose attribute it is": (lambda: of_holder(False), lambda: of_holder(True)),
}  # fmt: skip


@pytest.mark.parametrize("first, second", PAIRS.values(), ids=PAIRS)
def test_two_programs(first, second, translations):  # noqa: F811
    before = first()
    key = Fingerprint((before,)).key
    check(before)
    after = second()
    assert Fingerprint((after,)).key != key
    check(after)
    again = second()
    assert Fingerprint((again,)).key == Fingerprint((after,)).key


def test_a_walk_that_never_ends_is_given_up(monkeypatch):
    class Growing(_fingerprint.Walk):
        walks = 0

        def follow(self, functions):
            Growing.walks += 1
            assert Growing.walks < 100
            self.asks, self.met = True, {str(Growing.walks)}

    monkeypatch.setattr(_fingerprint, "Walk", Growing)
    with pytest.raises(Unknown):
        Fingerprint((lambda: None,))
