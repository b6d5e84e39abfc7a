"""Find the processes of a local job by its files, and signal them without a race."""

from __future__ import annotations

import os
import signal

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_text
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, decode_events, node_source
from ffdl_batch.host.processes import boot_id
from ffdl_local.records import process_stat

SUPERVISOR, HEAD = "supervisor", "head"
WITHDRAW = signal.SIGHUP
"""Ends a supervisor that waits for its turn. A supervisor whose job runs ignores it."""


def node_controller(attempt: AttemptDir) -> tuple[int, int] | None:
    """Return pid and start time of the last node controller; None if none has started in this boot."""
    started = [event.fields for event in _node_events(attempt) if event.kind is EventKind.STARTED]
    if not started or started[-1].get("boot_id") != boot_id():
        return None
    pid, ticks = started[-1].get("pid"), started[-1].get("start_ticks")
    return (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) else None


def has_living_learners(attempt: AttemptDir) -> bool:
    """Return whether a learner lives whose end the node controller has not recorded."""
    open_ = {}
    for event in _node_events(attempt):
        learner = event.fields.get("learner_id")
        if event.kind is EventKind.LEARNER_STARTED:
            open_[learner] = event.fields
        elif event.kind is EventKind.LEARNER_ENDED:
            open_.pop(learner, None)
    boot = boot_id()
    for fields in open_.values():
        pid = fields.get("pid")
        stat = process_stat(pid) if isinstance(pid, int) and fields.get("boot_id") == boot else None
        if stat is not None and stat[0] not in "ZX" and stat[2] == fields.get("start_ticks"):
            return True
    return False


def _node_events(attempt: AttemptDir) -> list[Event]:
    """Return the events of the node controller; none if the file has a newer format."""
    try:
        return decode_events(find_text(attempt.event_file(node_source(0)), MAX_EVENT_BYTES, below=attempt.path))
    except (FileNotFoundError, NewerFormat):
        return []


def signal_process(pid: int, ticks: object, number: int) -> bool:
    """Signal the process through a pidfd, if it is the recorded one. Return whether it was."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        stat = process_stat(pid)
        if stat is None or stat[2] != ticks or stat[0] in "ZX":
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
