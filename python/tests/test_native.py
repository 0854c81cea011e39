"""What libattune_calls.so does in the place of bytecode: the same, and nothing where something is not as usual."""

import gc
import inspect
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import _function, _launcher, _memory, _native, _recall, flex_attention  # noqa: E402
from attune.torch._plans import variant_of  # noqa: E402

HEADS, LENGTH, DIM = 2, 24, 16
KEYS = {"dtype": "fp32", "head_dim": DIM, "layout": "bhsd"}
SPECS = {
    "causal": attune.Spec("causal", **KEYS),
    "scalars": attune.Spec(
        "q_idx - kv_idx <= back", "score + slope * kv_idx", scalars={"slope": float, "back": int}, **KEYS
    ),
    "tensors": attune.Spec(
        "document(doc)", "score + slope[h] * kv_idx",
        tensors={"doc": "int32[batch, kv_len]", "slope": "float32[heads]"}, **KEYS,
    ),
}  # fmt: skip
GIVEN = {
    "causal": ((), ()),
    "scalars": ((), (0.5, 3)),
    "tensors": ((torch.arange(LENGTH, dtype=torch.int32)[None] // 8, torch.rand(HEADS)), ()),
}


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    _met.CALLS.clear()
    _recall.forget()
    monkeypatch.setattr(_met, "find", None)
    yield
    _met.CALLS.clear()
    _recall.forget()


def operands(batch=1):
    return [torch.randn(batch, HEADS, LENGTH, DIM) for _ in range(3)]


def plan_of(name):
    return variant_of(SPECS[name].reference).forward_plan(*operands())


def in_order(name):
    """Scalars and tensors by slot."""
    tensors, scalars = GIVEN[name]
    spec = SPECS[name]
    by_name = dict(zip(("slope", "back"), scalars, strict=False))
    named = dict(zip(("doc", "slope"), tensors, strict=False))
    return [named[x.name] for x in spec.tensors], tuple(by_name[x] for x in spec.launch_scalar_slots)


def test_it_is_there():
    """If not, calls take longer, and this says why."""
    assert _native._functions() is not None


def test_where_it_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(_native, "library", lambda: types.SimpleNamespace(_name=str(tmp_path / "libattune.so")))
    assert _native._functions.__wrapped__() is None
    (tmp_path / "libattune_calls.so").write_text("of another machine")
    assert _native._functions.__wrapped__() is None


@pytest.mark.parametrize("name", SPECS)
def test_a_launch(name):
    plan, given = plan_of(name), operands()
    tensors, scalars = in_order(name)
    launch, _ = _native.launcher_of(plan)
    of_python = _launcher._in_python(plan)
    for _ in range(3):
        given = operands()
        wanted, wanted_lse = of_python(*given, tensors, True, scalars)
        o, lse = launch(*given, tensors, True, scalars)
        assert torch.equal(o, wanted) and torch.equal(lse, wanted_lse)
        assert torch.equal(launch(*given, tuple(tensors), False, scalars), wanted)
        assert o.shape == wanted.shape and o.stride() == wanted.stride() and lse.dtype == torch.float32
    with torch.inference_mode():
        assert launch(*given, tensors, False, scalars).is_inference()


def test_operands_between_multiples_of_16_bytes():
    plan, given = plan_of("causal"), operands()
    launch, _ = _native.launcher_of(plan)
    wanted, wanted_lse = launch(*given, (), True, ())
    for place in range(3):
        moved = list(given)
        moved[place] = torch.randn(given[0].numel() + 1)[1:].view(given[0].shape).copy_(given[place])
        o, lse = launch(*moved, (), True, ())
        assert torch.equal(o, wanted) and torch.equal(lse, wanted_lse)
        assert torch.equal(launch(*moved, (), False, ()), wanted)


def test_what_no_launch_takes():
    """Python says what is wrong."""
    given = operands()
    launch, _ = _native.launcher_of(plan_of("scalars"))
    _, (back, slope) = in_order("scalars")
    for scalars, says in (
        ((2**31, slope), "int of 32 bits"),
        ((-(2**40), slope), "int of 32 bits"),
        ((1,), "1 scalars"),
    ):
        for _ in range(2):
            with pytest.raises(attune.BadInputError, match=says):
                launch(*given, (), False, scalars)
    with pytest.raises(TypeError):
        launch(*given, (), False, (back, "0.5"))
    with pytest.raises(TypeError):
        launch(*given, (), False, 5)
    for wrong in ((), given, (*given, (), False), (*given, (), False, (), 1), (1, 2, 3, (), False, (back, slope))):
        with pytest.raises(TypeError):
            launch(*wrong)
    assert launch(*given, (), False, (back, slope)).shape == given[0].shape


def test_an_error_of_the_launch(monkeypatch):
    plan = plan_of("causal")
    arguments = plan._arguments()
    arguments.args.shape.batch = 2
    monkeypatch.setattr(plan, "_arguments", lambda: arguments)
    launch, _ = _native.launcher_of(plan)
    arguments.args.shape.batch = 1  # a launcher has its own
    for _ in range(2):
        with pytest.raises(attune.BadInputError):
            launch(*operands(), (), False, ())


class OfGPU:
    """A plan of the CPU that says that it is of a GPU."""

    def __init__(self, plan, index):
        self._plan, self.device, self.is_on_cpu, self.keeps_workspace = plan, torch.device("cuda", index), False, False
        self.ran = []

    def __getattr__(self, name):
        return getattr(self._plan, name)

    def run(self, *args):
        self.ran.append(args)
        return self._plan.run(*args)


@pytest.mark.parametrize("index", [0, 1])
def test_a_gpu_that_is_not_the_current_one(index, monkeypatch):
    """What makes tensors without the dispatcher makes them on the current one; the stream is asked for in each call."""
    streams, current = [], [index]
    monkeypatch.setattr(_memory, "_on_gpu", _memory._on_cpu)
    monkeypatch.setattr(_memory, "_current_gpu", lambda: current[0])
    monkeypatch.setattr(_native, "raw_stream", lambda index: streams.append(index) or 0)
    plan = OfGPU(plan_of("causal"), index)
    launch, _ = _native.launcher_of(plan)
    wanted, _ = plan._plan.run(*(given := operands()), (), False)
    assert torch.equal(launch(*given, (), False, ()), wanted)
    assert streams == [index] and not plan.ran
    current[0] = 1 - index
    assert torch.equal(launch(*given, (), False, ()), wanted)
    assert len(plan.ran) == 1 and streams == [index]
    monkeypatch.setattr(_memory, "_current_gpu", None)
    assert _native.launcher_of(plan) is None


def settled(call):
    for _ in range(4):
        found = call()
    return found


def test_nothing_is_left_behind():
    given, doc = operands(), torch.zeros(1, LENGTH, dtype=torch.int32)
    leaves = [x.clone().requires_grad_() for x in given]
    words = {"mask": "causal and document(doc)", "tensors": {"doc": doc}, "layout": "bhsd"}
    calls = (
        lambda: attune.attention(*given, **words, return_lse=True),
        lambda: attune.attention(*leaves, **words),
        lambda: attune.attention(*leaves, **words, return_lse=True)[1].sum().backward(),
        lambda: attune.attention(*given, spec=SPECS["scalars"], scalars={"slope": 0.5, "back": 3}),
    )
    for call in calls:
        settled(call)
        gc.collect()
        kept = [*given, *leaves, doc, SPECS["scalars"], None, False, True, torch.float32]
        before = [sys.getrefcount(x) for x in kept]
        for _ in range(100):
            call()
        gc.collect()
        assert all(abs(sys.getrefcount(x) - count) < 50 for x, count in zip(kept, before, strict=True))


def test_a_gradient_of_what_both_outputs_give():
    leaves = [x.requires_grad_() for x in operands()]
    slopes = torch.rand(HEADS, requires_grad=True)

    def call(return_lse):
        return flex_attention(*leaves, lambda s, b, h, i, j: s + slopes[h] * j, return_lse=return_lse, strict=True)

    found = []
    for functions in (_native._functions(), None):
        _recall.forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_native, "_functions", lambda functions=functions: functions)
            for _ in range(4):
                o, lse = call(True)
                found.append(torch.autograd.grad(o.sin().sum() + lse.cos().sum(), [*leaves, slopes]))
                found.append(torch.autograd.grad(call(True)[1].cos().sum(), [*leaves, slopes]))
                found.append(torch.autograd.grad(call(False).sin().sum(), [*leaves, slopes]))
    for at, each in enumerate(found):
        assert all(torch.equal(x, y) for x, y in zip(each, found[at % 3], strict=True))


@pytest.mark.parametrize("way", ["words", "spec", "functions"])
def test_dropout_draws_what_python_draws(way):
    given, d_o = [x.requires_grad_() for x in operands()], torch.randn(1, HEADS, LENGTH, DIM)
    spec = attune.Spec("causal", dtype="fp32", head_dim=DIM, layout="bhsd", dropout=0.25)
    call = {
        "words": lambda: attune.attention(*given, mask="causal", layout="bhsd", dropout=0.25),
        "spec": lambda: attune.attention(*given, spec=spec),
        "functions": lambda: flex_attention(*given, mask_mod=lambda b, h, i, j: i >= j, dropout=0.25, strict=True),
    }[way]

    def steps():
        torch.manual_seed(5)
        found = []
        for _ in range(5):  # from the third on it is remembered
            with torch.no_grad():
                found.append(call())
            o = call()
            found += [o.detach(), *torch.autograd.grad(o, given, d_o)]
        return found

    found = steps()
    again = steps()
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
    assert all(not torch.equal(x, y) for at, x in enumerate(found[::5]) for y in found[: 5 * at : 5])
    _met.CALLS.clear()
    _recall.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "_functions", lambda: None)
        patch.setattr(_met, "find", None)
        in_python = steps()
    assert all(torch.equal(x, y) for x, y in zip(found, in_python, strict=True))
    _met.CALLS.clear()


