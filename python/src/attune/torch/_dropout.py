"""Dropout's seed and offset from torch's generators: a forward pass that is run again, as `torch.utils.checkpoint` does
it, drops the same elements."""

from __future__ import annotations

import torch

from attune.spec import Spec

_STEP = 4  # what a launch takes of a Philox generator's offsets, which torch wants in fours
_LARGEST = 2**63 - 1

State = int | torch.Tensor  # a seed, beside which there is an offset; or both, int64, on the device


def check(probability: float) -> None:
    """Raises ValueError unless it is a probability below 1."""
    if not 0 <= probability < 1:
        raise ValueError(f"dropout is {probability}, not in [0, 1)")


def state_of(spec: Spec, device: torch.device, seed: int | None = None, offset: int = 0) -> tuple[State, int]:
    """Seed and offset for a launch of the spec: those given, or drawn of the device's default generator, which moves
    on.

    A tensor of both, and 0, where kernels are to read them on the device: where the spec says so, and while a CUDA
    graph is captured. Each of its replays draws anew then, by an operator whose generator torch moves on, and the
    launches in the graph are those of `spec.with_device_seed`."""
    if seed is not None:
        return (_on_device(seed, offset, device), 0) if spec.seed_on_device else (seed, offset)
    if spec.seed_on_device or is_captured(device):
        return draw_tensor(device), 0
    if device.type != "cuda":
        seed, offset = draw_tensor(device).tolist()
        return seed, offset
    generator = torch.cuda.default_generators[device.index or 0]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + _STEP)
    return seed & (2**64 - 1), offset


def is_captured(device: torch.device) -> bool:
    """Whether a launch on the device's current stream becomes a part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _on_device(seed: int, offset: int, device: torch.device) -> torch.Tensor:
    """By kernels that fill: nothing is copied from the host, which a capture does not allow."""
    state = torch.empty(2, dtype=torch.int64, device=device)
    for place, number in enumerate((seed, offset)):
        state[place].fill_(_signed(number))
    return state


def _signed(number: int) -> int:
    """The bits of an unsigned number, as a signed one of int64."""
    return (number + 2**63) % 2**64 - 2**63


def _signed_in_a_graph(number: int) -> int:
    """The same. What a graph leaves open stays so where int64 holds it, and is a constant of the graph where not."""
    if not torch.compiler.is_dynamo_compiling():
        return _signed(number) if isinstance(number, int) else number
    from torch.fx.experimental.symbolic_shapes import guard_or_true, guard_scalar  # Dynamo has it

    if guard_or_true(number >= -(2**63)) and guard_or_true(number < 2**63):
        return number
    return _signed(guard_scalar(number))


def draw_tensor(device: torch.device) -> torch.Tensor:
    """The same as the operator takes it, of the generator of the device on which the attention is: torch's compiler
    knows to draw once, or again the same, and each replay of a graph that it captures draws anew."""
    return torch.randint(0, _LARGEST, (2,), dtype=torch.int64, device=device)


def state_in_a_graph(device: torch.device, seed: int | None, offset: int) -> torch.Tensor:
    """Seed and offset as an operator of a graph takes them: drawn, or on the CPU those that the call gives."""
    if seed is None:
        return draw_tensor(device)
    return torch.tensor([_signed_in_a_graph(seed), _signed_in_a_graph(offset)], device="cpu")
