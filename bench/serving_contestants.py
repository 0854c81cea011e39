"""Who takes part in bench/cliffs.py --survey serving. Results are packed, [tokens, heads, dim], whatever a peer is given:
pages where it reads them, else its cache packed or, of sequences that are alike, as a dense batch."""

import dataclasses
import importlib.util
import itertools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import cache_pages
from cliff_contestants import Entry, kernels  # noqa: F401 - kernels() is for cliffs.py, which asks this module for all
from serving_problems import BACKWARD, FORWARD

DEVICE = "cuda"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ALLOWED = 0.02  # of a result's error in norm
MOST_EXACT_PAIRS = 1 << 28  # of queries and keys that one head is checked on
FLASH_FORWARD = torch.ops.aten._flash_attention_forward


@dataclasses.dataclass
class Inputs:
    """Packed, [tokens, heads, dim]; and in pages, where the problem has them."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_o: torch.Tensor
    cu_q: torch.Tensor
    cu_kv: torch.Tensor
    used: torch.Tensor
    sinks: torch.Tensor
    pages: cache_pages.Pages = None


def bounds(lengths):
    return [0, *itertools.accumulate(lengths)]


def offsets(lengths):
    return torch.tensor(bounds(lengths), dtype=torch.int32, device=DEVICE)


def make_inputs(problem, seed):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    tokens, rows = sum(problem.queries), sum(problem.keys)

    def normal(count, heads):
        tensor = torch.empty(count, heads, problem.dim, dtype=DTYPES[problem.dtype], device=DEVICE)
        return tensor.normal_(generator=generator)

    q, k, v = normal(tokens, problem.heads), normal(rows, problem.kv_heads), normal(rows, problem.kv_heads)
    d_o = normal(tokens, problem.heads) if problem.of_pass == BACKWARD else None
    sinks = torch.randn(problem.heads, generator=generator, device=DEVICE)
    inputs = Inputs(q, k, v, d_o, offsets(problem.queries), offsets(problem.keys),
                    torch.tensor(problem.keys, dtype=torch.int32, device=DEVICE), sinks)
    if problem.page:
        inputs.pages = in_pages(problem, inputs, generator)
    return inputs


def in_pages(problem, inputs, generator):
    """The cache in shuffled pages."""
    size = problem.page
    counts = [cache_pages.pages_of(n, size) for n in problem.keys]
    order = torch.randperm(sum(counts), generator=generator, device=DEVICE)
    batch, first = len(counts), offsets(counts).long()
    place = torch.arange(max(counts), device=DEVICE)[None, :] + first[:-1, None]
    is_there = place < first[1:, None]
    table = torch.zeros(batch, max(counts), dtype=torch.int32, device=DEVICE)
    table[is_there] = order[place[is_there]].int()
    lengths = inputs.used.long()
    sequence = torch.repeat_interleave(torch.arange(batch, device=DEVICE), lengths)
    own = torch.arange(len(inputs.k), device=DEVICE) - inputs.cu_kv.long()[sequence]
    row = order[first[sequence] + own // size] * size + own % size
    caches = []
    for tensor in (inputs.k, inputs.v):
        pages = torch.zeros(len(order) * size, *tensor.shape[1:], dtype=tensor.dtype, device=DEVICE)
        pages[row] = tensor
        caches.append(pages.view(len(order), size, *tensor.shape[1:]))
    return cache_pages.Pages(caches, table, size, list(problem.keys))


def exact_of_head(problem, inputs, index, head):
    """O, or dQ and the head's share of dK and dV, of one sequence in fp64."""
    (q0, q1), (k0, k1) = (bounds(lengths)[index:index + 2] for lengths in (problem.queries, problem.keys))
    kv_head = head // (problem.heads // problem.kv_heads)
    q, k, v = (t.double().requires_grad_(problem.of_pass == BACKWARD)
               for t in (inputs.q[q0:q1, head], inputs.k[k0:k1, kv_head], inputs.v[k0:k1, kv_head]))
    scores = (q @ k.T) * problem.dim**-0.5
    if problem.softcap:
        scores = problem.softcap * (scores / problem.softcap).tanh()
    rows, keys = torch.arange(q1 - q0, device=DEVICE)[:, None] + (k1 - k0) - (q1 - q0), torch.arange(k1 - k0, device=DEVICE)
    if problem.causal:
        scores = scores.masked_fill(keys > rows, float("-inf"))
    if problem.window:
        scores = scores.masked_fill(rows - keys >= problem.window, float("-inf"))
    if problem.sinks:
        sink = inputs.sinks[head].double().expand(len(q), 1)
        weights = torch.softmax(torch.cat([scores, sink], 1), -1)[:, :-1]
    else:
        weights = torch.softmax(scores, -1)
    o = weights @ v
    if problem.of_pass == FORWARD:
        return [o]
    return list(torch.autograd.grad(o, (q, k, v), inputs.d_o[q0:q1, head].double()))


