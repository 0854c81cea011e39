"""scaled_dot_product_attention while Attune is active: torch's own results, in torch's strides, and back again."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import attention as torch_attention  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

if not hasattr(torch_attention, "activate_flash_attention_impl"):
    pytest.skip("torch has no registry of attention implementations", allow_module_level=True)

from devices import DEVICE, on_device  # noqa: E402

from attune.torch import _sdpa, activate_sdpa, deactivate_sdpa  # noqa: E402
from attune.torch._plans import BackwardPlan, ForwardPlan  # noqa: E402

BATCH, HEADS, Q_LEN, KV_LEN, DIM = 2, 4, 37, 45, 16


@pytest.fixture(autouse=True)
def there():
    with on_device():
        yield


@pytest.fixture
def launches(monkeypatch):
    """Counts of Attune's launches, forward and backward, while it is active."""
    counts = {"forward": 0, "backward": 0}
    for plan, name in ((ForwardPlan, "forward"), (BackwardPlan, "backward")):

        def run(self, *args, of_plan=plan.run, name=name, **kwargs):
            counts[name] += 1
            return of_plan(self, *args, **kwargs)

        monkeypatch.setattr(plan, "run", run)
    torch.manual_seed(23)
    torch.compiler.reset()
    activate_sdpa()
    yield counts
    deactivate_sdpa()
    assert torch_attention.current_flash_attention_impl() is None


def operands(dtype=torch.float32, kv_heads=HEADS, kv_len=KV_LEN, dim=DIM, in_place_of=(1, 2)):
    """[batch, heads, length, dim], in memory as a projection leaves it where in_place_of is (1, 2)."""

    def one(heads, length):
        sizes = [BATCH, heads, length, dim]
        a, b = in_place_of
        sizes[a], sizes[b] = sizes[b], sizes[a]
        return torch.randn(sizes, dtype=torch.float64).to(dtype).transpose(a, b).requires_grad_()

    return one(HEADS, Q_LEN), one(kv_heads, kv_len), one(kv_heads, kv_len)


def run(function, given, weights, **options):
    out = function(*given, **options)
    found = [out, *torch.autograd.grad((out.double() * weights).sum(), given)]
    return [x.detach() for x in found]


