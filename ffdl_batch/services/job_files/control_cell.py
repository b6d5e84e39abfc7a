"""Writes ``control.json``, the file with the daemon's requests to the controllers of an attempt.

The file is replaced as a whole, so a reader sees one request or the next, never a mixture. Its `attempt` is the newest
of the job. A controller of an older attempt that reads a larger number than its own ends its learners.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.control_cell import CANCEL, HALT, Control
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import DamagedFile, read_object
from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.file_format import require_known
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.domain.outcome.controller_events import AbandonMark

_WRITING = threading.RLock()
"""Held from reading a cell to writing it, so that no thread of this daemon loses what another one wrote."""
_REQUESTS = {RequestedAction.NONE: "", RequestedAction.HALT: HALT, RequestedAction.CANCEL: CANCEL}
"""The owner's requests as the cell spells them."""


def read_control(attempt: AttemptDir) -> Control:
    """Return the cell; a new one if it does not exist or is damaged (the platform writes it only as a whole).

    Raises OSError, NewerFormat among them.
    """
    try:
        cell = read_object(attempt.control, below=attempt.path)
        require_known(cell, attempt.control)
        control = from_plain(Control, cell)
        known = control.requested_action in _REQUESTS.values() and control.drill in ("", *DrillEvent)
        return control if known else Control()
    except (FileNotFoundError, NotADirectoryError, DamagedFile, CodecError):
        return Control()


def read_drill(attempt: AttemptDir) -> str:
    """Return the event that is simulated on the attempt's newest run, or "". Raises OSError, NewerFormat among them."""
    return read_notes(attempt)[0]


def read_abandon_mark(attempt: AttemptDir) -> AbandonMark | None:
    """Return the mark that the attempt's newest run was abandoned. Raises OSError, NewerFormat among them."""
    return read_notes(attempt)[1]


def read_notes(attempt: AttemptDir) -> tuple[str, AbandonMark | None]:
    """Return :func:`read_drill` and :func:`read_abandon_mark` from one read. Raises OSError, NewerFormat among them."""
    control = read_control(attempt)
    if not control.drill and control.abandon_mark is None:
        return "", None
    run, mark = newest_run(attempt), control.abandon_mark
    return control.drill if control.run == run else "", mark if mark is not None and mark.run == run else None


def newest_run(attempt: AttemptDir) -> int:
    """Return the number of the attempt's newest run: how often the attempt was claimed."""
    run = 0
    while Path(attempt.run_claim(run + 1)).is_dir():
        run += 1
    return run


def write_control(
    root: Root,
    job: Job,
    *,
    requested_action: RequestedAction | None = None,
    drill: str | None = None,
    learners: int | None = None,
) -> bool:
    """Change the cell of the job's current attempt; None keeps a value. Raises OSError.

    Return False if the attempt has no directory yet. The deployer or the watcher writes the cell later. The directory
    of an element that waits as a task of a native array is created, so that the task finds the request.
    """
    if job.attempt == 0:
        return False
    attempt = root.job(job.id).attempt(job.attempt)
    with _WRITING:
        before = read_control(attempt)
        after = replace(
            before,
            attempt=max(job.attempt, before.attempt),
            requested_action=before.requested_action if requested_action is None else _REQUESTS[requested_action],
            drill=before.drill if drill is None else drill,
            run=before.run if drill is None else newest_run(attempt) if drill else 0,
            learners=before.learners if learners is None else learners,
        )
        return _write(attempt, before, after, creates=_may_be_task(job))


def note_drill(root: Root, job: Job, drill: DrillEvent) -> str:
    """Note the event that is simulated on the newest run of the job's current attempt, unless one is noted already.

    Return the one that was noted before, or "". Raises OSError, also if the attempt has no directory.
    """
    attempt = root.job(job.id).attempt(job.attempt)
    with _WRITING:
        noted = read_drill(attempt)
        if not noted and not write_control(root, job, drill=drill):
            raise FileNotFoundError(f"there is no {attempt.path}")
    return noted


def mark_abandoned(root: Root, job: Job, mark: AbandonMark) -> bool:
    """Mark durably that a run of the job's current attempt is abandoned; its controllers end when they read the mark.

    Return False if the attempt has no directory. Raises OSError.
    """
    attempt = root.job(job.id).attempt(job.attempt)
    with _WRITING:
        before = read_control(attempt)
        after = replace(before, attempt=max(job.attempt, before.attempt), abandon_mark=mark)
        return _write(attempt, before, after, durable=True, creates=_may_be_task(job))


def fence_earlier(root: Root, job: Job) -> int:
    """Write the job's current attempt into the cells of all earlier attempts, so that their controllers end their
    learners if they still run. Return how many cells have it. Raises OSError."""
    fenced = 0
    with _WRITING:
        for number in range(1, job.attempt):
            attempt = root.job(job.id).attempt(number)
            before = read_control(attempt)
            fenced += _write(attempt, before, replace(before, attempt=max(job.attempt, before.attempt)))
    return fenced


def _may_be_task(job: Job) -> bool:
    """Whether the attempt may be a task of a native array, whose directory is made when the task starts."""
    return job.spec.element is not None and job.attempt == 1 and bool(job.native_id)


def _write(
    attempt: AttemptDir, before: Control, after: Control, *, durable: bool = False, creates: bool = False
) -> bool:
    if before == after:
        return True
    text = json.dumps(to_plain(after)) + "\n"
    try:
        write_text(attempt.control, text, durable=durable)
    except (FileNotFoundError, NotADirectoryError):
        if not creates:
            return False
        for directory in (Path(attempt.path).parent, Path(attempt.path)):
            directory.mkdir(mode=0o700, exist_ok=True)
        write_text(attempt.control, text, durable=durable)
    return True
