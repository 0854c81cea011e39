"""attune.torch.flex_attention against torch's own in float64."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import mods  # noqa: E402
from mods import BATCH, HEADS, LENGTH, MODS, UNTRANSLATABLE  # noqa: E402
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

import attune  # noqa: E402
from attune.torch import BlockMask, Untranslatable, and_masks, create_block_mask, flex_attention  # noqa: E402
from attune.torch import _recall  # noqa: E402
from attune.torch._plans import variant_of  # noqa: E402
from attune.torch.block_mask import mask_mod_of, mask_mod_of_blocks  # noqa: E402


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """torch's own without its compiler, and quiet about that."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.manual_seed(5)


def operands(kv_heads=HEADS, q_len=LENGTH, kv_len=LENGTH, dim=32, dtype=torch.float32):
    q = torch.randn(BATCH, HEADS, q_len, dim, dtype=dtype)
    return q, *(torch.randn(BATCH, kv_heads, kv_len, dim, dtype=dtype) for _ in range(2))


def expected(q, k, v, score_mod=None, mask_mod=None, block_mask=None, **options):
    if mask_mod is not None:
        sizes = (BATCH, HEADS, q.shape[2], k.shape[2])
        # torch's own wants a bool of its mask_mods.
        block_mask = torch_flex.create_block_mask(
            lambda b, h, i, j: torch.ne(mask_mod(b, h, i, j), 0), *sizes, device=q.device
        )
    aux = torch_flex.AuxRequest(lse=True)
    o, found = torch_flex.flex_attention(
        q.double(), k.double(), v.double(), score_mod, block_mask, return_aux=aux, **options
    )
    return o, found.lse


def assert_close(found, wanted, tolerance=2e-5):
    o, lse = found
    torch.testing.assert_close(o.double(), wanted[0].double(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), wanted[1].double(), atol=10 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", MODS)
def test_mod(name):
    score_mod, mask_mod = MODS[name]()
    q, k, v = operands()
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, BATCH, HEADS, LENGTH, LENGTH, device="cpu")
    found = flex_attention(q, k, v, score_mod, block_mask, return_lse=True, strict=True)
    assert_close(found, expected(q, k, v, score_mod, mask_mod))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_and_other_lengths(kv_heads):
    q, k, v = operands(kv_heads, q_len=33, kv_len=50)
    score_mod, _ = MODS["alibi"]()
    found = flex_attention(q, k, v, score_mod, mask_mod=mods.causal, enable_gqa=True, return_lse=True, strict=True)
    assert_close(found, expected(q, k, v, score_mod, mods.causal, enable_gqa=True))


@pytest.mark.parametrize("scale", [0.5, -0.25, 0.0])
def test_scale(scale):
    q, k, v = operands()
    found = flex_attention(q, k, v, scale=scale, return_lse=True, strict=True)
    assert_close(found, expected(q, k, v, scale=scale))


def test_bfloat16():
    q, k, v = operands(dtype=torch.bfloat16)
    found = flex_attention(q, k, v, mods.softcap(3.0), return_lse=True, strict=True)
    assert found[0].dtype == torch.bfloat16
    assert_close(found, expected(q, k, v, mods.softcap(3.0)), tolerance=2e-2)


def test_one_batch_of_keys_for_all_queries():
    q, k, v = operands()
    found = flex_attention(q, k[:1], v[:1], mask_mod=mods.causal, return_lse=True, strict=True)
    assert_close(found, expected(q, k[:1].expand_as(k), v[:1].expand_as(v), mask_mod=mods.causal))
    found = flex_attention(q, k, v[:1], mask_mod=mods.causal, return_lse=True, strict=True)
    assert_close(found, expected(q, k, v[:1].expand_as(v), mask_mod=mods.causal))


def test_out_lies_as_query_does():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in operands())
    out = flex_attention(q, k, v, strict=True)
    assert out.stride() == q.stride()
    odd = torch.randn(BATCH, HEADS, LENGTH, 37)[..., :32]
    assert_close((flex_attention(odd, k, v, strict=True), expected(odd, k, v)[1]), expected(odd, k, v))


