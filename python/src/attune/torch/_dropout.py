"""Dropout's seed and offset from torch's generators: a forward pass that is run again, as `torch.utils.checkpoint` does
it, drops the same elements."""

from __future__ import annotations

import torch

from attune._errors import UnsupportedError

_STEP = 4  # what a launch takes of a Philox generator's offsets, which torch wants in fours
_LARGEST = 2**63 - 1


def check(probability: float) -> None:
    """Raises ValueError unless it is a probability below 1."""
    if not 0 <= probability < 1:
        raise ValueError(f"dropout is {probability}, not in [0, 1)")


def draw(device: torch.device) -> tuple[int, int]:
    """Seed and offset for a launch on the device, of its default generator, which moves on."""
    if device.type != "cuda":
        seed, offset = draw_tensor().tolist()
        return seed, offset
    if torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "dropout while a CUDA graph is captured: each replay would drop the same elements",
            "compile the call, which draws the seed by an operator of the graph, or capture without dropout",
        )
    generator = torch.cuda.default_generators[device.index or 0]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + _STEP)
    return seed & (2**64 - 1), offset


def draw_tensor() -> torch.Tensor:
    """The same of the CPU's generator, as the operator takes it: torch's compiler knows to draw once, or again the same."""
    return torch.randint(0, _LARGEST, (2,), dtype=torch.int64, device="cpu")
