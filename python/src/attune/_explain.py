"""What the `attune explain` command says of a spec: its mask's picture, tile classes, plan and cost.

The C interface does not give them, so the command must be there: in the package, as wheels have it, named in
ATTUNE_COMMAND, beside the library that ATTUNE_LIBRARY names, or in PATH.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from attune._command import report


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
    with tempfile.TemporaryDirectory(prefix="attune-explain-") as folder:
        picture = os.path.join(folder, "mask.svg")
        options = ["--cache", "none", "--svg", picture, "--batch", str(batch_entry), "--head", str(head)]
        options += ["--shape", ",".join(f"{name}={size}" for name, size in shape.items())]
        if target is not None:
            options += ["--target", target]
        found = report("explain", reference, options, tensors)
        return Explanation(pathlib.Path(picture).read_text(), found)
