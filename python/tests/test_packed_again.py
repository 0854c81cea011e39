"""Packed sequences whose calls are made again without bytecode: the same as by plans, rows of no sequence too."""

import threading

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device, one_thread  # noqa: E402

if DEVICE == "cuda":
    from on_gpu import captured

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import (  # noqa: E402
    _cache_bound, _cache_launch, _cache_plan, _cache_words, _native, _packed_plan, _untouched, _varied,
)  # fmt: skip

HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 32, 24
SPEC = attune.Spec("q_idx - kv_idx <= back", dtype="fp32", head_dim=DIM, layout="thd", scalars={"back": int})

# Of float32 a GPU asks torch for its precision at each call where the call leaves it open.
CAUSAL = {"mask": "causal", "precision": "strict"}

pytestmark = pytest.mark.skipif(_native._functions() is None, reason="libattune_calls.so is not there")


@pytest.fixture(autouse=True)
def anew():
    with on_device(), one_thread():
        torch.manual_seed(5)
        for known in (_met.CALLS, _cache_plan._plans, _cache_words._known, _varied._families):
            known.clear()
        yield
        _met.CALLS.clear()


@pytest.fixture
def in_python(monkeypatch):
    """One entry a launch that Python makes."""
    made = []
    for owner, name in ((_cache_plan.CachePlan, "run"), (_packed_plan.PackedBackward, "run")):
        of_plan = getattr(owner, name)

        def run(self, *args, of_plan=of_plan):
            made.append(type(self).__name__)
            return of_plan(self, *args)

        monkeypatch.setattr(owner, name, run)
    return made


@pytest.fixture
def no_memory_is_clean(monkeypatch):
    """What is new is NaN wherever a launch does not write."""
    empty = _native._empty

    def of_plan(plan):
        make = empty(plan)

        def made(sizes, strides, dtype):
            x = make(sizes, strides, dtype)
            return x.fill_(torch.nan) if x.is_floating_point() else x

        return made if make is not None else None

    monkeypatch.setattr(_native, "_empty", of_plan)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def leaves(dtype=torch.float32):
    return [torch.randn(TOKENS, heads, DIM).to(dtype).requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS)]


def anew_by_python(arrays, d_o, **given):
    """O, LSE and gradients by the way that keeps nothing."""
    runtime = attune.default_runtime("cpu" if DEVICE == "cpu" else "cuda:0")
    o, lse = attune.attention(*arrays, **given, return_lse=True, runtime=runtime)
    return o.detach(), lse.detach(), *torch.autograd.grad(o, arrays, d_o)


def both(arrays, d_o, **given):
    o, lse = attune.attention(*arrays, **given, return_lse=True)
    return o.detach(), lse.detach(), *torch.autograd.grad(o, arrays, d_o)


def assert_same(mine, other):
    for x, y in zip(mine, other, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if DEVICE == "cuda" else [])])
def test_rows_of_no_sequence(dtype, in_python, no_memory_is_clean):
    lists = [
        {"cu_q": int32(0, 7, 20), "cu_kv": int32(0, 9, 21)},
        {"cu_q": int32(0, 2, 3), "cu_kv": int32(0, 1, 24)},
        {"cu_q": int32(0, 0, 24), "cu_kv": int32(0, 11, 11)},
    ]
    used = {"used_q": int32(3, 1), "used_kv": int32(5, 0)}
    words = CAUSAL if dtype is torch.float32 else {"mask": "causal"}
    for more in ({}, used):
        for at in range(6):
            arrays = leaves(dtype)
            d_o = torch.randn(TOKENS, HEADS, DIM).to(dtype)
            given = {**words, **lists[at % 3], **more}
            in_python.clear()
            mine = both(arrays, d_o, **given)
            assert not in_python or at < 2
            assert_same(mine, anew_by_python(arrays, d_o, **given))


