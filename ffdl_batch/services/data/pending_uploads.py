"""Makes pending uploads: stores results and logs that an attempt could not store before it was killed.

The head of the next attempt uploads for the attempts before it. If the job has ended, or only its upload is left, the
daemon uploads. It does so in a separate process that runs the controllers' code, so that a slow or broken store does
not block the daemon. One upload runs at a time, also if several daemons share a database, and never while a controller
of the attempt may still be storing.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ffdl_batch.attempt.conclusion import EXIT_UNREADABLE
from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_CELL_BYTES, find_text
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.egress import Networks, child_environment
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.backend_uploads import INTERRUPTED, NotBegun, SeparateUpload, is_apart
from ffdl_batch.services.data.controller_fence import fenced_s
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import LeaderLease, Leases
from ffdl_batch.services.outcome.upload_pending_reason import ReportedReasons
from ffdl_batch.store import Attempt

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 3600.0
LONGEST_INTERRUPTED_S = 600.0
"""Longest pause after an upload that the backend could not begin, or that was interrupted."""
PATIENT_TRIES = 3
"""Failed tries after which a pending upload no longer keeps a job from ending (it fails, S303), nor the daemon, which
tries again after its next start."""
MOST_APART = 32
"""Maximum number of uploads that backends make at the same time."""
END_S = 5.0
LOCK, COMPLAINT = ".uploading", ".uploading.log"
LEASE = "uploads"
CONTROLLER = (sys.executable, "-E", "-P", "-m", "ffdl_batch.controller")


class Upload(Protocol):
    """A running upload."""

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        ...

    def end(self) -> None:
        """End it within a few seconds; what it has stored stays."""
        ...


class WriteFinalRecord(StrEnum):
    """When the upload writes the final record of the attempt, in the place of a killed head."""

    NEVER = ""
    WHEN_STORED = "when-stored"
    ALWAYS = "always"
    """Also if the upload fails."""


Start = Callable[[AttemptDir, WriteFinalRecord], Upload | None]
"""Starts the upload of an attempt; returns None if a process on this host makes it already. Raises OSError."""


@dataclass(slots=True)
class _Tries:
    """The tries of one upload."""

    failed: int = 0
    interrupted: int = 0
    not_before: float = 0.0
    why: str = ""
    """Why the latest one failed, or could not begin."""


@dataclass(frozen=True, slots=True)
class _Running:
    attempt: Attempt
    upload: Upload


class PendingUploads:
    """The pending uploads of one daemon. It keeps counts of failures only in memory; a restart resets them."""

    def __init__(self, storage: JobStorage, adapters: Adapters, leases: Leases, start: Start | None = None) -> None:
        self._storage, self._adapters = storage, adapters
        self._start = start or functools.partial(start_upload, egress=adapters.settings.egress)
        self._running: list[_Running] = []
        self._tries: dict[tuple[JobId, int], _Tries] = {}
        self._turn = LeaderLease(leases, LEASE)
        self._others_turn = False
        self._due_in_s = LONGEST_PAUSE_S
        self._reported = ReportedReasons(storage.store)

    @property
    def due_in_s(self) -> float:
        """Seconds after the last step until an upload may begin that had to wait for a controller then."""
        return self._due_in_s

    @property
    def is_uploading(self) -> bool:
        """Whether an upload is running."""
        return bool(self._running)

    @property
    def is_waiting(self) -> bool:
        """Whether there were pending uploads at the last step, and another daemon had the lease for them."""
        return self._others_turn

    def is_busy(self) -> bool:
        """Return whether an upload is running or will be tried soon, so that the daemon should not end."""
        if self.is_uploading:
            return True
        pending = self._storage.store.pending_uploads()
        tries = (self._tries.get((one.job_id, one.number), _Tries()) for one in pending)
        return any(one.failed < PATIENT_TRIES for one in tries)

    def step(self) -> int:
        """Check the running upload, or begin the next; return how many uploads are done.

        An upload continues while the database is unavailable. It is ended when another daemon has the lease.
        """
        gone = self._step()
        if not self._others_turn:
            self._report()
        return gone

    def _step(self) -> int:
        self._due_in_s = LONGEST_PAUSE_S
        if self._running and not self._look():
            self._keep_lease()
            if not self._number_running(apart=True):
                return 0
        pending = self._storage.store.pending_uploads()
        if not pending:
            self._turn.end()
        self._others_turn = bool(pending) and not self._turn.take()
        if not pending or self._others_turn:
            return 0
        done = {(one.job_id, one.number): at for one in pending if (at := self._uploaded_at(one)) is not None}
        gone = sum(self._storage.store.note_uploaded(*key, at) for key, at in done.items())
        left = [one for one in pending if (one.job_id, one.number) not in done]
        self._forget_others(left)
        self._begin_some(left)
        return gone

    def close(self) -> None:
        """End the running upload and release the lease; the next daemon continues. Raises StoreError."""
        self._end_upload()
        self._turn.end()

    def _look(self) -> bool:
        """Poll the running uploads; return whether one of them has ended."""
        ended = [(one, status) for one in self._running if (status := one.upload.poll()) is not None]
        self._running = [one for one in self._running if all(one is not other for other, _ in ended)]
        for one, status in ended:
            self._finished(one.attempt, status, one.upload.why if isinstance(one.upload, SeparateUpload) else "")
        return bool(ended)

    def _report(self) -> None:
        """Write into jobs why the uploads of their backends wait, or failed."""
        reasons = {key: f"{tries.why}; it is tried again" for key, tries in self._tries.items() if tries.why}
        apart = ((one.attempt, one.upload) for one in self._running if isinstance(one.upload, SeparateUpload))
        self._reported.report(reasons | {(attempt.job_id, attempt.number): upload.why for attempt, upload in apart})

    def _number_running(self, *, apart: bool) -> int:
        return sum(isinstance(one.upload, SeparateUpload) is apart for one in self._running)

    def _is_running(self, attempt: Attempt) -> bool:
        return any(
            (one.attempt.job_id, one.attempt.number) == (attempt.job_id, attempt.number) for one in self._running
        )

    def _keep_lease(self) -> None:
        """Keep the lease while an upload is running; end the upload if the lease was lost."""
        if not self._turn.take():
            log.warning("another daemon has the lease for pending uploads; the upload of this one is ended")
            self._end_upload()

    def _end_upload(self) -> None:
        for one in self._running:
            one.upload.end()
        self._running = []

    def _begin_some(self, pending: list[Attempt]) -> None:
        """Begin the uploads that are due, oldest first; on this host one at a time."""
        jobs = {job.id: job for job in self._storage.store.get_many([one.job_id for one in pending])}
        over = [one for one in pending if one.job_id in jobs and _is_over(jobs[one.job_id], one)]
        now = self._storage.clock.monotonic()
        file_time = self._storage.file_time(self._storage.root.path) if over else 0.0
        for one in over:
            attempt = self._directory(one)
            if now < self._tried(one).not_before or self._is_running(one):
                continue
            try:
                if wait_s := fenced_s(self._adapters, one, attempt, file_time):
                    self._due_in_s = min(self._due_in_s, wait_s)
                    continue
                apart = is_apart(attempt)
                if self._number_running(apart=apart) >= (MOST_APART if apart else 1):
                    continue
                upload = self._begin(one, attempt, self._when_to_write(jobs[one.job_id], one), apart=apart)
            except OSError as error:
                log.error("job %s: the pending upload of attempt %d cannot begin: %s", one.job_id, one.number, error)
                self._put_off(one, str(error), interrupted=isinstance(error, NotBegun))
                continue
            if upload is not None:
                self._tried(one).why = ""
                log.info("job %s: the pending upload of attempt %d begins", one.job_id, one.number)
                self._running.append(_Running(one, upload))
                continue
            self._put_off(one)

    def _begin(
        self, pending: Attempt, attempt: AttemptDir, write_record: WriteFinalRecord, *, apart: bool
    ) -> Upload | None:
        """Start an upload; return None if a process on this host makes it already. Raises OSError."""
        if not apart:
            return self._start(attempt, write_record)
        upload = SeparateUpload(self._adapters, pending, attempt, write_record is WriteFinalRecord.ALWAYS)
        upload.begin()
        return upload

    def _when_to_write(self, job: Job, attempt: Attempt) -> WriteFinalRecord:
        if job.state.is_terminal:
            return WriteFinalRecord.NEVER
        is_last_try = self._tried(attempt).failed >= PATIENT_TRIES - 1
        return WriteFinalRecord.ALWAYS if is_last_try else WriteFinalRecord.WHEN_STORED

    def _finished(self, attempt: Attempt, status: int, why: str) -> None:
        if self._uploaded_at(attempt) is not None:
            return
        is_unreadable = status == EXIT_UNREADABLE
        log.warning(
            "job %s: the pending upload of attempt %d failed (exit code %d) and is tried again%s%s",
            attempt.job_id, attempt.number, status, " when the daemon starts again" if is_unreadable else "",
            f": {why}" if why else _complaint(self._directory(attempt)),
        )  # fmt: skip
        if is_unreadable:
            self._tries[attempt.job_id, attempt.number] = _Tries(failed=PATIENT_TRIES, not_before=math.inf)
            return
        self._put_off(attempt, why, interrupted=status == INTERRUPTED)

    def _put_off(self, attempt: Attempt, why: str = "", *, interrupted: bool = False) -> None:
        """Postpone the next try. An `interrupted` try does not count as failed, because the store is not the cause."""
        tries = self._tried(attempt)
        longest = LONGEST_INTERRUPTED_S if interrupted else LONGEST_PAUSE_S
        pause = growing_pause(tries.failed + tries.interrupted + 1, FIRST_PAUSE_S, longest)
        tries.failed += not interrupted
        tries.interrupted += interrupted
        tries.why, tries.not_before = why, self._storage.clock.monotonic() + pause

    def _tried(self, attempt: Attempt) -> _Tries:
        return self._tries.setdefault((attempt.job_id, attempt.number), _Tries())

    def _forget_others(self, pending: list[Attempt]) -> None:
        left = {(one.job_id, one.number) for one in pending}
        self._tries = {key: tries for key, tries in self._tries.items() if key in left}

    def _uploaded_at(self, attempt: Attempt) -> float | None:
        """Return when the upload was done, by the file system's clock; None if it is pending."""
        try:
            return Path(self._directory(attempt).uploaded).lstat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _directory(self, attempt: Attempt) -> AttemptDir:
        return self._storage.root.job(attempt.job_id).attempt(attempt.number)


