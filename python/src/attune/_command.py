"""Where the command `attune` is, and the wheel's entry point of that name."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

from attune._errors import UnavailableError

_EXIT_UNAVAILABLE = 3  # the command's own exit code where there is nothing to run on


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
            "the command `attune`, which draws and explains, is not there",
            "name it in ATTUNE_COMMAND, or put it into PATH",
        )
    return found


def main() -> None:
    """Becomes the command: pip makes a script `attune` that calls this."""
    path = _own()  # PATH has the script itself
    if path is None:
        print("attune: this package was installed without the command", file=sys.stderr)
        sys.exit(_EXIT_UNAVAILABLE)
    os.execv(path, ["attune", *sys.argv[1:]])