def check(launches, given, function=scaled_dot_product_attention, tolerance=1e-5, **options):
    """Against torch's own in float64, and its strides against its own."""
    weights = torch.randn(BATCH, HEADS, Q_LEN, given[2].shape[-1], dtype=torch.float64)
    found = run(function, given, weights, **options)
    assert launches == {"forward": 1, "backward": 1}
    deactivate_sdpa()
    own_options = dict(options)
    if options.get("attn_mask") is not None:  # torch's kernels for GPUs want a mask whose last dim is contiguous
        sizes = (BATCH, HEADS, Q_LEN, given[1].shape[2])
        own_options["attn_mask"] = options["attn_mask"].expand(sizes).contiguous()
    own = run(scaled_dot_product_attention, given, weights, **own_options)
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].double()
    doubles = [x.detach().double().requires_grad_() for x in given]
    wanted = run(scaled_dot_product_attention, doubles, weights, **options)
    assert launches == {"forward": 1, "backward": 1}
    for mine, torchs, exact in zip(found, own, wanted, strict=True):
        assert mine.stride() == torchs.stride() and mine.dtype == torchs.dtype
        torch.testing.assert_close(mine.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("in_place_of", [(1, 2), (0, 0), (0, 1)], ids=["bshd", "bhsd", "hbsd"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_plain_and_causal(launches, is_causal, in_place_of):
    check(launches, operands(in_place_of=in_place_of), is_causal=is_causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types(launches, dtype):
    check(launches, operands(dtype), tolerance=0.03, is_causal=True)


def test_scale_and_groups(launches):
    # On a GPU torch's float32 attention of groups is made of other operators.
    dtype, tolerance = (torch.float32, 1e-5) if DEVICE == "cpu" else (torch.bfloat16, 3e-2)
    check(launches, operands(dtype, kv_heads=2), tolerance=tolerance, scale=0.3, enable_gqa=True)


MASKS = {
    "bool": lambda: torch.rand(Q_LEN, KV_LEN) < 0.5,
    "dead rows": lambda: (torch.rand(Q_LEN, KV_LEN) < 0.5) & (torch.arange(Q_LEN) % 3 > 0)[:, None],
    "padding": lambda: (torch.arange(KV_LEN) < torch.tensor([[45], [20]]))[:, None, None],
    "expanded": lambda: (torch.rand(BATCH, 1, 1, KV_LEN) < 0.5).expand(-1, HEADS, Q_LEN, -1),
    "float": lambda: torch.randn(BATCH, HEADS, Q_LEN, KV_LEN),
    "float, -inf": lambda: torch.where(torch.rand(HEADS, Q_LEN, KV_LEN) < 0.5, torch.randn(1), -torch.inf)[None],
    "a column": lambda: torch.randn(BATCH, 1, Q_LEN, 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask(launches, name):
    check(launches, operands(), attn_mask=MASKS[name]())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(launches, backend):
    function = torch.compile(scaled_dot_product_attention, fullgraph=True, backend=backend)
    check(launches, operands(), function, is_causal=True)


@pytest.mark.skipif(DEVICE != "cpu", reason="an operator of CPUs")
def test_lse_is_torchs():
    """What the operator gives beside O: an activation in between forward and backward pass does no harm."""
    torch.manual_seed(23)
    q, k, v = (x.detach() for x in operands())
    added = torch.zeros(Q_LEN, KV_LEN).masked_fill(~MASKS["dead rows"](), -torch.inf)
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    own = operator(q, k, v, attn_mask=added)
    activate_sdpa()
    try:
        found = operator(q, k, v, attn_mask=added)
    finally:
        deactivate_sdpa()
    for mine, torchs in zip(found, own, strict=True):
        assert mine.stride() == torchs.stride()
        torch.testing.assert_close(mine, torchs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("active", ["forward", "backward"])
def test_active_in_one_pass_only(active):
    torch.manual_seed(23)
    given = operands()
    mask = MASKS["dead rows"]()
    wanted = run(scaled_dot_product_attention, given, 1, attn_mask=mask)
    if active == "forward":
        activate_sdpa()
    try:
        out = scaled_dot_product_attention(*given, attn_mask=mask)
        (deactivate_sdpa if active == "forward" else activate_sdpa)()
        gradients = torch.autograd.grad(out.double().sum(), given)
    finally:
        deactivate_sdpa()
    for mine, torchs in zip([out, *gradients], wanted, strict=True):
        torch.testing.assert_close(mine, torchs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "dim", "options"),
    [(torch.float64, DIM, {}), (torch.float32, 12, {}), (torch.float32, DIM, {"dropout_p": 0.5})],
    ids=["float64", "head_dim 12", "dropout"],
)  # fmt: skip
def test_the_rest_stays_torchs(launches, dtype, dim, options):
    given = operands(dtype, dim=dim)
    torch.manual_seed(1)
    found = run(scaled_dot_product_attention, given, 1, **options)
    assert launches == {"forward": 0, "backward": 0}
    deactivate_sdpa()
    torch.manual_seed(1)
    for mine, torchs in zip(found, run(scaled_dot_product_attention, given, 1, **options), strict=True):
        assert torch.equal(mine, torchs)


def test_by_torchs_registry(launches):
    assert torch_attention.current_flash_attention_impl() == _sdpa.NAME
    torch_attention.restore_flash_attention_impl()
    scaled_dot_product_attention(*operands())
    assert launches["forward"] == 0
    torch_attention.activate_flash_attention_impl(_sdpa.NAME)
    activate_sdpa()  # once more is no more
    scaled_dot_product_attention(*operands())
    assert launches["forward"] == 1


def test_nothing_is_warned_of():
    """torch says once a process that kernels are overridden, which is what was asked for."""
    program = "import warnings, attune.torch; warnings.simplefilter('error'); attune.torch.activate_sdpa()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_implementation_is_left_alone():
    class Other:
        def remove(self):
            pass

    torch_attention.register_flash_attention_impl("OTHER", register_fn=Other)
    torch_attention.activate_flash_attention_impl("OTHER")
    deactivate_sdpa()
    assert torch_attention.current_flash_attention_impl() == "OTHER"
    torch_attention.restore_flash_attention_impl()
