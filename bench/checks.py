"""Is an output right? FlashAttention's rule on one head, against fp64. With dropout, whose random bits are
each library's own, the kept mass and the direction of the output."""

import torch


def _scores(problem, inputs, b, h, dtype, some=slice(None)):
    """Of `some` of the head's queries."""
    q, k = inputs.q[b, h, some].to(dtype), inputs.k[b, h].to(dtype)
    scores = (q @ k.T) * problem.head_dim**-0.5
    rows = torch.arange(problem.seq, device=q.device)
    q_idx, kv_idx = rows[some, None], rows[None, :]
    if problem.score is not None:
        head = torch.tensor(h, device=q.device)
        scores = problem.score(scores, b, head, q_idx, kv_idx).to(dtype)
    if problem.mask is not None:
        scores = scores.masked_fill(~problem.mask(b, h, q_idx, kv_idx, inputs.tensors), float("-inf"))
    return scores


def live_elements(problem, inputs):
    """Live pairs of one head, averaged over the batch."""
    if problem.mask is None:
        return float(problem.seq * problem.seq)
    rows = torch.arange(problem.seq, device="cuda")
    batches = range(problem.batch) if problem.tensors else (0,)
    counts = [problem.mask(b, 0, rows[:, None], rows[None, :], inputs.tensors).sum().item() for b in batches]
    return sum(counts) / len(counts)


def exact(problem, inputs, b, h):
    """The head's output in fp64."""
    return torch.softmax(_scores(problem, inputs, b, h, torch.float64), -1) @ inputs.v[b, h].double()


def exact_in_chunks(problem, inputs, b, h, weights=None, queries=2048):
    """The same by so many queries at a time, for scores that would not fit or a GPU that has other work. `weights`
    [queries, keys]: of the probabilities, what dropout leaves of each."""
    chunks = []
    for first in range(0, problem.seq, queries):
        some = slice(first, first + queries)
        p = torch.softmax(_scores(problem, inputs, b, h, torch.float64, some), -1)
        chunks.append((p if weights is None else p * weights[some]) @ inputs.v[b, h].double())
    return torch.cat(chunks)


def reference(problem, inputs, b, h):
    """The same, and in plain bf16, whose error is the yardstick."""
    plain = torch.softmax(_scores(problem, inputs, b, h, torch.bfloat16), -1) @ inputs.v[b, h]
    return exact(problem, inputs, b, h), plain


def dropout_verdict(got, exact):
    """Each row's slope of the output over the exact one is 1 on average, whatever was drawn. Their mean and not the slope
    of all rows, in which those of a causal mask's first rows, with few keys to draw for, outweigh all others."""
    slopes = (got * exact).sum(-1) / (exact * exact).sum(-1)
    slope, deviation = slopes.mean().item(), slopes.std().item() / len(slopes) ** 0.5
    # Four deviations of the mean, and what rounding to bf16 may add.
    if abs(slope - 1) <= 4 * deviation + 2**-8 and deviation < 0.01:
        return None
    return f"dropout biases the output: slope {slope:.4f} +- {deviation:.4f}"


def verdict(problem, output, exact, plain, b, h):
    """None, or what is wrong."""
    got = output[b, h].double()
    if not torch.isfinite(got).all():
        return f"{(~torch.isfinite(got)).sum().item()} elements of head ({b}, {h}) are not finite"
    if problem.dropout > 0:
        return dropout_verdict(got, exact)
    error = (got - exact).abs().max().item()
    # Twice the plain computation's error, and the rounding of the output itself.
    allowed = 2 * (plain.double() - exact).abs().max().item() + exact.abs().max().item() * 2**-8
    return None if error <= allowed else f"max error {error:.2e}, allowed {allowed:.2e}"
