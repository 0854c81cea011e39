"""Runs random programs in one of many ways, and holds them against attention by its definition.

`python3 python/tests/try_programs.py --count 200` tries many (docs/python.md).
"""

from __future__ import annotations

import dataclasses
import functools
import random

import torch
import torch.utils.checkpoint
from programs import DEVICE, DIM, Program, lay, program


def _for_each_element(mod, sizes, *first):
    """A mod of all elements, called as torch calls it: for one, with indices of 32 bits."""
    indices = [torch.arange(size, dtype=torch.int32, device=DEVICE) for size in sizes]
    for own in range(3, -1, -1):
        places = [0 if place == own else None for place in range(4)]
        mod = torch.vmap(mod, in_dims=(*[0 for _ in first], *places))
    return mod(*first, *indices)


def by_definition(q, k, v, score_mod, mask_mod, scale=None):
    """O and LSE in float64, differentiable."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.expand(q.shape[0], -1, -1, -1).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        s = _for_each_element(score_mod, s.shape, s).to(s.dtype)
    if mask_mod is not None:
        s = s.masked_fill(~_for_each_element(mask_mod, s.shape).expand(s.shape).bool(), -torch.inf)
    alive = (s > -torch.inf).any(-1, keepdim=True)
    lse = torch.where(alive[..., 0], torch.where(alive, s, 0.0).logsumexp(-1), -torch.inf)
    return (torch.where(alive, s, 0.0).softmax(-1) * alive) @ v, lse


@dataclasses.dataclass
class Way:
    """How a program is called."""

    seed: int

    def __post_init__(self) -> None:
        chosen = random.Random(self.seed + 10**6)
        self.dtype = chosen.choice((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16))
        self.mask = chosen.choice(("function", "lazy", "lazy alike", "blocks", "blocks of 16", "beside"))
        self.scale = chosen.choice((None, None, 0.3, -0.2))
        self.width_of_v = chosen.choice((DIM, DIM, 2 * DIM))
        self.lies = chosen.choice(("bhsd", "bshd", "odd"))
        self.one_batch = chosen.random() < 0.1
        self.records = chosen.random() < 0.5
        self.runs = chosen.choice(("eager", "eager", "eager", "eager", "autocast", "vmap", "checkpoint"))
        if self.runs == "autocast":
            self.dtype = torch.float32

    def operands(self, program: Program):
        generator = torch.Generator("cpu").manual_seed(self.seed)
        batch = 1 if self.one_batch else program.batch
        sizes = (
            (program.batch, program.heads, program.q_len, DIM), (batch, program.kv_heads, program.kv_len, DIM),
            (batch, program.kv_heads, program.kv_len, self.width_of_v),
        )  # fmt: skip
        found = []
        for size in sizes:
            x = torch.randn(size, generator=generator, device="cpu").to(DEVICE, self.dtype)
            if self.lies == "bshd":
                x = x.transpose(1, 2).contiguous().transpose(1, 2)
            if self.lies == "odd":
                x = lay(x, 1)
            found.append(x.detach().requires_grad_(self.records))
        return found


def _blocks(way: Way, program: Program, mask_mod):
    """(block_mask, mask_mod) as they are handed over."""
    from torch.nn.attention import flex_attention as torch_flex

    import attune.torch

    sizes = program.batch, program.heads, program.q_len, program.kv_len
    if mask_mod is None or way.mask == "function":
        return None, mask_mod
    if way.mask == "lazy":
        return attune.torch.create_block_mask(mask_mod, *sizes, device=DEVICE), None
    if way.mask == "lazy alike":  # what the program is asked in is the launch's batch and head all the same
        return attune.torch.create_block_mask(
            mask_mod, None, None, *sizes[2:], device=DEVICE, BLOCK_SIZE=(64, 128)
        ), None
    if way.mask == "beside":
        all_of_it = attune.torch.create_block_mask(lambda b, h, q, k: q >= 0, None, None, *sizes[2:], device=DEVICE)
        return all_of_it, mask_mod
    size = 16 if way.mask == "blocks of 16" else 128
    own = lambda b, h, q, k: torch.ne(mask_mod(b, h, q, k), 0)  # noqa: E731 # torch's wants a bool
    return torch_flex.create_block_mask(own, *sizes, device=DEVICE, BLOCK_SIZE=size), None


def run(program: Program, function, times: int = 3):
    """Calls a FlexAttention such as Attune's some times; raises AssertionError where it is not what the definition
    says."""
    way = Way(program.seed)
    score_mod, mask_mod, learning = program.functions()
    operands = way.operands(program)
    block_mask, own = _blocks(way, program, mask_mod)
    learning = [x for x in learning if way.records]
    options = {"enable_gqa": program.heads != program.kv_heads, "return_lse": True, "scale": way.scale}
    if own is not None:
        options["mask_mod"] = own

    def attend(*given):
        return function(*given, score_mod, block_mask, **options)

    with torch.set_grad_enabled(way.records):
        rounded = [x.bfloat16() for x in operands] if way.runs == "autocast" else operands  # where scores bend it shows
        wanted = by_definition(*rounded, score_mod, mask_mod, way.scale)
        weights = [
            torch.randn(x.shape, generator=torch.Generator("cpu").manual_seed(3), device="cpu").to(DEVICE)
            for x in wanted
        ]
        alive = wanted[1] > -torch.inf
        leaves = [*operands, *learning]
        gradients = _gradients(wanted, alive, weights, leaves) if way.records else []
        for _ in range(times):
            if way.runs == "autocast":
                with torch.autocast(DEVICE, dtype=torch.bfloat16):
                    found = attend(*operands)
            elif way.runs == "vmap" and not way.one_batch:
                found = torch.vmap(attend)(*(x[None] for x in operands))
                found = [x[0] for x in found]
            elif way.runs == "checkpoint":
                found = torch.utils.checkpoint.checkpoint(attend, *operands, use_reentrant=False)
            else:
                found = attend(*operands)
            is_narrow = way.dtype is not torch.float32 or way.runs == "autocast"
            # torch multiplies what is narrow in its own type, and Attune in float32.
            tolerance = 0.03 if is_narrow else 3e-3 if "float16" in program.text else 2e-4
            assert torch.equal(found[1] > -torch.inf, alive), "other rows are alive"
            near(found[0], wanted[0], tolerance, "o")
            near(found[1][alive], wanted[1][alive], tolerance, "lse")
            if way.records:
                mine = _gradients(found, alive, weights, leaves)
                for at, (x, y) in enumerate(zip(mine, gradients, strict=True)):
                    if y is None:
                        assert x is None or not x.any(), f"gradient {at}"
                    elif x is None:
                        assert not y.any(), f"no gradient {at}"
                    else:
                        near(x, y, 5 * tolerance, f"gradient {at}")


def _gradients(found, alive, weights, leaves):
    o, lse = found
    loss = (o.double() * weights[0]).sum() + (torch.where(alive, lse, 0.0).double() * weights[1]).sum()
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def near(found, wanted, tolerance: float, what: str) -> None:
    assert found.isfinite().all(), f"{what} is not finite"
    if found.numel():
        scale = max(wanted.double().abs().max().item(), 1.0)
        error = (found.double() - wanted.double()).abs().max().item()
        assert error <= tolerance * scale, f"{what} is {error} apart, of {scale}"


def main() -> None:
    """Tries many, and says which fail."""
    import argparse

    from attune.torch import flex_attention

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--show", action="store_true", help="the text of those that fail")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_device(DEVICE)
    failed = 0
    for seed in range(options.first, options.first + options.count):
        each = program(seed)
        try:
            run(each, functools.partial(flex_attention, strict=True))
        except Exception as problem:  # whatever it is
            failed += 1
            print(f"{seed}: {type(problem).__name__}: {problem}\n  {vars(Way(seed))}", flush=True)
            if options.show:
                print(each.text)
    print(f"{failed} of {options.count} fail")


if __name__ == "__main__":
    main()
