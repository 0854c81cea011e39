"""Streams and captured graphs of a GPU, and calls that are made again there."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from on_gpu import (  # noqa: E402
    DEVICE, DIM, assert_close, captured, leaves, on_the_device, only_on_a_gpu, operands, wanted_attention,
)  # fmt: skip
import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402

import attune  # noqa: E402
from attune.torch import flex_attention  # noqa: E402

__all__ = ["on_the_device"]  # a fixture of all tests here


@only_on_a_gpu
def test_another_stream():
    """A launch waits for what its own stream has been given."""
    q, k, v = operands(q_len=512, kv_len=512)
    wanted = flex_attention(q, k, v, strict=True)
    large = torch.randn(6000, 6000)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            large @ large
        late = q + 0
        out = flex_attention(late, k, v, strict=True)
    stream.synchronize()
    assert torch.equal(out, wanted)


def test_calls_that_are_made_again():
    """They go straight to their launch: on whatever stream is current, and as torch has its precision."""
    spec = attune.Spec("causal_top_left", dtype="bf16", head_dim=DIM, layout="bhsd")
    calls = (
        lambda *given: attune.attention(*given, spec=spec),
        lambda *given: attune.attention(*given, mask="causal_top_left", layout="bhsd"),
        lambda *given: flex_attention(*given, mask_mod=mods.causal, strict=True),
    )
    for call in calls:
        for _ in range(4):
            given = leaves()
            wanted = wanted_attention(*(x.double() for x in given), mask_mod=mods.causal)
            with torch.no_grad():
                assert_close(call(*given), wanted)
            out, weights = call(*given), torch.randn(BATCH, HEADS, LENGTH, DIM)
            assert_close(out, wanted)
            mine = torch.autograd.grad((out * weights).sum(), given)
            for found, each in zip(mine, torch.autograd.grad((wanted * weights).sum(), given), strict=True):
                assert_close(found, each, 0.03)
    if DEVICE != "cuda":
        return
    given, stream = operands(), torch.cuda.Stream()
    wanted = calls[0](*given)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        late = [x * 1 for x in given]  # made behind the sleep, which a launch on another stream would not await
        for call in calls:
            assert_close(call(*late), wanted.double())
    found_in_thread = []

    def in_a_thread():
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            found_in_thread.extend(call(*given) for call in calls for _ in range(3))
            torch.cuda.current_stream().synchronize()

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert len(found_in_thread) == 9 and all(torch.equal(x, found_in_thread[0]) for x in found_in_thread)
    precise = operands(torch.float32)
    found = {}
    for word in ("highest", "high", "highest", "high"):
        torch.set_float32_matmul_precision(word)
        try:
            for _ in range(3):
                found.setdefault(word, []).append(calls[2](*precise))
        finally:
            torch.set_float32_matmul_precision("highest")
    assert all(torch.equal(x, found["highest"][0]) for x in found["highest"])
    assert all(torch.equal(x, found["high"][0]) for x in found["high"])
    assert not torch.equal(found["highest"][0], found["high"][0])


@only_on_a_gpu
def test_a_graph_of_calls_that_are_made_again():
    """They are captured as they are launched: what they allocate is the graph's, and replays see other numbers."""
    calls = (
        lambda *given: attune.attention(*given, mask="causal_top_left", layout="bhsd", return_lse=True)[0],
        lambda *given: flex_attention(*given, mask_mod=mods.causal, strict=True),
    )
    given, weights = leaves(), torch.randn(BATCH, HEADS, LENGTH, DIM)

    def step():
        found = []
        for call in calls:
            with torch.no_grad():
                found.append(call(*given))
            found.append(call(*given))
            found += torch.autograd.grad((found[-1].float() * weights).sum(), given)
        return found

    graph, found = captured(step, after=4)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for x in given:
                x.copy_(torch.randn_like(x))
        graph.replay()
        for mine, wanted in zip(found, step(), strict=True):
            assert_close(mine.detach(), wanted.detach(), 0.01)