def test_a_seed_that_is_given_is_the_calls():
    given = operands()
    words = {"mask": "causal", "layout": "bhsd", "dropout": 0.25}
    wanted = attune.attention(*given, **words, seed=3, offset=4)
    for _ in range(4):
        assert torch.equal(attune.attention(*given, **words, seed=3, offset=4), wanted)
        assert not torch.equal(attune.attention(*given, **words, seed=None, offset=4), wanted)
        assert not torch.equal(attune.attention(*given, **words), wanted)
        assert not torch.equal(attune.attention(*given, **words, seed=3, offset=8), wanted)


def test_saved_tensors_are_torchs():
    """Hooks see them, as they do for offloading and for checkpoints."""
    leaves, seen = [x.requires_grad_() for x in operands()], []

    def call():
        return attune.attention(*leaves, mask="causal", layout="bhsd")

    settled(call)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (seen.append(x.shape), x.clone())[1], lambda x: x):
        o = call()
    assert len(seen) == 5 and o.grad_fn.name() == "_AttentionBackward"
    found = torch.autograd.grad(o.sin().sum(), leaves)
    wanted = torch.autograd.grad(call().sin().sum(), leaves)
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_within_a_call(fails, monkeypatch):
    """Before torch comes to the forward pass it may run anything: what an object has to do that is collected, say."""
    given, others = ([x.requires_grad_() for x in operands()] for _ in range(2))
    within = []

    def call(leaves):
        return attune.attention(*leaves, mask="causal", layout="bhsd")

    wanted, of_others = (settled(lambda leaves=leaves: call(leaves)) for leaves in (given, others))
    apply, record = _function.record_launch()
    function = apply.__self__

    class Between(function._backward_cls):
        def __init__(self):
            if not within:
                within.append(None)
                within[0] = call(others)
                if fails:
                    raise KeyError("between")

    with monkeypatch.context() as patch:
        patch.setattr(function, "_backward_cls", Between)
        if fails:
            with pytest.raises(KeyError, match="between"):
                call(given)
        found = call(given)
    assert torch.equal(found, wanted) and torch.equal(within[0], of_others)
    for mine, of_first, leaves in ((found, wanted, given), (within[0], of_others, others)):
        gradients = (torch.autograd.grad(o.sin().sum(), leaves) for o in (mine, of_first))
        assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))
    with pytest.raises(TypeError, match="takes a call"):
        apply(*given)
    with pytest.raises(TypeError, match="is a call"):
        record((1, 2), *given)


