"""torch.ops.attune: opcheck, gradients against float64, what is refused."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from attune._yaml import write_spec  # noqa: E402
from test_gradients import plain_attention  # noqa: E402

import attune.torch  # noqa: E402, F401

BATCH, HEADS, LENGTH, DIM = 2, 4, 24, 32
attention = torch.ops.attune.attention


def spec(**words):
    given = {
        "name": "operator", "dtype": "fp32", "head_dim": DIM, "layout": "bhsd", "mask": None, "score": None,
        "sink": None, "scalars": {}, "tensors": {}, "dropout": 0.0, "scale": None, "passes": ("forward",),
    }  # fmt: skip
    return write_spec(**(given | words))


def operands(requires_grad=False, dtype=torch.float32, kv_heads=HEADS):
    torch.manual_seed(4)
    q = torch.randn(BATCH, LENGTH, HEADS, DIM, dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(BATCH, kv_heads, LENGTH + 3, DIM, dtype=dtype) for _ in range(2))
    return [x.requires_grad_(requires_grad) for x in (q, k, v)]


# By name, as slots are.
def learned(slope, joins):
    return [joins, slope]


def call(q, k, v, text, tensors=(), ints=(), floats=(), scale=None, dropout=None, seed=None):
    return attention(q, k, v, list(tensors), text, list(ints), list(floats), scale, dropout, seed)


DOCUMENTS = torch.arange(LENGTH + 3)[None].repeat(BATCH, 1) // 7
LEARNED = dict(
    score="score + slope[h] * float(kv_idx - q_idx)",
    mask="kv_idx <= q_idx + 3",
    sink="joins[h]",
    tensors={"slope": "float32[heads] grad", "joins": "float32[heads] grad"},
)
CASES = {
    "plain": (spec(), {}),
    "document": (
        spec(mask="doc[b, q_idx] == doc[b, kv_idx]", tensors={"doc": "int32[batch, kv_len]"}),
        {"tensors": [DOCUMENTS]},  # int64, which the operator converts
    ),
    "scalars": (
        spec(mask="q_idx - kv_idx < window", score="score * factor", scalars={"window": int, "factor": float}),
        {"ints": [5], "floats": [0.5]},
    ),
    "launch's own": (
        spec(scale=float, dropout=float),
        {"scale": 0.3, "dropout": 0.25, "seed": torch.tensor([7, 3])},
    ),
    "learned and a sink": (spec(**LEARNED), {"tensors": [torch.rand(HEADS), torch.rand(HEADS)]}),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_opcheck(name, requires_grad):
    text, launch = CASES[name]
    tensors = [x.clone().requires_grad_(requires_grad and x.is_floating_point()) for x in launch.get("tensors", [])]
    arguments = launch | {"tensors": tensors}
    q, k, v = operands(requires_grad)
    given = (
        q, k, v, list(arguments.get("tensors", [])), text, list(arguments.get("ints", [])),
        list(arguments.get("floats", [])), arguments.get("scale"), arguments.get("dropout"), arguments.get("seed"),
    )  # fmt: skip
    torch.library.opcheck(attention, given)


def test_opcheck_of_the_backward_operator():
    q, k, v = operands()
    text = spec(**LEARNED)
    tensors = [torch.rand(HEADS, dtype=torch.float64), torch.rand(HEADS)]
    o, lse = call(q, k, v, text, tensors)
    for d_lse in (None, torch.randn_like(lse)):
        given = (torch.randn_like(o), d_lse, q, k, v, o, lse, tensors, text, [], [], None, None, None)
        torch.library.opcheck(torch.ops.attune.attention_backward, given)


def with_sink(q, k, v, slope, joins):
    """LEARNED's attention by its definition."""
    i, j = torch.meshgrid(torch.arange(q.shape[2]), torch.arange(k.shape[2]), indexing="ij")
    s = q @ k.transpose(-1, -2) * DIM**-0.5 + slope[:, None, None] * (j - i)
    s = s.masked_fill(j > i + 3, -torch.inf)
    s = torch.cat([s, joins[:, None, None].expand(*s.shape[:-1], 1)], -1)
    return s.softmax(-1)[..., :-1] @ v, s.logsumexp(-1)


@pytest.mark.parametrize("uses", ["out", "lse", "both"])
def test_gradients_of_operands_and_of_what_is_learned(uses):
    leaves = [*operands(), 0.1 * torch.rand(HEADS), torch.rand(HEADS)]
    found = [x.detach().requires_grad_() for x in leaves]
    wanted = [x.detach().double().requires_grad_() for x in leaves]
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM), torch.randn(BATCH, HEADS, LENGTH)
    for o, lse in (call(*found[:3], spec(**LEARNED), learned(*found[3:])), with_sink(*wanted)):
        parts = (o * weights[0]).sum(), (lse * weights[1]).sum()
        {"out": parts[0], "lse": parts[1], "both": parts[0] + parts[1]}[uses].backward()
    for mine, reference in zip(found, wanted, strict=True):
        expected = torch.zeros_like(reference) if reference.grad is None else reference.grad
        torch.testing.assert_close(mine.grad.double(), expected, atol=1e-4, rtol=1e-4)