def test_what_is_captured_may_change():
    q, k, v = operands()
    shift, doc = 3, mods.documents()

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx + shift >= kv_idx) & (doc[b, q_idx] == doc[b, kv_idx])

    def check():
        found = flex_attention(q, k, v, mask_mod=mask_mod, return_lse=True, strict=True)
        assert_close(found, expected(q, k, v, mask_mod=mask_mod))
        return found[0]

    first = check()
    shift = 9
    second = check()
    doc[:, 5:] = 7  # in place: the copy in int32 that was made of it is no longer right
    third = check()
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_memory_that_numpy_shares_may_change():
    q, k, v = operands()
    array = mods.documents().numpy()
    doc = torch.from_numpy(array)

    def call():
        return flex_attention(q, k, v, mask_mod=lambda b, h, i, j: doc[b, i] == doc[b, j], strict=True)

    first = call()
    array[:, 5:] = 7
    assert not torch.equal(first, call())


def test_inference_mode():
    with torch.inference_mode():
        q, k, v = operands()
        found = flex_attention(q, k, v, mask_mod=mods.document_mask(), return_lse=True, strict=True)
    q, k, v = (x.clone() for x in (q, k, v))
    assert_close(found, expected(q, k, v, mask_mod=mods.document_mask()))


def test_a_new_value_of_a_tensor_is_no_new_kernel():
    q, k, v = operands()
    factor, slopes = torch.tensor(0.3), torch.rand(HEADS)

    def call():
        flex_attention(q, k, v, lambda score, b, h, i, j: score * factor + slopes[h] * (i - j), strict=True)
        return attune.default_runtime("cpu").status()["counters"]["compiles"]

    before = call()
    factor.fill_(0.7)
    slopes = torch.rand(HEADS)
    assert call() == before


@pytest.mark.parametrize("name", UNTRANSLATABLE)
def test_what_cannot_be_translated(name, monkeypatch):
    make, message = UNTRANSLATABLE[name]
    score_mod, mask_mod = make()
    q, k, v = operands()
    with pytest.raises(Untranslatable, match=message):
        flex_attention(q, k, v, score_mod, mask_mod=mask_mod, strict=True)
    if name not in ("asinh", "row"):
        return  # torch cannot run the others either
    monkeypatch.setattr("attune.torch._compiled._warned", set())
    with pytest.warns(UserWarning, match=message) as told:
        found = flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True)
    assert {each.filename for each in told if "attune" in str(each.message)} == {__file__}
    assert_close(found, expected(q, k, v, score_mod, mask_mod))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(q, k, v, score_mod, mask_mod=mask_mod, return_lse=True)


def test_no_kernel_of_this_width():
    q, k, v = operands(dim=264)
    with pytest.raises(attune.BadInputError, match="not in 8 to 256"):
        flex_attention(q, k, v, strict=True)
    with pytest.warns(UserWarning, match="not in 8 to 256"):
        assert_close(flex_attention(q, k, v, return_lse=True), expected(q, k, v))


def test_a_device_without_a_kernel(monkeypatch):
    def refuse(self, spec, shape, of_pass=None):
        raise attune.UnsupportedError("this family has no fp32")

    monkeypatch.setattr(attune.Runtime, "kernel", refuse)
    variant_of.cache_clear()
    _recall.forget()
    q, k, v = operands()
    with pytest.raises(NotImplementedError, match="no fp32"):
        flex_attention(q, k, v, strict=True)
    with pytest.warns(UserWarning, match="no fp32"):
        assert_close(flex_attention(q, k, v, return_lse=True), expected(q, k, v))


def test_compiled_code_calls_it():
    q, k, v = operands()
    mask = create_block_mask(mods.causal, None, None, LENGTH, LENGTH, device="cpu")
    torch.compiler.reset()

    @torch.compile(backend="eager")
    def layer(q, k, v):
        return flex_attention(q * 1, k, v, mods.softcap(3.0), mask, strict=True) + 0

    assert torch.equal(layer(q, k, v), flex_attention(q, k, v, mods.softcap(3.0), mask, strict=True))


def test_return_aux():
    q, k, v = operands()
    out, aux = flex_attention(q, k, v, return_aux=torch_flex.AuxRequest(lse=True), strict=True)
    assert_close((out, aux.lse), expected(q, k, v))
    assert aux.max_scores is None


