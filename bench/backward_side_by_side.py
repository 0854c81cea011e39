#!/usr/bin/env python3
"""Attune's backward pass beside its peers' in one process: checks every contestant's gradients, then times them in
interleaved rounds with a cold L2. Times are of all kernels of the pass.

    python3 bench/backward_side_by_side.py --out backward.md
    python3 bench/backward_side_by_side.py --only custom/
    python3 bench/backward_side_by_side.py --beside before/libattune.so --alone     # what a change did to all rows

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. FlashAttention-3 takes part where its package
`flash_attn_interface` can be imported; FlexAttention's FLASH backend where flash-attn-4 is installed. Attune runs
the cost model's plans.
"""

import argparse
import importlib.util
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import contestants  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = 16384


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--beside", metavar="LIBRARY", help="another build's libattune.so, a contestant of its own")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    return parser.parse_args()


def rows():
    """(key, heads, kv_heads, seq, head_dim, causal, custom problem or None)"""
    for head_dim, heads in ((128, 16), (64, 32), (96, 16)):
        for causal in (False, True):
            for seq in (512, 1024, 2048, 4096, 8192, 16384):
                key = f"dense/d{head_dim}/{'causal' if causal else 'full'}/{seq}"
                yield key, TOKENS // seq, heads, heads, seq, head_dim, causal, None
    for kind, head_dim, heads in (("dense", 192, 16), ("dense", 256, 8), ("deterministic", 128, 16),
                                  ("deterministic", 64, 32)):
        for causal in (False, True):
            for seq in (1024, 4096, 16384):
                key = f"{kind}/d{head_dim}/{'causal' if causal else 'full'}/{seq}"
                yield key, TOKENS // seq, heads, heads, seq, head_dim, causal, None
    for causal in (False, True):
        yield f"gqa/{'causal' if causal else 'full'}/4096", TOKENS // 4096, 32, 8, 4096, 128, causal, None
    for problem in problems.custom_problems():
        yield (f"custom/{problem.name}", problem.batch, problem.heads, problem.heads, problem.seq, problem.head_dim,
               False, problem)


def is_deterministic(row):
    return row[0].startswith("deterministic/")


def yaml(row):
    return (f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {row[5]}\n" + ("mask: causal\n" if row[6] else "") +
            ("deterministic: true\n" if is_deterministic(row) else ""))


class Attune:
    def __init__(self, runtime, row, inputs, torch):
        key, batch, heads, kv_heads, seq, head_dim, causal, problem = row
        shape = attune_c.Shape(batch, heads, kv_heads, seq, seq)
        if problem is None:
            make = lambda of_pass: runtime.kernel_from_yaml(yaml(row), shape, of_pass)
        else:
            make = lambda of_pass: runtime.kernel(f"{ROOT}/{problem.spec}", shape, of_pass)
        forward, backward = make(attune_c.PASS_FORWARD), make(attune_c.PASS_BACKWARD)
        self.plan = backward.plan
        q, k, v, g = (t.transpose(1, 2).contiguous() for t in inputs[:4])
        tensors = inputs[4]
        o = torch.empty_like(q)
        lse = torch.empty(batch, heads, seq, device="cuda", dtype=torch.float32)
        grads = [torch.full_like(t, float("nan")) for t in (q, k, v)]
        space = torch.empty(max(forward.workspace_bytes, backward.workspace_bytes, 16), dtype=torch.uint8,
                            device="cuda")
        self.workspace_bytes = backward.workspace_bytes
        stream = torch.cuda.current_stream().cuda_stream
        forward.bind(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), space.data_ptr(),
                     {n: t.data_ptr() for n, t in tensors.items()})(stream)
        bound = backward.bind_backward(
            dict(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr(),
                 d_o=g.data_ptr(), d_q=grads[0].data_ptr(), d_k=grads[1].data_ptr(), d_v=grads[2].data_ptr(),
                 workspace=space.data_ptr(), workspace_bytes=space.numel()),
            {n: (t.data_ptr(), list(t.shape), attune_c.INT32) for n, t in tensors.items()})
        self.keep = (q, k, v, g, o, lse, space, tensors)
        self.launch = lambda: bound(torch.cuda.current_stream().cuda_stream)
        self.gradients = lambda: [t.transpose(1, 2) for t in grads]


class FlashAttention3:
    def __init__(self, row, inputs, torch):
        import flash_attn_interface as fa
        q, k, v, g = (t.transpose(1, 2).contiguous() for t in inputs[:4])
        scale, causal = q.shape[-1] ** -0.5, row[6]
        o, lse, *_ = fa._flash_attn_forward(q, k, v, causal=causal, softmax_scale=scale)
        grads = [torch.empty_like(t) for t in (q, k, v)]
        self.launch = lambda: fa._flash_attn_backward(g, q, k, v, o, lse, dq=grads[0], dk=grads[1], dv=grads[2],
                                                      softmax_scale=scale, is_causal=causal,
                                                      deterministic=is_deterministic(row))
        self.gradients = lambda: [t.transpose(1, 2) for t in grads]


