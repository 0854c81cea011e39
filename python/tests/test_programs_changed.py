"""Random programs of which one thing that they see is changed: where a call would be recalled, it means the same."""

import operator
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy")

from programs import DEVICE, program  # noqa: E402

from attune.torch._fingerprint import Fingerprint  # noqa: E402
from attune.torch._numbers import Captured  # noqa: E402
from attune.torch._operator_call import spec_text  # noqa: E402

_MOST = 6  # changes of a program


def other(value):
    """Of the same type; None: it is nothing that is changed."""
    if isinstance(value, bool):
        return not value
    if type(value) in (int, float) or type(value).__module__ == "numpy":
        return value + type(value)(1)
    if isinstance(value, torch.Tensor):
        return value.detach().bool().logical_not().to(value.dtype).requires_grad_(value.requires_grad)
    return None


def places(value, seen, depth=0):
    """(what is seen there, what sets it) of all that can be changed in what a function sees, found by other means than
    a fingerprint's."""
    if id(value) in seen or depth > 6:
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        inside = [
            (cell.cell_contents, lambda x, cell=cell: setattr(cell, "cell_contents", x))
            for cell in value.__closure__ or ()
        ]
        inside += [
            (value.__globals__[name], lambda x, name=name: value.__globals__.__setitem__(name, x))
            for name in value.__code__.co_names if name[:1] == "n" and name in value.__globals__
        ]  # fmt: skip
        if value.__defaults__:
            inside.append((value.__defaults__, lambda x: setattr(value, "__defaults__", x)))
    elif isinstance(value, types.MethodType):
        inside = [(value.__func__, None), (value.__self__, None)]
    elif isinstance(value, dict):
        inside = [(each, lambda x, key=key: value.__setitem__(key, x)) for key, each in value.items()]
    elif isinstance(value, list):
        inside = [(each, lambda x, at=at: value.__setitem__(at, x)) for at, each in enumerate(value)]
    elif isinstance(value, tuple):
        inside = [(each, None) for each in value]
    elif hasattr(value, "func") and hasattr(value, "keywords"):
        inside = [(value.func, None), (value.args, None), (value.keywords, None)]
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType, torch.Tensor)):
        inside = [(each, lambda x, name=name: setattr(value, name, x)) for name, each in vars(value).items()]
    else:
        return
    for each, put in inside:
        if isinstance(each, tuple) and each and put is not None and other(each[0]) is not None:
            yield (
                each,
                put,
                type(each)._make((other(each[0]), *each[1:]))
                if hasattr(each, "_make")
                else (other(each[0]), *each[1:]),
            )
        elif put is not None and other(each) is not None:
            yield each, put, other(each)
        else:
            yield from places(each, seen, depth + 1)


def meaning(each, functions):
    """What it is recalled by, and what it is translated to; a text for what cannot be, None for what is not remembered:
    on a GPU a number of the CPU's that no launch can bring is a constant of the kernel."""
    score_mod, mask_mod, _ = functions
    q = torch.zeros(each.batch, each.heads, each.q_len, 16, device=DEVICE)
    k = torch.zeros(each.batch, each.kv_heads, each.kv_len, 16, device=DEVICE)
    found = Fingerprint((score_mod, mask_mod))
    numbers = tuple([(type(x), x) for x in found.numbers])
    captured_numbers = Captured(found.numbers, of_tensors=found.of_tensors)
    try:
        text, captured = spec_text(q, k, k, score_mod, mask_mod, None, numbers=captured_numbers)
    except Exception as problem:  # a program of another number may be none
        return found, (found.key, numbers), repr(type(problem))
    if captured.reads_values:
        return found, (found.key, numbers), None
    told = tuple([(x.dtype, x.shape, x.stride()) for x in captured.tensors().values()])
    return found, (found.key, numbers), (text, told)


def same(found, known):
    """Of what Fingerprint.way gives."""
    if found is None or known is None:
        return found is known
    return all(map(operator.is_, found[0], known[0])) and found[1] == known[1]


def test_what_is_changed_is_seen():
    changed = seen = found = 0
    for seed in range(40):
        each = program(seed)
        functions = each.functions()
        was, key, translated = meaning(each, functions)
        again = was.way()
        known = again(*functions[:2])
        found += known is not None
        for value, put, instead in list(places(functions[:2], set()))[:_MOST]:
            put(instead)
            now, other_key, other_translated = meaning(each, functions)
            changed += 1
            if translated is not None and other_translated != translated:
                assert other_key != key, (each.text, value, instead)
                assert not same(again(*functions[:2]), known), (each.text, value, instead)
                assert not (was.is_bound and was.is_current()), (each.text, value, instead)
                seen += 1
            elif isinstance(value, torch.Tensor) and any(x is value for x in was.tensors):
                assert any(x is instead for x in now.tensors), (each.text, value)
                assert again(*functions[:2]) is None or any(x is instead for x in again(*functions[:2])[0])
                assert not (was.is_bound and was.is_current()), (each.text, value)
            put(value)
            assert meaning(each, functions)[1] == key, (each.text, value)
            assert same(again(*functions[:2]), known), (each.text, value)
    # On a GPU fewer count: a number of the CPU's is the launch's there, or a constant that is not remembered.
    assert found > 30 and changed > 100 and seen > (40 if DEVICE == "cpu" else 30), (changed, seen)
