#!/usr/bin/env python3
"""Attune's backward pass beside its peers' in one process: checks every contestant's gradients, then times them in
interleaved rounds with a cold L2. Times are of all kernels of the pass.

    python3 bench/backward_side_by_side.py --out backward.md
    python3 bench/backward_side_by_side.py --page docs/performance.md     # its sections of which all rows were measured
    python3 bench/backward_side_by_side.py --only custom/ --workers 14     # compiled at once, timed one at a time
    python3 bench/backward_side_by_side.py --only 4096 --memory     # what a pass takes beside its operands, too
    python3 bench/backward_side_by_side.py --beside before/libattune.so --alone     # what a change did to all rows

Gradients are compared with Attune's. With dropout each contestant draws bits of its own: there every one's gradients
of a head are compared with float64's, of the elements that its own forward pass kept. In deterministic rows a
contestant whose second launch gives other bits takes no part.

Needs a CUDA GPU, PyTorch 2.6 or newer, and libattune.so. FlashAttention-3 takes part where its package
`flash_attn_interface` can be imported; FlexAttention's FLASH backend where flash-attn-4 is installed. Attune runs
the cost model's plans.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import itertools
import os
import signal
import sys
from typing import NamedTuple, Optional

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attune_c  # noqa: E402
import backward_page  # noqa: E402
import contestants  # noqa: E402
import in_turns  # noqa: E402
import page  # noqa: E402
import problems  # noqa: E402
import side_by_side  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = "bench/backward_side_by_side.py"
TOKENS = 16384
THREADS = 16  # that compile Attune's kernels, where nobody says how many
DROPOUT, DROPOUT_SEED = 0.1, 2026


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libattune.so; default: the newest below build/")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows whose key contains this; repeatable")
    parser.add_argument("--list", action="store_true", help="the keys of the rows, and stop")
    parser.add_argument("--beside", metavar="LIBRARY", help="another build's libattune.so, a contestant of its own")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--memory", action="store_true",
                        help="a column of what a pass takes beside q, k, v, o, lse, dO and the gradients")
    parser.add_argument("--workers", type=int, metavar="N",
                        help="a process for each row: so many compile at once, and one at a time is timed; with "
                             "--alone so many threads of one process compile")
    parser.add_argument("--seconds", type=float, default=side_by_side.SECONDS_A_PROBLEM,
                        help="that a row is timed; default: %(default)s")
    parser.add_argument("--out", default="/dev/stdout", help="where the table goes")
    parser.add_argument("--page", help="instead: the page whose sections to rewrite, docs/performance.md")
    return parser.parse_args()


@dataclasses.dataclass(frozen=True)
class Row:
    key: str
    heads: int
    seq: int
    head_dim: int
    causal: bool = False
    kv_heads: Optional[int] = None  # where they are fewer
    value_dim: Optional[int] = None  # of V and O, where it is not head_dim
    dropout: float = 0.0
    problem: Optional[problems.Problem] = None  # a custom one

    @property
    def batch(self):
        return self.problem.batch if self.problem else TOKENS // self.seq

    @property
    def shape(self):
        return attune_c.Shape(self.batch, self.heads, self.kv_heads or self.heads, self.seq, self.seq)

    @property
    def head_dim_v(self):
        return self.value_dim or self.head_dim

    @property
    def is_deterministic(self):
        return self.key.startswith("deterministic/")

    @property
    def yaml(self):
        return (f"attune: 1\nname: bench\ndtype: bf16\nhead_dim: {{qk: {self.head_dim}, v: {self.head_dim_v}}}\n" +
                ("mask: causal\n" if self.causal else "") + (f"dropout: {self.dropout}\n" if self.dropout else "") +
                ("deterministic: true\n" if self.is_deterministic else ""))

    @property
    def flops(self):
        """Of five products; a causal one counts half."""
        columns = 3 * self.head_dim + 2 * self.head_dim_v
        return 2 * self.batch * self.heads * self.seq**2 * columns / (2 if self.causal else 1)


def plain_rows(kind, head_dim, heads, seqs, value_dim=None):
    dims = f"{head_dim}_{value_dim}" if value_dim else head_dim
    for causal in (False, True):
        for seq in seqs:
            yield Row(f"{kind}/d{dims}/{'causal' if causal else 'full'}/{seq}", heads, seq, head_dim, causal,
                      value_dim=value_dim)


def rows():
    for head_dim, heads in ((128, 16), (64, 32), (96, 16)):
        yield from plain_rows("dense", head_dim, heads, (512, 1024, 2048, 4096, 8192, 16384))
    for kind, head_dim, heads, value_dim in (("dense", 192, 16, None), ("dense", 256, 8, None), ("dense", 192, 16, 128),
                                             ("deterministic", 128, 16, None), ("deterministic", 64, 32, None)):
        yield from plain_rows(kind, head_dim, heads, (1024, 4096, 16384), value_dim)
    for causal in (False, True):
        yield Row(f"gqa/{'causal' if causal else 'full'}/4096", 32, 4096, 128, causal, kv_heads=8)
    for seq in (2048, 8192):
        yield Row(f"dropout/causal/{seq}", 16, seq, 128, True, dropout=DROPOUT)
    for problem in problems.custom_problems():
        yield Row(f"custom/{problem.name}", problem.heads, problem.seq, problem.head_dim, problem=problem)


class Inputs(NamedTuple):
    """Tensors [batch, heads, seq, dim], and those of the mask by name."""
    q: object
    k: object
    v: object
    d_o: object
    tensors: dict = {}


def make_inputs(row, generator, torch):
    def normal(heads, dim):
        size = (row.batch, heads, row.seq, dim)
        return torch.randn(size, generator=generator, device="cuda").to(torch.bfloat16)

    names = row.problem.tensors if row.problem else ()
    tensors = {n: contestants.make_tensor(n, row.problem, generator) for n in names}
    kv_heads = row.kv_heads or row.heads
    return Inputs(normal(row.heads, row.head_dim), normal(kv_heads, row.head_dim), normal(kv_heads, row.head_dim_v),
                  normal(row.heads, row.head_dim_v), tensors)


@functools.cache
def kernels(runtime, row):
    """(forward, backward); compiles at first."""
    if row.problem is None:
        make = lambda of_pass: runtime.kernel_from_yaml(row.yaml, row.shape, of_pass)
    else:
        make = lambda of_pass: runtime.kernel(f"{ROOT}/{row.problem.spec}", row.shape, of_pass)
    return make(attune_c.PASS_FORWARD), make(attune_c.PASS_BACKWARD)


def compile_ahead(rows, runtimes, workers):
    """Attune's kernels of all rows, by threads. What cannot be compiled says so again when its row's turn comes."""

    def one(job):
        with contextlib.suppress(attune_c.AttuneError):
            kernels(*job)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, itertools.product(runtimes, rows)))


class Attune:
    kept_share = 1 - round(256 * DROPOUT) / 256  # dropout has steps of 1/256

    def __init__(self, runtime, row, inputs, torch):
        forward, backward = kernels(runtime, row)
        self.plan, self.torch = backward.plan, torch
        q, k, v, g = (t.transpose(1, 2).contiguous() for t in inputs[:4])
        tensors = inputs.tensors
        o = torch.empty_like(g)
        lse = torch.empty(row.batch, row.heads, row.seq, device="cuda", dtype=torch.float32)
        grads = [torch.full_like(t, float("nan")) for t in (q, k, v)]
        space = torch.empty(max(forward.workspace_bytes, backward.workspace_bytes, 16), dtype=torch.uint8,
                            device="cuda")
        self.workspace_bytes = backward.workspace_bytes
        self.forward = lambda v, o: forward.bind(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), space.data_ptr(),
            {n: t.data_ptr() for n, t in tensors.items()}, DROPOUT_SEED)(self.stream())
        self.forward(v, o)
        bound = backward.bind_backward(
            dict(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr(),
                 d_o=g.data_ptr(), d_q=grads[0].data_ptr(), d_k=grads[1].data_ptr(), d_v=grads[2].data_ptr(),
                 workspace=space.data_ptr(), workspace_bytes=space.numel()),
            {n: (t.data_ptr(), list(t.shape), attune_c.INT32) for n, t in tensors.items()}, DROPOUT_SEED)
        self.keep = (q, k, v, g, o, lse, space, tensors)
        self.launch = lambda: bound(self.stream())
        self.gradients = lambda: [t.transpose(1, 2) for t in grads]

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def attend(self, values):
        """O of other values; what dropout drops is the same."""
        v = values.transpose(1, 2).contiguous()
        o = self.torch.empty_like(self.keep[4])
        self.forward(v, o)
        return o.transpose(1, 2)

    def forget(self):
        return 0


class FlashAttention3:
    workspace_bytes = 0

    def __init__(self, row, inputs, torch):
        import flash_attn_interface as fa
        q, k, v, g = (t.transpose(1, 2).contiguous() for t in inputs[:4])
        scale, causal = q.shape[-1] ** -0.5, row.causal
        o, lse, *_ = fa._flash_attn_forward(q, k, v, causal=causal, softmax_scale=scale)
        grads = [torch.empty_like(t) for t in (q, k, v)]
        self.launch = lambda: fa._flash_attn_backward(g, q, k, v, o, lse, dq=grads[0], dk=grads[1], dv=grads[2],
                                                      softmax_scale=scale, is_causal=causal,
                                                      deterministic=row.is_deterministic)
        self.gradients = lambda: [t.transpose(1, 2) for t in grads]

    def forget(self):
        return 0


class Autograd:
    """A function of q, k and v whose graph is kept: only its backward pass is launched."""

    workspace_bytes = 0
    kept_share = 1 - DROPOUT

    def __init__(self, forward, inputs, torch):
        self.leaves = [t.detach().clone().requires_grad_(True) for t in inputs[:3]]
        self.o, self.d_o = forward(*self.leaves), inputs[3]
        self.grad, self.grads = torch.autograd.grad, None
        self.attend = lambda values: forward(*self.leaves[:2], values)

    def launch(self):
        self.grads = self.grad(self.o, self.leaves, self.d_o, retain_graph=True)

    def gradients(self):
        return self.grads

    def forget(self):
        """Frees the gradients, which the next launch allocates anew, and tells their bytes."""
        size = sum(t.numel() * t.element_size() for t in self.grads)
        self.grads = None
        return size


class DeterministicAutograd(Autograd):
    """The same as a user has it who asks torch for deterministic algorithms. What they allocate is not filled: that
    is for finding errors, and would be timed."""

    def __init__(self, forward, inputs, torch):
        super().__init__(forward, inputs, torch)
        self.ask, self.settings = torch.use_deterministic_algorithms, torch.utils.deterministic

    def launch(self):
        self.settings.fill_uninitialized_memory = False
        self.ask(True)
        try:
            super().launch()
        finally:
            self.ask(False)


def sdpa(row, backend, torch):
    """As a function of q, k and v. With dropout it draws the same bits each time."""
    from torch.nn.attention import sdpa_kernel

    def attend(q, k, v):
        if row.dropout:
            torch.manual_seed(DROPOUT_SEED)
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=row.causal, dropout_p=row.dropout, enable_gqa=row.kv_heads is not None)

    return attend


def dense_peers(row, inputs, torch):
    from torch.nn.attention import SDPBackend
    if not row.dropout and importlib.util.find_spec("flash_attn_interface"):
        yield "FA3", lambda: FlashAttention3(row, inputs, torch)
    kind = DeterministicAutograd if row.is_deterministic else Autograd
    yield "cuDNN", lambda: kind(sdpa(row, SDPBackend.CUDNN_ATTENTION, torch), inputs, torch)
    if row.dropout:
        yield "FA2", lambda: Autograd(sdpa(row, SDPBackend.FLASH_ATTENTION, torch), inputs, torch)


def flex_peers(row, inputs, torch):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    problem, mask = row.problem, None
    if problem.mask is not None:
        # Not compiled, which would take ten times as long as all else: here masks are not timed.
        mask = create_block_mask(lambda b, h, q, k: problem.mask(b, h, q, k, inputs.tensors),
                                 row.batch if problem.tensors else None, None, row.seq, row.seq, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    backends = ["TRITON"] + (["FLASH"] if importlib.util.find_spec("flash_attn") else [])
    for backend in backends:
        options = {} if backend == "TRITON" else {"BACKEND": backend}
        yield f"Flex {backend}", lambda options=options: Autograd(
            lambda q, k, v: compiled(q, k, v, score_mod=problem.score, block_mask=mask, kernel_options=options),
            inputs, torch)


def contestants_of(row, inputs, runtimes, alone, torch):
    for name, runtime in runtimes.items():
        yield name, lambda runtime=runtime: Attune(runtime, row, inputs, torch)
    if not alone:
        yield from (flex_peers if row.problem else dense_peers)(row, inputs, torch)


def check_bits(entry, torch):
    first = [t.clone() for t in entry.gradients()]
    entry.launch()
    if not all(torch.equal(a, b) for a, b in zip(first, entry.gradients())):
        raise RuntimeError("other bits at the second launch")


def take_part(row, found, torch):
    """Those of `found` that can do it, by name, and why others cannot."""
    entries, notes = {}, {}
    for name, make in found:
        try:
            entry = make()
            entry.launch()
            torch.cuda.synchronize()
            if row.is_deterministic:
                check_bits(entry, torch)
            entries[name] = entry
        except Exception as error:  # a peer that cannot do it takes no part
            notes[name] = str(error).splitlines()[0][:60] if str(error) else type(error).__name__
    return entries, notes


def apart(mine, theirs):
    """The largest norm of the difference, of the norm. Two correct bf16 backward passes differ by half a percent."""
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(mine, theirs))


def kept_elements(entry, values, b, h, torch):
    """Those of a head that dropout leaves: O is columns of P where V is rows of a unit matrix."""
    width = values.shape[-1]
    unit = torch.eye(width, dtype=values.dtype, device="cuda")
    columns = []
    for first in range(0, values.shape[-2], width):
        rows_of_unit = torch.zeros_like(values)
        rows_of_unit[:, :, first:first + width] = unit
        columns.append(entry.attend(rows_of_unit)[b, h] != 0)
    return torch.cat(columns, 1)


def exact_gradients(row, inputs, weights, b, h, torch):
    """Of a head in float64, whose probabilities are multiplied by `weights`."""
    leaves = [t[b, h].double().requires_grad_(True) for t in inputs[:3]]
    q, k, v = leaves
    scores = (q @ k.T) * row.head_dim**-0.5
    if row.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    o = (torch.softmax(scores, -1) * weights) @ v
    return torch.autograd.grad(o, leaves, inputs.d_o[b, h].double())


def head_error(row, entry, inputs, torch):
    """Of the gradients of a head that has keys of its own, against float64's."""
    b, h = row.batch - 1, row.heads - 2
    weights = kept_elements(entry, inputs.v, b, h, torch).double() / entry.kept_share if row.dropout else 1.0
    wanted = exact_gradients(row, inputs, weights, b, h, torch)
    return apart([t[b, h] for t in entry.gradients()], wanted)


