"""Numbers that are not normal: shifted scores, hot keys and rows, large and drifting ones. Needs torch where inputs
are made, not to be imported."""

DEVICE = "cuda"


def added(score):
    """Adds score(row, key) = a(row) * b(key) to all scores, through the last column of Q and K, which is theirs
    alone. `score`: (rows, keys) -> (a, b), a product in natural units; either may be a number."""

    def apply(q, k, generator):
        import torch
        seq, dim = q.shape[-2:]
        rows = torch.arange(seq, device=q.device, dtype=torch.float32)
        a, b = score(rows, rows)
        unit = dim**0.25  # the softmax scale divides by it twice
        q[..., -1], k[..., -1] = a * unit, b * unit

    return apply


def times(factor):
    def apply(q, k, generator):
        q *= factor

    return apply


def one_head(q, k, generator):
    q[:, 3, :, -1] = 9 * q.shape[-1]**0.25
    k[:, 3, :, -1] = 9 * q.shape[-1]**0.25
    q[:, :3, :, -1], q[:, 4:, :, -1] = 0, 0


def heavy_tails(q, k, generator):
    """Student's t of 2 degrees: half a chi-square of as many is an exponential variable."""
    import torch
    for x in (q, k):
        x /= torch.empty_like(x).exponential_(generator=generator).sqrt()


# name -> what it does to normal Q and K [batch, heads, seq, dim], fp32, in place
DISTRIBUTIONS = {
    "normal": lambda q, k, generator: None,
    "all scores - 80": added(lambda r, c: (9.0, -80 / 9)),
    "all scores + 80": added(lambda r, c: (9.0, 80 / 9)),
    "first key 100": added(lambda r, c: (10.0, 10.0 * (c == 0))),
    "middle key 100": added(lambda r, c: (10.0, 10.0 * (c == len(c) // 2))),
    "one row in 97 at 80": added(lambda r, c: (9.0 * (r % 97 == 0), 80 / 9)),
    "q * 4": times(4),
    "q * 12": times(12),
    "keys drift by 60": added(lambda r, c: (8.0, 60 / 8 * c / len(c))),
    "keys drift by -60": added(lambda r, c: (8.0, -60 / 8 * c / len(c))),
    "5 more every 128 keys": added(lambda r, c: (5.0, (c / 128).floor())),
    "Student, 2 degrees": heavy_tails,
    "one head at 81": one_head,
}
NORMAL = "normal"
# Those that some kernel has lost most on, each for another reason.
WORST = (NORMAL, "all scores - 80", "all scores + 80", "middle key 100", "one row in 97 at 80", "5 more every 128 keys",
         "Student, 2 degrees")


def make_inputs(dtype, problem, generator, tensors=None):
    """Of the distribution that is the problem's name."""
    import contestants
    import torch
    size = (problem.batch, problem.heads, problem.seq, problem.head_dim)
    q, k, v = (torch.randn(size, generator=generator, device=DEVICE) for _ in range(3))
    DISTRIBUTIONS[problem.name](q, k, generator)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    return contestants.Inputs(*(t.to(kind) for t in (q, k, v)), tensors or {})
