"""The package on a GPU: the same calls as on a CPU, and what only a GPU has: streams, graphs, other backends of torch.

Everything is made on the default device, which these tests set to the GPU. ATTUNE_TEST_DEVICE=cpu tries the tests
themselves where there is none.
"""

import os
import threading
from inspect import signature

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

DEVICE = os.environ.get("ATTUNE_TEST_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH, MODS  # noqa: E402
from test_gradients import LEARNED, plain_attention  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import attune  # noqa: E402
import attune.torch as attune_torch  # noqa: E402
from attune.torch import Untranslatable, create_block_mask, flex_attention  # noqa: E402
from attune.torch._plans import BackwardPlan, ForwardPlan  # noqa: E402

DIM = 64
# No gradients: a step's are zero, and a score that is rounded differently may land on its other side.
FORWARD_ONLY = {"rounding", "float remainders", "position as score"}
only_on_a_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="of a GPU alone")


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.compiler.reset()
    torch.set_default_device(DEVICE)
    torch.manual_seed(7)
    yield
    torch.set_default_device(None)


def operands(dtype=torch.bfloat16, kv_heads=HEADS, q_len=LENGTH, kv_len=LENGTH, dim=DIM):
    q = torch.randn(BATCH, q_len, HEADS, dim).to(dtype).transpose(1, 2)
    return [q, *(torch.randn(BATCH, kv_heads, kv_len, dim).to(dtype) for _ in range(2))]


def leaves(*args, **kwargs):
    return [x.detach().requires_grad_() for x in operands(*args, **kwargs)]


def captured(step, after=1):
    """A graph of a step that has run so many times, and what it gives."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(after):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


def assert_close(found, wanted, tolerance=0.02):
    """By the largest number of each: gradients are of any size."""
    assert found.device.type == DEVICE and found.isfinite().all()
    scale = max(wanted.abs().max().item(), 1e-3)
    torch.testing.assert_close(found.double() / scale, wanted.double() / scale, atol=tolerance, rtol=0)


def for_each_element(mod, scores):
    """A mod of all elements of [batch, heads, q_len, kv_len], called as torch calls it: for one."""
    indices = [torch.arange(size) for size in scores.shape]
    given = [scores] if len(signature(mod).parameters) == 5 else []
    for own in range(3, -1, -1):
        places = [0 if place == own else None for place in range(4)]
        mod = torch.vmap(mod, in_dims=(*[0 for _ in given], *places))
    return mod(*given, *indices)


def wanted_attention(q, k, v, score_mod=None, mask_mod=None):
    """O by its definition."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if score_mod is not None:
        s = for_each_element(score_mod, s).to(s.dtype)
    if mask_mod is not None:
        s = s.masked_fill(for_each_element(mask_mod, s) == 0, -torch.inf)
    alive = s.isfinite().any(-1, keepdim=True)
    return (torch.where(alive, s, 0.0).softmax(-1) * alive) @ v


def train(attend, given, weights):
    out = attend(*given)
    (out.to(weights.dtype) * weights).sum().backward()
    return [out.detach()] + [x.grad for x in given]


def check(attend, wanted, given, tolerance=0.02):
    doubles = [x.detach().double().requires_grad_() for x in given]
    weights = torch.randn(BATCH, HEADS, given[0].shape[2], given[2].shape[3])
    found = train(attend, given, weights)
    for mine, reference in zip(found, train(wanted, doubles, weights.double()), strict=True):
        assert_close(mine, reference, tolerance)
    return found


@pytest.mark.parametrize("name", MODS)
def test_mod(name):
    score_mod, mask_mod = MODS[name]()

    def attend(q, k, v):
        block_mask = None if mask_mod is None else create_block_mask(mask_mod, BATCH, HEADS, LENGTH, LENGTH)
        return flex_attention(q, k, v, score_mod, block_mask, strict=True)

    given = leaves(torch.float16)
    if name in FORWARD_ONLY:
        doubles = [x.detach().double() for x in given]
        assert_close(attend(*given).detach(), wanted_attention(*doubles, score_mod, mask_mod), 0.05)
    else:
        check(attend, lambda q, k, v: wanted_attention(q, k, v, score_mod, mask_mod), given)


@pytest.mark.parametrize(
    "name", ["no mods", "document", "alibi", "softcap", "relative bias", "window and dead rows", "natten", "t5"]
)
def test_float32(name):
    """With float32's own errors, unless tf32 is asked for."""
    score_mod, mask_mod = MODS[name]()

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, strict=True)

    check(attend, lambda q, k, v: wanted_attention(q, k, v, score_mod, mask_mod), leaves(torch.float32), 2e-5)


