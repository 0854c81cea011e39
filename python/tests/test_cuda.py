"""The package on a GPU: the same calls as on a CPU, and other backends of torch. Streams and graphs are in
test_cuda_graphs.py.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from on_gpu import (  # noqa: E402
    DEVICE, DIM, FORWARD_ONLY, assert_close, check, leaves, on_the_device, only_on_a_gpu, operands, train,
    wanted_attention,
)  # fmt: skip
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

__all__ = ["on_the_device"]  # a fixture of all tests here


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
