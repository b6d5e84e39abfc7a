"""Wait for older attempts, and for older runs of this one, whose node controllers may still be alive.

Their learners must not write while the new ones do. An older controller reads the newer number in its control cell and
ends its learners. The head waits until that is certain, and then has their pending uploads stored.
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
from ffdl_batch.host.processes import boot_id, lives_here
from ffdl_batch.host.signals import release_signals

TICK_S = 0.2
SILENCE_MARGIN_S = 5.0
UPLOAD_LIMIT_S = 300.0
"""Seconds that storing for one earlier attempt may take. The daemon stores the rest later."""
Pause = Callable[[float], None]
"""Wait up to so many seconds and handle signals. Raises what ends the waiting."""
Report = Callable[[str], None]
"""Called with what is awaited when that changes; "" when the waiting is over."""


def earlier_attempts(launch: LaunchFile) -> List[LaunchFile]:
    """Return the launch files of the job's older attempts. One that cannot be read is reported on standard error.

    Raises NewerFormat, and OSError if the file system does not answer.
    """
    found = []
    for number in range(1, launch.attempt):
        path = JobDir(launch.job_dir).attempt(number).launch
        try:
            found.append(decode(read_whole(path, MAX_EVENT_BYTES, below=launch.job_dir).decode("utf-8")))
        except FileNotFoundError:
            continue  # never written, so the attempt never ran
        except NewerFormat:  # this release cannot find out whether its learners are alive
            raise
        except (OSError, DamagedFile, LaunchFileError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and is_passing(error, launch.job_dir):
                raise
            sys.stderr.write(f"ffdl-controller: {path}: {error}; this attempt is not waited for\n")
    return found


def fence_older_attempts(earlier: List[LaunchFile], number: int) -> None:
    """Write this attempt's number into the control cells of older attempts, so that their controllers end their
    learners.

    If a cell cannot be written, the head waits longer for that attempt.
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
            sys.stderr.write(f"ffdl-controller: {path}: {error}; attempt {launch.attempt} may run on for a while\n")


def await_earlier(launches: List[LaunchFile], own: AttemptDir, pause: Pause, report: Report) -> None:
    """Wait until no node controller of these attempts can have a living learner.

    Raises what `pause` raises, OSError.
    """
    reported = ""
    waiting = [(launch, rank) for launch in launches for rank in range(launch.nodes)]
    try:
        while waiting:
            launch, rank = waiting[0]
            why = _may_live(launch, rank, own)
            if not why:
                waiting.pop(0)
                continue
            if why != reported:
                reported = why
                report(f"waiting for {why}")
            pause(TICK_S)
    finally:
        if reported:
            report("")


def _may_live(launch: LaunchFile, rank: int, own: AttemptDir) -> str:
    """Return which node controller may still have learners, and why; "" if this one certainly has none."""
    attempt = AttemptDir(launch.attempt_dir)
    events = read_events(attempt, node_source(rank))
    started = [e for e in events if e.kind is EventKind.STARTED]
    if not started or has_ended(events):
        return ""
    fields = started[-1].fields
    who = f"the controller of node {rank} of attempt {launch.attempt} (pid {fields.get('pid')} on {fields.get('host')})"
    if fields.get("host") == os.uname().nodename:
        if lives_here(fields):
            return f"{who}; it is still running"
        if fields.get("boot_id") == boot_id():
            end_learners(events, mark(launch.token, rank), spared(launch))
        return ""
    limits = launch.limits
    silent_s = _silence_s(attempt, rank, own)
    longest_s = limits.fence_s + limits.heartbeat_s + SILENCE_MARGIN_S
    if silent_s is None or silent_s > longest_s:
        return ""
    return f"{who}; it did not report its end, and has certainly ended {longest_s:.0f} s after its last sign of life"


def _silence_s(attempt: AttemptDir, rank: int, own: AttemptDir) -> Optional[float]:
    """Return the seconds since the controller's last sign of life, by the file system's clock; None if it gave none."""
    clock = os.path.join(own.events, "head.clock")
    touch(clock)  # no time is given, so the file server sets its own
    signs = [_mtime(attempt.heartbeat(rank)), _mtime(attempt.event_file(node_source(rank)))]
    times = [at for at in signs if at is not None]
    return os.lstat(clock).st_mtime - max(times) if times else None


def _mtime(path: str) -> Optional[float]:
    try:
        return os.lstat(path).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def upload_pending_results(earlier: List[LaunchFile], pause: Pause) -> None:
    """Store pending uploads of older attempts, each in a process of its own. A failure is reported and ignored.

    The daemon stores those of attempts whose nodes reach no store. Raises what `pause` raises, after ending the
    process.
    """
    for launch in earlier:
        attempt = AttemptDir(launch.attempt_dir)
        final = find_object(attempt.final, below=attempt.path)
        if launch.cut_off or os.path.lexists(attempt.uploaded) or final.get("stored") is True:
            continue
        argv = [*own_argv(), "upload", "--launch", attempt.launch]
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=release_signals)  # noqa: PLW1509
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: nothing is stored for attempt {launch.attempt}: {error}\n")
            continue
        status = _await_upload(process, pause)
        if status:
            sys.stderr.write(
                f"ffdl-controller: storing for attempt {launch.attempt} exited with status {status}; "
                "its upload is still pending\n"
            )


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