def test_launch_scalars():
    q, k, v = operands()
    text, launch = CASES["scalars"]
    o, lse = call(q, k, v, text, **launch)
    wanted = plain_attention(
        *(x.double() for x in (q, k, v)), lambda s, b, h, i, j: s * 0.5, lambda b, h, i, j: i - j < 5
    )
    torch.testing.assert_close(o.double(), wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), wanted[1], atol=1e-5, rtol=1e-5)


def test_none_stands_for_no_tensors_and_no_sizes():
    """AOTInductor's programs hand it over."""
    q, k, v = operands()
    found = attention(q, k, v, None, spec(mask="causal"), None, [], None, None, None)
    wanted = call(q, k, v, spec(mask="causal"))
    assert all(map(torch.equal, found, wanted))
    d_o = torch.ones_like(wanted[0])
    numbers = [], None, None, None
    found = torch.ops.attune.attention_backward(d_o, None, q, k, v, *wanted, None, spec(mask="causal"), None, *numbers)
    wanted = torch.ops.attune.attention_backward(d_o, None, q, k, v, *wanted, [], spec(mask="causal"), [], *numbers)
    assert all(map(torch.equal, found, wanted))


def test_the_seed_says_what_is_dropped():
    q, k, v = operands()
    text, launch = CASES["launch's own"]
    first, again = (call(q, k, v, text, **launch)[0] for _ in range(2))
    other = call(q, k, v, text, **(launch | {"seed": torch.tensor([7, 4])}))[0]
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_specs_of_the_library_by_name():
    q, k, v = (torch.randn(1, 16, 2, 128, dtype=torch.bfloat16) for _ in range(3))
    o, lse = call(q, k, v, "causal")
    assert torch.equal(o, attune.attention(q, k, v, spec="causal")) and lse.shape == (1, 2, 16)


def test_operands_anywhere_in_memory():
    """Strides that no kernel walks, and addresses between two multiples of 16 bytes."""
    q, k, v = operands()
    wanted = call(q, k, v, spec())
    odd = [torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in (q, k, v)]
    strided = [torch.empty(*x.shape[:-1], DIM, 2)[..., 0].copy_(x) for x in (q, k, v)]
    weights = torch.randn_like(wanted[0])
    gradients = []
    for each in ((q, k, v), odd, strided):
        found = call(*each, spec())
        assert all(map(torch.equal, found, wanted))
        leaves = [x.detach().requires_grad_() for x in each]
        (call(*leaves, spec())[0] * weights).sum().backward()
        gradients.append([x.grad for x in leaves])
    for each in gradients[1:]:
        for mine, reference in zip(each, gradients[0], strict=True):
            torch.testing.assert_close(mine, reference)


def test_nothing_to_do():
    q, k, v = operands()
    o, lse = call(q[:, :, :0], k, v, spec())
    assert o.shape == (BATCH, HEADS, 0, DIM) and lse.shape == (BATCH, HEADS, 0)
    leaves = [q.detach().requires_grad_(), *(x[:, :, :0].detach().requires_grad_() for x in (k, v))]
    o, lse = call(*leaves, spec())
    assert not o.any() and (lse == -torch.inf).all()
    o.sum().backward()
    assert not leaves[0].grad.any()


REFUSED = {
    "too few tensors": (spec(**LEARNED), {}, "0 tensors are given"),
    "sizes of a tensor": (spec(**LEARNED), {"tensors": [torch.rand(2), torch.rand(HEADS)]}, r"wants \[heads\]"),
    "type of a tensor": (spec(**LEARNED), {"tensors": [torch.ones(HEADS, dtype=torch.int8)] * 2}, "is torch.int32"),
    "too few scalars": (CASES["scalars"][0], {"ints": [3]}, "brings no `factor`"),
    "too many scalars": (spec(), {"ints": [3]}, "more scalars"),
    "an int of 64 bits": (CASES["scalars"][0], {"ints": [2**40], "floats": [1.0]}, "32 bits"),
    "no scale": (spec(scale=float), {}, "`scale` is left to the launch"),
    "no such spec": ("nothing", {}, "no file and no spec"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    text, launch, message = REFUSED[what]
    with pytest.raises(attune.AttuneError, match=message):
        call(*operands(), text, **launch)
