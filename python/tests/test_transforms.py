"""torch.func's transforms beside those of attention's definition in float64, and forward mode, which is refused. On
ATTUNE_TEST_DEVICE."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402
import mods  # noqa: E402
from test_recall import by_definition  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import functional_call, functionalize, grad, jacrev, jvp, vjp, vmap  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import attune  # noqa: E402
from attune.torch import flex_attention  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 2, 2, 12, 16
SAMPLES = 3


@pytest.fixture(autouse=True)
def on_device():
    with devices.on_device():
        yield


def operands(*mapped):
    torch.manual_seed(4)
    return [torch.randn(*mapped, BATCH, HEADS, LENGTH, DIM) for _ in range(3)]


def by_functions(q, k, v, table=None):
    return flex_attention(q, k, v, score_mod(table), mask_mod=mods.causal, strict=True)


def by_words(q, k, v, table=None):
    if table is None:
        return attune.attention(q, k, v, mask="causal", layout="bhsd")
    score = "score + table[h] * (kv_idx - q_idx)"
    return attune.attention(q, k, v, mask="causal", score=score, tensors={"table": table}, layout="bhsd")


def wanted(q, k, v, table=None):
    return by_definition(q, k, v, None if table is None else score_mod(table.double()), mods.causal)


def score_mod(table):
    return None if table is None else lambda score, b, h, i, j: score + table[h] * (j - i)


def check(found, reference):
    torch.testing.assert_close(
        tuple(x.double() for x in found), tuple(x.double() for x in reference), atol=1e-4, rtol=1e-4
    )


WAYS = pytest.mark.parametrize("attend", [by_functions, by_words])


def loss_of(attend, weights):
    return lambda *given: (attend(*given) * weights).sum()


@WAYS
def test_grad_and_vjp(attend):
    given, weights = operands(), torch.randn(BATCH, HEADS, LENGTH, DIM)
    for _ in range(3):
        found = grad(loss_of(attend, weights), argnums=(0, 1, 2))(*given)
        reference = grad(loss_of(wanted, weights), argnums=(0, 1, 2))(*given)
        check(found, reference)
        out, pull = vjp(attend, *given)
        check((out, *pull(weights)), (wanted(*given), *reference))


@WAYS
def test_learned_tensors(attend):
    given, table, weights = operands(), torch.rand(HEADS), torch.randn(BATCH, HEADS, LENGTH, DIM)
    found = grad(loss_of(attend, weights), argnums=(0, 3))(*given, table.requires_grad_())
    check(found, grad(loss_of(wanted, weights), argnums=(0, 3))(*given, table.detach()))


@WAYS
def test_vmap(attend):
    q, k, v = operands(SAMPLES)
    check((vmap(attend)(q, k, v),), (torch.stack([wanted(*x) for x in zip(q, k, v, strict=True)]),))
    # Mapped elsewhere, or not at all.
    found = vmap(attend, in_dims=(1, 2, None), out_dims=1)(q.transpose(0, 1), k.movedim(0, 2), v[0])
    check((found,), (torch.stack([wanted(*x, v[0]) for x in zip(q, k, strict=True)], 1),))
    table = torch.rand(SAMPLES, HEADS)
    check((vmap(attend)(q, k, v, table),), (torch.stack([wanted(*x) for x in zip(q, k, v, table, strict=True)]),))


@WAYS
def test_gradients_of_samples(attend):
    given, weights = operands(SAMPLES), torch.randn(BATCH, HEADS, LENGTH, DIM)
    of_each = [grad(loss_of(wanted, weights), argnums=(0, 1, 2))(*x) for x in zip(*given, strict=True)]
    reference = [torch.stack(x) for x in zip(*of_each, strict=True)]
    check(vmap(grad(loss_of(attend, weights), argnums=(0, 1, 2)))(*given), reference)
    # Of all of them at once, and where K is everybody's.
    whole = grad(lambda q, k, v: vmap(attend, in_dims=(0, None, 0))(q, k, v).sum(), argnums=(0, 1))
    of_definition = grad(lambda q, k, v: sum(wanted(q[i], k, v[i]).sum() for i in range(SAMPLES)), argnums=(0, 1))
    check(whole(given[0], given[1][0], given[2]), of_definition(given[0], given[1][0], given[2]))


@WAYS
def test_learned_tensors_under_vmap(attend):
    given, table, weights = operands(SAMPLES), torch.rand(SAMPLES, HEADS), torch.randn(BATCH, HEADS, LENGTH, DIM)
    for dim in (0, None):
        own = table if dim == 0 else table[0]

        def whole(table, attend=attend, dim=dim):
            return vmap(loss_of(attend, weights), in_dims=(0, 0, 0, dim))(*given, table).sum()

        def by_hand(table, dim=dim):
            tables = table if dim == 0 else [table] * SAMPLES
            return sum(loss_of(wanted, weights)(*x) for x in zip(*given, tables, strict=True))

        check((grad(whole)(own),), (grad(by_hand)(own),))


def test_what_tells_elements_of_the_batch_apart_is_not_mapped_to_it():
    q, k, v = operands(SAMPLES)

    def mask(b, h, i, j):
        return (i >= j) & (j >= b * 5)

    found = vmap(lambda *x: flex_attention(*x, mask_mod=mask, strict=True))(q, k, v)
    check((found,), (torch.stack([by_definition(*x, None, mask) for x in zip(q, k, v, strict=True)]),))


def test_a_jacobian():
    q, k, v = (x[:1, :1, :4] for x in operands())
    found = jacrev(by_functions)(q, k, v)
    columns = torch.eye(q.numel()).view(-1, *q.shape)
    check((found.flatten(0, 3),), (torch.stack([vjp(wanted, q, k, v)[1](column.double())[0] for column in columns]),))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(DIM, 3 * DIM)

    def forward(self, x):
        return by_functions(*self.project(x).chunk(3, -1))


def test_gradients_of_a_modules_parameters_by_sample():
    layer, x = Layer(), torch.randn(SAMPLES, 1, HEADS, LENGTH, DIM)
    parameters = {name: each.detach() for name, each in layer.named_parameters()}
    found = vmap(grad(lambda p, x: functional_call(layer, p, (x,)).square().sum()), in_dims=(None, 0))(parameters, x)
    for at in range(SAMPLES):
        one = torch.autograd.grad(layer(x[at]).square().sum(), list(layer.parameters()))
        check([found[name][at] for name in parameters], one)


@WAYS
@pytest.mark.parametrize("before", [0, 4])
def test_forward_mode_is_refused(attend, before):
    given = operands()
    for _ in range(before):  # found again by what the caller said
        attend(*given)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        jvp(attend, tuple(given), tuple(given))
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="forward-mode"):
            attend(forward_ad.make_dual(given[0], given[1]), *given[1:])
        check((attend(*given),), (wanted(*given),))
    check((attend(*given),), (wanted(*given),))


@WAYS
def test_a_second_derivative_is_refused(attend):
    given = [x.requires_grad_() for x in operands()]
    for _ in range(4):
        (found,) = torch.autograd.grad(attend(*given).square().sum(), given[0], create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            found.sum().backward()
    with pytest.raises(NotImplementedError, match="second derivative"):
        grad(lambda q: grad(lambda q: attend(q, *operands()[1:]).square().sum())(q).sum())(operands()[0])


@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("of_runtime", [False, True])
def test_forward_mode_of_packed_sequences_is_refused(before, of_runtime):
    torch.manual_seed(4)
    given = [torch.randn(LENGTH, HEADS, DIM) for _ in range(3)]
    cu = torch.tensor([0, 5, LENGTH], dtype=torch.int32)
    runtime = attune.default_runtime("cpu" if devices.DEVICE == "cpu" else "cuda:0") if of_runtime else None

    def attend(q, k, v):
        return attune.attention(q, k, v, mask="causal", cu_q=cu, runtime=runtime)

    wanted = attend(*given)
    for _ in range(before):
        attend(*given)
    for at in range(3):
        duals = list(given)
        with forward_ad.dual_level():
            duals[at] = forward_ad.make_dual(given[at], given[0])
            with pytest.raises(NotImplementedError, match="forward-mode"):
                attend(*duals)
            torch.testing.assert_close(attend(*given), wanted)
    if not of_runtime:
        with pytest.raises(NotImplementedError, match="forward-mode"):
            jvp(attend, tuple(given), tuple(given))
    torch.testing.assert_close(attend(*given), wanted)


@pytest.mark.parametrize("call", [by_functions, by_words])
def test_functionalize(call):
    """Alone, and where a graph is made with it; beside grad torch's own Functions are none of its."""
    q, k, v = operands()
    wanted = call(2 * q, k, v)
    assert torch.equal(functionalize(lambda q: call(q.mul_(2), k, v))(q.clone()), wanted)
    graph = make_fx(functionalize(lambda q: call(q * 2, k, v)))(q)
    assert torch.equal(graph(q), wanted)
