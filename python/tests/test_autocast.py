"""torch.autocast: operands of any float types, computed in autocast's, as torch's own attention does it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402
from test_gradients import plain_attention  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune.torch import flex_attention  # noqa: E402

DIM = 32
MIXED = (torch.float32, torch.bfloat16, torch.float32)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(11)


def leaves(dtypes=MIXED):
    return [torch.randn(BATCH, HEADS, LENGTH, DIM).to(dtype).requires_grad_() for dtype in dtypes]


def flex(q, k, v):
    return flex_attention(q, k, v, mask_mod=mods.causal, strict=True)


def words(q, k, v):
    return attune.attention(q, k, v, mask="causal", layout="bhsd")


def check(run, given, dtype=torch.bfloat16, enter=lambda: torch.autocast("cpu", dtype=torch.bfloat16)):
    """Out in autocast's dtype, gradients in the leaves'; both those of operands that were rounded by hand."""
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)
    with enter():
        out = run(*given)
    assert out.dtype == dtype
    (out.float() * weights).sum().backward()
    rounded = [x.detach().to(dtype).double().requires_grad_() for x in given]
    wanted = plain_attention(*rounded, mask_mod=mods.causal)[0]
    (wanted * weights).sum().backward()
    torch.testing.assert_close(out.double(), wanted, atol=0.02, rtol=0.02)
    for x, y in zip(given, rounded, strict=True):
        assert x.grad.dtype == x.dtype
        torch.testing.assert_close(x.grad.double(), y.grad, atol=0.05, rtol=0.05)
        x.grad = None


@pytest.mark.parametrize("run", [flex, words])
@pytest.mark.parametrize("dtypes", [MIXED, (torch.float32,) * 3], ids=["mixed", "float32"])
def test_eager(run, dtypes):
    check(run, leaves(dtypes))


def test_float16():
    check(flex, leaves((torch.float32,) * 3), torch.float16, lambda: torch.autocast("cpu", dtype=torch.float16))


@pytest.mark.parametrize("run", [flex, words])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(run, backend):
    def layer(q, k, v):
        return run(q * 1, k, v)

    check(torch.compile(layer, fullgraph=True, backend=backend), leaves())


def test_autocast_inside_of_the_graph():
    def layer(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex(q, k, v)

    check(torch.compile(layer, fullgraph=True, backend="aot_eager"), leaves(), enter=torch.enable_grad)


def test_the_same_as_torch():
    q, k, v = (x.detach() for x in leaves())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = scaled_dot_product_attention(q, k, v, is_causal=True)
        ours = flex(q, k, v), words(q, k, v)
    for out in ours:
        assert out.dtype == wanted.dtype
        torch.testing.assert_close(out, wanted, atol=0.02, rtol=0.02)


def test_float64_stays(recwarn):
    """As under torch's own: it is not cast, and falls back."""
    q, k, v = (x.detach().double() for x in leaves())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert flex_attention(q, k, v, mask_mod=mods.causal).dtype == torch.float64


def test_switched_off():
    given = leaves((torch.float32,) * 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert flex(*given).dtype == torch.float32
        assert words(*given).dtype == torch.float32


def test_of_another_device():
    """An autocast of CUDA devices is nothing to operands on the CPU."""
    given = leaves((torch.float32,) * 3)
    torch.set_autocast_enabled("cuda", True)  # the context manager does nothing without such a device
    try:
        assert torch._C._is_any_autocast_enabled()
        assert flex(*given).dtype == torch.float32
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_without_autocast_types_must_agree():
    with pytest.raises(ValueError, match="one dtype"):
        flex(*leaves())


@pytest.mark.parametrize("compiles", [False, True])
def test_torchs_own_function(compiles):
    """After `enable`, by a name that was imported before."""
    of_torch = torch_flex.flex_attention
    attune.torch.enable()
    try:
        mask = torch_flex.create_block_mask(mods.causal, None, None, LENGTH, LENGTH, device="cpu")

        def run(q, k, v):
            return of_torch(q, k, v, block_mask=mask)

        check(torch.compile(run, fullgraph=True, backend="aot_eager") if compiles else run, leaves())
    finally:
        attune.torch.disable()
