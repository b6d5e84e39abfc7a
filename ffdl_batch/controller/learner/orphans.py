"""Processes that a killed controller left on this machine (a scheduler's cgroups end them; a plain host does not)."""

from __future__ import annotations

import os
import signal
import time
from typing import Collection, Dict, Iterable, List, Mapping, Set

from ffdl_batch.controller.logs.output_pipe import WRITER_MARK
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar
from ffdl_batch.host.processes import (
    Process,
    all_processes,
    descendants,
    lives_here,
    read_process,
    send,
    session_members,
)

GONE_S, LEFT_S = 20.0, 2.0
MARK = "FFDL_LEARNER_OF"
"""Variable of every learner's first process, by which it can be found if its id was not recorded."""

HOLDER_MARK = "FFDL_MOUNT_OF"
"""Variable of a process that holds a mount for learners; it ends by itself when no learner is left."""


def living_controller(events: Iterable[Event]) -> int:
    """The pid of the node controller that wrote these events, where it still lives here; else 0."""
    started = [event for event in events if event.kind is EventKind.STARTED]
    if started and lives_here(started[-1].fields):
        return int(started[-1].fields["pid"] or 0)
    return 0


def living_learners(events: Iterable[Event]) -> List[int]:
    """Main processes of learners that were started, are not reported as ended, and live here."""
    open_: Dict[Scalar, Mapping[str, Scalar]] = {}
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            open_[learner] = event.fields
        elif event.kind is EventKind.LEARNER_ENDED:
            open_.pop(learner, None)
    return [int(fields["pid"] or 0) for fields in open_.values() if lives_here(fields)]


def mark(token: str, node_rank: int) -> str:
    """The value of MARK for the learners of one node of one attempt."""
    return f"{token}/{node_rank}"


def marked_sessions(value: str) -> Set[int]:
    """Sessions that hold a process of ours whose environment carries the mark.

    Events alone would miss a learner whose controller was killed between starting it and writing so.
    """
    return {process.session for process in _marked(f"{MARK}={value}")}


def _marked(variable: str) -> List[Process]:
    return [process for process in all_processes().values() if _carries(process.pid, variable)]


def _carries(pid: int, variable: str) -> bool:
    """Whether the process was started with this variable, as ``NAME=value``."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable.encode() in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # gone, or another user's: not our learner


def end_leftovers(learner_id: int) -> None:
    """Kill what a learner that has ended left outside its session, while others of this node go on; it is given up
    where the kernel holds on to it. This process has become its parent."""
    own = os.getpid()
    left = [p for p in descendants(own, all_processes()) if p != own and _carries(p, f"LEARNER_ID={learner_id}")]
    for pid in left:
        send(pid, signal.SIGKILL)
    end = time.monotonic() + LEFT_S
    while left and time.monotonic() < end:
        left = [pid for pid in left if not _is_collected(pid)]
        time.sleep(0.01)


def _is_collected(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # its parent has not ended yet, or it is gone
        return read_process(pid) is None


def end_learners(events: Iterable[Event], value: str = "", spared: Collection[int] = ()) -> None:
    """Kill such learners and everything in their sessions but those `spared`, and wait until they are gone: nobody can
    collect how they end. Without `value`, which is their mark, only those that the events name.

    Raises OSError where the kernel holds on to one of them, for then its successor must not start.
    """
    end = time.monotonic() + GONE_S
    written = living_learners(events)
    while True:
        sessions = {*written, *(marked_sessions(value) if value else ())}
        pids = [pid for session in sessions for pid in session_members(session, all_processes()) if pid not in spared]
        if not pids:
            break
        if time.monotonic() > end:
            stuck = sorted({*pids})
            raise OSError(f"processes {stuck} of an earlier run cannot be killed; look at the node's kernel log")
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)
    if value:
        _end_helpers(f"{WRITER_MARK}={value}")
        _end_helpers(f"{HOLDER_MARK}={value}")


def _end_helpers(mark: str) -> None:
    """Let the writers of the learners' logs write what is left, and holders of mounts unmount, but not for ever. Raises
    OSError as above."""
    begun = time.monotonic()
    while True:
        helpers = _marked(mark)
        if not helpers:
            return
        if time.monotonic() - begun > GONE_S:
            pids = sorted(process.pid for process in helpers)
            raise OSError(f"processes {pids} of an earlier run cannot be killed; look at the node's kernel log")
        if time.monotonic() - begun > LEFT_S:
            for process in helpers:
                send(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def end_controller(pid: int, patience_s: float) -> None:
    """TERM to a controller that is no longer wanted, KILL after `patience_s` seconds."""
    send(pid, signal.SIGTERM)
    end = time.monotonic() + patience_s
    while pid in all_processes():
        if time.monotonic() > end:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
