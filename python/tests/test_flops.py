"""torch's counter of floating-point operations knows Attune's operators."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attune  # noqa: E402
from attune.torch import create_block_mask, flex_attention  # noqa: E402


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def operands(*sizes, **options):
    return [torch.randn(size, **options) for size in sizes]


def test_both_passes_count_as_torchs_own():
    q, k, v = operands((2, 4, 24, 32), (2, 4, 40, 32), (2, 4, 40, 16), requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 24, 40, device="cpu")
    for ours in (
        lambda: flex_attention(q, k, v, block_mask=mask),
        lambda: attune.attention(q, k, v, mask="causal", layout="bhsd"),
    ):
        assert counted(ours) == counted(lambda: attend(q, k, v)) == 2 * 2 * 4 * 24 * 40 * (32 + 16)
        assert counted(lambda ours=ours: ours().sum().backward()) == 2 * 2 * 4 * 24 * 40 * (4 * 32 + 3 * 16)


def test_heads_that_share_keys():
    q, k, v = operands((2, 24, 8, 32), (2, 24, 2, 32), (2, 24, 2, 32))
    assert counted(lambda: attune.attention(q, k, v)) == 2 * 2 * 8 * 24 * 24 * 64


def test_packed_sequences():
    q, k, v = operands(*[(30, 4, 32)] * 3, requires_grad=True)
    cu = torch.tensor([0, 10, 15, 30], dtype=torch.int32)
    pairs = 4 * (10 * 10 + 5 * 5 + 15 * 15)

    def attend(**more):
        return attune.attention(q, k, v, mask="causal", layout="thd", cu_q=cu, **more)

    assert counted(attend) == 2 * pairs * 64
    assert counted(lambda: attend().sum().backward()) == 2 * pairs * 7 * 32
    used = torch.tensor([1, 5, 0], dtype=torch.int32)
    with torch.no_grad():
        assert counted(lambda: attend(used_kv=used)) == 2 * 4 * (10 * 1 + 5 * 5) * 64


def test_a_cache_in_pages():
    q, cache = operands((2, 4, 32), (6, 16, 2, 32))
    where = {"cu_q": torch.arange(3, dtype=torch.int32), "used_kv": torch.tensor([20, 40], dtype=torch.int32)}
    table = torch.tensor([[0, 1, -1], [2, 3, 4]], dtype=torch.int32)
    call = counted(lambda: attune.attention(q, cache, cache, mask="causal", page_table=table, **where))
    assert call == 2 * 4 * (20 + 40) * 64


def test_tensors_without_numbers():
    q, k, v = operands(*[(30, 4, 32)] * 3, device="meta")
    cu = torch.zeros(4, dtype=torch.int32, device="meta")
    call = counted(lambda: attune.attention(q, k, v, layout="thd", cu_q=cu))
    assert call == 2 * 4 * 3 * 10 * 10 * 64


@pytest.mark.parametrize("first", ["attune.torch", "torch.utils.flop_counter"])
def test_the_counter_is_not_imported_and_knows_the_operators(first):
    run = (
        f"import sys, {first}; counter = 'torch.utils.flop_counter'; "
        f"assert (counter in sys.modules) == ({first!r} == counter); import attune.torch, torch.utils.flop_counter; "
        "assert torch.ops.attune.attention in torch.utils.flop_counter.flop_registry"
    )
    subprocess.run([sys.executable, "-c", run], check=True)


@pytest.mark.parametrize(
    "before",
    [
        "",
        "assert importlib.util.find_spec('torch.utils.flop_counter')",
        "import torch.utils.flop_counter as c; importlib.reload(c)",
    ],
)
def test_however_the_counter_comes(before):
    run = (
        f"import importlib, importlib.util, attune.torch\n{before}\nimport torch.utils.flop_counter as counter\n"
        "assert torch.ops.attune.attention in counter.flop_registry\n"
        "assert counter.__spec__.loader.get_source(counter.__name__)"
    )
    subprocess.run([sys.executable, "-c", f"import torch\n{run}"], check=True)
