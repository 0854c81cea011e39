"""torch.compile(fullgraph=True): no graph break, the results of eager code, no new graph for another length."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH, MODS  # noqa: E402
from test_gradients import plain_attention  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

import attune  # noqa: E402
from attune._yaml import write_spec  # noqa: E402
from attune.torch import Untranslatable, create_block_mask, flex_attention  # noqa: E402
from attune.torch._plans import in_one_line, variant_of  # noqa: E402

DIM = 32


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(8)


def operands(length=LENGTH, kv_heads=HEADS, requires_grad=True):
    q = torch.randn(BATCH, length, HEADS, DIM).transpose(1, 2)
    k, v = (torch.randn(BATCH, kv_heads, length, DIM) for _ in range(2))
    return [x.requires_grad_(requires_grad) for x in (q, k, v)]


def doubles(tensors):
    return [x.detach().double().requires_grad_() for x in tensors]


def targets(graph):
    return {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}


def compiled(function, backend="aot_eager", dynamic=None):
    """The function, and a counter of the graphs that it took."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic), counter


def check(function, wanted, leaves, backend="aot_eager", tolerance=2e-4):
    """A compiled function of leaves against itself in eager mode, and against float64, with its gradients."""
    weights = torch.randn(BATCH, HEADS, LENGTH, DIM)
    run, counter = compiled(function, backend)
    results = []
    for each, given in ((run, leaves), (function, [x.detach().requires_grad_() for x in leaves])):
        out = each(*given)
        (out * weights).sum().backward()
        results.append([out.detach()] + [x.grad for x in given])
    given = doubles(leaves)
    out = wanted(*given)
    (out * weights).sum().backward()
    reference = [out.detach()] + [x.grad for x in given]
    assert counter.frame_count == 1
    for found, eager, expected in zip(*results, reference, strict=True):
        torch.testing.assert_close(found, eager, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "name",
    ["no mods", "causal", "window", "document", "alibi", "softcap", "transfusion", "natten", "negative index",
     "mask in the score", "nested look-up", "window and dead rows"],
)  # fmt: skip
def test_mod(name):
    score_mod, mask_mod = MODS[name]()

    def attend(q, k, v):
        length = q.shape[2]
        mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, length, length, device="cpu")
        return flex_attention(q * 1, k, v, score_mod, mask, strict=True)

    check(attend, lambda q, k, v: plain_attention(q, k, v, score_mod, mask_mod)[0], operands())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_is_captured_learns(backend):
    """A table that is looked up, and a slope that the function computes of a parameter."""

    def score_mod(table, slope):
        return lambda score, b, h, i, j: score + table[h, i - j + LENGTH] + slope.exp()[h] * (i - j)

    def attend(q, k, v, table, slope):
        return flex_attention(q, k, v, score_mod(table, slope), mask_mod=mods.causal, strict=True)

    def wanted(q, k, v, table, slope):
        return plain_attention(q, k, v, score_mod(table, slope), mods.causal)[0]

    table = (0.1 * torch.randn(HEADS, 2 * LENGTH)).requires_grad_()
    slope = (torch.randn(HEADS) - 3).requires_grad_()
    check(attend, wanted, [*operands(), table, slope], backend, tolerance=5e-4)


def test_many_captured_tensors():
    """As many as a spec may have."""
    tables = [torch.randn(HEADS) for _ in range(8)]

    def score_mod(score, b, h, i, j):
        for place, table in enumerate(tables):
            score = score + table[h] * (place + 1) * j * 0.01
        return score

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod, strict=True)

    check(attend, lambda q, k, v: plain_attention(q, k, v, score_mod)[0], operands())


def test_the_graph_holds_the_operators():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(fw_compiler=lambda g, i: make_boxed_func(keep(g, i)))
    run = torch.compile(lambda q, k, v: flex_attention(q, k, v, strict=True), backend=backend, fullgraph=True)
    run(*operands()).sum().backward()
    assert "attune.attention.default" in targets(graphs[0])
    assert "attune.attention_backward.default" in targets(graphs[1])
    assert not any("flex" in each for graph in graphs for each in targets(graph))
    texts = [x for graph in graphs for node in graph.graph.nodes for x in node.args if isinstance(x, str)]
    assert len(texts) == 2 and not any("\n" in text for text in texts)  # Inductor writes them into comments


