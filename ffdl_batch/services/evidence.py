"""Reads what the controllers wrote about an attempt. User claims: believed for the user's own job, no further."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.events import FinalRecord, decode_events, merge
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.verdict import Evidence

MAX_EVENT_BYTES = 8 * 1024**2
"""An event file is a few kilobytes; what is larger is not ours, and its beginning is enough."""


def read_evidence(attempt: AttemptDir) -> Evidence:
    """All events and the final record; files that are not there yet are simply missing from it.

    Every file is opened anew at each read, because network file systems check for changes at open.
    """
    files = []
    for path in sorted(Path(attempt.events).glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            files.append(decode_events(_read(path)))
    return Evidence(merge(files), _final(attempt))


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_EVENT_BYTES).decode("utf-8", errors="replace")


def _final(attempt: AttemptDir) -> FinalRecord | None:
    """A record that cannot be read is no proof: the scheduler's word decides then."""
    try:
        return from_plain(FinalRecord, json.loads(_read(Path(attempt.final))))
    except (FileNotFoundError, json.JSONDecodeError, CodecError):
        return None


def last_heartbeat(attempt: AttemptDir) -> float | None:
    """When a node controller of this attempt lived last (seconds since the epoch, by the file system's clock)."""
    times = []
    for path in Path(attempt.events).glob("node-*.heartbeat"):
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)


def claim_owner(attempt: AttemptDir) -> str:
    """The native id that executes this attempt, "" while nobody does."""
    try:
        owner = json.loads(_read(Path(attempt.claim_owner)))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return ""
    return str(owner.get("native_id", "")) if isinstance(owner, dict) else ""