class Autograd:
    """A function of q, k and v whose graph is kept: only its backward pass is launched."""

    def __init__(self, forward, inputs, torch):
        leaves = [t.detach().clone().requires_grad_(True) for t in inputs[:3]]
        o = forward(*leaves)
        g = inputs[3]
        state = {}

        def launch():
            state["grads"] = torch.autograd.grad(o, leaves, g, retain_graph=True)

        self.launch, self.gradients = launch, lambda: state["grads"]


def contestants_of(row, inputs, runtimes, alone, torch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    problem, causal = row[7], row[6]
    for name, runtime in runtimes.items():
        yield name, lambda runtime=runtime: Attune(runtime, row, inputs, torch)
    if alone:
        return
    if problem is None:
        if importlib.util.find_spec("flash_attn_interface"):
            yield "FA3", lambda: FlashAttention3(row, inputs, torch)

        def sdpa(q, k, v):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                                        enable_gqa=row[2] != row[3])

        if not is_deterministic(row):
            yield "cuDNN", lambda: Autograd(sdpa, inputs, torch)
        return
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    mask = None
    if problem.mask is not None:
        mask = torch.compile(create_block_mask)(lambda b, h, q, k: problem.mask(b, h, q, k, inputs[4]),
                                                row[1] if problem.tensors else None, None, row[4], row[4],
                                                device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    backends = ["TRITON"] + (["FLASH"] if importlib.util.find_spec("flash_attn") else [])
    for backend in backends:
        options = {} if backend == "TRITON" else {"BACKEND": backend}
        yield f"Flex {backend}", lambda options=options: Autograd(
            lambda q, k, v: compiled(q, k, v, score_mod=problem.score, block_mask=mask, kernel_options=options),
            inputs, torch)


def measured(row, runtimes, alone, generator, flush, torch):
    """Its row of the table."""
    key, batch, heads, kv_heads, seq, head_dim, causal, problem = row

    def normal(count):
        size = (batch, count, seq, head_dim)
        return torch.randn(size, generator=generator, device="cuda").to(torch.bfloat16)

    tensors = {} if problem is None else {
        n: contestants.make_tensor(n, problem, generator) for n in problem.tensors}
    inputs = (normal(heads), normal(kv_heads), normal(kv_heads), normal(heads), tensors)
    entries, notes = {}, {}
    for name, make in contestants_of(row, inputs, runtimes, alone, torch):
        try:
            entries[name] = make()
            entries[name].launch()
            torch.cuda.synchronize()
        except Exception as error:  # a peer that cannot do it takes no part
            entries.pop(name, None)
            notes[name] = str(error).splitlines()[0][:60] if str(error) else type(error).__name__
    if "Attune" not in entries:
        return [key, notes.get("Attune"), "", "", "", ""]
    # Two correct bf16 backward passes differ by half a percent in norm.
    ours = entries["Attune"].gradients()
    agreement = 0.0
    for name, entry in entries.items():
        if name == "Attune":
            continue
        for a, b in zip(ours, entry.gradients()):
            agreement = max(agreement, float((a.float() - b.float()).norm() / b.float().norm()))
    median, _ = side_by_side.time_entries(entries, flush, torch)
    peers = {n: t for n, t in median.items() if n != "Attune"}
    flops = 10.0 * batch * heads * seq * seq * head_dim / (2 if causal else 1)
    rate = f"{flops / median['Attune'] / 1e6:.0f}" if problem is None else ""
    ratios = ", ".join(f"{n} {t:.0f} us ({t / median['Attune']:.2f})" for n, t in peers.items())
    missing = "".join(f", {n}: {why}" for n, why in notes.items())
    return [key, f"{median['Attune']:.0f}", rate, ratios + missing, f"{agreement:.1e}", entries["Attune"].plan]


def main():
    arguments = parse_arguments()
    import torch
    libraries = {"Attune": arguments.library or attune_c.find_library(ROOT)}
    if arguments.beside:
        libraries["the other build"] = arguments.beside
    runtimes = {name: attune_c.Library(path).runtime("cuda:0", "") for name, path in libraries.items()}
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))
    table = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for row in rows():
            if not arguments.only or any(text in row[0] for text in arguments.only):
                table.append(measured(row, runtimes, arguments.alone, generator, flush, torch))
                print("  ".join(table[-1]), file=sys.stderr, flush=True)
    finally:  # a run that is stopped keeps what it has
        header = ["row", "Attune us", "TFLOP/s", "peers (their time over ours)", "largest difference in norm", "plan"]
        page.write_table(arguments.out, ROOT, torch, "bench/backward_side_by_side.py", header, table)


if __name__ == "__main__":
    main()
