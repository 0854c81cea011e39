"""Block masks of this package whose blocks a program changes: they count then."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import LENGTH  # noqa: E402
from test_flex_attention import operands  # noqa: E402

from attune.torch import create_block_mask, flex_attention  # noqa: E402
from attune.torch.block_mask import mask_mod_of  # noqa: E402


def none_is_live(mask):
    mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)
    mask.full_kv_num_blocks = torch.zeros_like(mask.full_kv_num_blocks)


def in_place(mask):
    mask.kv_num_blocks.zero_()
    mask.full_kv_num_blocks.zero_()


def without_reading_them(mask):
    mask.kv_num_blocks = mask.full_kv_num_blocks = torch.zeros(1, 1, -(-LENGTH // 16), dtype=torch.int32)


@pytest.mark.parametrize("change", [none_is_live, in_place, without_reading_them])
def test_blocks_that_somebody_changes(change):
    q, k, v = operands()
    mask = create_block_mask(mods.causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    mask.note = "an attribute of the program's"
    for _ in range(3):
        out = flex_attention(q, k, v, block_mask=mask, strict=True)
        assert mask_mod_of(mask) is mods.causal
    str(mask)  # reads them
    assert torch.equal(flex_attention(q, k, v, block_mask=copy.deepcopy(mask), strict=True), out)
    assert mask_mod_of(mask) is mods.causal
    for again in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert mask_mod_of(again) is mods.causal
    if change is without_reading_them:
        mask = create_block_mask(mods.causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
    change(mask)
    for _ in range(3):
        assert not flex_attention(q, k, v, block_mask=mask, strict=True).any()
    if change is none_is_live:
        of_graph = torch.compile(lambda *given: flex_attention(*given, block_mask=mask), backend="aot_eager")
        assert not of_graph(q, k, v).any()
