"""Programs of people who come from another library's attention: each works, or is told what to do."""

import copy
import functools
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import attune  # noqa: E402
import attune.torch as attune_torch  # noqa: E402
from attune import _advice  # noqa: E402

BATCH, LENGTH, HEADS, DIM = 2, 40, 4, 32
Array, ARRAYS = torch.Tensor, (torch.Tensor, np.ndarray)


@pytest.fixture
def qkv():
    torch.manual_seed(5)
    return [torch.randn(BATCH, LENGTH, HEADS, DIM) for _ in range(3)]


def causal(q, k, v):
    found = scaled_dot_product_attention(*(x.transpose(1, 2).float() for x in (q, k, v)), is_causal=True)
    return found.transpose(1, 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"causal": True}, 'mask="causal"'),
        ({"is_causal": True}, 'mask="causal"'),
        ({"softmax_scale": 0.1}, "scale"),
        ({"window_size": (16, 0)}, "sliding_window"),
        ({"dropout_p": 0.1}, "dropout"),
        ({"softcap": 30.0}, "tanh"),
        ({"attn_mask": None}, "tensors="),
        ({"attn_bias": None}, "bias"),
        ({"alibi_slopes": None}, "slope"),
        ({"cu_seqlens_q": None}, "cu_q"),
        ({"cache_seqlens": None}, "used_kv"),
        ({"enable_gqa": True}, "leave it out"),
        ({"mask_mod": None}, "flex_attention"),
        ({"msk": "causal"}, "unexpected keyword argument 'msk'"),
    ],
)
@pytest.mark.parametrize("of_torch", [False, True])
def test_arguments_of_others(given, says, of_torch, qkv):
    arrays = qkv if of_torch else [x.numpy() for x in qkv]
    for _ in range(2):
        with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
            attune.attention(*arrays, **given)
        assert says in str(caught.value)


def test_advice_is_right(qkv):
    """What is advised does what the other library's argument does."""
    q, k, v = qkv
    slopes, bias = torch.rand(HEADS), torch.randn(HEADS, LENGTH, LENGTH)
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)

    def by_definition(change, live):
        s = change(torch.einsum("bihd,bjhd->bhij", q, k) * DIM**-0.5).masked_fill(~live, -torch.inf)
        return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)

    every = torch.ones_like(back, dtype=torch.bool)
    for found, wanted in (
        (
            attune.attention(*qkv, mask="sliding_window(n)", scalars={"n": 9}),
            by_definition(lambda s: s, (back >= 0) & (back <= 8)),
        ),
        (
            attune.attention(
                *qkv, mask="q_pos - kv_idx <= left and kv_idx - q_pos <= right", scalars={"left": 7, "right": 3}
            ),
            by_definition(lambda s: s, (back <= 7) & (back >= -3)),
        ),
        (
            attune.attention(*qkv, score="cap * tanh(score / cap)", scalars={"cap": 0.5}),
            by_definition(lambda s: 0.5 * torch.tanh(s / 0.5), every),
        ),
        (
            attune.attention(*qkv, score="score - slope[h] * abs(kv_idx - q_pos)", tensors={"slope": slopes}),
            by_definition(lambda s: s - slopes[:, None, None] * back.abs(), every),
        ),
        (
            attune.attention(*qkv, score="score + bias[h, q_idx, kv_idx]", tensors={"bias": bias}),
            by_definition(lambda s: s + bias, every),
        ),
    ):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_what_is_no_expression(qkv):
    live = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    for mask, says in ((live, "tensors="), (lambda b, h, i, j: i >= j, "flex_attention"), (True, "such as")):
        with pytest.raises(attune.BadInputError, match="an expression is text") as caught:
            attune.attention(*qkv, mask=mask)
        assert says in str(caught.value)
    for _ in range(4):  # known names, too
        attune.attention(*qkv, mask="document(doc)", tensors={"doc": torch.zeros(BATCH, LENGTH, dtype=torch.int32)})
    with pytest.raises(attune.BadInputError, match="what it brings has names"):
        attune.attention(*qkv, mask="document(doc)", tensors=[torch.zeros(BATCH, LENGTH, dtype=torch.int32)])
    with pytest.raises(TypeError, match="not a function"):
        attune_torch.flex_attention(*qkv, mask_mod="causal")
    with pytest.raises(TypeError, match="mask_mod=lambda"):
        attune_torch.flex_attention(*qkv, block_mask=live)


