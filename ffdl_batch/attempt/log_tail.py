"""Return the last lines of a learner's log, readable in a record and on a terminal."""

from __future__ import annotations

import os
import re
from typing import Tuple

from ffdl_batch.attempt.reader import NO_FILE, open_regular

LINES = 20
LINE_CHARACTERS = 400
READ_BYTES = 64 * 1024
_LAST_BYTES = 2000
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def tail(path: str) -> Tuple[str, ...]:
    """Return the last LINES lines of the log; () if it does not exist. Raises OSError."""
    data, cut = _end(path, READ_BYTES)
    if not cut and data.count(b"\n") <= LINES:  # it was begun a moment ago
        before, cut = _end(path + ".1", READ_BYTES - len(data))
        data = before + data
    return last_lines(data, cut=cut)


def _end(path: str, most: int) -> Tuple[bytes, bool]:
    """Return the end of a file, and whether it has a beginning before it."""
    try:
        data, size = read_end(path, most)
    except NO_FILE:
        return b"", False
    return data, size > most


def read_end(path: str, most: int, *, below: str = "") -> Tuple[bytes, int]:
    """Return the last `most` bytes of a file, and its size. Raises as
    :func:`ffdl_batch.attempt.reader.open_regular`."""
    with open_regular(path, below=below) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - most))
        return file.read(most), size


def last_line(path: str) -> str:
    """Return the last line of a file of messages; "" if it has none or cannot be read."""
    try:
        lines = _end(path, _LAST_BYTES)[0].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def last_lines(data: bytes, *, cut: bool = False) -> Tuple[str, ...]:
    """Return the lines as a terminal would finally show them. With `cut`, the first line may have lost its
    beginning."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if cut and len(lines) > 1:
        lines.pop(0)
    return tuple(readable(line) for line in lines[-LINES:])


def readable(line: str) -> str:
    """Return the line without terminal escapes and without characters that move a cursor. Of the states of a progress
    bar, only the last is kept."""
    line = _ESCAPES.sub("", line).rstrip("\r")
    shown = [state for state in line.split("\r") if state.strip()]
    line = _CONTROLS.sub("\ufffd", shown[-1] if shown else "")
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"
