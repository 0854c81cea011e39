"""What the `attune explain` command says of a spec: its mask's picture, tile classes, plan and cost.

The C interface does not give them, so the command must be there: in the package, as wheels have it, named in
ATTUNE_COMMAND, beside the library that ATTUNE_LIBRARY names, or in PATH.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from attune._command import command
from attune._errors import BadInputError, UnavailableError

_BAD_INPUT = 2  # the command's exit code


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Of a spec at one shape. A notebook shows its picture.

    Attributes:
        svg: the mask: dead tiles, those in which every key is live, and those that evaluate the mask.
        report: what `attune explain --json` says, among it "plan", "live_share" of queries times keys, "flops",
            "bytes", "roofline_us".
    """

    svg: str
    report: Mapping[str, Any]

    @property
    def tiles(self) -> Mapping[str, int]:
        """ "q" and "kv": a tile's sizes; "skip", "partial", "full": how many there are, of all batches and heads."""
        return self.report["tiles"]

    @property
    def live_share(self) -> float:
        """Of queries times keys, how many the mask leaves."""
        return self.report["live_share"]

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        tiles = self.tiles
        return (
            f"<attune explanation: {self.report['plan']}; tiles of {tiles['q']} x {tiles['kv']}: "
            f"{tiles['skip']} skipped, {tiles['partial']} partial, {tiles['full']} full>"
        )


def explain(
    reference: str,
    shape: Mapping[str, int],
    tensors: Mapping[str, Any],
    target: str | None,
    batch_entry: int,
    head: int,
) -> Explanation:
    """Of a spec's YAML, or of a name of the library of specs; arguments as Spec.explain has them.

    Raises:
        BadInputError: what the command finds wrong.
        UnavailableError: it is not there, or cannot do it here.
    """
    is_text = "\n" in reference
    with tempfile.TemporaryDirectory(prefix="attune-explain-") as folder:
        picture = os.path.join(folder, "mask.svg")
        line = [command(), "explain", "-" if is_text else reference, "--json", "--cache", "none", "--svg", picture]
        line += ["--shape", ",".join(f"{name}={size}" for name, size in shape.items())]
        line += ["--batch", str(batch_entry), "--head", str(head)]
        if target is not None:
            line += ["--target", target]
        for name, array in tensors.items():
            line += ["--tensor", f"{name}={_saved(array, os.path.join(folder, name + '.npy'))}"]
        done = subprocess.run(line, input=reference if is_text else "", capture_output=True, text=True, check=False)
        if done.returncode:
            error = BadInputError if done.returncode == _BAD_INPUT else UnavailableError
            raise error(done.stderr.strip() or f"`attune explain` ended with {done.returncode}")
        return Explanation(pathlib.Path(picture).read_text(), json.loads(done.stdout))


def _saved(array: Any, path: str) -> str:
    import numpy

    numpy.save(path, numpy.ascontiguousarray(array))
    return path
