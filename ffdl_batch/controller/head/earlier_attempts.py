"""What came before this run: older attempts, and older runs of this one, whose node controllers may still live.

Their learners must not write while ours do. An older controller sees the newer number in its cells and ends its
learners; the head waits until that is certain. It also has stored what they could not store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Callable, List, Optional

from ffdl_batch.attempt.file_writer import touch, write_cell
from ffdl_batch.attempt.filesystem_retry import is_passing
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.learner_endings import has_ended
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, DamagedFile, find_object, read_whole
from ffdl_batch.controller.learner.orphans import end_learners, mark
from ffdl_batch.controller.learner.pod_exchange import spared
from ffdl_batch.controller.own_program import own_argv
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.outcome.controller_events import EventKind, node_source
from ffdl_batch.host.boot import boot_id
from ffdl_batch.host.processes import lives_here
from ffdl_batch.host.signals import release_signals

TICK_S = 0.2
SILENCE_MARGIN_S = 5.0
UPLOAD_LIMIT_S = 300.0
"""How long storing for one earlier attempt may take; the daemon tries again what this leaves."""
Pause = Callable[[float], None]
"""Waits up to so many seconds and takes signals; raises what ends the waiting."""
Report = Callable[[str], None]
"""Told what is waited for when that changes, "" when it is nothing any more."""


def earlier_attempts(launch: LaunchFile) -> List[LaunchFile]:
    """The launch files of this job's older attempts. One that cannot be read is named on standard error.

    Raises NewerFormat, and OSError where the file system is gone.
    """
    found = []
    for number in range(1, launch.attempt):
        path = JobDir(launch.job_dir).attempt(number).launch
        try:
            found.append(decode(read_whole(path, MAX_EVENT_BYTES, below=launch.job_dir).decode("utf-8")))
        except FileNotFoundError:
            continue  # it was never written, so nothing of it ever ran
        except NewerFormat:  # its learners may live, and nobody here can tell
            raise
        except (OSError, DamagedFile, LaunchFileError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and is_passing(error, launch.job_dir):
                raise
            sys.stderr.write(f"ffdl-controller: {path}: {error}; this attempt is not waited for\n")
    return found


def fence_older_attempts(earlier: List[LaunchFile], number: int) -> None:
    """Write into the cells of older attempts that this one is newer: their controllers end their learners then.

    One that cannot be told is only waited for longer.
    """
    for launch in earlier:
        attempt = AttemptDir(launch.attempt_dir)
        path = attempt.control
        try:
            cell = find_object(path, below=attempt.path)
            known = cell.get("attempt")
            if not isinstance(known, int) or known < number:
                write_cell(path, {**cell, "attempt": number})
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {path}: {error}; attempt {launch.attempt} is not told to end\n")


def await_earlier(launches: List[LaunchFile], own: AttemptDir, pause: Pause, report: Report) -> None:
    """Until no node controller of these launches can have a learner that lives. Raises what `pause` raises, OSError."""
    told = ""
    waiting = [(launch, rank) for launch in launches for rank in range(launch.nodes)]
    try:
        while waiting:
            launch, rank = waiting[0]
            why = _may_live(launch, rank, own)
            if not why:
                waiting.pop(0)
                continue
            if why != told:
                told = why
                report(f"waiting for {why}")
            pause(TICK_S)
    finally:
        if told:
            report("")


def _may_live(launch: LaunchFile, rank: int, own: AttemptDir) -> str:
    """Which earlier node controller may still have learners; "" where it is certain that none has."""
    attempt = AttemptDir(launch.attempt_dir)
    events = read_events(attempt, node_source(rank))
    started = [e for e in events if e.kind is EventKind.STARTED]
    if not started or has_ended(events):
        return ""
    fields = started[-1].fields
    who = f"the controller of node {rank} of attempt {launch.attempt} (pid {fields.get('pid')} on {fields.get('host')})"
    if fields.get("host") == os.uname().nodename:
        if lives_here(fields):
            return f"{who}; it still lives"
        if fields.get("boot_id") == boot_id():
            end_learners(events, mark(launch.token, rank), spared(launch))
        return ""
    limits = launch.limits
    silent_s = _silence_s(attempt, rank, own)
    longest_s = limits.fence_s + limits.heartbeat_s + SILENCE_MARGIN_S
    if silent_s is None or silent_s > longest_s:
        return ""
    return f"{who}; it has not said that it ended, and surely has {longest_s:.0f} s after it was heard of last"


def _silence_s(attempt: AttemptDir, rank: int, own: AttemptDir) -> Optional[float]:
    """Seconds since the controller was heard of, by the shared file system's clock; None where it never was."""
    clock = os.path.join(own.events, "head.clock")
    touch(clock)  # without times of ours: the file server gives its own
    heard = [_mtime(attempt.heartbeat(rank)), _mtime(attempt.event_file(node_source(rank)))]
    times = [at for at in heard if at is not None]
    return os.lstat(clock).st_mtime - max(times) if times else None


def _mtime(path: str) -> Optional[float]:
    try:
        return os.lstat(path).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def upload_pending_results(earlier: List[LaunchFile], pause: Pause) -> None:
    """Have results and logs of older attempts stored that could not be; best effort, each in a process of its own. What
    was cut off from stores is the platform's.

    Raises what `pause` raises, after ending the process.
    """
    for launch in earlier:
        attempt = AttemptDir(launch.attempt_dir)
        final = find_object(attempt.final, below=attempt.path)
        if launch.cut_off or os.path.lexists(attempt.uploaded) or final.get("stored") is True:
            continue
        argv = [*own_argv(), "pay", "--launch", attempt.launch]
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=release_signals)  # noqa: PLW1509
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: nothing is stored for attempt {launch.attempt}: {error}\n")
            continue
        status = _await_upload(process, pause)
        if status:
            sys.stderr.write(f"ffdl-controller: storing for attempt {launch.attempt} ended with {status}; still owed\n")


def _await_upload(process: "subprocess.Popen[bytes]", pause: Pause) -> int:
    end = time.monotonic() + UPLOAD_LIMIT_S
    try:
        while process.poll() is None and time.monotonic() < end:
            pause(TICK_S)
    finally:
        if process.poll() is None:
            process.kill()
        status = process.wait()
    return status
