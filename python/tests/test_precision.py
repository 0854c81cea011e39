"""precision: a word of every interface, and torch's own setting where nobody says one."""

import sys

import numpy as np
import pytest

import attune

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from attune.torch import _operator_call, _precision, _recall, flex_attention  # noqa: E402

TF32 = "precision: tf32\n"


@pytest.fixture(autouse=True)
def torchs_own():
    """As torch starts, and as it was."""
    matmul = torch.backends.cuda.matmul
    was = getattr(matmul, "fp32_precision", None)
    yield
    torch.set_float32_matmul_precision("highest")
    if was is not None:
        matmul.fp32_precision = was


def operands(dtype=torch.float32):
    torch.manual_seed(2)
    return [torch.randn(1, 2, 40, 32).to(dtype) for _ in range(3)]


def test_cpus_compute_in_fp32_whatever_it_says():
    given = operands()
    for q, k, v in (given, [x.numpy() for x in given]):
        o, tf32 = (attune.attention(q, k, v, layout="bhsd", precision=word) for word in (None, "tf32"))
        np.testing.assert_array_equal(o, tf32)
    assert torch.equal(flex_attention(*given, precision="tf32", strict=True), torch.as_tensor(o))
    with pytest.raises(attune.BadInputError, match="both `spec` and `precision`"):
        attune.attention(*given, spec=attune.Spec(dtype="fp32", head_dim=32), precision="tf32")
    for call in (flex_attention, attune.attention):
        with pytest.raises(attune.BadInputError, match="precision"):
            call(*operands(torch.bfloat16), precision="tf32", **({"strict": True} if call is flex_attention else {}))


def test_left_out_it_is_torchs():
    of_call = _precision.of_call
    assert of_call(None, "cuda", torch.float32) is None
    for word in ("high", "medium"):
        torch.set_float32_matmul_precision(word)
        assert of_call(None, "cuda", torch.float32) == "tf32"
        assert of_call("strict", "cuda", torch.float32) == "strict"
        assert of_call(None, "cuda", torch.bfloat16) is of_call(None, "cpu", torch.float32) is None
    torch.set_float32_matmul_precision("highest")
    assert of_call(None, "cuda", torch.float32) is None
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # after which torch's older question raises
        assert of_call(None, "cuda", torch.float32) == "tf32"


def test_specs_of_calls_on_gpus_follow_torch():
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 40, 32, device="cuda") for _ in range(3))
        texts = []
        for word in ("highest", "high"):
            torch.set_float32_matmul_precision(word)
            texts.append(_operator_call.spec_text(q, k, v, None, None, None)[0])
    assert TF32 not in texts[0] and TF32 in texts[1]


def test_a_remembered_call_is_of_one_precision(monkeypatch):
    _recall.forget()
    texts = []
    module = sys.modules["attune.torch.flex_attention"]
    spec_text = module.spec_text
    monkeypatch.setattr(module, "spec_text", lambda *args: texts.append(spec_text(*args)) or texts[-1])
    for word in (None, "tf32", None, "tf32"):
        flex_attention(*operands(), precision=word, strict=True)
    assert [TF32 in text for text, _ in texts] == [False, True]


@pytest.mark.parametrize("of_words", [False, True])
def test_graphs_hold_it(of_words):
    torch.compiler.reset()
    texts = []

    def backend(graph, inputs):
        from torch._dynamo.backends.common import aot_autograd

        def look(inner, _):
            texts.extend(arg for node in inner.graph.nodes for arg in node.args if isinstance(arg, str))
            return inner

        return aot_autograd(fw_compiler=look)(graph, inputs)

    def call(q, k, v):
        if of_words:
            return attune.attention(q, k, v, layout="bhsd", precision="tf32")
        return flex_attention(q, k, v, precision="tf32", strict=True)

    given = operands()
    out = torch.compile(call, backend=backend, fullgraph=True)(*given)
    assert [TF32.strip() in text for text in texts if "attune: 1" in text] == [True]
    assert torch.equal(out, call(*given))
