"""The processes of a local job, found from its files, and how one of them is signalled without hitting another."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ffdl_batch.domain.events import EventKind, decode_events, node_source
from ffdl_batch.domain.formats import NewerFormat
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_local.records import boot_id, process_stat

SUPERVISOR, HEAD = "supervisor", "head"
WITHDRAW = signal.SIGHUP
"""Ends a supervisor that waits for its turn; one whose job runs does nothing about it."""


def node_controller(attempt: AttemptDir) -> tuple[int, int] | None:
    """Pid and start time of the node controller that started last, None where none has (in this boot)."""
    try:
        events = decode_events(Path(attempt.event_file(node_source(0))).read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, NewerFormat):  # one of a newer release reads its cell, as all do
        return None
    started = [event.fields for event in events if event.kind is EventKind.STARTED]
    if not started or started[-1].get("boot_id") != boot_id():
        return None
    pid, ticks = started[-1].get("pid"), started[-1].get("start_ticks")
    return (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) else None


def signal_process(pid: int, ticks: object, number: int) -> bool:
    """Signal the process if it is the one that was recorded; through a descriptor, so that no other gets it."""
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