def test_arguments_by_name():
    given, doc = operands(), torch.arange(LENGTH, dtype=torch.int32)[None] // 8
    q, k, v = given
    wanted = attune.attention(q, k, v, mask="causal", layout="bhsd")
    name = "".join(["ma", "sk"])  # another object than the name in a program
    for _ in range(4):
        assert torch.equal(attune.attention(v=v, k=k, q=q, layout="bhsd", mask="causal"), wanted)
        assert torch.equal(attune.attention(q, k, v, **{name: "causal"}, layout="bhsd", scale=None, tensors={}), wanted)
        o, lse = attune.attention(q, k, v, mask="causal", layout="bhsd", return_lse=True, seed=3, offset=4)
        assert torch.equal(o, wanted) and lse.shape == (1, HEADS, LENGTH)
        of_doc = attune.attention(q, k, v, mask="document(doc)", layout="bhsd", tensors={"doc": doc})
        assert not torch.equal(of_doc, wanted)
        with pytest.raises(TypeError, match="unexpected keyword argument 'msk'"):
            attune.attention(q, k, v, msk="causal")
        with pytest.raises(TypeError):
            attune.attention(q, k)
        with pytest.raises(TypeError):
            attune.attention(q, k, v, "causal")
        with pytest.raises((TypeError, AttributeError)):
            attune.attention(q, k, v, mask="document(doc)", layout="bhsd", tensors=5)
        with pytest.raises(Exception):  # noqa: B017
            attune.attention(q, k, v, mask=["causal"], layout="bhsd")
    assert _met.find is not None


