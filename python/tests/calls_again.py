"""What the tests of calls that are made again share: every way to make one, and which went straight to its launch."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import attune  # noqa: E402
import attune.torch  # noqa: E402
from attune import _met  # noqa: E402
from attune.torch import _bound, _cache_bound, _guard, _native, _recall, create_block_mask, flex_attention  # noqa: E402

HEADS, LENGTH, DIM = 2, 16, 16
# By torch's guard or by reading, and with or without libattune_calls.so.
WAYS = {
    "native": (_guard._by_torch, _native._functions),
    "torch": (_guard._by_torch, lambda: None),
    "reading": (_guard._by_reading, _native._functions),
}


def counting(request, monkeypatch, kind):
    """One entry a call that went straight to its launch, of `kind` where it went by bytecode."""
    check_of, functions = WAYS[request.param]
    monkeypatch.setattr(_guard, "_check_of", check_of)
    monkeypatch.setattr(_native, "_functions", functions)
    monkeypatch.setattr(_met, "find", None)
    forget()
    made = []

    def run(self, *args, **kwargs):
        made.append(self)
        return of_bound(self, *args, **kwargs)

    def go_of(*args):
        go = of_native(*args)

        def counted(*given):
            found = go(*given)
            if found is not None:
                made.append(go)
            return found

        return None if go is None else counted

    of_bound, of_native = kind.run, _native.straight
    monkeypatch.setattr(kind, "run", run)
    monkeypatch.setattr(_native, "straight", go_of)
    yield made
    forget()


@pytest.fixture(params=WAYS, autouse=True)
def straight(request, monkeypatch):
    yield from counting(request, monkeypatch, _bound.Bound)


def forget():
    _met.CALLS.clear()
    _recall.forget()


def operands(heads=HEADS, q_len=LENGTH, kv_len=LENGTH, width=DIM, dtype=torch.float32, batch=1):
    torch.manual_seed(q_len + kv_len)
    lengths_widths = ((q_len, DIM), (kv_len, DIM), (kv_len, width))
    return [torch.randn(batch, heads, length, size).to(dtype) for length, size in lengths_widths]


def by_words(q, k, v, **words):
    return attune.attention(q, k, v, **{"mask": "causal", "layout": "bhsd", **words})


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


MASK = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cpu")
# A spec's causal mask ends with the sequences, and FlexAttention's begins with them.
SPEC = attune.Spec("causal_top_left", dtype="fp32", head_dim=DIM, layout="bhsd")
CALLS = {
    "words": lambda *given: by_words(*given, mask="causal_top_left"),
    "spec": lambda *given: attune.attention(*given, spec=SPEC),
    "flex_attention": lambda *given: flex_attention(*given, mask_mod=causal, strict=True),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def plain(q, k, v, mask_mod=causal, score_mod=None, scale=None):
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    at = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    s = s if score_mod is None else score_mod(s, *at)
    return s.masked_fill(~mask_mod(*at), -torch.inf).softmax(-1) @ v


def close(out, wanted, tolerance=2e-5):
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)


def settle(call, straight):
    """Made so often that it goes straight."""
    for _ in range(3):
        call()
    straight.clear()
    call()
    assert len(straight) == 1
    straight.clear()
