"""What the library's error codes and messages become in Python."""

from __future__ import annotations

import re

_HEAD = re.compile(
    r"^(?:(?P<file>.*?):)??(?:(?P<line>\d+):(?P<column>\d+):\s)?\s*error: (?P<message>.*) \[(?P<id>[a-z0-9-]+)\]$"
)
_SOURCE = re.compile(r"^ *\d+ \| (?P<text>.*)$")
_HINT = re.compile(r"^ {6}= (?P<text>.*)$")


class AttuneError(Exception):
    """An error of Attune. `str(error)` is the whole report: place, message, the line with its caret, the hint.

    Attributes:
        id: stable and machine-readable, such as "expr-unknown-name"; empty when the report has none.
        message: one line: "unknown name `causl`".
        file: of the spec; empty when its text did not come from a file.
        line, column: where in the spec, from 1, the column in bytes; 0 when the error has no place.
        source_line: the line of the spec; empty without a place.
        hint: one line of help: "did you mean `causal`?"; may be empty.
    """

    def __init__(self, report: str, hint: str = "") -> None:
        self.id = self.file = self.source_line = ""
        self.line = self.column = 0
        self.message, self.hint = report.rstrip("\n"), hint
        super().__init__(self.message + (f"\n      = {hint}" if hint else ""))

    @classmethod
    def from_report(cls, report: str) -> AttuneError:
        """Of a report as the library renders it."""
        error = cls(report or "Attune failed without a message")
        first, *rest = report.splitlines() or [""]
        head = _HEAD.match(first)
        if head:
            error.id, error.message = head["id"], head["message"]
            error.file = (head["file"] or "").strip()
            error.line, error.column = int(head["line"] or 0), int(head["column"] or 0)
        for line in rest:
            if error.line and not error.source_line and (source := _SOURCE.match(line)):
                error.source_line = source["text"]
            elif not error.hint and (hint := _HINT.match(line)):
                error.hint = hint["text"]
        return error


class BadInputError(AttuneError, ValueError):
    """A spec, an argument or an array is wrong."""


class UnsupportedError(AttuneError, NotImplementedError):
    """Well-formed, but this device cannot do it."""


class UnavailableError(AttuneError, OSError):
    """There is no device, driver, compiler or library to do it with."""


_BY_STATUS = {2: BadInputError, 3: UnsupportedError, 4: UnavailableError}


def error_of_status(status: int, report: str) -> AttuneError:
    """The exception for an att_status other than ATT_OK."""
    return _BY_STATUS.get(status, AttuneError).from_report(report)