@pytest.mark.parametrize("of_torch", [False, True])
def test_tensors_that_were_forgotten_or_are_of_another_type(of_torch, qkv):
    arrays = qkv if of_torch else [x.numpy() for x in qkv]
    for mask in ("document(doc)", "doc[b, kv_idx] > 0"):
        with pytest.raises(attune.BadInputError) as caught:
            attune.attention(*arrays, mask=mask)
        assert 'tensors={"doc": ...}' in str(caught.value) and 'tensors={"doc": ...}' in caught.value.hint
    with pytest.raises(attune.BadInputError, match="did you mean `causal`"):
        attune.attention(*arrays, mask="casual")
    slope = torch.rand(HEADS).double()
    with pytest.raises(attune.BadInputError, match="float32"):
        attune.attention(*arrays, score="score + s[h]", tensors={"s": slope if of_torch else slope.numpy()})


def test_a_layout_that_nobody_said(monkeypatch, qkv):
    monkeypatch.setattr(_advice, "_warned_of_layout", False)
    long = [torch.randn(1, 2, 97, 16) for _ in range(3)]
    with pytest.warns(UserWarning, match='layout="bhsd"') as told:
        attune.attention(*long, mask="causal")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attune.attention(*long, mask="causal and kv_idx < 90")  # said once
        monkeypatch.setattr(_advice, "_warned_of_layout", False)
        attune.attention(*long, mask="causal", layout="bhsd")
        attune.attention(*long, mask="causal and kv_idx < 91", layout="bshd")
        attune.attention(*qkv, mask="causal and kv_idx < 91")
        attune.attention(qkv[0][:, :1], *qkv[1:], mask="causal")
    monkeypatch.setattr(_advice, "_warned_of_layout", False)
    with pytest.warns(UserWarning, match='layout="bhsd"'):
        attune.attention(*(x.numpy() for x in long), mask="causal and kv_idx < 92")


def test_numbers_of_numpy(qkv):
    wanted = attune.attention(*qkv, mask="sliding_window(w)", scalars={"w": 5}, scale=0.25)
    found = attune.attention(*qkv, mask="sliding_window(w)", scalars={"w": np.int64(5)}, scale=np.float32(0.25))
    assert torch.equal(found, wanted)
    spec = attune.Spec("sliding_window(w)", dtype="fp32", head_dim=DIM, scalars={"w": int}, scale=float)
    for scale in (0.25, np.float32(0.25)):
        for w in (5, np.int32(5)):
            arrays = [x.numpy() for x in qkv]
            mine = attune.attention(*qkv, spec=spec, scalars={"w": w}, scale=scale)
            torch.testing.assert_close(mine, wanted)
            of_numpy = attune.attention(*arrays, spec=spec, scalars={"w": w}, scale=scale)
            torch.testing.assert_close(torch.from_numpy(of_numpy), wanted)
    with pytest.raises(attune.BadInputError, match=r"w\.item\(\)"):
        attune.attention(*qkv, mask="sliding_window(w)", scalars={"w": torch.tensor(5)})


def test_a_spec_is_copied_and_pickled(qkv):
    tensors = {"doc": torch.zeros(BATCH, LENGTH, dtype=torch.int32)}
    made = (
        (attune.Spec("causal", dtype="fp32", head_dim=DIM), {}),
        (attune.Spec("document(doc)", dtype="fp32", head_dim=DIM, tensors={"doc": "int32[batch, kv_len]"}), tensors),
        (attune.Spec("causal", dtype="fp32", head_dim=DIM, dropout=0.5).with_device_seed, {}),
    )
    for spec, given in made:
        for again in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
            assert again.hash == spec.hash and again.tensors == spec.tensors
            if not spec.dropout:
                wanted = attune.attention(*qkv, spec=spec, tensors=given)
                assert torch.equal(attune.attention(*qkv, spec=again, tensors=given), wanted)
    one_line = attune.Spec.from_yaml(f"{{attune: 1, name: a, dtype: fp32, head_dim: {DIM}, layout: bshd}}")
    assert pickle.loads(pickle.dumps(one_line)).hash == one_line.hash
    torch.testing.assert_close(attune.attention(*qkv, spec=one_line), attune.attention(*qkv))
    named = attune.Spec.from_file("models/llama3_8b")
    assert pickle.loads(pickle.dumps(named)).hash == named.hash


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.spec = attune.Spec("causal", dtype="fp32", head_dim=DIM)
        self.project = torch.nn.Linear(HEADS * DIM, 3 * HEADS * DIM)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, DIM)).unbind(2)
        return attune.attention(q, k, v, spec=self.spec).flatten(-2)


