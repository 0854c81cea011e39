#!/usr/bin/env python3
"""Random specs against torch's autograd in float64: masks, scores, learned tensors, sinks, dropout, grouped heads,
lengths. O, LSE and every gradient of each are compared; what differs is printed with its seed, and the exit code is 1.

    ATTUNE_LIBRARY=build/release/lib/libattune.so PYTHONPATH=python/src python3 bench/differential.py --count 500
    python3 bench/differential.py --first 123 --count 1 --device cuda   # one of them again

Needs PyTorch; a compiler for the device's kernels.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

_folder = tempfile.TemporaryDirectory(prefix="attune-differential-")
os.environ["ATTUNE_CACHE"] = os.path.join(_folder.name, "attune.db")

import numpy as np  # noqa: E402
import torch  # noqa: E402

import attune  # noqa: E402

# Of an element: so much of its row's size, of all rows' size, and of what float32 does to the same formula in torch.
OF_ROW, OF_ALL, OF_TORCH = 2e-4, 1e-4, 16


@dataclasses.dataclass
class Expression:
    """In Attune's language, and on tensors of indices."""

    text: str
    run: Callable[[dict[str, Any]], torch.Tensor]

    def __str__(self):
        return f"({self.text})"


class Writer:
    """Draws expressions, and the tensors that they look up."""

    def __init__(self, rng, shape):
        self.rng, self.shape = rng, shape
        self.tensors, self.dims, self.learned = {}, {}, []

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def number(self, low, high):
        value = int(self.rng.integers(low, high + 1))
        return Expression(str(value), lambda env: torch.tensor(value))

    def index(self, name):
        return Expression(name, lambda env: env[name])

    def look_up(self, kind):
        """An element of a new tensor, which is int32, bool or a learned float32."""
        name = f"t{len(self.tensors)}"
        dims, names = self.pick(
            (("heads",), ("h",)), (("batch", "kv_len"), ("b", "kv_idx")), (("batch", "q_len"), ("b", "q_idx")),
            (("kv_len",), ("kv_idx",)), (("heads", "q_len"), ("h", "q_idx")), (("batch", "heads"), ("b", "h")),
        )  # fmt: skip
        sizes = [self.shape[dim] for dim in dims]
        if kind == "float":
            values = torch.from_numpy(self.rng.standard_normal(sizes))
            self.learned.append(name)
        elif kind == "bool":
            values = torch.from_numpy(self.rng.random(sizes) < 0.6)
        else:
            values = torch.from_numpy(np.sort(self.rng.integers(0, 6, sizes), axis=-1))
        self.tensors[name], self.dims[name] = values, ", ".join(dims)
        return Expression(f"{name}[{', '.join(names)}]", lambda env: env[name][tuple(env[x] for x in names)])

    def integer(self, depth):
        if depth == 0:
            return self.pick(*(self.index(x) for x in ("q_idx", "kv_idx", "q_idx", "kv_idx", "h", "b")),
                             self.number(0, 40))  # fmt: skip
        x = self.integer(depth - 1)
        kind = self.rng.integers(7)
        if kind == 0:
            return self.look_up("int")
        if kind == 1:
            c = self.number(1, 9)
            op = self.pick("//", "%")
            return Expression(f"{x} {op} {c.text}", lambda env: torch.floor_divide(x.run(env), c.run(env)) if op == "//"
                              else torch.remainder(x.run(env), c.run(env)))  # fmt: skip
        y = self.integer(depth - 1)
        if kind == 2:
            return Expression(f"abs({x} - {y})", lambda env: (x.run(env) - y.run(env)).abs())
        if kind == 3:
            low = self.pick(True, False)
            f = torch.minimum if low else torch.maximum
            return Expression(f"{'min' if low else 'max'}({x}, {y})", lambda env: f(x.run(env), y.run(env)))
        if kind == 4:
            c = self.boolean(depth - 1)
            return Expression(f"{x} if {c} else {y}", lambda env: torch.where(c.run(env), x.run(env), y.run(env)))
        op = self.pick("+", "-")
        return Expression(f"{x} {op} {y}", lambda env: x.run(env) + y.run(env) if op == "+" else x.run(env) - y.run(env))

    def boolean(self, depth):
        if depth > 0 and self.rng.random() < 0.6:
            x, y = self.boolean(depth - 1), self.boolean(depth - 1)
            op = self.pick("and", "or", "or", "!=")
            f = {"and": torch.logical_and, "or": torch.logical_or, "!=": torch.logical_xor}[op]
            if op != "!=" and self.rng.random() < 0.3:
                return Expression(f"not {x} {op} {y}", lambda env: f(~x.run(env), y.run(env)))
            return Expression(f"{x} {op} {y}", lambda env: f(x.run(env), y.run(env)))
        kind = self.rng.integers(6)
        if kind == 0:
            return Expression("causal", lambda env: env["kv_idx"] <= env["q_idx"] + env["kv_len"] - env["q_len"])
        if kind == 1:
            n = self.number(1, 90)
            return Expression(f"abs(q_idx - kv_idx) < {n.text}",
                              lambda env: (env["q_idx"] - env["kv_idx"]).abs() < n.run(env))  # fmt: skip
        if kind == 2:
            return self.look_up("bool")
        x, y = self.integer(min(depth, 1)), self.integer(min(depth, 1))
        op = self.pick("<", "<=", "==", "!=", ">", ">=")
        f = {"<": torch.lt, "<=": torch.le, "==": torch.eq, "!=": torch.ne, ">": torch.gt, ">=": torch.ge}[op]
        return Expression(f"{x} {op} {y}", lambda env: f(x.run(env), y.run(env)))

    def factor(self):
        """A float of moderate size that does not depend on the score."""
        kind = self.rng.integers(4)
        if kind == 0:
            return self.look_up("float")
        if kind == 1:
            x = self.integer(1)
            return Expression(f"sigmoid(0.1 * {x})", lambda env: torch.sigmoid(0.1 * x.run(env).to(env["float"])))
        if kind == 2:
            x, f = self.integer(1), self.pick("sin", "cos", "tanh", "erf")
            return Expression(f"{f}(0.05 * {x})", lambda env: getattr(torch, f)(0.05 * x.run(env).to(env["float"])))
        value = round(float(self.rng.uniform(-2, 2)), 3)
        return Expression(str(value), lambda env: torch.tensor(value, dtype=env["float"]))

    def score(self, depth):
        if depth == 0:
            return self.index("score")
        x = self.score(depth - 1)
        kind = self.rng.integers(8)
        if kind == 0:
            cap = round(float(self.rng.uniform(1, 30)), 2)
            return Expression(f"{cap} * tanh({x} / {cap})", lambda env: cap * torch.tanh(x.run(env) / cap))
        if kind == 1:
            f = self.pick("silu", "gelu", "sin", "erf", "softplus", "sigmoid")
            of = getattr(torch.nn.functional if f in ("silu", "gelu", "softplus") else torch, f)
            return Expression(f"{f}({x})", lambda env: of(x.run(env)))
        if kind == 2:
            c, y = self.boolean(1), self.score(depth - 1)
            return Expression(f"{x} if {c} else {y}", lambda env: torch.where(c.run(env), x.run(env), y.run(env)))
        if kind == 3:
            y = self.factor()
            return Expression(f"{x} * {y}", lambda env: x.run(env) * y.run(env))
        if kind == 4:
            y, low = self.factor(), self.pick(True, False)
            f = torch.minimum if low else torch.maximum
            return Expression(f"{'min' if low else 'max'}({x}, {y})", lambda env: f(x.run(env), y.run(env)))
        y = self.factor()
        return Expression(f"{x} + {y}", lambda env: x.run(env) + y.run(env))


