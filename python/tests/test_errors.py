"""What is refused, and what the error says."""

import numpy as np
import pytest

import attune
from attune._errors import AttuneError
from attune._library import check_version


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((2, 20, 2, 32), dtype=np.float32) for _ in range(3)]


def test_an_expression_error_keeps_line_caret_and_hint(qkv):
    with pytest.raises(attune.BadInputError) as caught:
        attune.attention(*qkv, mask="kv_idx < 5 and\n  causl")
    error = caught.value
    assert error.id == "expr-unknown-name" and error.message == "unknown name `causl`"
    assert error.hint == "did you mean `causal`?" and error.source_line.strip() == "causl"
    assert error.source_line[error.column - 1 :].startswith("causl")
    assert "^~~~~" in str(error) and "did you mean" in str(error)


def test_a_files_error_names_the_file(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("attune: 1\nname: x\ndtype: fp32\nhead_dim: 64\nmask: foo\n")
    with pytest.raises(attune.BadInputError) as caught:
        attune.Spec.from_file(path)
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(path), 5, 7)


def test_reports_without_a_place():
    error = AttuneError.from_report("error: no file is called `x` [spec-not-found]\n      = look again\n")
    assert (error.id, error.message, error.hint, error.line) == (
        "spec-not-found", "no file is called `x`", "look again", 0,
    )  # fmt: skip
    assert AttuneError.from_report("out of memory").message == "out of memory"


INT32 = np.zeros((2, 20), np.int32)
REFUSED = {
    "unknown tensor": ({"mask": "x[b] > 0"}, "unknown tensor"),
    "tensor that nobody names in dims": ({"dims": {"x": "batch"}}, "none of the tensors"),
    "dtype of a tensor": ({"tensors": {"x": INT32.astype(np.int64)}}, "int64"),
    "sizes of a tensor": ({"tensors": {"x": INT32}, "dims": {"x": "batch, heads"}}, r"wants \[batch, heads\]"),
    "layout": ({"layout": "sbhd"}, "no layout"),
    "dropout": ({"dropout": 1.5}, "dropout"),
    "words beside a spec": ({"spec": "causal", "mask": "causal"}, "both `spec` and `mask`"),
    "spec that is not there": ({"spec": "nothing"}, "no file and no spec"),
    "a name that is none": ({"tensors": {"x y": INT32}}, "is no name"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, qkv):
    arguments, message = REFUSED[what]
    with pytest.raises(attune.BadInputError, match=message):
        attune.attention(*qkv, **arguments)


def test_operands_that_do_not_fit(qkv):
    q, k, v = qkv
    for operands, message in (
        ((q, k[:, :, :1], v), "`v`"),
        ((q, k[:1], v[:1]), "batch"),
        ((q[..., :16], k, v), "head_dim"),
        ((q, np.repeat(k, 3, 2), np.repeat(v, 3, 2)), "multiple"),
        ((q.astype(np.float64), k, v), "float64"),
        ((q, k.astype(np.float16), v), "float16"),
        ((q[0], k, v), "3 dims"),
        ((q.tolist(), k, v), "not an array"),
    ):
        with pytest.raises(attune.BadInputError, match=message):
            attune.attention(*operands)


def test_a_width_that_no_kernel_has(rng):
    q, k, v = (rng.standard_normal((1, 4, 1, 12), dtype=np.float32) for _ in range(3))
    with pytest.raises(attune.BadInputError, match="multiple of 8"):
        attune.attention(q, k, v)


def test_library_versions():
    check_version("0.2.0")
    check_version("0.17.3")
    for other in ("0.1.9", "1.0.0"):
        with pytest.raises(attune.UnavailableError, match=r"needs 0\.2"):
            check_version(other)


def test_no_such_device():
    with pytest.raises(attune.AttuneError):
        attune.Runtime("abacus")