def check(problem, inputs, entry):
    """Raises where the longest or the last sequence's first or last head is not what fp64 says, or where rows of sequences
    without keys are not zero. dK and dV of several heads are the peers' to judge."""
    if not entry.alike:
        return
    results = entry.results()
    for index, head in {(max(range(problem.batch), key=lambda i: problem.keys[i]), 0), (problem.batch - 1, problem.heads - 1)}:
        queries, keys = problem.queries[index], problem.keys[index]
        q0 = bounds(problem.queries)[index]
        if queries and not keys and not (results[0][q0:q0 + queries] == 0).all():
            raise ValueError(f"rows of sequence {index}, which has no keys, are not zero")
        if not queries or not keys or queries * keys > MOST_EXACT_PAIRS:
            continue
        wanted = exact_of_head(problem, inputs, index, head)
        error = torch.linalg.vector_norm(results[0][q0:q0 + queries, head].double() - wanted[0]).item()
        norm = torch.linalg.vector_norm(wanted[0]).item()
        if not error <= ALLOWED * norm + 1e-6:
            raise ValueError(f"an error of {error / max(norm, 1e-30):.1e} beside fp64, sequence {index}, head {head}")


def stream():
    return torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else None


def attune(problem, inputs, found):
    """`found`: of kernels()."""
    forward, backward = found
    o = torch.full_like(inputs.q, float("nan"))
    space = torch.zeros(max(16, *(x.workspace_bytes for x in found if x)), dtype=torch.uint8, device=DEVICE)
    lse = torch.empty(problem.heads, len(inputs.q), device=DEVICE) if backward else None
    k, v, said = inputs.k, inputs.v, {"cu_q": inputs.cu_q.data_ptr()}
    if problem.page:
        k, v = inputs.pages.caches
        said |= {"used_kv": inputs.used.data_ptr(), "page_table": inputs.pages.table.data_ptr(),
                 "pages_per_sequence": inputs.pages.table.shape[1], "page_size": problem.page, "pages": len(k)}
    else:
        said["cu_kv"] = inputs.cu_kv.data_ptr()
    named = {"sinks": inputs.sinks.data_ptr()} if problem.sinks else {}
    run = forward.bind(inputs.q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr() if backward else None,
                       space.data_ptr(), named, **said)
    keep = (o, lse, space, inputs)
    if not backward:
        return Entry(lambda keep=keep: run(stream()), lambda: [o], forward.plan)
    run(stream())
    grads = [torch.full_like(t, float("nan")) for t in (inputs.q, inputs.k, inputs.v)]
    tensors = dict(q=inputs.q, k=inputs.k, v=inputs.v, o=o, lse=lse, d_o=inputs.d_o, d_q=grads[0], d_k=grads[1],
                   d_v=grads[2], workspace=space, cu_q=inputs.cu_q, cu_kv=inputs.cu_kv)
    pointers = {name: t.data_ptr() for name, t in tensors.items()} | {"workspace_bytes": space.numel()}
    bound = backward.bind_backward(pointers, {})
    return Entry(lambda keep=keep: bound(stream()), lambda: grads, backward.plan)


def window_of(problem):
    return {"window_size_left": problem.window - 1, "window_size_right": 0} if problem.window else {}


def flash_attention_2(problem, inputs, layout):
    """PyTorch's. `layout`: "packed"; "pages"; or "dense", which splits keys, of sequences that are alike."""
    k, v, more, cu = inputs.k, inputs.v, window_of(problem), (inputs.cu_q, inputs.cu_kv)
    q = inputs.q
    if layout == "pages":
        (k, v), more = inputs.pages.caches, more | {"block_table": inputs.pages.table, "seqused_k": inputs.used}
    elif layout == "dense":
        q, k, v = (t.view(problem.batch, -1, *t.shape[1:]) for t in (q, k, v))
        cu = (None, None)
    longest = max(problem.queries), max(problem.keys)
    state = {}

    def forward():
        state["all"] = FLASH_FORWARD(q, k, v, *cu, *longest, 0.0, problem.causal, False, scale=problem.dim**-0.5, **more)

    if problem.of_pass == FORWARD:
        return Entry(forward, lambda: [state["all"][0].reshape(inputs.q.shape)], alike=problem.is_plain)
    forward()
    o, lse, philox, unused, _ = state["all"]

    def backward():
        state["grads"] = torch.ops.aten._flash_attention_backward(
            inputs.d_o, q, k, v, o, lse, *cu, *longest, 0.0, problem.causal, philox, unused, scale=problem.dim**-0.5, **more)

    return Entry(backward, lambda: state["grads"])