@pytest.mark.parametrize(
    "change,error,message",
    [
        (lambda q, k, v: (q[0], k, v), NotImplementedError, "4D"),
        (lambda q, k, v: (q, k[:, :2], v[:, :2]), ValueError, "enable_gqa"),
        (lambda q, k, v: (q.half(), k, v), ValueError, "dtype"),
        (lambda q, k, v: (q, k[..., :16], v), ValueError, "head_dim"),
    ],
)
def test_refused_as_torch_does(change, error, message):
    with pytest.raises(error, match=message):
        flex_attention(*change(*operands()), strict=True)


def test_a_block_mask_of_another_length():
    q, k, v = operands()
    with pytest.raises(ValueError, match="block_mask was created for"):
        flex_attention(q, k, v, block_mask=create_block_mask(mods.causal, None, None, 128, 128, device="cpu"))


# ---- Block masks


def test_blocks_are_made_when_they_are_read():
    calls = []

    def mask_mod(b, h, q_idx, kv_idx):
        calls.append(1)
        return q_idx >= kv_idx

    mask = create_block_mask(mask_mod, None, None, 300, 300, device="cpu", BLOCK_SIZE=64)
    assert mask.shape == (1, 1, 300, 300) and not calls
    assert isinstance(mask, torch_flex.BlockMask)
    other = torch_flex.create_block_mask(mods.causal, None, None, 300, 300, device="cpu", BLOCK_SIZE=64)
    for attribute, wanted in vars(other).items():  # of whichever version of torch
        found = getattr(mask, attribute)
        if isinstance(wanted, torch.Tensor):
            assert torch.equal(found, wanted)
        else:
            assert found == wanted or attribute == "mask_mod"
    assert calls and mask.sparsity() == other.sparsity() and str(mask) == str(other)


class Window:
    width = 5

    def mask_mod(self, b, h, q_idx, kv_idx):
        return q_idx - kv_idx < self.width

    def __call__(self, *at):
        return self.mask_mod(*at)


@pytest.mark.parametrize("mask_mod", [Window().mask_mod, Window()])
def test_blocks_of_what_is_no_plain_function(mask_mod):
    mask = create_block_mask(mask_mod, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    plain = create_block_mask(lambda b, h, i, j: i - j < 5, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    assert torch.equal(mask.to_dense(), plain.to_dense())


def test_a_mask_as_long_as_you_like_costs_nothing():
    mask = create_block_mask(mods.causal, 1, 1, 2**28, 2**28, device="cpu")
    assert mask.to("cpu").shape == (1, 1, 2**28, 2**28)


def block_masks():
    sizes = (BATCH, HEADS, LENGTH, LENGTH)
    own = torch_flex.create_block_mask(mods.document_mask(), *sizes, device="cpu", BLOCK_SIZE=16)
    counts = torch.tensor([[[1, 2, 0, 3]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, 1, 3], [1, 3, 0, 2], [0, 1, 2, 3], [3, 2, 0, 1]]]], dtype=torch.int32)
    blocks = torch_flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16)
    ours = create_block_mask(mods.causal, *sizes, device="cpu", BLOCK_SIZE=16)
    ours.mask_mod = mods.window(5)  # counts in the partial blocks of the causal mask
    half = create_block_mask(mods.causal, BATCH, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)[:, :, 2:]
    half.mask_mod = lambda b, h, q_idx, kv_idx: q_idx + 32 >= kv_idx
    half.seq_lengths = (32, LENGTH)
    return {"torch's": own, "of blocks": blocks, "another mask_mod": ours, "sliced": half}


@pytest.mark.parametrize("name", ["torch's", "of blocks", "another mask_mod", "sliced"])
def test_block_masks_from_elsewhere(name):
    mask = block_masks()[name]
    q, k, v = operands(q_len=mask.shape[-2])
    found = flex_attention(q, k, v, mods.alibi(), mask, return_lse=True, strict=True)
    # Where torch is not compiled it looks at mask_mod alone; what blocks say is said by a dense mask here.
    assert_close(found, expected(q, k, v, mods.alibi(), mask_mod=dense(mask)))


def test_pages_that_a_sequence_has_not_are_dead():
    """Their number in a list of torch's PagedAttention is -1."""
    counts, indices = torch.tensor([[[2]]]), torch.tensor([[[[1, -1, 0]]]])
    mask_mod = mask_mod_of_blocks(lambda *_: True, (16, 16), counts, indices, None, None)
    assert [bool(mask_mod(0, 0, 0, kv_idx)) for kv_idx in (0, 16, 47)] == [False, True, False]