def test_float32_of_grouped_heads_and_other_lengths():
    def attend(q, k, v):
        return flex_attention(q, k, v, mask_mod=mods.causal, enable_gqa=True, strict=True)

    given = leaves(torch.float32, kv_heads=2, q_len=70, kv_len=133, dim=128)
    check(attend, lambda q, k, v: wanted_attention(q, k, v, mask_mod=mods.causal), given, 2e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_captured_learns(name):
    sizes, make = LEARNED[name]
    learned = (0.1 * torch.randn(sizes)).requires_grad_()

    def attend(q, k, v, x):
        return flex_attention(q, k, v, make(x), strict=True)

    check(attend, lambda q, k, v, x: wanted_attention(q, k, v, make(x)), [*leaves(), learned])


@pytest.mark.parametrize("dim", [16, 32, 96, 128, 256])
def test_grouped_heads_and_other_lengths(dim):
    score_mod, _ = MODS["softcap"]()

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod, mask_mod=mods.causal, enable_gqa=True, strict=True)

    given = leaves(kv_heads=2, q_len=70, kv_len=133, dim=dim)
    check(attend, lambda q, k, v: wanted_attention(q, k, v, score_mod, mods.causal), given)


def test_sinks():
    def attend(q, k, v, sink):
        return flex_attention(q, k, v, mask_mod=mods.causal, sink=sink, strict=True)

    def wanted(q, k, v, sink):
        out, lse = plain_attention(q, k, v, mask_mod=mods.causal)
        return out * (lse - torch.logaddexp(lse, sink[:, None])).exp()[..., None]

    check(attend, wanted, [*leaves(), torch.randn(HEADS, requires_grad=True)])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["document", "alibi", "softcap"])
def test_compiled(name, backend):
    score_mod, mask_mod = MODS[name]()

    def attend(q, k, v):
        length = q.shape[2]
        mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, length, length)
        return flex_attention(q * 1, k, v, score_mod, mask, strict=True)

    run = torch.compile(attend, fullgraph=True, backend=backend)
    check(run, lambda q, k, v: wanted_attention(q, k, v, score_mod, mask_mod), leaves())


def test_dropout():
    """O is linear in v: where both passes drop the same elements, <w, O> is <v, dV>."""
    score_mod = mods.alibi()

    def dropped(q, k, v):
        return flex_attention(q, k, v, score_mod, mask_mod=mods.causal, dropout=0.25, strict=True)

    given, weights = leaves(torch.float16), torch.randn(BATCH, HEADS, LENGTH, DIM)
    torch.manual_seed(3)
    first = train(dropped, given, weights)
    lost = (first[0] * weights).sum() - (given[2].detach().float() * first[3].float()).sum()
    assert lost.abs() < 1e-3 * weights.norm() * first[0].float().norm()
    for reentrant in (False, True):
        torch.manual_seed(3)
        again = [x.detach().requires_grad_() for x in given]
        found = train(lambda *x, r=reentrant: checkpoint(dropped, *x, use_reentrant=r), again, weights)
        assert torch.equal(found[0], first[0]) and torch.equal(found[3], first[3])
    assert not torch.equal(dropped(*given), first[0])


def test_a_quarter_is_dropped():
    q, k = (torch.zeros(BATCH, HEADS, LENGTH, DIM, dtype=torch.float16) for _ in range(2))
    v = torch.eye(LENGTH, dtype=torch.float16).expand(BATCH, HEADS, LENGTH, LENGTH).contiguous()
    p = flex_attention(q, k, v, dropout=0.25, strict=True).double() * LENGTH
    torch.testing.assert_close(p, torch.where(p > 0.5, 1 / 0.75, 0.0).double(), atol=2e-3, rtol=0)
    assert 0.23 < (p == 0).double().mean() < 0.27


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
@pytest.mark.parametrize("is_learning", [False, True])
def test_graph(is_learning):
    """Captured once, replayed on other numbers: operands and captured tensors."""
    q, k, v = given = leaves()
    doc = mods.documents(torch.int32)
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)

    def mask_mod(b, h, i, j):
        return doc[b, i] == doc[b, j]

    def step():
        out = flex_attention(q, k, v, mask_mod=mask_mod, strict=True)
        if is_learning:
            return [out, *torch.autograd.grad((out.float() * weights).sum(), given)]
        return [out]

    graph, found = captured(step)
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


