"""Who takes part in bench/cliffs.py: each turns a problem's inputs, which lie as the problem's layout says, into a
callable that launches one pass, and gives that pass's results as [batch, heads, seq, dim]."""

import dataclasses
import importlib.util
import itertools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import attune_c
from cliff_problems import BACKWARD, FORWARD, MASKS, SCORES, default_scale

SEED = 2026
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "SDPA flash": SDPBackend.FLASH_ATTENTION}


@dataclasses.dataclass
class Inputs:
    """Views [batch, heads, seq, dim]; of packed sequences batch is 1."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_o: torch.Tensor
    doc: torch.Tensor = None
    offsets: torch.Tensor = None  # of packed sequences


@dataclasses.dataclass
class Entry:
    launch: object  # () -> None
    results: object  # () -> tensors: O, or dQ, dK and dV
    plan: str = ""
    alike: bool = True  # False: it computes something simpler, which a peer's time stands for


def empty(problem, heads, length, dim):
    """A view [batch, heads, length, dim] of memory in the problem's layout; `qkv` has slices of that elsewhere."""
    batch = 1 if problem.lengths else problem.batch
    if problem.layout == "bhsd":
        return torch.empty(batch, heads, length, dim, dtype=DTYPES[problem.dtype], device="cuda")
    return torch.empty(batch, length, heads, dim, dtype=DTYPES[problem.dtype], device="cuda").transpose(1, 2)


def operands(problem):
    """Q, K and V without numbers in them."""
    queries, keys = problem.total
    if problem.layout != "qkv":
        return (empty(problem, problem.heads, queries, problem.dim), empty(problem, problem.kv_heads, keys, problem.dim),
                empty(problem, problem.kv_heads, keys, problem.dim_v))
    whole = torch.empty(problem.batch, queries, 3, problem.heads, problem.dim, dtype=DTYPES[problem.dtype], device="cuda")
    return tuple(whole[:, :, i].transpose(1, 2) for i in range(3))


def make_inputs(problem, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    tensors = [*operands(problem), empty(problem, problem.heads, problem.total[0], problem.dim_v)]
    for tensor in tensors if problem.of_pass == BACKWARD else tensors[:3]:
        tensor.normal_(generator=generator)
    inputs = Inputs(*tensors)
    if MASKS[problem.mask].doc:
        starts = torch.rand(problem.batch, problem.kv_len, generator=generator, device="cuda") < 1 / 700
        inputs.doc = starts.cumsum(1).to(torch.int32)
    if problem.lengths:
        offsets = [0, *itertools.accumulate(problem.lengths)]
        inputs.offsets = torch.tensor(offsets, dtype=torch.int32, device="cuda")
    return inputs


def stream():
    return torch.cuda.current_stream().cuda_stream


def kernels(problem, runtime):
    """(forward, backward or None); compiles at first."""
    shape = attune_c.Shape(problem.batch, problem.heads, problem.kv_heads, *problem.total)
    spec = runtime.spec_from_yaml(problem.yaml)
    forward = runtime.kernel_of(spec, shape, attune_c.PASS_FORWARD)
    backward = runtime.kernel_of(spec, shape, attune_c.PASS_BACKWARD) if problem.of_pass == BACKWARD else None
    return forward, backward


def strides_of(**views):
    return {f"{name}_strides": attune_c.Strides(t.stride(0), t.stride(2), t.stride(1)) for name, t in views.items()}


def attune(problem, inputs, found):
    """`found`: of kernels()."""
    forward, backward = found
    q, k, v = inputs.q, inputs.k, inputs.v
    o = torch.full_like(empty(problem, problem.heads, problem.total[0], problem.dim_v), float("nan"))
    size = max(x.workspace_bytes for x in found if x)
    space = torch.zeros(max(size, 16), dtype=torch.uint8, device="cuda")
    lse = torch.empty(problem.batch, problem.heads, problem.q_len, device="cuda") if backward else None
    said = strides_of(q=q, k=k, v=v, o=o)
    first = q.data_ptr()
    if problem.kind == "sm80":  # heads that the tensor unit cannot walk: the kernel gives way to that family's
        q = q.transpose(1, 2).flip(2)
        first = q[:, :, -1].data_ptr()
        said["q_strides"] = attune_c.Strides(q.stride(0), q.stride(1), -q.stride(2))
    packed = {name: inputs.offsets.data_ptr() for name in ("cu_q", "cu_kv")} if problem.lengths else {}
    named = {"doc": inputs.doc} if inputs.doc is not None else {}
    run = forward.bind(first, k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr() if backward else None,
                       space.data_ptr(), {name: t.data_ptr() for name, t in named.items()}, SEED, **said, **packed)
    keep = (q, k, v, o, lse, space, inputs)
    if not backward:
        return Entry(lambda keep=keep: run(stream()), lambda: [o], forward.plan)
    run(stream())
    grads = [torch.full_like(t, float("nan")) for t in operands(problem)]
    said |= strides_of(d_o=inputs.d_o, d_q=grads[0], d_k=grads[1], d_v=grads[2])
    pointers = dict(q=q, k=k, v=v, o=o, lse=lse, d_o=inputs.d_o, d_q=grads[0], d_k=grads[1], d_v=grads[2], workspace=space)
    bound = backward.bind_backward({name: t.data_ptr() for name, t in pointers.items()} | said,
                                   {n: (t.data_ptr(), list(t.shape), attune_c.INT32) for n, t in named.items()}, SEED)
    return Entry(lambda keep=keep: bound(stream()), lambda: grads, backward.plan)


def of_autograd(problem, inputs, attend):
    """`attend`: a function of q, k and v. Of a backward pass only that pass is launched."""
    state = {}
    if problem.of_pass == FORWARD:
        def launch():
            state["o"] = attend(inputs.q, inputs.k, inputs.v)

        return Entry(launch, lambda: [state["o"]])
    leaves = [t.detach().requires_grad_(True) for t in (inputs.q, inputs.k, inputs.v)]
    o = attend(*leaves)

    def launch_backward():
        state["grads"] = torch.autograd.grad(o, leaves, inputs.d_o, retain_graph=True)

    return Entry(launch_backward, lambda: state["grads"])


def sdpa(problem, inputs, backend):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=problem.mask == "causal", dropout_p=problem.dropout,
                enable_gqa=problem.heads != problem.kv_heads)

    return of_autograd(problem, inputs, attend)