def largest_difference(row, entries, inputs, torch):
    if row.dropout:
        return max(head_error(row, entry, inputs, torch) for entry in entries.values())
    ours = entries["Attune"].gradients()
    return max((apart(ours, entry.gradients()) for name, entry in entries.items() if name != "Attune"), default=0.0)


def extra_bytes(entry, torch):
    """What a launch takes beside its operands and the gradients."""
    made = entry.forget()
    gc.collect()  # of rows before, which would be freed meanwhile
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    entry.launch()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - made + entry.workspace_bytes


def measured(row, runtimes, options, generator, flush, torch):
    """Its row of the table."""
    with in_turns.compiling():
        inputs = make_inputs(row, generator, torch)
        entries, notes = take_part(row, contestants_of(row, inputs, runtimes, options.alone, torch), torch)
        if "Attune" not in entries:
            return [row.key, notes["Attune"], "", "", "", ""] + [""] * options.memory
        difference = largest_difference(row, entries, inputs, torch)
        memory = []
        if options.memory:
            memory = [", ".join(f"{n} {extra_bytes(e, torch) / 1e6:.1f}" for n, e in entries.items())]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # of what block masks were made of: other rows compile beside this one
    with in_turns.timing():
        median, _ = side_by_side.time_entries(entries, flush, torch)
    ours = median["Attune"]
    rate = f"{row.flops / ours / 1e6:.0f}" if row.problem is None else ""
    ratios = [f"{n} {t:.0f} us ({t / ours:.2f})" for n, t in median.items() if n != "Attune"]
    beside = ", ".join(ratios + [f"{n}: {why}" for n, why in notes.items()])
    return [row.key, f"{ours:.0f}", rate, beside, f"{difference:.1e}", entries["Attune"].plan, *memory]