def _is_over(job: Job, attempt: Attempt) -> bool:
    """Return whether the daemon is to upload: the job has ended, or only the upload of its attempt is left."""
    return job.state.is_terminal or (job.state is JobState.STORING and job.attempt == attempt.number)


@dataclass(frozen=True, slots=True)
class _Process:
    """An uploading process. It holds the attempt's lock while it runs."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_upload(
    attempt: AttemptDir,
    write_record: WriteFinalRecord = WriteFinalRecord.NEVER,
    egress: Networks | None = None,
) -> Upload | None:
    """Start ``controller upload`` with this interpreter. The process holds the lock until it ends, also without us."""
    directory = Path(attempt.path)
    argv = [*CONTROLLER, "upload", "--launch", attempt.launch]
    if write_record:
        argv += ["--final-record", write_record.value]
    lock = open_own(str(directory / LOCK), os.O_RDWR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        with os.fdopen(open_own(str(directory / COMPLAINT), os.O_WRONLY | os.O_TRUNC), "wb") as complaint:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=complaint, stderr=complaint, pass_fds=(lock,), cwd=directory,
                start_new_session=True, env=child_environment(egress),
            )  # fmt: skip
    finally:
        os.close(lock)
    return _Process(process)


def _complaint(attempt: AttemptDir) -> str:
    """Return the end of the process's output, for the log."""
    text = find_text(str(Path(attempt.path, COMPLAINT)), MAX_CELL_BYTES)[-500:].strip()
    return f": {text}" if text else ""