def attention(problem, operands, learned, dtype, keep):
    """O and LSE by the definition, in torch."""
    q, k, v = operands
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    batch, heads, q_len, dim = q.shape
    names = ("b", "h", "q_idx", "kv_idx")
    env = dict(zip(names, torch.meshgrid(*map(torch.arange, (batch, heads, q_len, k.shape[2])), indexing="ij"), strict=True))
    env |= {"q_len": q_len, "kv_len": k.shape[2], "float": dtype, **problem["tensors"], **learned}
    s = q @ k.transpose(-1, -2) * dim**-0.5
    if problem["score"]:
        s = problem["score"].run({**env, "score": s}).expand(s.shape)
    if problem["mask"]:
        s = s.masked_fill(~problem["mask"].run(env).expand(s.shape), -torch.inf)
    logits = s
    if problem["sink"]:
        logits = torch.cat([s, learned[problem["sink"]][None, :, None, None].expand(batch, heads, q_len, 1)], -1)
    lse = logits.logsumexp(-1)
    alive = lse.isfinite()[..., None]
    p = torch.where(alive, (s - torch.where(alive, lse[..., None], 0.0)).exp(), 0.0)
    return (p if keep is None else p * keep) @ v, lse


def draw(seed, least_dim=8):
    rng = np.random.default_rng(seed)
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    shape = {"batch": int(rng.integers(1, 3)), "kv_heads": kv_heads, "heads": kv_heads * group,
             "q_len": int(rng.integers(1, 200)), "kv_len": int(rng.integers(1, 200))}  # fmt: skip
    if rng.random() < 0.5:
        shape["kv_len"] = shape["q_len"]
    writer = Writer(rng, shape)
    mask = writer.boolean(int(rng.integers(0, 4))) if rng.random() < 0.8 else None
    score = writer.score(int(rng.integers(1, 4))) if rng.random() < 0.8 else None
    sink = None
    if rng.random() < 0.25:
        sink = f"t{len(writer.tensors)}"
        writer.tensors[sink], writer.dims[sink] = torch.from_numpy(rng.standard_normal(shape["heads"])), "heads"
        writer.learned.append(sink)
    dim, dim_v = (max(least_dim, int(writer.pick(8, 16, 32, 40, 64, 80, 128))) for _ in range(2))
    sizes = {"q": ("heads", "q_len", dim), "k": ("kv_heads", "kv_len", dim), "v": ("kv_heads", "kv_len", dim_v)}
    operands = [torch.from_numpy(rng.standard_normal((shape["batch"], shape[h], shape[n], d))) for h, n, d in sizes.values()]
    return {
        "shape": shape, "mask": mask, "score": score, "sink": sink, "dims": writer.dims, "operands": operands,
        "tensors": {name: x for name, x in writer.tensors.items() if name not in writer.learned},
        "learned": {name: writer.tensors[name] for name in writer.learned},
        "dropout": round(float(rng.uniform(0.1, 0.5)), 2) if rng.random() < 0.25 else None,
        "d_o": torch.from_numpy(rng.standard_normal((shape["batch"], shape["heads"], shape["q_len"], dim_v))),
        "d_lse": torch.from_numpy(rng.standard_normal((shape["batch"], shape["heads"], shape["q_len"]))),
    }  # fmt: skip


