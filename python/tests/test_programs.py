"""Random programs of FlexAttention: all are translated, their calls are recalled, and some are run."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("numpy")

from programs import DEVICE, program  # noqa: E402
from try_programs import Way, run  # noqa: E402

from attune.torch import flex_attention  # noqa: E402
from attune.torch._fingerprint import Fingerprint  # noqa: E402
from attune.torch._operator_call import spec_text  # noqa: E402
from attune.torch._plans import variant_of  # noqa: E402


def test_all_are_translated():
    """But those that see more tensors than a spec has, of which there are few."""
    others = 0
    for seed in range(150):
        each = program(seed)
        score_mod, mask_mod, _ = each.functions()
        q = torch.zeros(each.batch, each.heads, each.q_len, 16, device=DEVICE)
        k = torch.zeros(each.batch, each.kv_heads, each.kv_len, 16, device=DEVICE)
        text, captured = spec_text(q, k, k, score_mod, mask_mod, None)
        if len(captured.tensors()) > 8:
            others += 1
        else:
            variant_of(text)
        Fingerprint((score_mod, mask_mod))  # raises Unknown where a call would be translated again each time
    assert others <= 2


@pytest.mark.parametrize("seed", [2, 7, 11, 13, 26, 77])
def test_some_are_run(seed):
    with_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run(program(seed), functools.partial(flex_attention, strict=True))
    finally:
        torch.set_num_threads(with_threads)


def test_ways_differ():
    found = [Way(seed) for seed in range(60)]
    for name in ("dtype", "mask", "scale", "lies", "one_batch", "records", "runs"):
        assert len({getattr(each, name) for each in found}) > 1, name
