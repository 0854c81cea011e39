"""What the tests of a GPU share: its operands, attention by its definition, and what compares them.

Everything is made on the default device, which `on_the_device` sets to the GPU. ATTUNE_TEST_DEVICE=cpu tries the tests
themselves where there is none.
"""

import gc
import os
import sys
from inspect import signature

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

DEVICE = os.environ.get("ATTUNE_TEST_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

from mods import BATCH, HEADS, LENGTH  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

DIM = 64
# No gradients: a step's are zero, and a score that is rounded differently may land on its other side.
FORWARD_ONLY = {"rounding", "float remainders", "position as score"}
only_on_a_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="of a GPU alone")


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.compiler.reset()
    torch.set_default_device(DEVICE)
    torch.manual_seed(7)
    yield
    torch.set_default_device(None)


def operands(dtype=torch.bfloat16, kv_heads=HEADS, q_len=LENGTH, kv_len=LENGTH, dim=DIM):
    q = torch.randn(BATCH, q_len, HEADS, dim).to(dtype).transpose(1, 2)
    return [q, *(torch.randn(BATCH, kv_heads, kv_len, dim).to(dtype) for _ in range(2))]


def leaves(*args, **kwargs):
    return [x.detach().requires_grad_() for x in operands(*args, **kwargs)]


def captured(step, after=1):
    """A graph of a step that has run so many times, and what it gives."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(after):
            step()
    torch.cuda.current_stream().wait_stream(side)
    gc.collect()  # graphs of tests before, which would be freed meanwhile
    graph = torch.cuda.CUDAGraph()
    # JAX's threads ask the device at any time, which ends a capture that all threads may end.
    with torch.cuda.graph(graph, capture_error_mode="thread_local" if "jax" in sys.modules else "global"):
        found = step()
    return graph, found


def assert_close(found, wanted, tolerance=0.02):
    """By the largest number of each: gradients are of any size."""
    assert found.device.type == DEVICE and found.isfinite().all()
    scale = max(wanted.abs().max().item(), 1e-3)
    torch.testing.assert_close(found.double() / scale, wanted.double() / scale, atol=tolerance, rtol=0)


def for_each_element(mod, scores):
    """A mod of all elements of [batch, heads, q_len, kv_len], called as torch calls it: for one."""
    indices = [torch.arange(size) for size in scores.shape]
    given = [scores] if len(signature(mod).parameters) == 5 else []
    for own in range(3, -1, -1):
        places = [0 if place == own else None for place in range(4)]
        mod = torch.vmap(mod, in_dims=(*[0 for _ in given], *places))
    return mod(*given, *indices)


def wanted_attention(q, k, v, score_mod=None, mask_mod=None):
    """O by its definition."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if score_mod is not None:
        s = for_each_element(score_mod, s).to(s.dtype)
    if mask_mod is not None:
        s = s.masked_fill(for_each_element(mask_mod, s) == 0, -torch.inf)
    alive = s.isfinite().any(-1, keepdim=True)
    return (torch.where(alive, s, 0.0).softmax(-1) * alive) @ v


def train(attend, given, weights):
    out = attend(*given)
    (out.to(weights.dtype) * weights).sum().backward()
    return [out.detach()] + [x.grad for x in given]


def check(attend, wanted, given, tolerance=0.02):
    doubles = [x.detach().double().requires_grad_() for x in given]
    weights = torch.randn(BATCH, HEADS, given[0].shape[2], given[2].shape[3])
    found = train(attend, given, weights)
    for mine, reference in zip(found, train(wanted, doubles, weights.double()), strict=True):
        assert_close(mine, reference, tolerance)
    return found
