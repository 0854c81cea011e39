"""Tables of 16 bits that learn nothing: kernels read them as they are. Those that learn are float32 to a kernel."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from devices import on_device  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune.torch import _auxiliary, flex_attention  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 2, 4, 48, 32
TOLERANCE = 6e-3  # a gradient of 16 bits is rounded
dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True)
def here():
    torch.compiler.reset()
    with on_device():
        torch.manual_seed(7)
        yield


def operands():
    return [torch.randn(BATCH, HEADS, LENGTH, DIM, requires_grad=True) for _ in range(3)]


def with_gradients(out, *leaves):
    return [out.detach().double(), *(x.double() for x in torch.autograd.grad(out.square().sum(), leaves))]


def wanted(given, added, *learned):
    q, k, v = doubles = [x.detach().double().requires_grad_() for x in given]
    s = q @ k.transpose(-1, -2) * DIM**-0.5 + added
    return with_gradients(s.softmax(-1) @ v, *doubles, *learned)


def check(found, right):
    for mine, each in zip(found, right, strict=True):
        size = each.abs().max().item()
        torch.testing.assert_close(mine / size, each / size, atol=TOLERANCE, rtol=0)


@pytest.fixture
def no_copies(monkeypatch):
    monkeypatch.setattr("attune.torch._plans.as_auxiliary", lambda *_: pytest.fail("it was converted"))


@dtypes
def test_functions(dtype, no_copies):
    factor = torch.tensor(0.5).to(dtype)
    for _ in range(4):
        given, table = operands(), torch.randn(HEADS, LENGTH, LENGTH).to(dtype)
        out = flex_attention(*given, lambda s, b, h, i, j: s + factor * table[h, i, j], strict=True)
        check(with_gradients(out, *given), wanted(given, 0.5 * table.double()))


@dtypes
@pytest.mark.parametrize("compiled", [False, True])
def test_words(dtype, compiled, no_copies):
    def call(q, k, v, table):
        score = "score + table[h, q_idx, kv_idx]"
        return attune.attention(q, k, v, score=score, tensors={"table": table}, layout="bhsd")

    run = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    for _ in range(4):
        given, table = operands(), torch.randn(HEADS, LENGTH, LENGTH).to(dtype)
        check(with_gradients(run(*given, table), *given), wanted(given, table.double()))


@dtypes
def test_one_with_gaps(dtype):
    for _ in range(3):
        given, table = operands(), torch.randn(HEADS, LENGTH, LENGTH).to(dtype).transpose(1, 2)
        out = flex_attention(*given, lambda s, b, h, i, j, table=table: s + table[h, i, j], strict=True)
        check(with_gradients(out, *given), wanted(given, table.double()))


@dtypes
def test_one_that_learns(dtype):
    for learns in (True, False, True):
        given, table = operands(), torch.randn(HEADS, LENGTH).to(dtype).requires_grad_(learns)
        out = flex_attention(*given, lambda s, b, h, i, j, table=table: s + table[h, j], strict=True)
        double = table.detach().double().requires_grad_(learns)
        learned = ([table], [double]) if learns else ([], [])
        right = wanted(given, double[:, None], *learned[1])
        check(with_gradients(out, *given, *learned[0]), right)
        with torch.no_grad():
            again = flex_attention(*given, lambda s, b, h, i, j, table=table: s + table[h, j], strict=True)
        check([again.double()], right[:1])
    with pytest.raises(attune.BadInputError, match=r"learns.*\n.*to\(torch.float32\)"):
        words = {"score": "score + table[h, kv_idx]", "tensors": {"table": table}, "layout": "bhsd"}
        attune.attention(*given, **words)


@dtypes
def test_a_mask_of_torchs_own_attention(dtype, no_copies):
    if not hasattr(torch.nn.attention, "activate_flash_attention_impl"):
        pytest.skip("this torch has no registry")
    given = [x.detach().to(dtype).requires_grad_() for x in operands()]
    mask = torch.randn(BATCH, 1, LENGTH, LENGTH).masked_fill(torch.rand(LENGTH, LENGTH) < 0.3, -torch.inf).to(dtype)
    attune.torch.activate_sdpa()
    try:
        out = scaled_dot_product_attention(*given, attn_mask=mask)
        found = with_gradients(out, *given)
    finally:
        attune.torch.deactivate_sdpa()
    for mine, each in zip(found, wanted(given, mask.double()), strict=True):
        assert (mine - each).abs().max() < 0.05 * each.abs().max()


def test_a_copy_is_of_the_type_that_is_wanted():
    table = torch.randn(3, 4).bfloat16().t()
    assert _auxiliary.as_auxiliary(table, torch.bfloat16).dtype == torch.bfloat16
    assert _auxiliary.as_auxiliary(table, torch.float32).dtype == torch.float32
