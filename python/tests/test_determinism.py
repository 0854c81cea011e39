"""torch.use_deterministic_algorithms: which backward pass a call takes, eager, compiled and packed."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import DEVICE, on_device  # noqa: E402

import attune  # noqa: E402
from attune.torch import _packed, _packed_plan, _plans  # noqa: E402
from attune.torch.flex_attention import flex_attention  # noqa: E402


@pytest.fixture(autouse=True)
def there():
    with on_device():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def asked(monkeypatch):
    """Whether the kernel of each plan of a backward pass, and of each packed launch, is of a deterministic spec."""
    found = []

    def make(plan, *args, of_plans=_plans.BackwardPlan.__init__):
        of_plans(plan, *args)
        found.append(plan.kernel._spec.deterministic)

    def kernel(*args, of_plans=_plans.backward_kernel):
        kernel = of_plans(*args)
        found.append(kernel._spec.deterministic)
        return kernel

    monkeypatch.setattr(_plans.BackwardPlan, "__init__", make)
    for module in (_packed, _packed_plan):
        monkeypatch.setattr(module, "backward_kernel", kernel)
    _plans.variant_of.cache_clear()
    return found


def operands():
    generator = torch.Generator(device=DEVICE).manual_seed(3)
    made = [torch.randn(1, 2, 33, 16, generator=generator, device=DEVICE) for _ in range(3)]
    return [each.requires_grad_() for each in made]


def causal(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -torch.inf)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_setting_is_asked_at_each_backward_pass(asked, is_compiled):
    q, k, v = operands()
    attend = torch.compile(flex_attention, fullgraph=True, backend="aot_eager") if is_compiled else flex_attention
    gradients = []
    for wanted in (False, True, False):
        torch.use_deterministic_algorithms(wanted)
        gradients.append(torch.autograd.grad(attend(q, k, v, causal).square().sum(), (q, k, v)))
        assert (True in asked) == (wanted or len(gradients) > 1)
    for one, other in zip(gradients[0], gradients[1], strict=True):
        torch.testing.assert_close(one, other)
    assert asked.count(True) == 1  # it is kept


def test_a_forward_pass_may_come_before_the_setting(asked):
    q, k, v = operands()
    out = attune.attention(q, k, v, mask="causal", layout="bhsd")
    torch.use_deterministic_algorithms(True)
    out.sum().backward()
    assert asked[-1] is True


def test_specs_of_every_origin(asked, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("attune: 1\nname: own\ndtype: fp32\ndeterministic: false\nhead_dim: 16\nmask: causal\n")
    torch.use_deterministic_algorithms(True)
    for spec in (attune.Spec.from_file(file), attune.Spec.from_file("causal"), "causal"):
        wide = isinstance(spec, str) or spec.name == "causal"
        q = torch.randn(1, 9, 8, 128 if wide else 16, device=DEVICE, dtype=torch.bfloat16 if wide else torch.float32)
        q.requires_grad_()
        attune.attention(q, q, q, spec=spec).sum().backward()
        assert asked[-1] is True and q.grad.isfinite().all()


def test_packed_sequences(asked):
    q, k, v = (torch.randn(40, 2, 16, device=DEVICE).requires_grad_() for _ in range(3))
    ends = torch.tensor([0, 17, 40], dtype=torch.int32, device=DEVICE)
    torch.use_deterministic_algorithms(True)
    attune.attention(q, k, v, mask="causal", layout="thd", cu_q=ends, cu_kv=ends).sum().backward()
    assert asked and all(asked)


def test_what_has_no_order_is_an_error_or_a_warning():
    q, k, v = operands()
    bias = torch.zeros(33, device=DEVICE, requires_grad=True)

    def biased(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx]  # of all heads and queries

    torch.use_deterministic_algorithms(True)
    with pytest.raises(attune.UnsupportedError, match="deterministic"):
        flex_attention(q, k, v, biased).sum().backward()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="gradients may differ"):
        flex_attention(q, k, v, biased).sum().backward()
    assert bias.grad is not None
