"""Standard output that says so when it cannot be written: a full disk is no defect of ours."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FD = 1


class OutputLost(Exception):
    """Standard output took nothing. No OSError, so that nobody mistakes it for one of a file or a socket."""

    def __init__(self, error: OSError) -> None:
        closed = error.errno == errno.EBADF
        super().__init__(
            "standard output is closed" if closed else f"standard output cannot be written: {error.strerror}"
        )


class _Output(io.FileIO):
    """Tells failures of standard output from those of everything else; a closed pipe stays what it is."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as error:
            raise OutputLost(error) from error


def watch_output() -> None:
    """Replace sys.stdout by one whose failures are :class:`OutputLost`.

    Where the caller closed descriptor 1 (``>&-``), it is held by something that cannot be written: else the next
    file or socket would get that number, and output would go there. What the locale's encoding does not have (a curve
    in Latin-1) becomes a question mark.
    """
    old = sys.stdout
    if old is None:
        held = os.open(os.devnull, os.O_RDONLY)
        if held != _FD:
            os.dup2(held, _FD)
            os.close(held)
    raw = io.BufferedWriter(_Output(_FD, "w", closefd=False))
    if old is None:
        sys.stdout = io.TextIOWrapper(raw, encoding="utf-8")
    else:
        errors = "replace" if old.errors == "strict" else old.errors
        sys.stdout = io.TextIOWrapper(
            raw, encoding=old.encoding, errors=errors, line_buffering=bool(old.line_buffering)
        )


def drop_output() -> None:
    """Python flushes standard output once more at exit: give what is left somewhere to go."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _FD)
    os.close(null)
