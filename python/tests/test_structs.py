"""The ctypes structs are attune.h's, field by field: a C compiler says where each lies."""

import ctypes
import pathlib
import shutil
import subprocess

import pytest

from attune import _structs

HEADER = pathlib.Path(__file__).parents[2] / "runtime" / "include" / "attune" / "attune.h"
STRUCTS = {
    "att_runtime_options": _structs.RuntimeOptions,
    "att_spec_info": _structs.SpecInfo,
    "att_scalar_info": _structs.ScalarInfo,
    "att_tensor_info": _structs.TensorInfo,
    "att_shape": _structs.Shape,
    "att_strides": _structs.Strides,
    "att_scalar": _structs.Scalar,
    "att_tensor": _structs.Tensor,
    "att_forward_args": _structs.ForwardArgs,
    "att_backward_args": _structs.BackwardArgs,
    "att_append_options": _structs.AppendOptions,
    "att_append_args": _structs.AppendArgs,
    "att_tune_progress": _structs.TuneProgress,
    "att_tune_options": _structs.TuneOptions,
    "att_tune_result": _structs.TuneResult,
}


def test_layout(tmp_path):
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or not HEADER.exists():
        pytest.skip("a C compiler or attune.h is missing")
    lines, expected = [], []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            member = f"(({name}*)0)->{field}"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof {member});')
            place = getattr(struct, field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    for enum, prefix in (
        (_structs.DType, "ATT_"),
        (_structs.Layout, "ATT_"),
        (_structs.Pass, "ATT_PASS_"),
        (_structs.Rope, "ATT_ROPE_"),
    ):
        for member in enum:
            lines.append(f'printf("{member.name} %d\\n", {prefix}{member.name});')
            expected.append(f"{member.name} {int(member)}")
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{body}\nreturn 0;\n}}\n')
    subprocess.run([compiler, "-w", "-o", tmp_path / "layout", source], check=True)
    out = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    assert out.splitlines() == expected
