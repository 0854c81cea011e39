"""Hugging Face's transformers on Attune: tiny random models against their eager attention."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.23", reason="transformers 5.23 or newer is not installed")

from devices import DEVICE, made, on_device, one_thread  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MPNetConfig,
    MptConfig,
    Qwen2Config,
    T5Config,
    masking_utils,
)

import attune.torch.transformers as plug  # noqa: E402
from attune._errors import UnsupportedError  # noqa: E402
from attune.torch._plans import variant_of  # noqa: E402

VOCABULARY, LENGTH, WINDOW = 99, 24, 8
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention"]
DECODERS = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen2": Qwen2Config(**SIZES, sliding_window=WINDOW, use_sliding_window=True, layer_types=ALTERNATING),
    "gemma2": Gemma2Config(
        **SIZES, sliding_window=WINDOW, layer_types=ALTERNATING, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    ),
    "gpt-oss": GptOssConfig(
        **SIZES,
        sliding_window=WINDOW,
        layer_types=ALTERNATING,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
}


@pytest.fixture(autouse=True)
def fresh():
    """A fall-back to torch would hide what does not work."""
    torch.manual_seed(3)
    with warnings.catch_warnings(), one_thread(), on_device():
        warnings.filterwarnings("error", message="attune falls back")
        yield


def pair(config, make=AutoModelForCausalLM):
    """The same model twice: eager, and on Attune."""
    models = []
    for implementation in ("eager", "attune"):
        torch.manual_seed(5)
        model = make.from_config(copy.deepcopy(config), attn_implementation=implementation)
        for name, parameter in model.named_parameters():
            if "sinks" in name or "relative_attention_bias" in name:
                torch.nn.init.normal_(parameter)
        assert model.config._attn_implementation == implementation
        models.append(model)
    return models


def tokens(batch=2, length=LENGTH):
    return torch.randint(3, VOCABULARY, (batch, length))


def padding(left):
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, : LENGTH // 4] = 0
    return mask if left else mask.flip(1)


def check_step(models, live=None, **inputs):
    """Outputs of the tokens that are none of padding, and the gradients of all parameters."""
    results = []
    for model in models:
        model.train()
        out = model(**inputs, use_cache=False)[0]
        out = out if live is None else out * live[..., None]
        (out * torch.linspace(-1, 1, out.shape[-1])).mean().backward()
        named = ((name.removeprefix("_orig_mod."), x.grad) for name, x in model.named_parameters())
        gradients = {name: gradient for name, gradient in named if gradient is not None}
        results.append((out.detach(), gradients))
    (wanted, of_eager), (found, ours) = results
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert ours.keys() == of_eager.keys()
    noise = 1e-6 * max(x.abs().max().item() for x in of_eager.values())  # some are 0 but for it: biases of keys
    for name, gradient in of_eager.items():
        tolerance = 1e-4 * gradient.abs().max().item() + noise
        torch.testing.assert_close(ours[name], gradient, atol=tolerance, rtol=0, msg=f"{{}} of {name}".format)


@pytest.mark.parametrize("mask", ["none", "left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_training_step(name, mask):
    live = None if mask == "none" else padding(mask == "left")
    check_step(pair(DECODERS[name]), live, input_ids=tokens(), attention_mask=live)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_documents(name):
    """Sequences one after the other, told by their positions."""
    lengths = ((5, 12, 7), (20, 1, 3))
    positions = torch.stack([torch.cat([torch.arange(each) for each in row]) for row in lengths])
    models = pair(DECODERS[name])
    ids = tokens()
    check_step(models, input_ids=ids, position_ids=positions)
    with torch.no_grad():
        packed = models[1](input_ids=ids, position_ids=positions, use_cache=False).logits
        alone = models[1](input_ids=ids[:1, 5:17], use_cache=False).logits
    torch.testing.assert_close(packed[:1, 5:17], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-oss"])
def test_sequences_that_a_collator_tells(name):
    """With a cache, where transformers itself does not look at positions."""
    lengths = (5, 17, 2)
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    flat = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 17, "max_length_k": 17}
    positions = torch.cat([torch.arange(each) for each in lengths])[None]
    eager, ours = (model.eval() for model in pair(DECODERS[name]))
    ids = tokens(batch=1)
    with torch.no_grad():
        found = ours(input_ids=ids, position_ids=positions, **flat).logits
        wanted = torch.cat([eager(each).logits for each in ids.split(lengths, 1)], 1)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        with pytest.raises(UnsupportedError, match="batch 1"):
            ours(input_ids=ids.repeat(2, 1), position_ids=positions, **flat)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_of_the_callers_own(kind):
    mask = torch.tril(torch.rand(2, 1, LENGTH, LENGTH) < 0.7)
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    eager, ours = pair(DECODERS["llama"])
    ids = tokens()
    with torch.no_grad():
        wanted = eager(ids, attention_mask=added, use_cache=False).logits
        found = ours(ids, attention_mask=mask if kind == "bool" else added, use_cache=False).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generation(name, cache):
    """From prompts of two lengths, beyond the window."""
    models = [model.eval() for model in pair(DECODERS[name])]
    ids = tokens()
    options = {"max_new_tokens": 16, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    wanted, found = (
        model.generate(ids, attention_mask=padding(True), cache_implementation=cache, **options) for model in models
    )
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(wanted.logits), atol=1e-4, rtol=1e-4)
    assert torch.equal(found.sequences, wanted.sequences)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["mistral", "qwen2"])
def test_a_step_of_generation_is_no_new_kernel(name, cache):
    _, model = pair(DECODERS[name])
    ids = tokens()

    def specs(new_tokens):
        variant_of.cache_clear()
        model.eval().generate(
            ids, attention_mask=padding(True), cache_implementation=cache, max_new_tokens=new_tokens, do_sample=False
        )
        return variant_of.cache_info().currsize

    # Of 24 tokens: where the window of 8 has slid, nothing changes any more.
    assert specs(4) == specs(12) <= 6


def test_a_cache_that_the_caller_fills():
    """Several queries after what the cache holds."""
    eager, ours = (model.eval() for model in pair(DECODERS["qwen2"]))
    ids = tokens()
    results = []
    with torch.no_grad():
        for model in (eager, ours):
            cache = model(ids[:, :10], use_cache=True).past_key_values
            middle = model(ids[:, 10:15], past_key_values=cache, use_cache=True).logits
            results.append((middle, model(ids[:, 15:], past_key_values=cache, use_cache=True).logits))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


def test_encoder():
    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=VOCABULARY,
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    live = padding(False)
    check_step(pair(config, AutoModel), live, input_ids=tokens(), attention_mask=live)


@pytest.mark.parametrize(
    "config",
    [
        BartConfig(
            d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=VOCABULARY, dropout=0.0, max_position_embeddings=64,
        ),
        T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=1, num_heads=4, vocab_size=VOCABULARY, dropout_rate=0.0),
    ],
    ids=["bart", "t5"],
)  # fmt: skip
def test_encoder_and_decoder(config):
    """Keys of another length than the queries, and T5's learned bias of places."""
    models = pair(config, AutoModel)
    live = padding(False)
    inputs = {"input_ids": tokens(), "attention_mask": live, "decoder_input_ids": tokens(length=9)}
    check_step(models, **inputs)


