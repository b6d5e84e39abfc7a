"""Read what the controllers wrote about an attempt. Its user can have written it: it decides about the user's own job
only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.directory_tree import Directories, walk
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import (
    MAX_EVENT_BYTES,
    DamagedFile,
    find_object,
    list_names,
    read_head,
    read_object,
    read_whole,
)
from ffdl_batch.domain.file_format import require_known
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.outcome.attempt_reports import latest_run
from ffdl_batch.domain.outcome.continuation import Checkpoint
from ffdl_batch.domain.outcome.controller_events import (
    LOST_NODE,
    Event,
    EventKind,
    FinalRecord,
    decode_events,
    decode_final,
    is_time,
    merge,
)
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.heartbeat_loss import Beat
from ffdl_batch.services.job_files.control_cell import read_notes
from ffdl_batch.services.os_errors import AWAY

MAX_CHECKPOINT_FILES = 20_000
"""Maximum number of files of a checkpoint directory that are examined. Files beyond it do not count."""
STILL_ALIVE_S = 150.0
"""A node controller that cannot reach its job's directory kills its learners sooner (Limits.fence_s)."""
STOPPED_FIRST_S = 5.0
"""A node whose heartbeat is this much older than the newest one stopped before the others."""


def add_files(attempt: AttemptDir, facts: AttemptFacts) -> AttemptFacts:
    """Return the facts with the attempt's events, final record, marks and last heartbeat.

    Missing files are skipped; damaged files are skipped and named. Raises OSError, NewerFormat among them, as all
    functions here.
    """
    events, damaged = _read_events(attempt)
    final = None
    try:
        final = _read_final(attempt)
    except DamagedFile as error:
        damaged.append(str(error))
    drill, mark = read_notes(attempt)
    heartbeat_at = last_heartbeat(attempt)
    if final is None:
        _check_tree(attempt)
    return replace(
        facts, events=events, final_record=final, last_heartbeat_at=heartbeat_at, drill_event=drill, abandon_mark=mark,
        damaged_files=tuple(damaged),
    )  # fmt: skip


def read_events(attempt: AttemptDir, sources: Collection[str] = ()) -> list[Event]:
    """Return the events of all controllers, or of those that write as `sources`. Damaged files are skipped."""
    events, _ = _read_events(attempt, sources)
    _check_tree(attempt)
    return events


def _read_events(attempt: AttemptDir, sources: Collection[str] = ()) -> tuple[list[Event], list[str]]:
    """Return the events of all controllers, and a sentence for each damaged file.

    Every file is opened at each read, because network file systems check for changes when a file is opened.
    """
    files, damaged = [], []
    try:
        paths = _entries(attempt, attempt.events, "", ".jsonl")
    except DamagedFile as error:
        paths, damaged = [], [str(error)]
    for path in paths:
        if sources and path.stem not in sources:
            continue
        try:
            files.append(decode_events(_head(attempt, str(path))))
        except FileNotFoundError:
            continue
        except DamagedFile as error:
            damaged.append(str(error))
    return merge(files), damaged


def _check_tree(attempt: AttemptDir) -> None:
    """Raise OSError if the directory of all jobs does not exist, as when its file system is not mounted: then missing
    files prove nothing."""
    if not Path(attempt.path).is_dir():
        tree = Path(attempt.path).parents[2]
        os.scandir(Root(str(tree)).doorbell).close()


def _entries(attempt: AttemptDir, directory: str, prefix: str, suffix: str) -> list[Path]:
    """Return the sorted paths in a directory of the attempt; () if it does not exist. Raises DamagedFile, OSError."""
    try:
        names = list_names(directory, below=attempt.path)
    except FileNotFoundError:
        return []
    return [Path(directory, name) for name in names if name.startswith(prefix) and name.endswith(suffix)]


def read_launch(attempt: AttemptDir) -> LaunchFile | None:
    """Return the launch record of the attempt; None if it was never written or is damaged."""
    try:
        return decode(read_whole(attempt.launch, MAX_EVENT_BYTES, below=attempt.path).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, LaunchFileError):
        return None


def saved_checkpoint(attempt: AttemptDir, checkpoints: str) -> Checkpoint:
    """Return the checkpoint that the attempt left in `checkpoints`: files newer than the start of its first learner.

    For attempts whose controllers could not take the inventory. Both times are the shared file system's. In a directory
    that several jobs share, the file may be another job's.
    """
    began = []
    with contextlib.suppress(DamagedFile):
        for path in _entries(attempt, attempt.state, ".began-", ""):
            with contextlib.suppress(FileNotFoundError):
                began.append(path.lstat().st_mtime)
    if not began:
        return Checkpoint()
    newest, name = max(_files(checkpoints, str(Path(attempt.path).parent)), default=(0.0, ""))
    return Checkpoint(saved_at=newest, newest=name) if newest >= min(began) else Checkpoint()


def _files(directory: str, job_dir: str) -> Iterator[tuple[float, str]]:
    """Yield the modification time and name of each file in `directory`, up to MAX_CHECKPOINT_FILES."""
    count = 0
    try:
        tree = Directories(directory, below=job_dir)
    except OSError as error:
        _raise_if_away(error)
        return
    with tree:
        for parts, _, entries in walk(tree, unread=lambda _, error: _raise_if_away(error)):
            for entry in entries:
                try:
                    yield entry.stat(follow_symlinks=False).st_mtime, "/".join((*parts, entry.name))
                except OSError as error:
                    _raise_if_away(error)
                count += 1
                if count >= MAX_CHECKPOINT_FILES:
                    return