def flash_attention_2(problem, inputs):
    """torch's, by the operators below scaled_dot_product_attention, which can do windows and packed sequences."""
    width = MASKS[problem.mask].window
    causal = problem.mask != "none"
    window = {"window_size_left": width - 1, "window_size_right": 0} if width else {}
    q, k, v, d_o = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v, inputs.d_o))
    if problem.lengths:
        q, k, v = q[0], k[0], v[0]
    cu, state = inputs.offsets, {}

    def forward():
        state["all"] = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, problem.q_len, problem.kv_len, 0.0, causal,
                                                               False, scale=default_scale(problem), **window)

    if problem.of_pass == FORWARD:
        def output():
            o = state["all"][0]
            return [(o[None] if problem.lengths else o).transpose(1, 2)]

        return Entry(forward, output)
    forward()
    o, lse, philox, unused, _ = state["all"]

    def backward():
        state["grads"] = torch.ops.aten._flash_attention_backward(
            d_o, q, k, v, o, lse, cu, cu, problem.q_len, problem.kv_len, 0.0, causal, philox, unused,
            scale=default_scale(problem), **window)

    return Entry(backward, lambda: [t.transpose(1, 2) for t in state["grads"]])


def flash_attention_3(problem, inputs):
    import flash_attn_interface as fa
    q, k, v, d_o = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v, inputs.d_o))
    causal, scale, state = problem.mask == "causal", default_scale(problem), {}

    def forward():
        state["o"], state["lse"], *_ = fa._flash_attn_forward(q, k, v, causal=causal, softmax_scale=scale)

    if problem.of_pass == FORWARD:
        return Entry(forward, lambda: [state["o"].transpose(1, 2)])
    forward()
    grads = [torch.empty_like(t) for t in (q, k, v)]

    def backward():
        fa._flash_attn_backward(d_o, q, k, v, state["o"], state["lse"], dq=grads[0], dk=grads[1], dv=grads[2],
                                softmax_scale=scale, is_causal=causal)

    return Entry(backward, lambda: [t.transpose(1, 2) for t in grads])


def flex(problem, inputs):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    before, mask, score = problem.kv_len - problem.q_len, MASKS[problem.mask].says, SCORES[problem.score].says
    block_mask = score_mod = None
    if mask:
        block_mask = create_block_mask(lambda b, h, q, k: mask(b, q + before, k, inputs.doc),
                                       problem.batch if inputs.doc is not None else None, None, problem.q_len,
                                       problem.kv_len, device="cuda")
    if score:
        def score_mod(s, b, h, q, k):
            return score(s, h, q + before, k, problem.heads)

    return of_autograd(problem, inputs, lambda q, k, v: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask,
                                                                 enable_gqa=problem.heads != problem.kv_heads))


def check(problem, inputs, entry):
    """Results are held against one another's."""


def can_flex(problem):
    return not problem.lengths and not problem.is_dense and not problem.dropout


def peers(problem, inputs):
    """name -> () -> Entry, of those that may be able to. A causal mask ends at the last key, and
    scaled_dot_product_attention's at the diagonal."""
    found, same = {}, problem.q_len == problem.kv_len or problem.mask == "none"
    if problem.is_dense and same:
        names = ["cuDNN", "efficient"] + (["SDPA flash"] if problem.dropout or problem.dtype == "fp32" else [])
        if problem.kind == "sm80":  # what a GPU before Hopper has
            names = ["efficient"]
        found |= {name: lambda name=name: sdpa(problem, inputs, BACKENDS[name]) for name in names}
    half, one_dim = problem.dtype != "fp32", problem.dim == problem.dim_v
    if half and one_dim and not problem.dropout and (problem.is_dense or problem.lengths or MASKS[problem.mask].window and
                                                     problem.score == "none"):
        found["FA2"] = lambda: flash_attention_2(problem, inputs)
    if (problem.dtype == "bf16" and one_dim and problem.is_dense and not problem.dropout and problem.kind != "sm80" and
            importlib.util.find_spec("flash_attn_interface")):
        found["FA3"] = lambda: flash_attention_3(problem, inputs)
    if can_flex(problem):
        found["Flex"] = lambda: flex(problem, inputs)
    return found
