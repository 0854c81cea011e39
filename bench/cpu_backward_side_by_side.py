#!/usr/bin/env python3
"""The cpu family's backward pass beside PyTorch's of `scaled_dot_product_attention`, fp32, on the same number of threads:
checks the gradients of both, then times them in interleaved rounds. Rows of one's own masks and scores stand alone:
FlexAttention trains on no CPU.

    python3 bench/cpu_backward_side_by_side.py --out cpu_backward.md
    python3 bench/cpu_backward_side_by_side.py --threads 2 --only s1024

Needs PyTorch 2.6 or newer, and libattune.so with its LLVM module (`make build`). Plans are the cost model's.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import cpu_side_by_side as cpu  # noqa: E402
import page  # noqa: E402

CLOSE = 1e-4  # of a gradient's norm; two right passes in fp32 differ by a hundredth of that


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="of every contestant; default: the cores this process may use")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    parser.set_defaults(quick=False)
    return parser.parse_args()


def attune_entry(problem, inputs, d_o, runtime, torch):
    shape = attune_c.Shape(1, cpu.HEADS, cpu.HEADS, problem.seq, problem.seq)
    forward, backward = (runtime.kernel_from_yaml(problem.yaml, shape, of_pass)
                         for of_pass in (attune_c.PASS_FORWARD, attune_c.PASS_BACKWARD))
    q, k, v, tensors = inputs["q"], inputs["k"], inputs["v"], inputs["tensors"]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    gradients = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    space = torch.empty(max(forward.workspace_bytes, backward.workspace_bytes) + 64, dtype=torch.uint8)
    aligned = (space.data_ptr() + 63) // 64 * 64
    forward.bind(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), aligned,
                 {name: tensor.data_ptr() for name, tensor in tensors.items()})(None)
    launch = backward.bind_backward(
        dict(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr(), d_o=d_o.data_ptr(),
             d_q=gradients[0].data_ptr(), d_k=gradients[1].data_ptr(), d_v=gradients[2].data_ptr(), workspace=aligned,
             workspace_bytes=backward.workspace_bytes),
        {name: (tensor.data_ptr(), list(tensor.shape), attune_c.INT32) for name, tensor in tensors.items()})
    launch.keep += (inputs, d_o, o, lse, gradients, space)
    return lambda: launch(None), lambda: gradients, backward.plan


def sdpa_entry(problem, inputs, d_o, torch):
    leaves = [inputs[name].clone().requires_grad_() for name in "qkv"]
    o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=problem.mask is not None)
    found = {}

    def launch():
        found["gradients"] = torch.autograd.grad(o, leaves, d_o, retain_graph=True)

    return launch, lambda: found["gradients"]


def exact_gradients(problem, inputs, d_o, torch):
    """Of one head, in fp64; and which."""
    leaves = {name: inputs[name].double().requires_grad_() for name in "qkv"}
    head, scores = cpu.scores_of(problem, {**leaves, "tensors": inputs["tensors"]}, torch.arange(problem.seq), torch)
    o = scores.softmax(-1) @ leaves["v"][0, head]
    gradients = torch.autograd.grad(o, list(leaves.values()), d_o[0, head].double())
    return head, [gradient[0, head] for gradient in gradients]


def measured(problem, runtime, torch):
    """Its row of the table."""
    inputs = cpu.make_inputs(problem, torch)
    d_o = torch.randn_like(inputs["q"])
    made = {}
    made["Attune"], gradients, plan = attune_entry(problem, inputs, d_o, runtime, torch)
    results = {"Attune": gradients}
    if problem.section == "sdpa":
        made["SDPA"], results["SDPA"] = sdpa_entry(problem, inputs, d_o, torch)
    head, exact = exact_gradients(problem, inputs, d_o, torch)
    errors = {}
    for name, launch in made.items():
        launch()
        apart = [float((mine[0, head] - right).norm() / right.norm())
                 for mine, right in zip(results[name](), exact)]
        errors[name] = max(apart)
        if not errors[name] < CLOSE:
            raise RuntimeError(f"{problem.key}: {name} is {errors[name]:.1e} from the gradients in fp64: nothing is timed")
    us = cpu.time_entries(made)
    flops = 10 * cpu.HEADS * problem.head_dim * cpu.live_elements(problem, inputs, torch)
    rates = {name: flops / time_us / 1e3 for name, time_us in us.items()}
    beside = [f"{rates['SDPA']:.0f}", f"{rates['Attune'] / rates['SDPA']:.2f}"] if "SDPA" in rates else ["", ""]
    return [problem.key, f"{rates['Attune']:.0f}", *beside, f"{errors['Attune']:.1e}", plan]


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown CPU")


def main():
    arguments = parse_arguments()
    torch, threads = cpu.use_threads(arguments)
    runtime = attune_c.Library(arguments.library or attune_c.find_library(cpu.ROOT)).runtime("cpu", "")
    rows = []
    try:
        for problem in cpu.all_problems(arguments):
            rows.append(measured(problem, runtime, torch))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    finally:  # a run that is stopped keeps what it has
        header = ["row", "Attune GFLOP/s", "SDPA", "Attune / SDPA", "from fp64, in norm", "plan"]
        page.write_table(arguments.out, cpu.ROOT, torch, "bench/cpu_backward_side_by_side.py", header, rows,
                         f"{processor()}, every contestant on {threads} threads")


if __name__ == "__main__":
    main()
