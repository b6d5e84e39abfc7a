"""Reads what the controllers wrote about an attempt. User claims: believed for the user's own job, no further."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.continuation import Checkpoint
from ffdl_batch.domain.events import Event, EventKind, FinalRecord, decode_events, merge
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.known import Evidence
from ffdl_batch.domain.launch import LaunchFile, LaunchFileError, decode
from ffdl_batch.services.control import read_control

MAX_EVENT_BYTES = 8 * 1024**2
"""An event file is a few kilobytes; what is larger is not ours, and its beginning is enough."""
MAX_CHECKPOINT_FILES = 20_000
"""A checkpoint directory with more files than this is looked at no further: the newest of these must do."""
STILL_ALIVE_S = 150.0
"""A node controller that cannot reach its job's directory kills its learners sooner (Limits.fence_s)."""
STOPPED_FIRST_S = 5.0
"""A node whose heartbeat is so much older than the newest one went before the others did."""


def read_evidence(attempt: AttemptDir) -> Evidence:
    """All events and the final record; files that are not there yet are simply missing from it.

    Every file is opened anew at each read, because network file systems check for changes at open.
    """
    files = []
    for path in sorted(Path(attempt.events).glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            files.append(decode_events(_read(path)))
    return Evidence(merge(files), _final(attempt), read_control(attempt).drill)


def read_launch(attempt: AttemptDir) -> LaunchFile | None:
    """What the attempt was started with; None where that was never written or is damaged."""
    try:
        return decode(_read(Path(attempt.launch)))
    except (FileNotFoundError, NotADirectoryError, LaunchFileError):
        return None


def saved_checkpoint(attempt: AttemptDir, checkpoints: str) -> Checkpoint:
    """What the attempt left in `checkpoints`: files that are newer than the learners' first sign of life.

    For attempts whose controllers could not take the inventory. Both times are the shared file system's. A directory
    that several jobs share cannot tell whose file it is.
    """
    began = []
    for path in Path(attempt.state).glob(".began-*"):
        with contextlib.suppress(FileNotFoundError):
            began.append(path.stat().st_mtime)
    if not began:
        return Checkpoint()
    newest, name = max(_files(checkpoints), default=(0.0, ""))
    return Checkpoint(saved_at=newest, newest=name) if newest >= min(began) else Checkpoint()


def _files(directory: str) -> Iterator[tuple[float, str]]:
    """Time of change and name of each file below `directory`, up to MAX_CHECKPOINT_FILES."""
    count = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                yield path.lstat().st_mtime, str(path.relative_to(directory))
            count += 1
            if count >= MAX_CHECKPOINT_FILES:
                return


def gone_first(attempt: AttemptDir, events: Sequence[Event]) -> tuple[str, ...]:
    """Names of the nodes whose controllers fell silent before the others did, without having said that they end."""
    hosts: dict[str, str] = {}
    ended: set[str] = set()
    for event in events:
        if event.kind is EventKind.STARTED and event.source.startswith("node-"):
            hosts[event.source] = str(event.fields.get("host", "")).partition(".")[0]
            ended.discard(event.source)
        elif event.kind is EventKind.ENDED:
            ended.add(event.source)
    beats = _heartbeats(attempt)
    newest = max(beats.values(), default=0.0)
    silent = (name for name, at in beats.items() if name not in ended and newest - at >= STOPPED_FIRST_S)
    return tuple(sorted({hosts[name] for name in silent if hosts.get(name)}))


def has_living_controllers(attempt: AttemptDir, now: float, silence_s: float) -> bool:
    """Whether a node controller that has not said that it ended was heard of within `silence_s`."""
    last: dict[str, EventKind] = {}
    for event in read_evidence(attempt).events:
        if event.kind in (EventKind.STARTED, EventKind.ENDED):
            last[event.source] = event.kind
    beats = ((name, at) for name, at in _heartbeats(attempt).items() if last.get(name) is not EventKind.ENDED)
    return any(now - at < silence_s for _, at in beats)


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
    return max(_heartbeats(attempt).values(), default=None)


def _heartbeats(attempt: AttemptDir) -> dict[str, float]:
    """When each node controller lived last, by the name under which it writes events."""
    times: dict[str, float] = {}
    for path in Path(attempt.events).glob("node-*.heartbeat"):
        with contextlib.suppress(FileNotFoundError):
            times[path.stem] = path.stat().st_mtime
    return times


def claim_owner(attempt: AttemptDir) -> str:
    """The native id that executes this attempt, "" while nobody does."""
    try:
        owner = json.loads(_read(Path(attempt.claim_owner)))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return ""
    return str(owner.get("native_id", "")) if isinstance(owner, dict) else ""