def chosen_rows(options):
    return [row for row in rows() if not options.only or any(text in row.key for text in options.only)]


def measuring(options, ahead=()):
    """A function of a row. Attune's kernels of the rows `ahead` are compiled first."""
    import torch
    side_by_side.SECONDS_A_PROBLEM = options.seconds
    libraries = {"Attune": options.library or attune_c.find_library(ROOT)}
    if options.beside:
        libraries["the other build"] = options.beside
    torch.zeros(1, device="cuda")  # makes the primary context that Attune will share
    runtimes = {name: attune_c.Library(path).runtime("cuda:0", "") for name, path in libraries.items()}
    compile_ahead(ahead, runtimes.values(), options.workers or THREADS)
    flush = torch.empty(side_by_side.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(int.from_bytes(os.urandom(4), "little"))

    def measure(row):
        try:
            return measured(row, runtimes, options, generator, flush, torch)
        finally:  # contestants refer to themselves
            gc.collect()
            torch.cuda.empty_cache()

    return measure


def measured_alone(options, key):
    """Of a process of its own, which leaves the device's memory to those that wait for their turn."""
    return measuring(options)(next(row for row in rows() if row.key == key))


def failed(options, key, error):
    return [key, f"{type(error).__name__}: {error}".splitlines()[0][:100], "", "", "", ""] + [""] * options.memory


def main():
    options = parse_arguments()
    chosen = chosen_rows(options)
    if options.list:
        print("\n".join(row.key for row in chosen))
        return
    import torch
    if options.workers and not options.alone:
        of_options = functools.partial(measured_alone, options), functools.partial(failed, options)
        found = in_turns.results(*of_options, [row.key for row in chosen], options.workers)
    else:
        found = map(measuring(options, chosen), chosen)
    table = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for cells in found:
            table.append(cells)
            print("  ".join(cells), file=sys.stderr, flush=True)
    finally:  # a run that is stopped keeps what it has, but for sections of a page that lack rows
        header = ["row", "Attune us", "TFLOP/s", "peers (their time over ours)", "largest difference in norm", "plan"]
        header += ["MB beside operands and gradients"] * options.memory
        if options.page:
            made = page.made(ROOT, torch, PROGRAM)
            every = [row.key for row in rows()]
            page.rewrite(options.page, lambda text: backward_page.render(text, made, header, table, every))
        else:
            page.write_table(options.out, ROOT, torch, PROGRAM, header, table)


if __name__ == "__main__":
    main()
