"""Command lines of what runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def command_lines() -> Iterator[tuple[Path, bytes]]:
    """Place below /proc and command line of each process; what ends meanwhile is left out."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.parent, path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