def _raise_if_away(error: OSError) -> None:
    """Raise the error if a file server is away: the file may be a checkpoint. A file that was removed meanwhile or that
    the daemon may not read is none."""
    if error.errno in AWAY:
        raise error


def nodes_at_fault(events: Sequence[Event]) -> tuple[str, ...]:
    """Return the names of the nodes whose controllers reported that their node is not fit for the job."""
    hosts: dict[str, str] = {}
    found = set()
    for event in events:
        if event.kind is EventKind.STARTED:
            hosts[event.source] = event.node
        elif event.kind in (EventKind.FAULT, EventKind.LEARNER_ENDED) and event.fields.get("code") in LOST_NODE:
            found.add(hosts.get(event.source, ""))
    return tuple(sorted(found - {""}))


def gone_first(attempt: AttemptDir, events: Sequence[Event]) -> tuple[str, ...]:
    """Return the names of the nodes whose heartbeats stopped before the others, without a report of their end."""
    hosts: dict[str, str] = {}
    ended: set[str] = set()
    for event in events:
        if event.kind is EventKind.STARTED and event.source.startswith("node-"):
            hosts[event.source] = event.node
            ended.discard(event.source)
        elif event.kind is EventKind.ENDED:
            ended.add(event.source)
    beats = _heartbeats(attempt)
    newest = max(beats.values(), default=0.0)
    silent = (name for name, at in beats.items() if name not in ended and newest - at >= STOPPED_FIRST_S)
    return tuple(sorted({hosts[name] for name in silent if hosts.get(name)}))


def open_controllers(attempt: AttemptDir) -> dict[str, tuple[Event | None, float]]:
    """Return the start and the last heartbeat of each node controller that has not reported its end."""
    return _open_controllers(attempt, read_events(attempt))


def _open_controllers(attempt: AttemptDir, events: Sequence[Event]) -> dict[str, tuple[Event | None, float]]:
    last: dict[str, Event] = {}
    for event in events:
        if event.kind in (EventKind.STARTED, EventKind.ENDED):
            last[event.source] = event
    found = {name: (last.get(name), at) for name, at in _heartbeats(attempt).items()}
    return {n: (e, at) for n, (e, at) in found.items() if e is None or e.kind is not EventKind.ENDED}


def oldest_heartbeat(attempt: AttemptDir) -> float | None:
    """Return the oldest of the node controllers' last heartbeats; None if none has begun. Reads no events."""
    return min(_heartbeats(attempt).values(), default=None)


def beats_of(attempt: AttemptDir) -> tuple[Beat, ...]:
    """Return the last heartbeat of each node controller of the latest run that has not reported its end."""
    begun = _open_controllers(attempt, latest_run(read_events(attempt)))
    return tuple(Beat(event.node or name, at) for name, (event, at) in sorted(begun.items()) if event is not None)


def _head(attempt: AttemptDir, path: str) -> str:
    return read_head(path, MAX_EVENT_BYTES, below=attempt.path).decode("utf-8", errors="replace")


def read_final(attempt: AttemptDir) -> FinalRecord | None:
    """Return the head's record; None if there is none. If it is damaged, the scheduler's state decides."""
    final = None
    with contextlib.suppress(DamagedFile):
        final = _read_final(attempt)
    if final is None:
        _check_tree(attempt)
    return final


def _read_final(attempt: AttemptDir) -> FinalRecord | None:
    """Return the record like :func:`read_final`, but raise DamagedFile."""
    try:
        body = read_object(attempt.final, below=attempt.path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    require_known(body, attempt.final)
    try:
        return decode_final(body)
    except ValueError as error:
        raise DamagedFile(attempt.final, str(error)) from None


def last_heartbeat(attempt: AttemptDir) -> float | None:
    """Return the newest heartbeat of a node controller (seconds since the epoch, by the file system's clock)."""
    return max(_heartbeats(attempt).values(), default=None)


def _heartbeats(attempt: AttemptDir) -> dict[str, float]:
    """Return the last heartbeat of each node controller, by the name under which it writes events."""
    times: dict[str, float] = {}
    with contextlib.suppress(DamagedFile):
        for path in _entries(attempt, attempt.events, "node-", ".heartbeat"):
            with contextlib.suppress(FileNotFoundError):
                times[path.stem] = path.lstat().st_mtime
    return times


def claim_owner(attempt: AttemptDir) -> str:
    """Return the native id that claimed the attempt; "" if none has."""
    return str(_claim(attempt, attempt.claim_owner).get("native_id", ""))


def claimed_at(attempt: AttemptDir, native_id: str) -> float | None:
    """Return when `native_id` claimed the latest run of the attempt, by its node's clock; None if it did not."""
    if claim_owner(attempt) != native_id:
        return None
    runs = [attempt.claim_owner, *(str(run / "owner.json") for run in _runs(attempt))]
    claims = [claim for run in runs if (claim := _claim(attempt, run)).get("native_id") == native_id]
    return max((float(at) for claim in claims if is_time(at := claim.get("at"))), default=None)


def _runs(attempt: AttemptDir) -> list[Path]:
    """Return the directories of the claims of runs after the first."""
    try:
        return _entries(attempt, attempt.claim, "run-", "")
    except DamagedFile:
        return []


def _claim(attempt: AttemptDir, path: str) -> dict[str, Any]:
    """Return a claim; an empty one if it does not exist or is damaged."""
    claim = find_object(path, below=attempt.path)
    require_known(claim, path)
    return claim