def test_a_spec_in_a_line_is_the_same():
    text = write_spec(
        name="line", dtype="fp32", head_dim=DIM, layout="bhsd", mask="causal", score="score * 2", sink=None, scalars={},
        tensors={}, dropout=0.0, scale=None, passes=("forward",),
    )  # fmt: skip
    text += "# a comment with \\n and \\\\ in it\n"
    assert "\n" not in in_one_line(text)
    assert variant_of(in_one_line(text)).spec.hash == variant_of(text).spec.hash


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_another_length_is_no_other_graph(backend):
    def attend(q, k, v, doc, window):
        length = q.shape[2]

        def mask_mod(b, h, i, j):
            return (doc[b, i] == doc[b, j]) & (i >= j) & (i - j < window) & (i + j < 2 * length - 1)

        mask = create_block_mask(mask_mod, None, None, length, length, device="cpu")
        out, aux = flex_attention(
            q, k, v, mods.softcap(3.0), mask, strict=True, return_aux=torch_flex.AuxRequest(lse=True)
        )
        return out, aux.lse

    run, counter = compiled(attend, backend, dynamic=True)
    for length, window in ((64, 9), (40, 9), (33, 20), (65, 2), (100, 9)):
        q, k, v = operands(length)
        doc = torch.arange(length).repeat(BATCH, 1) // 13
        found = run(q, k, v, doc, window)
        found[0].sum().backward()
        given = doubles([q, k, v])

        def mask_mod(b, h, i, j, doc=doc, window=window, length=length):
            return (doc[b, i] == doc[b, j]) & (i >= j) & (i - j < window) & (i + j < 2 * length - 1)

        wanted = plain_attention(*given, mods.softcap(3.0), mask_mod)
        wanted[0].sum().backward()
        for mine, reference in zip((*found, q.grad, k.grad, v.grad), (*wanted, *(x.grad for x in given)), strict=True):
            torch.testing.assert_close(mine.double(), reference, atol=2e-4, rtol=2e-4)
    assert counter.frame_count == 1


def test_lengths_that_are_marked_are_no_other_graph():
    """Without dynamic=True: torch is told which dims vary."""
    doc = torch.arange(128).repeat(BATCH, 1) // 13

    def attend(q, k, v):
        return flex_attention(q, k, v, mask_mod=lambda b, h, i, j: doc[b, i] == doc[b, j], strict=True)

    run, counter = compiled(attend)
    for length in (64, 40, 33, 65, 100):
        given = operands(length)
        for x in given:
            torch._dynamo.mark_dynamic(x, 2)
        wanted = plain_attention(*doubles(given), None, lambda b, h, i, j: doc[b, i] == doc[b, j])[0]
        torch.testing.assert_close(run(*given).double(), wanted, atol=2e-4, rtol=2e-4)
    assert counter.frame_count == 1