def test_a_model_is_copied_saved_and_hooked(tmp_path):
    model, x = Model(), torch.randn(BATCH, LENGTH, HEADS * DIM)
    torch.save(model, tmp_path / "model.pt")
    seen = []
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        torch.testing.assert_close(other(x), model(x))
        other.register_full_backward_hook(lambda *_: seen.append(1))
        for _ in range(4):
            other(x.clone().requires_grad_()).sum().backward()
        assert other.project.weight.grad is not None and model.project.weight.grad is None
    assert len(seen) == 8
    own = {name: each.detach().clone().requires_grad_() for name, each in model.named_parameters()}
    torch.func.functional_call(model, own, (x,)).sum().backward()
    assert all(each.grad is not None for each in own.values())


def test_threads(qkv):
    wanted, found = causal(*qkv), []

    def work():
        for _ in range(10):
            given = [x.clone().requires_grad_() for x in qkv]
            o = attune.attention(*given, mask="causal")
            o.sum().backward()
            found.append((o.detach() - wanted).abs().max() < 1e-4 and bool(given[0].grad.isfinite().all()))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60 and all(found)


class Dataset(torch.utils.data.Dataset):
    def __init__(self, qkv):
        self.qkv = qkv

    def __len__(self):
        return 4

    def __getitem__(self, at):
        return attune.attention(*self.qkv, mask=f"causal and kv_idx != {at + 20}")