@only_on_a_gpu
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.bfloat16])
@pytest.mark.parametrize("is_learning", [False, True])
def test_graph(is_learning, dtype, after):
    """Captured once, replayed on other numbers: operands and captured tensors, converted ones too."""
    q, k, v = given = leaves()
    doc = mods.documents(torch.int32).to(dtype)
    flex_attention(*operands(), strict=True)  # the device is open
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)

    def mask_mod(b, h, i, j):
        return doc[b, i] == doc[b, j]

    def step():
        out = flex_attention(q, k, v, mask_mod=mask_mod, strict=True)
        if is_learning:
            return [out, *torch.autograd.grad((out.float() * weights).sum(), given)]
        return [out]

    graph, found = captured(step, after)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for x in given:
                x.copy_(torch.randn_like(x))
            doc.copy_(torch.randint(0, 3, doc.shape).sort(-1).values)
        graph.replay()
        for mine, again in zip(found, step(), strict=True):
            assert torch.equal(mine, again)


def graph_of_dropout(attend, given, weights, after):
    def step():
        out = attend(*given)
        return [out.detach(), *torch.autograd.grad((out.float() * weights).sum(), given)]

    return captured(step, after)


@only_on_a_gpu
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("kind", ["functions", "words", "spec", "packed"])
def test_a_graph_with_dropout(kind, after):
    """Each replay drops other elements, and the gradients those of its own forward pass: O is linear in v. `after` 0:
    nothing of it was compiled before."""
    p = 0.25 + after / 64  # kernels of their own
    spec = attune.Spec("causal_top_left", dtype="fp16", head_dim=DIM, layout="bhsd", dropout=p)
    cu = torch.arange(0, (BATCH + 1) * LENGTH, LENGTH, dtype=torch.int32)

    def packed(*given):
        flat = [x.transpose(1, 2).reshape(-1, HEADS, DIM) for x in given]
        out = attune.attention(*flat, mask="causal", dropout=p, cu_q=cu, cu_kv=cu)
        return out.view(BATCH, LENGTH, HEADS, DIM).transpose(1, 2)

    attend = {
        "functions": lambda *given: flex_attention(*given, mask_mod=mods.causal, dropout=p, strict=True),
        "words": lambda *given: attune.attention(*given, mask="causal_top_left", layout="bhsd", dropout=p),
        "spec": lambda *given: attune.attention(*given, spec=spec),
        "packed": packed,
    }[kind]
    given, weights = leaves(torch.float16), torch.randn(BATCH, HEADS, LENGTH, DIM)
    flex_attention(*operands(), strict=True)  # the device is open
    graph, (out, *found) = graph_of_dropout(attend, given, weights, after)
    outs = []
    for _ in range(4):
        graph.replay()
        lost = (out.float() * weights).sum() - (given[2].detach().float() * found[2].float()).sum()
        assert lost.abs() < 1e-3 * weights.norm() * out.float().norm()
        assert all(x.isfinite().all() for x in found)
        outs.append(out.clone())
    assert all(not torch.equal(x, y) for i, x in enumerate(outs) for y in outs[:i])
    torch.manual_seed(5)
    graph.replay()
    first = out.clone()
    torch.manual_seed(5)
    graph.replay()
    assert torch.equal(out, first)
    eager = attend(*given)  # as before, and of the generator that the graph left
    assert eager.isfinite().all() and not torch.equal(eager, first)


@only_on_a_gpu
def test_what_a_graph_drops():
    """P itself: V is the identity."""
    q, k = (torch.zeros(BATCH, HEADS, LENGTH, DIM, dtype=torch.float16) for _ in range(2))
    v = torch.eye(LENGTH, dtype=torch.float16).expand(BATCH, HEADS, LENGTH, LENGTH).contiguous().requires_grad_()

    def step():
        out = flex_attention(q, k, v, dropout=0.25, strict=True)
        return out.detach(), torch.autograd.grad(out.sum(), v)[0]

    graph, (out, of_v) = captured(step)
    for _ in range(3):
        graph.replay()
        p = out.double() * LENGTH
        torch.testing.assert_close(p, torch.where(p > 0.5, 1 / 0.75, 0.0).double(), atol=2e-3, rtol=0)
        assert 0.23 < (p == 0).double().mean() < 0.27
        # dV of ones is how much of each key was kept, in every column.
        kept = out.double().sum(2)[..., None].expand(-1, -1, -1, LENGTH)
        torch.testing.assert_close(of_v.double(), kept, atol=4e-3, rtol=4e-3)


@only_on_a_gpu
def test_reduce_overhead():
    """torch's own graphs."""
    run = torch.compile(lambda q, k, v: flex_attention(q, k, v, mask_mod=mods.causal), mode="reduce-overhead")
    for _ in range(4):
        given = operands()
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            found = run(*given).clone()
        assert_close(found, wanted_attention(*(x.double() for x in given), mask_mod=mods.causal))
