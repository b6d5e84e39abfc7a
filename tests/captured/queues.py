"""The queues that were kept (``waiting-<release>/queue.txt``) with the columns that are asked for now.

They were kept before these columns were asked for; what a release prints for a job without such a request is put there.
"""

from __future__ import annotations

from pathlib import Path

NEWER = {
    "TRES_ALLOC": "N/A",
    "TRES_PER_JOB": "N/A",
    "TRES_PER_TASK": "N/A",
    "TRES_PER_SOCKET": "N/A",
    "TASKS": "1",
    "SOCKETS_PER_NODE": "*",
}
"""Titles, and what stands below them."""


def queue_text(directory: Path) -> str:
    """Of a release's directory."""
    header, *rows = (directory / "queue.txt").read_text(encoding="utf-8").splitlines()
    if "TRES_ALLOC" in header.split("|"):
        return "\n".join([header, *rows, ""])
    return "\n".join([_widen(header, list(NEWER)), *(_widen(row, list(NEWER.values())) for row in rows), ""])


def _widen(line: str, more: list[str]) -> str:
    fields, _, name = line.rpartition("|")
    return "|".join([fields, *more, name])