def dense(mask):
    """What a block mask means, element by element."""
    q_size, kv_size = mask.BLOCK_SIZE
    tables = []
    for counts, indices in (
        (mask.kv_num_blocks, mask.kv_indices),
        (mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        table = torch.zeros(*mask.kv_indices.shape, dtype=torch.bool)
        if counts is not None:
            for at in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
                row = tuple(at)
                table[(*row, indices[row][: counts[row]].long())] = True
        tables.append(
            table.expand(BATCH, HEADS, *table.shape[-2:]).repeat_interleave(q_size, 2).repeat_interleave(kv_size, 3)
        )
    partial, full = tables
    own = torch_flex.create_mask(mask.mask_mod, BATCH, HEADS, *mask.seq_lengths, device="cpu")
    whole = (partial & own) | full
    return lambda b, h, q_idx, kv_idx: whole[b, h, q_idx, kv_idx]


@pytest.mark.skipif(not hasattr(torch_flex, "_sliced_mask_mod_error"), reason="torch 2.9 has it say that all is live")
def test_a_sliced_mask_says_that_it_has_no_mask_mod():
    q, k, v = operands()
    mask = create_block_mask(mods.causal, BATCH, HEADS, LENGTH, LENGTH, device="cpu")[:1]
    with pytest.raises(RuntimeError, match="sliced"):
        flex_attention(q, k, v, block_mask=mask)


def test_masks_combine():
    q, k, v = operands()
    mask_mod = and_masks(mods.causal, attune.torch.or_masks(mods.window(3), mods.document_mask()))
    mask = create_block_mask(mask_mod, BATCH, None, LENGTH, LENGTH, device="cpu")
    found = flex_attention(q, k, v, block_mask=mask, return_lse=True, strict=True)
    assert_close(found, expected(q, k, v, mask_mod=mask_mod))
    assert isinstance(mask, BlockMask)


# ---- What the translation says


def translation(score_mod=None, mask_mod=None):
    from attune.torch._sizes import Sizes
    from attune.torch._translate import translate

    return translate(score_mod, mask_mod, Sizes(BATCH, HEADS, HEADS, LENGTH, LENGTH), torch.device("cpu"))


def test_a_score_of_minus_infinity_becomes_a_mask():
    for name in ("mask in the score", "mask added", "mask filled"):
        found = translation(*MODS[name]())
        assert found.mask is not None and "log(0.0)" not in (found.score or "")


def test_dims_are_called_by_what_runs_over_them():
    assert translation(mask_mod=mods.document_mask()).declarations() == {"t0": "int32[batch, kv_len]"}
    assert translation(mods.alibi()).declarations() == {"t0": "float32[heads]"}
    bias = translation(mods.dense_bias(torch.float16)).declarations()
    assert bias == {"t0": "fp16[batch, heads, q_len, kv_len]"}


def test_dims_that_follow_from_a_length():
    blocks = torch_flex.create_block_mask(mods.causal, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=(24, 16))
    found = translation(mask_mod=mask_mod_of(blocks)).declarations()
    assert set(found.values()) == {"bool[(q_len + 23) // 24, (kv_len + 15) // 16]"}
    floor, more, far, other = (torch.ones(size) for size in (LENGTH // 24, LENGTH + 1, 2 * LENGTH - 1, 99))

    def look_up(score, b, h, q, k):
        return score + floor[torch.clamp(q // 24, max=1)] + floor[k // 24] + more[k + 1] + far[q - k] + other[q]

    found = translation(look_up).declarations()
    sizes = ["kv_len // 24", "kv_len + 1", "2 * kv_len - 1", "99"]
    assert list(found.values()) == [f"float32[{size}]" for size in sizes]
    far.requires_grad_()
    assert list(translation(look_up).declarations().values())[2] == f"float32[{2 * LENGTH - 1}] grad"


def test_an_index_that_is_never_negative_is_written_as_it_is():
    assert "if" not in translation(mods.relative_bias()).score
    assert "if" in translation(mods.wrapped_bias()).score


def test_int64_beyond_int32():
    large = torch.tensor([2**40] * LENGTH)
    with pytest.raises(Untranslatable, match="beyond int32"):
        flex_attention(*operands(), mask_mod=lambda b, h, q, k: large[q] > large[k], strict=True)


# ---- The interface as torch has it


def test_aux_is_as_quick_as_lse(monkeypatch):
    """A call that is made again is found, whatever it asks for."""
    from attune.torch import _translate

    q, k, v = operands()
    aux = torch_flex.AuxRequest(lse=True)
    for _ in range(2):
        flex_attention(q, k, v, mods.softcap(3.0), return_aux=aux, strict=True)
    monkeypatch.setattr(_translate, "translate", None)
    out, found = flex_attention(q, k, v, mods.softcap(3.0), return_aux=aux, strict=True)
    assert_close((out, found.lse), expected(q, k, v, mods.softcap(3.0)))
    out, found = flex_attention(q, k, v, mods.softcap(3.0), return_aux=torch_flex.AuxRequest(), strict=True)
    assert found.lse is found.max_scores is None


def test_options_of_block_masks():
    """What this version of torch takes beside the block's size."""
    import inspect

    options = [
        {name: not parameter.default}
        for name, parameter in inspect.signature(torch_flex.create_block_mask).parameters.items()
        if isinstance(parameter.default, bool) and name != "_compile"
    ]
    for each in options:
        mask = create_block_mask(mods.causal, None, None, 300, 300, device="cpu", **each)
        other = torch_flex.create_block_mask(mods.causal, None, None, 300, 300, device="cpu", **each)
        for attribute in torch_flex.BlockMask._TENSOR_ATTRS:
            found, wanted = getattr(mask, attribute), getattr(other, attribute)
            assert found is wanted is None or torch.equal(found, wanted)
    with pytest.raises(TypeError, match="unexpected keyword argument 'seperate'"):
        create_block_mask(mods.causal, None, None, 300, 300, device="cpu", seperate=True)


def test_a_block_mask_that_a_graph_makes():
    """Of lists of blocks, in compiled code."""
    torch.compiler.reset()
    q, k, v = operands()
    blocks = torch.tril(torch.ones(1, 1, 4, 4, dtype=torch.bool))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def attend(q, k, v, blocks):
        counts, indices = blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True)
        mask = BlockMask.from_kv_blocks(counts, indices.int(), BLOCK_SIZE=16, mask_mod=mods.causal)
        return flex_attention(q, k, v, block_mask=mask, strict=True)

    wanted = expected(q, k, v, mask_mod=mods.causal)[0]
    torch.testing.assert_close(attend(q, k, v, blocks).double(), wanted, atol=2e-5, rtol=2e-5)


def test_names_that_are_not_public():
    from attune.torch import _DEFAULT_SPARSE_BLOCK_SIZE, _mask_mod_signature  # noqa: F401

    assert _DEFAULT_SPARSE_BLOCK_SIZE == torch_flex._DEFAULT_SPARSE_BLOCK_SIZE
    assert not [name for name in torch_flex.__all__ if not hasattr(attune.torch, name)]
    with pytest.raises(AttributeError, match=r"attune\.torch.*_mask_mod_signatur'"):
        attune.torch._mask_mod_signatur  # noqa: B018


def test_a_traced_value_prints_what_it_is():
    seen = []

    def score_mod(score, b, h, q_idx, kv_idx):
        seen.append(f"{score * 2} of {torch.stack([q_idx, kv_idx])}")
        return score

    translation(score_mod)
    assert seen == ["traced((score * 2), dtype=torch.float32) of traced(shape=(2,), dtype=torch.int32)"]


def test_ints_that_32_bits_do_not_hold():
    """They are ends that none reaches; floats in their place would have made products of them silently wrong."""
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    wanted = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i >= j, strict=True)
    for mask_mod in (
        lambda b, h, i, j: (i < 2**40) & (i > -(2**40)) & (i >= j),
        lambda b, h, i, j: i.clamp(-(2**40), 2**40) >= torch.clamp(j, max=2**33),
    ):
        torch.testing.assert_close(flex_attention(q, k, v, mask_mod=mask_mod, strict=True), wanted)
    for mask_mod in (
        lambda b, h, i, j: (i * 2654435761 + j) % 5 < 3,
        lambda b, h, i, j: i % 2**32 >= j,
        lambda b, h, i, j: i - 2**31 >= j - 2**31,
        lambda b, h, i, j: i.clamp(min=2**40) >= j,
    ):
        with pytest.raises(Untranslatable, match="32 bits"):
            flex_attention(q, k, v, mask_mod=mask_mod, strict=True)
