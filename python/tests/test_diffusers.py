"""Hugging Face's diffusers on Attune: tiny random models, and its dispatcher, against its native backend."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", minversion="0.42", reason="diffusers 0.42 or newer is not installed")

from devices import DEVICE, on_device, one_thread  # noqa: E402
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel  # noqa: E402
from diffusers.models.attention_dispatch import (  # noqa: E402
    AttentionBackendName,
    _AttentionBackendRegistry,
    attention_backend,
    dispatch_attention_fn,
)

import attune.torch.diffusers as plug  # noqa: E402
from attune._errors import UnsupportedError  # noqa: E402
from attune.torch import create_block_mask  # noqa: E402
from attune.torch._plans import ForwardPlan  # noqa: E402

BATCH, HEADS, Q_LEN, KV_LEN, DIM = 2, 4, 21, 33, 16


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """A list as long as Attune has launched. A fall-back to torch would hide what does not work."""
    made = []
    run = ForwardPlan.run
    monkeypatch.setattr(ForwardPlan, "run", lambda *args, **kwargs: made.append(1) or run(*args, **kwargs))
    torch.manual_seed(29)
    with warnings.catch_warnings(), one_thread(), on_device():
        warnings.filterwarnings("error", message="attune falls back")
        yield made
    _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)


def qwen_image():
    model = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=DIM, num_attention_heads=3,
        joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    return model, {
        "hidden_states": torch.randn(BATCH, 16, 16),
        "encoder_hidden_states": torch.randn(BATCH, 7, 16),
        "encoder_hidden_states_mask": torch.arange(7) < torch.tensor([[7], [4]]),
        "timestep": torch.ones(BATCH),
        "img_shapes": [[(1, 4, 4)]] * BATCH,
    }


def flux():
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=DIM, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    return model, {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.ones(1),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.randn(8, 3),
    }


@pytest.mark.parametrize("make", [qwen_image, flux])
def test_training_step(make, launches):
    model, inputs = make()
    results = []
    for backend in ("native", "attune"):
        model.set_attention_backend(backend)
        model.zero_grad()
        out = model(**inputs).sample
        out.square().mean().backward()
        results.append({"out": out.detach(), **{n: x.grad for n, x in model.named_parameters() if x.grad is not None}})
        assert len(launches) == (2 if backend == "attune" else 0)
    wanted, found = results
    assert wanted.keys() == found.keys()
    for name, expected in wanted.items():
        tolerance = 1e-4 * expected.abs().max().item() + 1e-8
        torch.testing.assert_close(found[name], expected, atol=tolerance, rtol=0, msg=f"{{}} of {name}".format)


def operands(kv_heads=HEADS):
    return [
        torch.randn(BATCH, length, heads, DIM, requires_grad=True)
        for length, heads in ((Q_LEN, HEADS), (KV_LEN, kv_heads), (KV_LEN, kv_heads))
    ]


def check(given, function=dispatch_attention_fn, **options):
    weights = torch.randn(BATCH, Q_LEN, HEADS, DIM)
    results = []
    for backend in ("native", "attune"):
        out = (function if backend == "attune" else dispatch_attention_fn)(*given, backend=backend, **options)
        results.append([out.detach(), *torch.autograd.grad((out * weights).sum(), given)])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


MASKS = {
    "none": lambda: None,
    "padding": lambda: torch.arange(KV_LEN) < torch.tensor([[33], [20]]),
    "padding, added": lambda: torch.where(torch.arange(KV_LEN) < torch.tensor([[33], [20]]), 0.0, -1e4),
    "queries times keys": lambda: torch.rand(Q_LEN, KV_LEN) < 0.5,
    "per head": lambda: torch.randn(HEADS, Q_LEN, KV_LEN),
    "all": lambda: torch.rand(BATCH, HEADS, Q_LEN, KV_LEN) < 0.5,
}


@pytest.mark.parametrize("name", MASKS)
def test_mask(name, launches):
    check(operands(), attn_mask=MASKS[name]())
    assert launches


def test_causal_scale_and_groups(launches):
    check(operands(kv_heads=2), is_causal=True, scale=0.3, enable_gqa=True)
    assert launches


def test_compiled(launches):
    torch.compiler.reset()
    function = torch.compile(dispatch_attention_fn, fullgraph=True, backend="aot_eager")
    check(operands(), function, attn_mask=MASKS["padding"]())
    assert launches


def test_block_mask():
    mask = MASKS["queries times keys"]()
    block_mask = create_block_mask(lambda b, h, i, j: mask[i, j], BATCH, None, Q_LEN, KV_LEN, device=DEVICE)
    given = [x.detach() for x in operands()]
    with attention_backend("attune"):
        found = dispatch_attention_fn(*given, attn_mask=block_mask)
    torch.testing.assert_close(found, dispatch_attention_fn(*given, attn_mask=mask), atol=1e-5, rtol=1e-5)


def test_dropout_is_repeated_by_the_seed():
    given = [x.detach() for x in operands()]
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(dispatch_attention_fn(*given, dropout_p=0.5, backend="attune"))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_context_parallelism_is_refused():
    given = operands()
    with pytest.raises(UnsupportedError, match="context parallelism"):
        dispatch_attention_fn(*given, backend="attune", parallel_config=object())


def test_the_name_is_one_of_the_others():
    assert AttentionBackendName("attune") is AttentionBackendName.ATTUNE
    assert AttentionBackendName.ATTUNE in list(AttentionBackendName)
    assert AttentionBackendName["ATTUNE"].value == "attune"
    assert plug._add_name() is AttentionBackendName.ATTUNE  # once more adds nothing
    assert len(set(AttentionBackendName)) == len(list(AttentionBackendName))