def test_workers_that_are_forked_after_a_call(qkv):
    attune.attention(*qkv, mask="causal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python, about threads
        found = list(torch.utils.data.DataLoader(Dataset(qkv), num_workers=2, batch_size=None))
    assert all(
        torch.equal(each, attune.attention(*qkv, mask=f"causal and kv_idx != {at + 20}"))
        for at, each in enumerate(found)
    )


def test_names_are_found_or_told():
    program = (
        "import sys, attune\n"
        "assert 'torch' not in sys.modules\n"
        "assert attune.torch.flex_attention and 'torch' in sys.modules\n"
        "try: attune.flex_attention\n"
        "except AttributeError as error: assert 'attune.torch.flex_attention' in str(error)\n"
        "assert not hasattr(attune, 'no_such_thing')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("sizes", [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_nothing_at_all(sizes):
    batch, q_len, kv_len = sizes
    for learns in (False, True):
        for dtype in (torch.float32, torch.float16):
            q = torch.randn(batch, q_len, HEADS, DIM).to(dtype).requires_grad_(learns)
            k, v = (torch.randn(batch, kv_len, HEADS, DIM).to(dtype).requires_grad_(learns) for _ in range(2))
            for _ in range(4):
                o = attune.attention(q, k, v, mask="causal")
                assert o.shape == q.shape and not o.any()
                if learns:
                    o.sum().backward()
                    assert q.grad.shape == q.shape and not k.grad.any() and not q.grad.any()


def test_a_missing_batch_is_told(qkv):
    q, k, v = qkv
    with pytest.raises(attune.BadInputError, match="expand"):
        attune.attention(q, k[:1], v[:1])
    expanded = [x[:1].expand(BATCH, -1, -1, -1) for x in (k, v)]
    torch.testing.assert_close(
        attune.attention(q, *expanded, mask="causal"), causal(q, *expanded), atol=1e-4, rtol=1e-4
    )


def test_a_table_that_is_too_short_is_told(qkv):
    def call(length, words, **rest):
        table = torch.zeros(BATCH, length, dtype=torch.int32)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            attune.attention(*qkv, **words, tensors={"table": table}, **rest)
        return [str(each.message) for each in told]

    documents, biased = {"mask": "document(table)"}, {"score": "score + table[b, q_idx]"}
    (of_keys,), (of_queries,) = call(LENGTH - 1, documents), call(LENGTH - 2, biased)
    assert "`table` has 39 entries, and there are 40 keys" in of_keys and "40 queries" in of_queries
    for length in (LENGTH, LENGTH + 3):
        assert not call(length, documents)
    assert not call(LENGTH - 3, documents, dims={"table": f"batch, {LENGTH - 3}"})
    assert not call(LENGTH - 4, {"score": "score + table[b, q_idx - kv_idx]"})


def test_a_captured_table_that_is_too_short_is_told(qkv):
    given = [x.transpose(1, 2) for x in qkv]

    def call(*sizes):
        table = torch.zeros(sizes, dtype=torch.int32)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                attune_torch.flex_attention(*given, mask_mod=lambda b, h, q, k: table[b, q] == table[b, k], strict=True)
        return [str(each.message) for each in told]

    of_queries, of_keys = call(BATCH, LENGTH - 1)
    assert "shape (2, 39) is looked up by `q_idx`, of which there are 40" in of_queries and "`kv_idx`" in of_keys
    assert not call(BATCH, LENGTH) and not call(BATCH, LENGTH + 1) and not call(1, LENGTH)


def test_functions_in_each_others_places_are_told(qkv):
    given = [x.transpose(1, 2) for x in qkv]

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * 2

    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    with pytest.raises(TypeError, match="say mask_mod="):
        attune_torch.flex_attention(*given, mask_mod)
    with pytest.raises(TypeError, match="say score_mod="):
        attune_torch.flex_attention(*given, mask_mod=score_mod)
    out = attune_torch.flex_attention(
        *given, lambda *args: score_mod(*args), mask_mod=lambda *args: mask_mod(*args), strict=True
    )
    torch.testing.assert_close(out, attune_torch.flex_attention(*given, score_mod, mask_mod=mask_mod, strict=True))


def test_tensors_that_no_kernel_takes_are_told(qkv):
    flex, words = attune_torch.flex_attention, attune.attention
    sparse = [x.to_sparse() for x in qkv]
    for call in (flex, words):
        with pytest.raises(Exception, match=r"layout torch\.sparse_coo"):
            call(*sparse, **({"strict": True} if call is flex else {}))
    none = torch.randn(BATCH, 0, LENGTH, DIM)
    with pytest.raises(ValueError, match="Hq=0"):
        flex(none, none, none)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda q, k, v: ((q, k, v[:, :, 1:]), {}), ValueError, "one length of key and value"),
        (lambda q, k, v: ((q, k, v[:, :1]), {"enable_gqa": True}), ValueError, "one number of heads"),
        (lambda q, k, v: ((q, k, torch.cat((v, v[:1]))), {}), ValueError, "Bq=2 and Bv=3"),
        (lambda q, k, v: ((q.numpy(), k.numpy(), v.numpy()), {}), TypeError, "query is a ndarray, no torch tensor"),
        (lambda q, k, v: ((q, None, v), {}), TypeError, "key is a NoneType"),
        (lambda q, k, v: ((q, k, v), {"scale": "0.5"}), TypeError, "scale is a str"),
        (lambda q, k, v: ((q, k, v, lambda score, b: score), {}), TypeError, r"takes \(score, b\)"),
        (lambda q, k, v: ((q, k, v, lambda *_: None), {"strict": True}), attune_torch.Untranslatable, "no `return`"),
        (lambda q, k, v: ((x.double().requires_grad_() for x in (q, k, v)), {}), NotImplementedError, r"float64"),
    ],
)
def test_what_flex_attention_cannot_take_is_told(change, error, says, qkv):
    """By name, and each time: of a fall-back one warning tells why, and what torch says next tells nothing of it."""
    for _ in range(2):
        given, named = change(*(x.transpose(1, 2) for x in qkv))
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="attune falls back to torch's flex_attention: attention in torch.float64"
            )
            with pytest.raises(error, match=says):
                attune_torch.flex_attention(*given, **named)


