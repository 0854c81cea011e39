"""Functions of published kinds of models, forward and backward, against the definition in float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import devices  # noqa: E402
from mods import BATCH, HEADS, LENGTH  # noqa: E402
from published_mods import PUBLISHED_MODS  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

from attune.torch import create_block_mask, flex_attention  # noqa: E402

DIM = 16


def by_definition(q, k, v, score_mod, mask_mod):
    s = q @ k.transpose(-1, -2) * DIM**-0.5
    indices = [torch.arange(size, device=s.device) for size in s.shape]
    if score_mod is not None:
        s = torch_flex._vmap_for_bhqkv(score_mod, prefix=(0,), out_dims=(0,))(s, *indices)
    if mask_mod is not None:
        s = s.masked_fill(~torch_flex._vmap_for_bhqkv(mask_mod, prefix=())(*indices), -torch.inf)
    alive = s.isfinite().any(-1, keepdim=True)
    return (torch.where(alive, s, 0.0).softmax(-1) * alive) @ v


@pytest.mark.parametrize("name", PUBLISHED_MODS)
def test_forward_and_backward(name):
    torch.manual_seed(7)
    with devices.on_device(), torch.random.fork_rng(devices=[]):
        score_mod, mask_mod, learned = PUBLISHED_MODS[name]()
        given = [torch.randn(BATCH, HEADS, LENGTH, DIM, requires_grad=True) for _ in range(3)]
        weights = torch.randn_like(given[0])
    mask = None
    if mask_mod is not None:
        mask = create_block_mask(mask_mod, BATCH, HEADS, LENGTH, LENGTH, device=devices.DEVICE)
    out = flex_attention(*given, score_mod, mask, strict=True)
    found = out, *torch.autograd.grad((out * weights).sum(), [*given, *learned])
    exact = [x.detach().double().requires_grad_() for x in given]
    out = by_definition(*exact, score_mod, mask_mod)
    wanted = out, *torch.autograd.grad((out * weights).sum(), [*exact, *learned])
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), right.double(), atol=3e-5 * max(1, right.abs().max().item()), rtol=0)