@pytest.mark.parametrize("name", ["causal", "added", "bool", "groups"])
def test_sdpa(name, launches):
    options = {
        "causal": {"is_causal": True},
        "added": {"attn_mask": torch.randn(BATCH, HEADS, LENGTH, LENGTH).half()},
        "bool": {"attn_mask": torch.rand(LENGTH, LENGTH) < 0.7},
        "groups": {"enable_gqa": True, "scale": 0.3},
    }[name]
    given = leaves(torch.float16, kv_heads=2 if name == "groups" else HEADS)
    of_doubles = {n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in options.items()}
    attune_torch.activate_sdpa()
    try:
        check(
            lambda q, k, v: scaled_dot_product_attention(q, k, v, **options),
            lambda q, k, v: scaled_dot_product_attention(q, k, v, **of_doubles),
            given,
        )
        assert len(launches) == 2
    finally:
        attune_torch.deactivate_sdpa()


@pytest.fixture
def launches(monkeypatch):
    """The passes that ran on Attune, however they were reached."""
    ran = set()
    for plan in (ForwardPlan, BackwardPlan):

        def run(self, *args, of_plan=plan.run, kind=plan, **kwargs):
            ran.add(kind)
            return of_plan(self, *args, **kwargs)

        monkeypatch.setattr(plan, "run", run)
    return ran


def test_enabled_torchs_name(launches):
    attune_torch.enable()
    try:
        attend = torch_flex.flex_attention
        check(
            lambda q, k, v: attend(q, k, v, mods.softcap(3.0)),
            lambda q, k, v: wanted_attention(q, k, v, mods.softcap(3.0)),
            leaves(),
        )
        assert len(launches) == 2
    finally:
        attune_torch.disable()


def test_autocast():
    given = [x.detach().float().requires_grad_() for x in operands()]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = flex_attention(*given, mask_mod=mods.causal, strict=True)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in given)
    assert_close(out, wanted_attention(*(x.detach().double() for x in given), mask_mod=mods.causal))


def test_packed():
    lengths = torch.tensor([5, 0, 70, 33], dtype=torch.int32)
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    q, k, v = (torch.randn(int(cu[-1]), heads, DIM).bfloat16() for heads in (HEADS, 2, 2))
    o, lse = attune.attention(q, k, v, mask="causal", layout="thd", cu_q=cu, cu_kv=cu, return_lse=True)
    for first, last in zip(cu.tolist(), cu.tolist()[1:], strict=False):
        if first == last:
            continue
        one = [x[first:last].double().transpose(0, 1)[None] for x in (q, k, v)]
        wanted, wanted_lse = plain_attention(*one, mask_mod=mods.causal)
        assert_close(o[first:last].transpose(0, 1)[None], wanted)
        assert_close(lse[:, first:last][None], wanted_lse)


def test_nested_tensors():
    of = [torch.randn(n, HEADS, DIM).bfloat16() for n in (5, 70, 33)]
    q = torch.nested.nested_tensor(of, layout=torch.jagged)
    o = attune.attention(q, q, q, mask="causal")
    for x, found in zip(of, o.unbind(), strict=True):
        one = x.double().transpose(0, 1)[None]
        assert_close(found.transpose(0, 1)[None], wanted_attention(one, one, one, mask_mod=mods.causal))


@only_on_a_gpu
@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_other_frameworks(framework):
    """Arrays that are handed over by DLPack."""
    q, k, v = (torch.randn(2, 40, 4, DIM).half() for _ in range(3))
    wanted = attune.attention(q, k, v, mask="causal")
    if framework == "cupy":
        cupy = pytest.importorskip("cupy", reason="cupy is not installed")
        o = attune.attention(*(cupy.from_dlpack(x) for x in (q, k, v)), mask="causal")
    else:
        jax = pytest.importorskip("jax", reason="jax is not installed")
        o = attune.attention(*(jax.dlpack.from_dlpack(x) for x in (q, k, v)), mask="causal")
    torch.cuda.synchronize()
    assert torch.equal(torch.from_dlpack(o), wanted)


@only_on_a_gpu
def test_operands_on_different_devices_are_refused():
    q, k, v = operands()
    with pytest.raises(ValueError, match="cpu"):
        flex_attention(q, k.cpu(), v, strict=True)
    slopes = torch.rand(HEADS, device="cpu")
    with pytest.raises(Untranslatable, match="tensor on cpu, beside operands on cuda"):
        flex_attention(q, k, v, lambda s, b, h, i, j: s * slopes[h], strict=True)


@only_on_a_gpu
def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v, mods.softcap(3.0), mask_mod=mods.causal)

    given = tuple(operands())
    program = torch.export.export(Model(), given)
    assert any("attune.attention" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*given), Model()(*given))