def test_tables_whose_sizes_follow_from_the_length_are_no_other_graph():
    """A learned table by distance from outside, one that the graph makes, and one of half the keys, behind whose end
    there are more."""

    def attend(q, k, v, far):
        length = q.shape[2]
        near = torch.arange(2 * length - 1) * 0.01
        half = torch.arange(length // 2) * 0.02

        def score_mod(score, b, h, i, j):
            return score + far[h, i - j + length - 1] - near[i + j] + half[torch.clamp(j // 2, max=length // 2 - 1)]

        return flex_attention(q, k, v, score_mod, mask_mod=mods.window(20), strict=True)

    run, counter = compiled(attend, dynamic=True)
    for length in (70, 128, 97):
        q, k, v = operands(length)
        far = torch.randn(HEADS, 2 * length - 1, requires_grad=True)
        run(q, k, v, far).square().sum().backward()
        given = doubles([q, k, v, far])
        near, half = torch.arange(2 * length - 1) * 0.01, torch.arange(length // 2) * 0.02

        def score_mod(score, b, h, i, j, far=given[3], near=near, half=half, length=length):
            return score + far[h, i - j + length - 1] - near[i + j] + half[torch.clamp(j // 2, max=length // 2 - 1)]

        plain_attention(*given[:3], score_mod, mods.window(20))[0].square().sum().backward()
        for mine, wanted in zip((q, k, v, far), given, strict=True):
            torch.testing.assert_close(mine.grad.double(), wanted.grad, atol=2e-4, rtol=2e-4)
    assert counter.frame_count == 1


def test_what_dynamo_makes_of_a_float():
    """A constant of the graph: it makes one with a number that is open, finds that the operator takes it, and makes
    another. A tensor without dims stays open."""

    def attend(q, k, v, cap):
        return flex_attention(q, k, v, mods.softcap(cap), strict=True)

    given = operands(requires_grad=False)
    run, counter = compiled(attend, dynamic=True)
    for cap in (3.0, 2.0):
        wanted = plain_attention(*(x.double() for x in given), mods.softcap(cap))[0]
        torch.testing.assert_close(run(*given, cap).double(), wanted, atol=2e-5, rtol=2e-5)
    assert counter.frame_count == 3
    run, counter = compiled(attend, dynamic=True)
    for cap in (3.0, 2.0, 7.0):
        wanted = plain_attention(*(x.double() for x in given), mods.softcap(cap))[0]
        torch.testing.assert_close(run(*given, torch.tensor(cap)).double(), wanted, atol=2e-5, rtol=2e-5)
    assert counter.frame_count == 1


class Layer(torch.nn.Module):
    def __init__(self, function, name):
        super().__init__()
        self.function, self.name, self.number = function, name, 0.25

    def forward(self, q, k, v):
        return self.function(q, k, v, **{self.name: self.number})


@pytest.mark.parametrize("name", ["scale", "dropout", "scalars"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", ["flex_attention", "dense", "packed"])
def test_floats_that_dynamo_leaves_open(function, name, dynamic):
    """Those of modules that change, and all under dynamic=True."""
    cu = torch.tensor([0, LENGTH], dtype=torch.int32)

    def attend(q, k, v, **number):
        if "scalars" in number:
            number = {"score": "score * factor", "scalars": {"factor": number["scalars"]}}
        if "dropout" in number:
            number["seed"] = 3
        if function == "dense":
            return attune.attention(q, k, v, layout="bhsd", **number)
        packed = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        return attune.attention(*packed, layout="thd", cu_q=cu, **number)

    if function == "flex_attention" and name == "scalars":
        pytest.skip("it has none")
    layer = Layer(flex_attention if function == "flex_attention" else attend, name)
    run, _ = compiled(layer, dynamic=dynamic)
    given = operands(requires_grad=False)
    for number in (0.25, 0.5, 0.375):
        layer.number = number
        found = run(*given)
        if name != "dropout" or function != "flex_attention":
            torch.testing.assert_close(found, layer(*given), atol=1e-5, rtol=1e-5)


def test_no_gradient_is_wanted():
    run, counter = compiled(lambda *x: flex_attention(*x, mask_mod=mods.causal, strict=True, return_lse=True))
    given = operands(requires_grad=False)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = run(*given)
        for mine, wanted in zip(found, plain_attention(*(x.double() for x in given), None, mods.causal), strict=True):
            torch.testing.assert_close(mine.double(), wanted, atol=2e-5, rtol=2e-5)


def test_grouped_heads_and_one_batch_of_keys():
    def attend(q, k, v):
        return flex_attention(q, k, v, enable_gqa=True, scale=-0.2, strict=True)

    q, k, v = operands(kv_heads=2)
    wanted = plain_attention(q.double() * -0.2 * DIM**0.5, *(x[:1].double().expand_as(x) for x in (k, v)))[0]
    run, _ = compiled(attend)
    torch.testing.assert_close(run(q, k[:1], v[:1]).double(), wanted, atol=2e-5, rtol=2e-5)


def test_block_masks_from_outside():
    lazy = create_block_mask(mods.document_mask(), BATCH, None, LENGTH, LENGTH, device="cpu")
    of_torch = torch_flex.create_block_mask(mods.document_mask(), BATCH, None, LENGTH, LENGTH, device="cpu")
    blocks = torch_flex.BlockMask.from_kv_blocks(
        torch.tensor([[[1, 2]]], dtype=torch.int32),
        torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32),
        BLOCK_SIZE=LENGTH // 2,
    )
    for mask in (lazy, of_torch, blocks):
        given = operands(requires_grad=False)
        run, _ = compiled(lambda q, k, v, mask=mask: flex_attention(q, k, v, mods.alibi(), mask, strict=True))
        wanted = flex_attention(*given, mods.alibi(), mask, strict=True)
        torch.testing.assert_close(run(*given), wanted, atol=1e-6, rtol=1e-6)


def test_what_cannot_be_translated():
    def attend(q, k, v, strict):
        return flex_attention(q, k, v, lambda score, *_: torch.asinh(score), strict=strict, return_lse=True)

    given = operands(requires_grad=False)
    run, _ = compiled(attend)
    with pytest.raises(Exception, match="score_mod uses `asinh`") as caught:
        run(*given, True)
    assert Untranslatable.__name__ in repr(caught.value) or caught.value.__cause__ is not None
    torch.compiler.reset()
    with pytest.warns(UserWarning, match="score_mod uses `asinh`"):
        found = run(*given, False)
    wanted = plain_attention(*(x.double() for x in given), lambda score, *_: torch.asinh(score))
    for mine, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), reference, atol=2e-5, rtol=2e-5)


def test_torchs_own_function_is_left_alone():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    with torch.no_grad():
        run = torch.compile(torch_flex.flex_attention, backend=aot_autograd(fw_compiler=keep), fullgraph=True)
        run(*operands(requires_grad=False))
    assert "flex_attention" in targets(graphs[0]) and not any("attune" in each for each in targets(graphs[0]))


def test_the_operators_stand_in_an_exported_program():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.Parameter(torch.rand(HEADS))

        def forward(self, q, k, v):
            slopes = self.slopes
            return flex_attention(q, k, v, lambda score, b, h, i, j: score + slopes[h] * (i - j), strict=True)

    given = tuple(operands(requires_grad=False))
    layer = Layer()
    program = torch.export.export(layer, given, strict=True)
    assert "attune.attention.default" in targets(program.graph_module)
    torch.testing.assert_close(program.module()(*given), layer(*given))


@pytest.mark.parametrize("strict", [False, True])
def test_lengths_of_an_exported_program_are_open(strict):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v, doc):
            return attune.attention(q, k, v, mask="causal and document(doc)", layout="bhsd", tensors={"doc": doc})

    def given(batch, length):
        doc = (torch.arange(length, dtype=torch.int32) // 10).expand(batch, length).contiguous()
        return *(torch.randn(batch, HEADS, length, DIM) for _ in "qkv"), doc

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=512)
    operand = {0: batch, 2: length}
    sizes = operand, operand, operand, {0: batch, 1: length}
    program = torch.export.export(Layer(), given(3, 48), dynamic_shapes=sizes, strict=strict)
    for each in (given(1, 30), given(5, 77)):
        torch.testing.assert_close(program.module()(*each), Layer()(*each))


def test_tensors_without_memory():
    q, k, v = (x.to("meta") for x in operands(requires_grad=False))
    for out in (flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j), attune.attention(q, k, v, layout="bhsd")):
        assert out.is_meta and out.shape == q.shape


def test_kernels_are_looked_for_when_a_graph_is_made():
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, 264) for _ in range(3))
    run, _ = compiled(lambda *x: flex_attention(*x, strict=True))
    with pytest.raises(Exception, match="not in 8 to 256"):
        run(q, k, v)


def test_graphs_do_not_hang_on_what_is_imported():
    """Dynamo walks through a dictionary that it meets; threads import into sys.modules meanwhile."""
    attend = lambda q, k, v: attune.attention(q, k, v, mask="causal", layout="bhsd")  # noqa: E731
    guards = torch._dynamo.explain(attend)(*operands(requires_grad=False)).out_guards
    assert guards and not any("modules" in str(guard.name) for guard in guards)
