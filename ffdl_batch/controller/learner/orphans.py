"""End processes that a killed controller left on this machine, where no scheduler's cgroup ended them."""

from __future__ import annotations

import os
import signal
import time
from typing import Collection, Dict, Iterable, List, Mapping, Sequence, Set

from ffdl_batch.controller.logs.output_pipe import WRITER_MARK
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar
from ffdl_batch.host.processes import (
    Process,
    all_processes,
    descendants,
    lives_here,
    read_living,
    read_process,
    send,
    session_members,
)

GONE_S, LEFT_S = 20.0, 2.0
MARK = "FFDL_LEARNER_OF"
"""Variable of each learner's first process, by which it is found if no event has its process id."""

HOLDER_MARK = "FFDL_MOUNT_OF"
"""Variable of a process that holds a mount for learners. It ends by itself when no learner is left."""
_MARKS = (MARK, WRITER_MARK, HOLDER_MARK)


def living_controller(events: Iterable[Event]) -> int:
    """Return the process id of the node controller that wrote these events, if it is alive on this machine, else 0."""
    started = [event for event in events if event.kind is EventKind.STARTED]
    if started and lives_here(started[-1].fields):
        return int(started[-1].fields["pid"] or 0)
    return 0


def living_learners(events: Iterable[Event]) -> List[int]:
    """Return the main processes of learners that were started, not reported as ended, and are alive on this machine."""
    open_: Dict[Scalar, Mapping[str, Scalar]] = {}
    for event in events:
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            open_[learner] = event.fields
        elif event.kind is EventKind.LEARNER_ENDED:
            open_.pop(learner, None)
    return [int(fields["pid"] or 0) for fields in open_.values() if lives_here(fields)]


def mark(token: str, node_rank: int) -> str:
    """Return the value of MARK for the learners of one node of one attempt."""
    return f"{token}/{node_rank}"


def marked_sessions(value: str) -> Set[int]:
    """Return the sessions of this user's processes that have the mark in their environment.

    Events would miss a learner whose controller was killed between starting it and writing the event.
    """
    return {process.session for process in _marked(all_processes(), f"{MARK}={value}")}


def _marked(table: Mapping[int, Process], *variables: str) -> List[Process]:
    return [process for process in table.values() if _carries(process.pid, *variables)]


def _carries(pid: int, *variables: str) -> bool:
    """Return whether the process was started with one of these variables, ``NAME=value``."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = b"\0" + file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # ended, or another user's
    return any(b"\0%s\0" % variable.encode() in environ for variable in variables)


def end_leftovers(learner_id: int) -> None:
    """Kill processes that an ended learner left outside its session, while other learners of this node continue.

    This process has become their parent. It stops waiting for those that the kernel does not end.
    """
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
    """Kill living learners and their sessions, except `spared` processes, and wait for their end.

    Without `value`, which is their mark, only learners in the events are killed. Raises OSError if the kernel does not
    end one of them, because then no new learner may start.
    """
    end = time.monotonic() + GONE_S
    written = living_learners(events)
    while True:
        table = all_processes()
        marked = _marked(table, *(f"{name}={value}" for name in _MARKS)) if value else []
        learners = [process for process in marked if _carries(process.pid, f"{MARK}={value}")]
        sessions = {*written, *(process.session for process in learners)}
        pids = [pid for session in sessions for pid in session_members(session, table) if pid not in spared]
        if not pids:
            break
        if time.monotonic() > end:
            stuck = sorted({*pids})
            raise OSError(f"processes {stuck} of an earlier run cannot be killed; look at the node's kernel log")
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)
    _end_helpers([process for process in marked if process not in learners])


def _end_helpers(helpers: Sequence[Process]) -> None:
    """Give log writers and mount processes a little time to finish, then kill them. Raises OSError as above."""
    begun = time.monotonic()
    while helpers := [process for process in helpers if _lives(process)]:
        if time.monotonic() - begun > GONE_S:
            pids = sorted(process.pid for process in helpers)
            raise OSError(f"processes {pids} of an earlier run cannot be killed; look at the node's kernel log")
        if time.monotonic() - begun > LEFT_S:
            for process in helpers:
                send(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def _lives(process: Process) -> bool:
    now = read_living(process.pid)
    return now is not None and now.start_ticks == process.start_ticks


def end_controller(pid: int, patience_s: float) -> None:
    """Send TERM to an outdated controller, and KILL after `patience_s` seconds. Wait for its end."""
    send(pid, signal.SIGTERM)
    end = time.monotonic() + patience_s
    while pid in all_processes():
        if time.monotonic() > end:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