def test_what_is_shown_of_the_function():
    shown = inspect.signature(attune.attention).parameters
    assert [*shown][:4] == ["q", "k", "v", "spec"] and "key" not in shown and shown["runtime"].default is None
    assert attune.attention.__name__ == "attention" and "Returns:" in attune.attention.__doc__


def test_what_stands_before_attention():
    met, stands = _native.enter_attention(_met.function_of_calls)
    assert stands is (sys.version_info >= (3, 12))
    spec, given = SPECS["causal"], operands()
    wanted, wanted_lse = attune.attention(*given, spec=spec, return_lse=True)

    def calls():
        yield met(*given, spec=spec)
        yield met(*given, spec=spec, return_lse=True)

    assert all(found is None for found in calls())
    for _ in range(3):
        attune.attention(*given, spec=spec)
        attune.attention(*given, spec=spec, return_lse=True)
    o, (again, lse) = calls()
    assert torch.equal(o, wanted) and torch.equal(again, wanted) and torch.equal(lse, wanted_lse)
    assert met(*given, spec=spec, nothing=1) is None and met(*given[:2], spec=spec) is None and met() is None
    with pytest.raises(TypeError):
        attune.attention(*given, spec=spec, nothing=1)
    with torch.autograd.forward_ad.dual_level():
        assert all(found is None for found in calls())
    seen = []
    graph_break = torch._dynamo.graph_break
    # Frames that torch's compiler wants to see are run as what they are.
    torch.compile(lambda x: (graph_break(), seen.extend(calls()), x + 1)[2], backend="eager")(given[0])
    assert seen == [None, None] and met(*given, spec=spec) is not None