def test_a_wrapper_takes_what_it_takes(qkv):
    """Not what the function in it does."""

    @functools.wraps(lambda score: score)
    def wrapper(*args):
        return args[0] * 2

    given = [x.transpose(1, 2) for x in qkv]
    found = attune_torch.flex_attention(*given, wrapper, strict=True)
    torch.testing.assert_close(found, attune_torch.flex_attention(*given, scale=2 * DIM**-0.5))

    @functools.wraps(lambda score, b, h, q_idx, kv_idx: score)
    def short(score, factor):
        return score * factor

    with pytest.raises(TypeError, match=r"takes \(score, factor\)"):
        attune_torch.flex_attention(*given, short)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_is_refused(qkv):
    """At first, and where calls that are made again go to their launches without torch's operators."""
    turned = [x.transpose(1, 2).contiguous() for x in qkv]
    spec = attune.Spec("causal", dtype="fp32", head_dim=DIM)
    for call, given in (
        (lambda *arrays: attune.attention(*arrays, mask="causal"), qkv),
        (lambda *arrays: attune.attention(*arrays, spec=spec), qkv),
        (lambda *arrays: attune_torch.flex_attention(*arrays), turned),
    ):
        for calls in (0, 4):
            for _ in range(calls):
                call(*given)
            with pytest.raises(attune.UnsupportedError, match=r"torch\.export"):
                torch.jit.trace(call, tuple(given))


def test_too_much_that_learns_is_told_with_the_way_out(qkv):
    """A network over distances, at each pair of positions; and in a table, through which its gradient goes on."""
    q, k, v = (x.transpose(1, 2) for x in qkv)
    weights = torch.randn(3, 6, requires_grad=True)

    def network(distance):
        return (torch.relu(weights[0] * distance + weights[1]) * weights[2]).sum(-1)

    with pytest.raises(attune.BadInputError, match=r"18 different look-ups.*at most 16") as caught:
        attune_torch.flex_attention(
            q, k, v, lambda score, b, h, q_idx, kv_idx: score + network((q_idx - kv_idx).abs()), strict=True
        )
    assert "as a table" in caught.value.hint
    table = network(torch.arange(LENGTH)[:, None])
    found = attune_torch.flex_attention(
        q, k, v, lambda score, b, h, q_idx, kv_idx: score + table[(q_idx - kv_idx).abs()], strict=True
    )
    back = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    wanted = scaled_dot_product_attention(q, k, v, network(back[..., None]).expand(BATCH, HEADS, -1, -1))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    mine, others = (torch.autograd.grad(o.square().sum(), weights)[0] for o in (found, wanted))
    torch.testing.assert_close(mine, others, atol=1e-3, rtol=1e-3)


def test_functions_that_ask_for_tensors_take_the_branch_of_tensors(qkv):
    given = [x.transpose(1, 2) for x in qkv]
    plain, twice = attune_torch.flex_attention(*given), attune_torch.flex_attention(*given, scale=2 * DIM**-0.5)

    def asks_torch(score, b, h, q_idx, kv_idx):
        return score * 2 if torch.is_tensor(score) and not isinstance(q_idx, int) else score

    def asks_python(score, b, h, q_idx, kv_idx):
        return score * 2 if isinstance(score, torch.Tensor) else score

    def asks_a_global(score, b, h, q_idx, kv_idx):
        return score * 2 if isinstance(score, Array) else score

    def asks_several(score, b, h, q_idx, kv_idx):
        return score * 2 if isinstance(score, ARRAYS) else score

    def asks_a_cell(score, b, h, q_idx, kv_idx):
        return score * 2 if isinstance(score, kind) else score

    def asks_an_argument(score, b, h, q_idx, kv_idx, kind=torch.Tensor):
        return score * 2 if isinstance(score, kind) else score

    def asks_an_int(score, b, h, q_idx, kv_idx):
        return score if isinstance(q_idx, int) else score * 2

    kind = torch.Tensor
    assert not torch.allclose(plain, twice)
    for asks in (asks_torch, asks_an_int):
        torch.testing.assert_close(attune_torch.flex_attention(*given, asks, strict=True), twice)
    for asks in (asks_python, asks_a_global, asks_several, asks_a_cell, asks_an_argument):
        with pytest.raises(attune_torch.Untranslatable, match=r"say torch\.is_tensor"):
            attune_torch.flex_attention(*given, asks, strict=True)
    with pytest.warns(UserWarning, match="say torch.is_tensor"):
        torch.testing.assert_close(attune_torch.flex_attention(*given, asks_python), twice, atol=1e-5, rtol=1e-4)
