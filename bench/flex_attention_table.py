#!/usr/bin/env python3
"""Writes the table of what bench/flex_attention_suite.py found into docs/lab/flex_attention_suite.md.

    python3 bench/flex_attention_table.py results.json control.json
    python3 bench/flex_attention_table.py results.json control.json --device cuda

What failed is left out, by name and with the reason, where the control (the same cases without Attune)
fails as well: such a case says nothing of Attune. Left out are cases that the file skips, and those that never call
compiled attention, or in float64 alone, whatever comes of them. A case whose calls all go to torch is none that passes.
"""

import argparse
import json
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "lab" / "flex_attention_suite.md"
# Of each device: between these lines.
MARKS = {
    "cpu": ("<!-- by bench/flex_attention_table.py -->", "<!-- end -->"),
    "cuda": ("<!-- of cuda, by bench/flex_attention_table.py -->", "<!-- end of cuda -->"),
}

# Why a case is left out that the control fails too: what the control says is seldom the reason.
REASONS = {
    "wants an error of torch's compiler or of its CPU kernels": (
        "cant_lower_error_message symmetric_bias captured_reduction cpu_error_message_return_lse "
        "validate_cpu_dtype_error_message invalid_block_size"
    ),
    "looks for Triton's text": "epilogue_fused kernel_options_argument_is_respected logsumexp_only_return",
    "wants two devices": "captured_wrong_device_error_message mixed_device_error_message",
    "newer torch differs from the file of 2.6": (
        "fw_bw_graph_correctness mask_mod_combiners block_mask_attributes block_mask_vs_sequence_lengths getitem "
        "no_q_info mixed_dtypes_fails"
    ),
}
_PARAMETERS = (
    "float\\d+|batch:|mode_|compile_|score_mod\\d|score_mask_mod\\d|score_mod_name|permute_order|BLOCK_SIZE|q_s\\d"
)
_FLOAT64 = ("gradcheck", "document_masking_edge_case")


def family(name):
    """A case's method, without its parameters."""
    method = name.split(".")[1].removeprefix("test_")
    return re.split(f"_(?:{_PARAMETERS})", method)[0]


def listed(names):
    """Families with how many of their cases there are."""
    counts = {}
    for name in names:
        counts[family(name)] = counts.get(family(name), 0) + 1
    return ", ".join(f"`{each}`" + (f" ({count})" if count > 1 else "") for each, count in sorted(counts.items()))


def reason_of(name, outcome, reason, calls, control):
    """Why a case says nothing of Attune; None: it does."""
    of_attune, of_torch = calls
    if outcome == "skipped":
        return f"the file skips it: {reason}"
    if outcome == "failed" and control.get(name, ["passed"])[0] != "passed":
        found = [said for said, tests in REASONS.items() if any(f"test_{each}" in name for each in tests.split())]
        return found[0] if found else f"the control fails: {control[name][1]}"
    if not of_attune and not of_torch:
        return "calls no compiled attention"
    if not of_attune and any(each in name for each in _FLOAT64):
        return "float64, which is torch's"
    return None


def judge(results, control):
    """By class of tests: names of passed, failed, fallen back, left out; and what was left out by reason."""
    classes, why = {}, {}
    for name, (outcome, reason, _, *calls) in results.items():
        group = classes.setdefault(name.split(".")[0], {"passed": [], "failed": [], "fell back": [], "left out": []})
        left_out = reason_of(name, outcome, reason, calls or (0, 0), control)
        if left_out is not None:
            group["left out"].append(name)
            why.setdefault(left_out.splitlines()[0][:120], []).append(name)
        else:
            group[outcome if calls[0] or outcome == "failed" else "fell back"].append(name)
    return classes, why


def table(results, control):
    classes, why = judge(results, control)
    columns = ["left out", "passed", "fell back", "failed"]
    lines = ["| what | cases | " + " | ".join([columns[0], "applicable", *columns[1:]]) + " |", "| --- " * 7 + "|"]
    sums = [0] * 6
    for name, group in classes.items():
        left_out, *judged = (len(group[column]) for column in columns)
        row = [left_out + sum(judged), left_out, sum(judged), *judged]
        sums = [x + y for x, y in zip(sums, row, strict=True)]
        lines.append(f"| {name} | {' | '.join(map(str, row))} |")
    lines += [f"| together | {' | '.join(map(str, sums))} |", ""]
    lines += [f"**{100 * sums[3] / sums[2]:.1f} % of the applicable cases pass on Attune's kernels.** The others:", ""]
    for column, means in (("failed", "fail"), ("fell back", "go to torch's eager code, and pass there")):
        names = [name for group in classes.values() for name in group[column]]
        lines += [f"- {means}: {listed(names)}"] if names else []
    lines += ["", "Left out, with how many cases of a name there are:", ""]
    lines += ["| why | cases | tests |", "| --- | --- | --- |"]
    lines += [f"| {said.replace('|', '/')} | {len(names)} | {listed(names)} |" for said, names in why.items()]
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("control", type=pathlib.Path)
    parser.add_argument("--device", choices=MARKS, default="cpu")
    arguments = parser.parse_args()
    results, control = (json.loads(path.read_text()) for path in (arguments.results, arguments.control))
    begin, end = MARKS[arguments.device]
    text = PAGE.read_text()
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    PAGE.write_text("\n".join([before + begin, "", *table(results, control), "", end]) + after)


if __name__ == "__main__":
    main()
