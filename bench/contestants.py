"""Who takes part: each contestant turns a problem's inputs into a callable that launches one forward pass,
and gives its output as [batch, heads, seq, dim]."""

import dataclasses
import functools
import importlib.util

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import attune_c


@dataclasses.dataclass
class Inputs:
    q: torch.Tensor  # [batch, heads, seq, dim], contiguous
    k: torch.Tensor
    v: torch.Tensor
    tensors: dict  # name -> tensor


@dataclasses.dataclass
class Entry:
    launch: object  # () -> None: enqueues on the current stream
    output: object  # () -> tensor: what the last launch wrote
    notes: dict = dataclasses.field(default_factory=dict)
    timed_notes: object = dict  # () -> notes that want the device for themselves


def make_inputs(problem, generator, dtype=torch.bfloat16):
    def normal(head_dim):
        size = (problem.batch, problem.heads, problem.seq, head_dim)
        return torch.randn(size, generator=generator, device="cuda", dtype=torch.float32).to(dtype)

    tensors = {name: make_tensor(name, problem, generator) for name in problem.tensors}
    return Inputs(normal(problem.head_dim), normal(problem.head_dim), normal(problem.head_dim_v), tensors)


def make_tensor(name, problem, generator):
    if name != "doc":
        raise ValueError(f"no recipe for the tensor `{name}`")
    # Twelve documents cut at random, numbered in order.
    rows = []
    for _ in range(problem.batch):
        cuts = torch.randperm(problem.seq - 1, generator=generator, device="cuda")[:11] + 1
        starts = torch.zeros(problem.seq, dtype=torch.int32, device="cuda")
        starts[cuts] = 1
        rows.append(starts.cumsum(0, dtype=torch.int32))
    return torch.stack(rows)


def attune(problem, inputs, runtime, root):
    shape = attune_c.Shape(problem.batch, problem.heads, problem.heads, problem.seq, problem.seq)
    compiles = runtime.compiles()
    kernel = runtime.kernel(f"{root}/{problem.spec}", shape)
    # The cache has the code that it was tuned with, unless another version of the library tuned it.
    source = "foreign" if kernel.source == "measured" and runtime.compiles() > compiles else kernel.source
    return launched(kernel, inputs, {"plan": kernel.plan, "source": source})


def launched(kernel, inputs, notes, sequences=None, walks_back=False):
    """An Attune kernel on these inputs. `sequences`: cu_q and so on of packed ones, which lie one behind the other in
    q's rows and in the one entry that k and v have. `walks_back`: the heads of Q lie in memory from the last to the
    first, which the tensor unit cannot walk: a kernel that needs it gives way to the first guess of those that do not."""
    sequences = sequences or {}
    # The layout that specs default to: [batch, seq, heads, dim].
    q, k, v = (t.transpose(1, 2).contiguous() for t in (inputs.q, inputs.k, inputs.v))
    o = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=v.dtype, device=v.device)
    workspace = torch.zeros(max(kernel.workspace_bytes, 16), dtype=torch.uint8, device=q.device)
    first, strides = q.data_ptr(), {}
    if walks_back:
        heads, dim = q.shape[2:]
        q = q.flip(2)
        first = q[:, :, heads - 1].data_ptr()
        strides = {"q_strides": attune_c.Strides(q.stride(0), q.stride(1), -dim)}
    bound = kernel.bind(first, k.data_ptr(), v.data_ptr(), o.data_ptr(), None, workspace.data_ptr(),
                        {name: t.data_ptr() for name, t in inputs.tensors.items()}, dropout_seed=2026,
                        **{name: t.data_ptr() for name, t in sequences.items()}, **strides)
    keep = (q, k, v, workspace, sequences)

    def launch():
        bound(torch.cuda.current_stream().cuda_stream)

    launch.keep = keep
    return Entry(launch, lambda: o.transpose(1, 2), notes)


def sdpa(backend, problem, inputs):
    """Only what scaled_dot_product_attention can say: full or causal, with or without dropout."""
    state = {}

    def launch():
        with sdpa_kernel(backend):
            state["o"] = torch.nn.functional.scaled_dot_product_attention(
                inputs.q, inputs.k, inputs.v, is_causal=problem.causal, dropout_p=problem.dropout)

    return Entry(launch, lambda: state["o"])


def fa3(problem, inputs, **said):
    """FlashAttention-3, where its Python package can be imported. `said`: to its function, beside `causal`."""
    from flash_attn_interface import flash_attn_func
    return _flash(flash_attn_func, problem, inputs, said)


def fa4(problem, inputs, **said):
    """The same of FlashAttention-4, which compiles at its first launch, for seconds."""
    from flash_attn.cute import flash_attn_func
    return _flash(flash_attn_func, problem, inputs, said)


def _flash(function, problem, inputs, said):
    q, k, v = (t.transpose(1, 2).contiguous() for t in (inputs.q, inputs.k, inputs.v))
    state = {}

    def launch():
        out = function(q, k, v, causal=problem.causal, **said)
        state["o"] = out[0] if isinstance(out, tuple) else out

    return Entry(launch, lambda: state["o"].transpose(1, 2))


def can_import(name):
    """Of a module that may lie in a package that is not there either."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def flex(problem, inputs):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    timed_notes, block_mask, score_mod = dict, None, None
    if problem.mask is not None:
        def mask_mod(b, h, q, k):
            return problem.mask(b, h, q, k, inputs.tensors)

        batch = problem.batch if problem.tensors else None
        make = functools.partial(torch.compile(create_block_mask, dynamic=False), mask_mod, batch, None, problem.seq,
                                 problem.seq, device="cuda")
        block_mask = make()

        def timed_notes():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            make()
            end.record()
            torch.cuda.synchronize()
            return {"flex_mask_ms": begin.elapsed_time(end)}

    if problem.score is not None:
        score_mod = problem.score
    state = {}

    def launch():
        state["o"] = compiled(inputs.q, inputs.k, inputs.v, score_mod=score_mod, block_mask=block_mask)

    return Entry(launch, lambda: state["o"], timed_notes=timed_notes)


def makers(problem, inputs, runtime, root):
    """name -> () -> Entry, for those that can express the problem."""
    found = {"Attune": lambda: attune(problem, inputs, runtime, root)}
    if problem.section == "custom":
        found["Flex"] = lambda: flex(problem, inputs)
    else:
        found["cuDNN"] = lambda: sdpa(SDPBackend.CUDNN_ATTENTION, problem, inputs)
        found["FA2"] = lambda: sdpa(SDPBackend.FLASH_ATTENTION, problem, inputs)
        if not problem.dropout and importlib.util.find_spec("flash_attn_interface"):
            found["FA3"] = lambda: fa3(problem, inputs)
    return found