def kept(problem, device):
    """Which elements dropout leaves, times its factor: they depend on the seed and their places alone."""
    if problem["dropout"] is None:
        return None
    shape = problem["shape"]
    width = max(-(-shape["kv_len"] // 8) * 8, 16)
    q, k = (torch.zeros(shape["batch"], shape["heads"], n, 16) for n in (shape["q_len"], shape["kv_len"]))
    v = torch.eye(shape["kv_len"], width).expand(shape["batch"], shape["heads"], -1, -1).contiguous()
    p = attune.attention(*(x.to(device) for x in (q, k, v)), layout="bhsd", dropout=problem["dropout"], seed=7, offset=3)
    return (p[..., : shape["kv_len"]] * shape["kv_len"]).cpu().double()


def of_torch(problem, dtype, keep):
    """Name -> value, of outputs and of gradients."""
    leaves = {name: x.to(dtype, copy=True).requires_grad_() for name, x in zip("qkv", problem["operands"], strict=True)}
    learned = {name: x.to(dtype, copy=True).requires_grad_() for name, x in problem["learned"].items()}
    o, lse = attention(problem, list(leaves.values()), learned, dtype, None if keep is None else keep.to(dtype))
    return differentiated(problem, o, lse, leaves | learned, dtype, "cpu")


def of_attune(problem, device):
    leaves = {name: x.to(device, torch.float32).requires_grad_() for name, x in zip("qkv", problem["operands"], strict=True)}
    learned = {name: x.to(device, torch.float32).requires_grad_() for name, x in problem["learned"].items()}
    fixed = {name: x.to(device, torch.bool if x.dtype == torch.bool else torch.int32) for name, x in problem["tensors"].items()}
    words = {key: problem[key].text for key in ("mask", "score") if problem[key]}
    if problem["sink"]:
        words["sink"] = f"{problem['sink']}[h]"
    o, lse = attune.attention(
        *leaves.values(), tensors=fixed | learned, dims=problem["dims"], layout="bhsd", dropout=problem["dropout"], seed=7,
        offset=3, return_lse=True, **words,
    )  # fmt: skip
    return differentiated(problem, o, lse, leaves | learned, torch.float32, device)


def differentiated(problem, o, lse, leaves, dtype, device):
    finite = lse.isfinite()
    loss = (o * problem["d_o"].to(device, dtype)).sum() + (
        torch.where(finite, lse, 0.0) * problem["d_lse"].to(device, dtype)
    ).sum()
    given = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    gradients = {
        f"d {name}": torch.zeros_like(leaf) if d is None else d for (name, leaf), d in zip(leaves.items(), given, strict=True)
    }
    outputs = {"o": o, "lse": torch.where(finite, lse, -1e4)} | gradients
    return {name: x.detach().cpu().double() for name, x in outputs.items()}


def differences(problem, device):
    keep = kept(problem, device)
    exact, rounded, ours = of_torch(problem, torch.float64, keep), of_torch(problem, torch.float32, keep), of_attune(problem, device)
    found = []
    for name, expected in exact.items():
        if not ours[name].isfinite().all():
            found.append(f"{name} is not finite")
            continue
        row = expected.square().mean(-1, keepdim=True).sqrt() if expected.dim() else expected.abs()
        allowed = OF_ROW * row + OF_ALL * expected.square().mean().sqrt() + 1e-6
        allowed = allowed + OF_TORCH * (rounded[name] - expected).abs().amax(-1, keepdim=True)
        excess = ((ours[name] - expected).abs() / allowed).max().item()
        if excess > 1:
            found.append(f"{name} is off by {excess:.2f} of what is allowed")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="so many specs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    began, refused, wrong = time.monotonic(), [], []
    least_dim = 8 if arguments.device == "cpu" else 16  # that there are kernels for
    for seed in range(arguments.first, arguments.first + arguments.count):
        problem = draw(seed, least_dim)
        try:
            found = differences(problem, arguments.device)
        except attune.AttuneError as error:
            refused.append(seed)
            print(f"seed {seed}: refused: {error}", flush=True)
            continue
        if found:
            wrong.append(seed)
            texts = ", ".join(f"{key}: {problem[key].text}" for key in ("mask", "score") if problem[key])
            print(f"seed {seed}: {'; '.join(found)}\n    {problem['shape']}, {texts}", flush=True)
        if (seed + 1) % 50 == 0:
            print(f"{seed + 1 - arguments.first} specs, {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(
        f"{arguments.count} specs from seed {arguments.first} on {arguments.device}: {len(wrong)} wrong {wrong or ''}, "
        f"{len(refused)} refused, {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