def flash_attention_3(problem, inputs, splits, in_pages):
    """`splits`: 1, or 0: as many as it finds best."""
    import flash_attn_interface as fa
    packed = {"cu_seqlens_q": inputs.cu_q, "max_seqlen_q": max(problem.queries), "max_seqlen_k": max(problem.keys),
              "softmax_scale": problem.dim**-0.5}
    of_keys, k, v = {"cu_seqlens_k": inputs.cu_kv}, inputs.k, inputs.v
    if in_pages:
        (k, v), of_keys = inputs.pages.caches, {"page_table": inputs.pages.table, "seqused_k": inputs.used}
    more = window_of(problem)
    causal, state = problem.causal and not problem.window, {}

    def forward():
        state["o"], state["lse"], *_ = fa._flash_attn_forward(inputs.q, k, v, causal=causal, num_splits=splits, **packed,
                                                              **of_keys, **more)

    if problem.of_pass == FORWARD:
        return Entry(forward, lambda: [state["o"]], alike=problem.is_plain)
    forward()
    grads = [torch.empty_like(t) for t in (inputs.q, k, v)]

    def backward():
        fa._flash_attn_backward(inputs.d_o, inputs.q, k, v, state["o"], state["lse"], dq=grads[0], dk=grads[1], dv=grads[2],
                                is_causal=causal, **packed, **of_keys)

    return Entry(backward, lambda: grads)


def cudnn(problem, inputs):
    """scaled_dot_product_attention's, of sequences that are alike; forward."""
    q, k, v = (t.view(problem.batch, -1, *t.shape[1:]).transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    is_causal, state = problem.causal and problem.queries[0] > 1, {}

    def launch():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            state["o"] = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

    return Entry(launch, lambda: [state["o"].transpose(1, 2).reshape(inputs.q.shape)], alike=problem.is_plain)


def can_flex(problem):
    return False


def reads_pages():
    """Whether PyTorch's FlashAttention-2 does."""
    return any(a.name == "block_table" for a in FLASH_FORWARD.default._schema.arguments)


def fa3_lacks(feature):
    """Whether it was built without."""
    from flash_attn_config import CONFIG
    return CONFIG["build_flags"][f"FLASHATTENTION_DISABLE_{feature}"]


def peers(problem, inputs):
    """name -> () -> Entry, of those that may be able to. Where a score or a sink leaves nobody, they run without it."""
    found, forward, plain = {}, problem.of_pass == FORWARD, "" if problem.is_plain else ", plain"
    packed = "FA2" + (", no pages" if problem.page else "") + plain
    found[packed] = lambda: flash_attention_2(problem, inputs, "packed")
    if forward and problem.page and problem.page % 256 == 0 and reads_pages():
        found["FA2" + plain] = lambda: flash_attention_2(problem, inputs, "pages")
    if forward and problem.is_equal:
        found[packed + ", dense"] = lambda: flash_attention_2(problem, inputs, "dense")
        if not problem.window and (problem.queries[0] in (1, problem.keys[0]) or not problem.causal):
            found["cuDNN" + (", no pages" if problem.page else "") + plain + ", dense"] = lambda: cudnn(problem, inputs)
    if (problem.dtype == "bf16" and problem.dim <= 128 and importlib.util.find_spec("flash_attn_interface") and
            not (problem.window and (fa3_lacks("LOCAL") or not forward))):
        in_pages = bool(problem.page) and not fa3_lacks("PAGEDKV")
        name = "FA3" + (", no pages" if problem.page and not in_pages else "") + plain
        found[name] = lambda: flash_attention_3(problem, inputs, 1, in_pages)
        if forward and not fa3_lacks("SPLIT"):
            found[name + ", split"] = lambda: flash_attention_3(problem, inputs, 0, in_pages)
    return found
