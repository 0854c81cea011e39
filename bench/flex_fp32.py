#!/usr/bin/env python3
"""attune.torch.flex_attention beside torch's compiled flex_attention in float32, whose products are not rounded to
tf32: six masks and scores, forward, and forward and backward.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/flex_fp32.py --workers 6

Both are held against each other and, on one head, against float64. Needs what bench/flex_side_by_side.py needs.
"""

import dataclasses
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import flex_side_by_side as side  # noqa: E402  # before torch: it says where compilers keep what they make

import torch  # noqa: E402

import checks  # noqa: E402
import contestants  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402

PROBLEMS = ("noop_full", "causal", "sliding1024", "softcap_causal", "alibi_causal", "doc_causal")
SEQ, HEAD_DIM = 4096, 64
WHATS = ("forward", "step")
CHECKED = 1, 3  # the entry of the batch and the head that float64 computes, too


def chosen_problems(only=""):
    by_name = {p.name: p for p in problems.custom_problems()}
    return [dataclasses.replace(by_name[name], seq=SEQ, head_dim=HEAD_DIM) for name in PROBLEMS if only in name]


def exact(problem, inputs):
    """O and gradients of the checked head, in float64."""
    leaves = [x.double().requires_grad_() for x in inputs.operands]
    out = checks.exact(problem, contestants.Inputs(*leaves, inputs.tensors), *CHECKED)
    grads = torch.autograd.grad(out, leaves, inputs.d_out[CHECKED].double())
    return [out.detach(), *(grad[CHECKED] for grad in grads)]


def errors(result, wanted):
    """Of O, and the largest of the gradients."""
    found = [side.difference(x[CHECKED].double(), y) for x, y in zip(result, wanted)]
    return found[0], max(found[1:])


def prepare(problem, generator):
    inputs = side.Inputs(problem, generator, torch.float32)
    made, row, results = side.prepare(problem, inputs, (side.Attune, side.Flex))
    wanted = exact(problem, inputs)
    for name in made:
        row[f"errors {name}"] = errors(results[name], wanted)
    return made, row


def run_named(problem_name):
    seed, *turns = (side._worker[key] for key in ("seed", "compiling", "all_ready", "alone"))
    problem = next(p for p in chosen_problems() if p.name == problem_name)
    try:
        row = side.run_problem(lambda: prepare(problem, torch.Generator("cuda").manual_seed(seed)), WHATS, *turns)
    except Exception as error:  # the other rows stand
        row = {"name": problem_name, "without Attune": (str(error).splitlines() or [type(error).__name__])[0][:200]}
    print(row, file=sys.stderr, flush=True)
    return row


def ratio_cell(values):
    known = [value for value in values if value]
    return f"{problems.geometric_mean(known):.2f}" if known else ""


def write_table(path, rows):
    """Times beside Triton's, and both errors against float64."""
    lines = []
    ratios = {what: [] for what in WHATS}
    for row in rows:
        cells = [row["name"]]
        for what in WHATS:
            ours, theirs = row.get(f"{what} Attune"), row.get(f"{what} Flex")
            ratios[what].append(ours and theirs and theirs / ours)
            cells += [f"{ours:.0f}" if ours else "", ratio_cell(ratios[what][-1:])]
        for index in range(2):
            both = [row.get(f"errors {name}") for name in ("Attune", "Flex")]
            cells += [f"{each[index]:.1e}" if each else "" for each in both]
        absent = [f"{name}: {row[f'without {name}']}" for name in ("Attune", "Flex") if f"without {name}" in row]
        lines.append([*cells, "; ".join(absent)])
    means = [cell for what in WHATS for cell in ("", ratio_cell(ratios[what]))]
    lines.append(["geometric mean", *means, "", "", "", "", ""])
    header = [
        f"fp32, 2 x 16 heads x {SEQ}, d {HEAD_DIM}",
        *("forward us", "Flex over ours", "forward and backward us", "Flex over ours"),
        *("error of o in norm", "Flex's", "of gradients", "Flex's", "who took no part"),
    ]
    page.write_table(path, side.ROOT, torch, "bench/flex_fp32.py", header, lines)


def run(options):
    names = [p.name for p in chosen_problems(options.only)]
    if options.list:
        print("\n".join(names))
        return
    write_table(options.out, side.in_processes(run_named, names, options, "highest"))


if __name__ == "__main__":
    # Processes of the pool look functions up in the module of this name, not in the program.
    import flex_fp32

    flex_fp32.run(side.parse_arguments(__doc__, has_fp32=False))