def test_dropout_is_repeated_by_the_seed():
    config = copy.deepcopy(DECODERS["llama"])
    config.attention_dropout = 0.25
    model = AutoModelForCausalLM.from_config(config, attn_implementation="attune")
    ids = tokens()

    def run(seed):
        torch.manual_seed(seed)
        return model.train()(ids, use_cache=False).logits

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first, model.eval()(ids, use_cache=False).logits)


def test_autocast():
    eager, ours = pair(DECODERS["gpt-oss"])
    ids = tokens()
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        wanted, found = (model(ids, use_cache=False).logits for model in (eager, ours))
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)


def test_compiled():
    torch.compiler.reset()
    _, model = pair(DECODERS["gpt-oss"])
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    check_step([plain, compiled], padding(True), input_ids=tokens(), attention_mask=padding(True))


MASKS = {
    "causal": (masking_utils.causal_mask_function, {}),
    "window": (masking_utils.sliding_window_causal_mask_function(WINDOW), {"local_size": WINDOW}),
    "chunks": (
        masking_utils.chunked_causal_mask_function(WINDOW, made(lambda: torch.tensor([3, 0]))),
        {"local_size": WINDOW},
    ),
    "both ways": (masking_utils.bidirectional_mask_function, {}),
    "both ways, window": (masking_utils.sliding_window_bidirectional_mask_function(WINDOW), {}),
    "blocks": (
        masking_utils.or_masks(
            masking_utils.causal_mask_function,
            masking_utils.blockwise_overlay(made(lambda: (torch.arange(64) // 3 % 3 - 1).repeat(2, 1))),
        ),
        {},
    ),
}


@pytest.mark.parametrize("pads", [False, True], ids=["no padding", "padding"])
@pytest.mark.parametrize(
    "sizes",
    [
        (20, 20, 0, 0),
        (1, 20, 19, 0),
        (6, 20, 14, 0),
        (6, 20, 30, 16),
        (6, 20, made(lambda: torch.tensor(4)), 0),
        (6, 20, 4, 0),
    ],
    ids=["whole", "one query", "last queries", "a slid window", "static, counted", "static"],
)
@pytest.mark.parametrize("name", MASKS)
def test_mask(name, sizes, pads):
    """By the kernel, against the dense mask that transformers makes of the same."""
    q_length, kv_length, q_offset, kv_offset = sizes
    function, options = MASKS[name]
    live = None
    if pads:
        live = torch.ones(2, kv_offset + kv_length, dtype=torch.bool)
        live[0, : kv_offset + 2] = live[1, -3:] = False
    given = {"batch_size": 2, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
             "kv_offset": kv_offset, "mask_function": function, "attention_mask": live}  # fmt: skip
    dense = masking_utils.sdpa_mask(**given, **options, allow_is_causal_skip=False, device=DEVICE)
    mask = plug.attention_mask(**given, **options, device=DEVICE)
    if isinstance(q_offset, torch.Tensor):
        q_offset.add_(q_length)  # as the cache does before the first layer attends
    assert mask.shape == (2, 1, q_length, kv_length)
    q, k, v = (torch.randn(2, heads, length, 16) for heads, length in ((4, q_length), (2, kv_length), (2, kv_length)))
    found, _ = plug.attention(torch.nn.Module(), q, k, v, mask)
    if isinstance(q_offset, torch.Tensor):
        q_offset.sub_(q_length)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = (q @ k.mT / 4).masked_fill(~dense, -torch.inf)
    wanted = (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_pages_are_refused():
    q = torch.randn(1, 2, 4, 16)
    with pytest.raises(UnsupportedError, match="pages"):
        plug.attention(torch.nn.Module(), q, q, q, None, cache=object())


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=1, n_head=4), "eager"),
        (MptConfig(vocab_size=VOCABULARY, d_model=64, n_layers=1, n_heads=4, max_seq_len=64), "eager"),
        (MPNetConfig(**{**SIZES, "num_hidden_layers": 1}), "eager"),
        (FalconConfig(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=4), "sdpa"),
    ],
    ids=lambda each: getattr(each, "model_type", None),
)
def test_a_model_that_asks_no_implementation_keeps_its_own_and_says_so(config, kept):
    make = AutoModel.from_config
    wanted = make(copy.deepcopy(config), attn_implementation=kept)
    plug._told.clear()
    with pytest.warns(
        UserWarning, match=f'attune: {type(wanted).__name__} has attention of its own.* this part keeps "{kept}"'
    ) as told:
        found = make(copy.deepcopy(config), attn_implementation="attune")
        make(copy.deepcopy(config), attn_implementation="attune")
    assert len(told) == 1 and told[0].filename == __file__
    assert ("activate_sdpa" in str(told[0].message)) == (kept == "sdpa")
    found.load_state_dict(wanted.state_dict())
    assert plug._asks_implementation(object)  # as of a version that does not look
    ids = tokens()
    assert torch.equal(found.eval()(ids)[0], wanted.eval()(ids)[0])


def test_a_model_of_others_that_asks_an_implementation_is_not_warned_about():
    class Other(LlamaForCausalLM):
        _can_set_attn_implementation_cached_value = False  # transformers finds that out by a guess from the source

    assert Other._from_config(DECODERS["llama"], attn_implementation="attune").config._attn_implementation == "attune"
