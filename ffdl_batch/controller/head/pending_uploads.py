"""Store pending uploads: results and logs that an attempt could not store before it was killed.

The next attempt's head and the platform run this after the attempt has ended, each in a process of its own. It is
idempotent, and two runs may overlap. It does not replace what a newer attempt stored. If the attempt ran on this
machine, it also removes the scratch directory, which a killed controller could not remove.

If the head was killed when only storing was left, the attempt has no final record. This module then writes it if the
platform requests that: the files show how the learners ended.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import List, Optional

from ffdl_batch.attempt.conclusion import (
    EXIT_PLATFORM,
    EXIT_UNREADABLE,
    NOT_STORED,
    Conclusion,
    conclude,
    may_run_again,
)
from ffdl_batch.attempt.file_writer import touch, write_cell
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.learner_endings import unreported_ends
from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.attempt.phase_files import PhaseFailed, PhaseFiles
from ffdl_batch.controller.data.job_directories import remove_scratch, scratch_of
from ffdl_batch.controller.data.result_storage import clear_stores, do_each, store_logs, store_results
from ffdl_batch.controller.data.tree_copy import UnreadableSource
from ffdl_batch.controller.head.final_record import learners_not_stored, read_final, remove_secrets
from ffdl_batch.controller.learner.orphans import end_learners
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.data.staging_protocol import UNREADABLE_CODE
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import (
    HEAD,
    Event,
    EventKind,
    FinalRecord,
    Outcome,
    Scalar,
    merge,
    node_source,
)
from ffdl_batch.host.permissions import with_denial
from ffdl_batch.host.processes import lives_here, read_process

EXIT_STILL_RUNNING = 75
"""A node controller of the attempt still runs here and may leave more to store (sysexits.h EX_TEMPFAIL)."""
WHEN_STORED, ALWAYS = "when-stored", "always"


def upload(launch: LaunchFile, write_record: str = "") -> int:
    """Store pending uploads and write ``uploaded.json``. Return 0, also if none are pending,
    EXIT_PLATFORM if storing fails, EXIT_UNREADABLE if results deny the access, or EXIT_STILL_RUNNING.

    `write_record` decides when to write the final record if the head wrote none: "" (never), WHEN_STORED, ALWAYS.
    WHEN_STORED also writes it if results deny the access, because another try would fail, too.
    """
    attempt = AttemptDir(launch.attempt_dir)
    if launch.cut_off:
        sys.stderr.write(f"ffdl-controller: {launch.token}: no store is reached from here\n")
        return EXIT_PLATFORM
    if os.path.lexists(attempt.uploaded):
        remove_secrets(attempt)
        return 0
    files = [read_events(attempt, node_source(rank)) for rank in range(launch.nodes)]
    for events in files:
        started = [event for event in events if event.kind is EventKind.STARTED]
        if started and lives_here(started[-1].fields):
            sys.stderr.write(f"ffdl-controller: a controller of {launch.token} still runs; nothing is stored yet\n")
            return EXIT_STILL_RUNNING
    for rank, events in enumerate(files):
        end_learners(events)  # learners that outlived their controller must not write during the upload
        if any(one.kind is EventKind.STARTED and one.fields.get("host") == os.uname().nodename for one in events):
            remove_scratch(scratch_of(launch, rank))
    found = merge(files)
    found += _unreported_ends(launch, found)
    pending = learners_not_stored(found)
    late = os.path.exists(JobDir(launch.job_dir).attempt(launch.attempt + 1).launch)
    try:
        if pending:
            logged = [number for number in pending if os.path.isdir(attempt.learner_logs(number))]
            results = [partial(store_results, launch, late=late)] if os.path.isdir(attempt.results) else []
            do_each([*results, partial(store_logs, launch, logged, late=late)])
            clear_stores(launch, _Dead(files).has)
        if write_record:
            _write_final_record(launch, [*found, *(_event(EventKind.STORED, learner_id=number) for number in pending)])
        write_cell(attempt.uploaded, {"at": time.time(), "host": os.uname().nodename, "learners": pending})
        remove_secrets(attempt)
    except (OSError, PhaseFailed) as error:
        message = with_denial(f"results and logs cannot be stored: {error}", error)
        is_unreadable = isinstance(error, UnreadableSource) or getattr(error, "code", "") == UNREADABLE_CODE
        code = UNREADABLE_CODE if is_unreadable else NOT_STORED
        sys.stderr.write(f"ffdl-controller: {launch.token}: {message}\n")
        if write_record == ALWAYS or (write_record and is_unreadable):
            _write_final_record(launch, [*found, _event(EventKind.FAULT, code=code, message=message)])
        return EXIT_UNREADABLE if is_unreadable else EXIT_PLATFORM
    finally:
        if write_record:
            touch(os.path.join(launch.doorbell, launch.job_id))
    return 0


class _Dead:
    """Processes that store nothing more: the attempt's node controllers and processes that have ended on this host."""

    def __init__(self, files: List[List[Event]]) -> None:
        started = [event.fields for events in files for event in events if event.kind is EventKind.STARTED]
        self._controllers = {(fields.get("host"), fields.get("pid")) for fields in started}

    def has(self, host: str, pid: int) -> bool:
        """Return whether this process is one of them."""
        return (host, pid) in self._controllers or (host == os.uname().nodename and read_process(pid) is None)


def _unreported_ends(launch: LaunchFile, events: List[Event]) -> List[Event]:
    phases = PhaseFiles(AttemptDir(launch.attempt_dir).state)
    found = unreported_ends(events, phases, range(1, launch.learners + 1))
    return [_event(EventKind.LEARNER_ENDED, learner_id=n, exit_code=status) for n, status in found.items()]


def _event(kind: EventKind, **fields: Scalar) -> Event:
    """Return an event that a node controller would have written now if it still ran."""
    return Event(1, time.time(), "upload", kind, fields)


def _write_final_record(launch: LaunchFile, events: List[Event]) -> None:
    """Write the final record for the latest run's head if that head wrote none, or one that allows another run, and
    the learners' ends show how the attempt ended. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    claims = [event for event in read_events(attempt, HEAD) if event.kind is EventKind.CLAIMED]
    written = read_final(attempt)
    found = conclude(launch, events, terminated=False)
    is_unstored = found.error_code in (NOT_STORED, UNREADABLE_CODE)
    is_known = found.outcome is Outcome.COMPLETED or found.learner_id or is_unstored
    if claims and is_known and (written is None or may_run_again(written)):
        write_cell(attempt.final, to_plain(_record(attempt, found, claims[-1])))


def _record(attempt: AttemptDir, conclusion: Conclusion, claim: Event) -> FinalRecord:
    restart: Optional[Scalar] = claim.fields.get("restart")
    return FinalRecord(
        native_id=str(claim.fields.get("native_id", "")),
        outcome=conclusion.outcome,
        at=time.time(),
        stored=conclusion.stored,
        exit_code=conclusion.exit_code,
        exit_signal=conclusion.exit_signal,
        error_code=conclusion.error_code,
        message=conclusion.message,
        log_tail=tail(attempt.training_log(conclusion.learner_id)) if conclusion.learner_id else (),
        restart=restart if isinstance(restart, int) else 0,
        checkpoint=conclusion.checkpoint,
    )
