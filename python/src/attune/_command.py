"""Where the command `attune` is, and the wheel's entry point of that name."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from attune._errors import BadInputError, UnavailableError

_EXIT_BAD_INPUT, _EXIT_UNAVAILABLE = 2, 3  # the command's own exit codes; 3: there is nothing to run on


def _own() -> str | None:
    """The command that was named, that lies beside the library that was named, or in the package."""
    if named := os.environ.get("ATTUNE_COMMAND"):
        return named
    folders = [pathlib.Path(__file__).parent]
    if library := os.environ.get("ATTUNE_LIBRARY"):
        folder = pathlib.Path(library).resolve().parent
        folders = [folder, folder.parent, *folders]
    for folder in folders:
        path = folder / "attune"
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def command() -> str:
    """The path of the command.

    Raises:
        UnavailableError: there is none.
    """
    found = _own() or shutil.which("attune")
    if found is None:
        raise UnavailableError(
            "the command `attune`, which draws, explains and tunes, is not there",
            "name it in ATTUNE_COMMAND, or put it into PATH",
        )
    return found


def report(
    subcommand: str, reference: str, options: Sequence[str], tensors: Mapping[str, Any], shows: bool = False
) -> dict[str, Any]:
    """What `attune SUBCOMMAND --json` says of a spec's YAML, or of a name of the library of specs.

    Args:
        tensors: arrays in the CPU's memory, by the spec's names.
        shows: whether what it says meanwhile is seen, on stderr.

    Raises:
        BadInputError: what the command finds wrong.
        UnavailableError: it is not there, or cannot do it here.
    """
    is_text = "\n" in reference
    with tempfile.TemporaryDirectory(prefix="attune-") as folder:
        line = [command(), subcommand, "-" if is_text else reference, "--json", *options]
        for name, array in tensors.items():
            line += ["--tensor", f"{name}={_saved(array, os.path.join(folder, name + '.npy'))}"]
        said: list[str] = []
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin and process.stdout and process.stderr
            with contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
                process.stdin.write(reference.encode() if is_text else b"")
                process.stdin.close()
            for text in process.stderr:
                said.append(text.decode(errors="replace"))
                if shows:
                    sys.stderr.write(said[-1])
            found = process.stdout.read()
    if process.returncode:
        error = BadInputError if process.returncode == _EXIT_BAD_INPUT else UnavailableError
        raise error("".join(said).strip() or f"`attune {subcommand}` ended with {process.returncode}")
    said_of_it: dict[str, Any] = json.loads(found)
    return said_of_it


def _saved(array: Any, path: str) -> str:
    import numpy

    numpy.save(path, numpy.ascontiguousarray(array))
    return path


def main() -> None:
    """Becomes the command: pip makes a script `attune` that calls this."""
    path = _own()  # PATH has the script itself
    if path is None:
        print("attune: this package was installed without the command", file=sys.stderr)
        sys.exit(_EXIT_UNAVAILABLE)
    os.execv(path, ["attune", *sys.argv[1:]])
