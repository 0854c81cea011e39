"""What tells tensors from others: torch's own guard, and what takes its place where there is none."""

import itertools
import operator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import attune.torch  # noqa: E402, F401
from attune.torch import _guard, _memory  # noqa: E402

SIZES = (2, 4, 8)
KINDS = {
    "as it is": lambda: torch.zeros(SIZES),
    "another class": lambda: torch.nn.Parameter(torch.zeros(SIZES), requires_grad=False),
    "learns": lambda: torch.zeros(SIZES, requires_grad=True),
    "fewer": lambda: torch.zeros(1, 4, 8),
    "more dims": lambda: torch.zeros(1, *SIZES),
    "other axes": lambda: torch.zeros(4, 2, 8).transpose(0, 1),
    "gaps": lambda: torch.zeros(2, 4, 16)[..., ::2],
    "expanded": lambda: torch.zeros(1, 4, 8).expand(SIZES),
    "bf16": lambda: torch.zeros(SIZES, dtype=torch.bfloat16),
    "int32": lambda: torch.zeros(SIZES, dtype=torch.int32),
    "on another device": lambda: torch.zeros(SIZES, device="meta"),
}
MAKERS = {"torch": _guard._by_torch, "reading": _guard._by_reading}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def test_torchs_own_is_used():
    """If not, calls take longer, and this says why."""
    assert _guard._tells_all(_guard._by_torch) and _guard._check_of is _guard._by_torch


@every_maker
def test_kinds_of_tensors(make):
    other = torch.zeros(3)
    for name, another in itertools.product(KINDS, KINDS):
        assert make([KINDS[name](), other])(KINDS[another](), other) == (name == another), (name, another)
        assert make([other, KINDS[name]()])(other, KINDS[another]()) == (name == another), (name, another)


@every_maker
def test_what_is_no_tensor(make):
    check = make([torch.zeros(2)])
    assert check(torch.ones(2)) and not any(check(other) for other in (None, 1.0, torch.zeros(2).numpy()))
    with pytest.raises(TypeError):
        check(torch.ones(2), torch.ones(2))


@every_maker
def test_what_torch_has_switched_on(make):
    x = torch.zeros(SIZES)
    check, seen = make([x]), []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not check(x) and make([x])(x)
        cast = make([x])
    assert not cast(x)

    class Mode(TorchDispatchMode):
        pass

    with Mode():
        assert not check(x)
    torch.vmap(lambda row: (seen.append(check(x)), row)[1])(x)
    torch.func.jvp(lambda y: (seen.append(check(x)), y)[1], (x,), (x,))
    assert seen == [False, False]
    with torch.inference_mode():
        assert not check(x)
    with torch.no_grad():  # a caller's own to tell
        assert check(x)


@pytest.mark.parametrize("fault", range(9))
def test_a_guard_that_overlooks_something_is_not_used(fault):
    """Should another torch have one."""

    def state(x):
        tensor = type(x), x.shape, x.stride(), x.dtype, x.device.type, x.requires_grad, x.is_contiguous()
        found = *tensor, torch.is_autocast_enabled("cpu"), x.is_neg()
        blind = {6: ()}.get(fault, (fault,))
        return operator.itemgetter(*[at for at in range(9) if at not in (*blind, 6)])(found)

    def make(tensors):
        known = [state(x) for x in tensors]
        return lambda *given: [state(x) for x in given] == known

    assert _guard._tells_all(make) == (fault == 6)


def test_new_tensors():
    empty = _memory.empty_on(torch.device("cpu"))
    kinds = ((2, 3), (3, 1), torch.float32), ((2, 3), (1, 2), torch.bfloat16), ((0, 2), (2, 1), torch.uint8)
    for sizes, strides, dtype in kinds:
        found = empty(sizes, strides, dtype)
        assert found.shape == sizes and found.stride() == strides and found.dtype == dtype and found.is_cpu
        assert not found.requires_grad and found.data_ptr() % 16 == 0
    with torch.inference_mode():
        assert empty((2,), (1,), torch.float32).is_inference()
    assert _memory.empty_on(torch.device("meta"))((2, 3), (1, 2), torch.float32).stride() == (1, 2)


def test_a_gpu_that_is_not_the_current_one(monkeypatch):
    """What makes tensors without the dispatcher makes them on the current one."""
    made = []
    monkeypatch.setattr(_memory, "_current_gpu", lambda: 1)
    monkeypatch.setattr(_memory, "_on_gpu", lambda *args: made.append("current"))
    monkeypatch.setattr(torch, "empty_strided", lambda *args, device, **rest: made.append(device.index))
    for index in (0, 1):
        _memory.empty_on(torch.device("cuda", index))((2,), (1,), torch.float32)
    assert made == [0, "current"]