def test_rows_before_the_first_sequence(in_python, no_memory_is_clean):
    lists = [
        {"cu_q": int32(4, 10, 20)},
        {"cu_q": int32(3, 3, 24), "cu_kv": int32(5, 9, 9)},
        {"cu_q": int32(8, 8, 8), "cu_kv": int32(0, 9, 21)},
    ]
    for at in range(6):
        arrays, d_o = leaves(), torch.randn(TOKENS, HEADS, DIM)
        given = {**CAUSAL, **lists[at // 2]}
        in_python.clear()
        mine = both(arrays, d_o, **given)
        assert_same(mine, anew_by_python(arrays, d_o, **given))
        with torch.no_grad():
            assert_same([attune.attention(*arrays, **given) for _ in range(3)], [mine[0]] * 3)
    assert not in_python


def test_one_list_for_both(in_python, no_memory_is_clean):
    for at in range(5):
        arrays, d_o = leaves(), torch.randn(TOKENS, HEADS, DIM)
        cu = int32(0, 3 + at, 21)
        in_python.clear()
        mine = both(arrays, d_o, **CAUSAL, cu_q=cu, cu_kv=cu)
        assert not in_python or at < 2
        assert_same(mine, both(arrays, d_o, **CAUSAL, cu_q=cu))
        assert_same(mine, both(arrays, d_o, **CAUSAL, cu_q=cu, cu_kv=int32(0, 3 + at, 21)))
        assert_same(mine, anew_by_python(arrays, d_o, **CAUSAL, cu_q=cu))


def test_keys_that_are_values(in_python):
    q, k, _ = leaves()
    for _ in range(4):
        o = attune.attention(q, k, k, **CAUSAL, cu_q=int32(0, 4, 24))
        once = attune.attention(q, k, k.clone(), **CAUSAL, cu_q=int32(0, 4, 24))
        torch.testing.assert_close(o, once)
        (d_k,) = torch.autograd.grad(o.sum(), [k])
        (other,) = torch.autograd.grad(once.sum(), [k])
        torch.testing.assert_close(d_k, other, atol=1e-5, rtol=1e-4)
    assert in_python


def test_scalars_that_the_launch_brings(in_python):
    learning, cu = leaves(), int32(0, 10, 24)
    detached = [x.detach() for x in learning]
    for at in range(9):
        given = {"spec": SPEC, "scalars": {"back": at % 4}, "cu_q": cu}
        in_python.clear()
        o = attune.attention(*detached, **given)
        assert not in_python or at == 0
        d_o = torch.randn_like(o)
        mine = o, *torch.autograd.grad(attune.attention(*learning, **given), learning, d_o)
        wanted, _, *gradients = anew_by_python(learning, d_o, **given)
        assert_same(mine, (wanted, *gradients))
    with pytest.raises(attune.BadInputError, match="back"):
        attune.attention(*detached, spec=SPEC, scalars={"back": 2**31}, cu_q=cu)
    with pytest.raises(attune.BadInputError, match="back"):  # as at the first call
        attune.attention(*detached, spec=SPEC, scalars={"back": torch.tensor(3)}, cu_q=cu)
    numpys = {"back": numpy.int32(3)}
    wanted = attune.attention(*detached, spec=SPEC, scalars={"back": 3}, cu_q=cu)
    assert torch.equal(attune.attention(*detached, spec=SPEC, scalars=numpys, cu_q=cu), wanted)


def test_numbers_of_words_that_change():
    """Two values are constants, and what changes more often the launch brings."""
    learning, cu = leaves(), int32(0, 10, 24)
    runtime = attune.default_runtime("cpu" if DEVICE == "cpu" else "cuda:0")
    open_spec = attune.Spec(
        "sliding_window(w)", dtype="fp32", head_dim=DIM, layout="thd", scalars={"w": int}, scale=float, dropout=float
    )
    for step in range(6):
        given = {"scalars": {"w": 3 + step}, "scale": 0.1 + step / 8, "dropout": 0.1 + step / 16, "cu_q": cu, "seed": 3}
        d_o = torch.randn(TOKENS, HEADS, DIM)
        words = {"mask": "sliding_window(w)", "precision": "strict", **given}
        for _ in range(1 + step % 3):
            o = attune.attention(*learning, **words)
        mine = o.detach(), *torch.autograd.grad(o, learning, d_o)
        other = attune.attention(*learning, spec=open_spec, **given, runtime=runtime)
        assert_same(mine, (other.detach(), *torch.autograd.grad(other, learning, d_o)))
        with torch.no_grad():
            assert_same([attune.attention(*learning, **words) for _ in range(3)], [other] * 3)
    assert len(_cache_words._known) == 3


def test_a_mistake_with_operands_fixes_no_number():
    q, k, v = (x.detach() for x in leaves())
    given = {"mask": "causal", "precision": "strict", "cu_q": int32(0, 10, 24)}
    for scale in (0.1, 0.2):
        attune.attention(q, k, v, scale=scale, **given)
    with pytest.raises(attune.BadInputError, match="heads"):
        attune.attention(q, k[:, :1].expand(-1, 3, -1), v[:, :1].expand(-1, 3, -1), scale=0.3, **given)
    for step in range(5):
        attune.attention(q, k, v, scale=0.4 + step, **given)
    assert len(_cache_words._known) == 3


def test_dropout_is_drawn(in_python):
    arrays = leaves()
    given = {**CAUSAL, "cu_q": int32(0, 10, 24), "dropout": 0.5}

    def run():
        torch.manual_seed(3)
        first = attune.attention(*arrays, **given)
        second = attune.attention(*arrays, **given)
        assert not torch.equal(first, second)
        return first, second, *torch.autograd.grad(second, arrays, torch.ones_like(second))

    wanted = run()
    for _ in range(3):
        assert_same(run(), wanted)
    in_python.clear()
    assert_same(run(), wanted)
    assert not in_python
    seeded = attune.attention(*arrays, **given, seed=1)
    assert torch.equal(attune.attention(*arrays, **given, seed=1), seeded)
    assert not torch.equal(attune.attention(*arrays, **given, seed=2), seeded)


def test_what_begins_between_two_multiples_of_16_bytes(in_python):
    arrays, cu = [x.detach() for x in leaves()], int32(0, 10, 24)
    odd = torch.randn(arrays[0].numel() + 1)[1:].view(arrays[0].shape).copy_(arrays[0])
    for _ in range(4):
        wanted = attune.attention(*arrays, **CAUSAL, cu_q=cu)
        torch.testing.assert_close(attune.attention(odd, *arrays[1:], **CAUSAL, cu_q=cu), wanted)
    learning = [odd.requires_grad_(), *(x.requires_grad_() for x in arrays[1:])]
    for _ in range(4):
        d_o = torch.randn_like(wanted)
        mine = torch.autograd.grad(attune.attention(*learning, **CAUSAL, cu_q=cu), learning, d_o)
        assert_same(mine, anew_by_python(learning, d_o, **CAUSAL, cu_q=cu)[2:])


def test_threads_that_have_done_nothing_yet():
    arrays, cu = leaves(), int32(0, 10, 20)
    wanted = [attune.attention(*arrays, **CAUSAL, cu_q=cu).detach() for _ in range(4)][-1]
    found = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(attune.attention(*arrays, **CAUSAL, cu_q=cu).detach()))
        thread.start()
        thread.join()
    assert_same(found, [wanted] * 3)


@pytest.mark.skipif(DEVICE != "cuda", reason="of a GPU alone")
@pytest.mark.parametrize("after", [1, 4])
def test_a_graph(after):
    arrays, d_o, cu = leaves(torch.bfloat16), torch.randn(TOKENS, HEADS, DIM).bfloat16(), int32(0, 10, 20)

    def step():
        o, lse = attune.attention(*arrays, mask="causal", cu_q=cu, return_lse=True)
        alone = attune.attention(*arrays, mask="causal", cu_q=cu)
        return o.detach(), lse.detach(), *torch.autograd.grad(alone, arrays, d_o)

    graph, found = captured(step, after)
    for lists in ((0, 10, 20), (0, 3, 9), (0, 0, 24)):
        with torch.no_grad():
            for x in (*arrays, d_o):
                x.copy_(torch.randn_like(x))
        cu.copy_(int32(*lists))
        graph.replay()
        for mine, other in zip(found, step(), strict=True):
            torch.testing.assert_close(mine, other, atol=2e-2, rtol=2e-2)


def test_what_is_no_member_is_refused():
    with pytest.raises(TypeError, match="no such member"):
        plan = next(iter(_plan_of_a_call()))
        views = _cache_launch.ForwardArgs.cu_q.offset
        args, address, _ = plan._arguments(_cache_launch.Launch({}, {}, scales=plan.scales))
        kinds = (
            (plan.o_sizes, plan.o_strides, plan.dtype, _untouched.NONE),
            ((1,), (1,), torch.float32, _untouched.NONE),
        )
        _native.launcher(plan, plan.handle, address, args, kinds, plan.run, _native.Behind(1, ((views, 1),)))


def _plan_of_a_call():
    attune.attention(*[x.detach() for x in leaves()], **CAUSAL, cu_q=int32(0, 10, 24))
    return _cache_plan._plans.values()
