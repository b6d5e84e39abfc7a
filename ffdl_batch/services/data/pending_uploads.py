"""Stores owed: results and logs that an attempt could not store before it was killed, stored afterwards.

The next attempt's head pays for those before it. What is left when a job has ended, or when nothing but storing is left
to do for it, is paid here, by a process of its own that runs the controllers' code, so that neither a slow store nor a
broken one keeps the daemon from its work. One at a time, also where several daemons share a database; never while a
controller of the attempt may still be storing itself.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_CELL_BYTES, find_text
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.backoff import growing_pause
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
"""The pause before what a backend could not even begin, or somebody interrupted, is begun anew."""
PATIENT_TRIES = 3
"""Failed tries after which a debt keeps neither a job from ending (it fails, S303) nor the daemon, which tries it again
in its next life."""
MOST_APART = 32
"""Payments at once that a backend makes where the files are."""
END_S = 5.0
LOCK, COMPLAINT = ".paying", ".paying.log"
LEASE = "debts"
CONTROLLER = (sys.executable, "-E", "-P", "-m", "ffdl_batch.controller")


class Upload(Protocol):
    """A process that pays."""

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        ...

    def end(self) -> None:
        """Ask it to end, and wait for that a moment; what it has stored stays."""
        ...


class FinalRecordBy(StrEnum):
    """Whether the payment has the last word on the attempt, in the place of a head that was killed."""

    HEADS = ""
    WHEN_STORED = "when-stored"
    ANYWAY = "anyway"
    """Also where it cannot be stored."""


Start = Callable[[AttemptDir, FinalRecordBy], Upload | None]
"""Starts paying for an attempt; None where somebody on this host is at it already. Raises OSError."""


@dataclass(slots=True)
class _Tries:
    """`why` the latest one failed, or could not begin."""

    failed: int = 0
    interrupted: int = 0
    not_before: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Running:
    attempt: Attempt
    upload: Upload


class PendingUploads:
    """One per daemon. What it remembers of failures is lost at a restart without harm."""

    def __init__(self, storage: JobStorage, adapters: Adapters, leases: Leases, start: Start | None = None) -> None:
        self._storage, self._adapters = storage, adapters
        self._start = start or start_upload
        self._running: list[_Running] = []
        self._tries: dict[tuple[JobId, int], _Tries] = {}
        self._turn = LeaderLease(leases, LEASE)
        self._others_turn = False
        self._due_in_s = LONGEST_PAUSE_S
        self._reported = ReportedReasons(storage.store)

    @property
    def due_in_s(self) -> float:
        """How soon after the last step a debt can be paid that had to be left alone then."""
        return self._due_in_s

    @property
    def is_paying(self) -> bool:
        """Whether a debt is being paid now."""
        return bool(self._running)

    @property
    def is_waiting(self) -> bool:
        """Whether something was owed at the last step, and it was another daemon's turn to pay it."""
        return self._others_turn

    def is_busy(self) -> bool:
        """Whether a debt is being paid, or will be soon: the daemon should stay."""
        if self.is_paying:
            return True
        owed = self._storage.store.pending_uploads()
        tries = (self._tries.get((debt.job_id, debt.number), _Tries()) for debt in owed)
        return any(one.failed < PATIENT_TRIES for one in tries)

    def step(self) -> int:
        """Look after the payment under way, or begin the next; returns how many debts are gone.

        A payment goes on through a moment without the database. It ends when another daemon's turn has come.
        """
        gone = self._step()
        if not self._others_turn:
            self._report()
        return gone

    def _step(self) -> int:
        self._due_in_s = LONGEST_PAUSE_S
        if self._running and not self._look():
            self._go_on()
            if not self._number_running(apart=True):
                return 0
        owed = self._storage.store.pending_uploads()
        if not owed:
            self._turn.end()
        self._others_turn = bool(owed) and not self._turn.take()
        if not owed or self._others_turn:
            return 0
        paid = {(debt.job_id, debt.number): at for debt in owed if (at := self._uploaded_at(debt)) is not None}
        gone = sum(self._storage.store.note_uploaded(*key, at) for key, at in paid.items())
        left = [debt for debt in owed if (debt.job_id, debt.number) not in paid]
        self._forget_others(left)
        self._begin_some(left)
        return gone

    def close(self) -> None:
        """End the payment under way and give the lease back; the next daemon goes on with it. Raises StoreError."""
        self._end_upload()
        self._turn.end()

    def _look(self) -> bool:
        """After the payments under way; whether one of them is over."""
        ended = [(one, status) for one in self._running if (status := one.upload.poll()) is not None]
        self._running = [one for one in self._running if all(one is not other for other, _ in ended)]
        for one, status in ended:
            self._finished(one.attempt, status, one.upload.why if isinstance(one.upload, SeparateUpload) else "")
        return bool(ended)

    def _report(self) -> None:
        """Say on jobs what the storing apart of what they left waits for, or why it failed."""
        reasons = {key: f"{tries.why}; it is tried again" for key, tries in self._tries.items() if tries.why}
        apart = ((one.attempt, one.upload) for one in self._running if isinstance(one.upload, SeparateUpload))
        self._reported.report(reasons | {(debt.job_id, debt.number): payment.why for debt, payment in apart})

    def _number_running(self, *, apart: bool) -> int:
        return sum(isinstance(one.upload, SeparateUpload) is apart for one in self._running)

    def _is_running(self, attempt: Attempt) -> bool:
        return any(
            (one.attempt.job_id, one.attempt.number) == (attempt.job_id, attempt.number) for one in self._running
        )

    def _go_on(self) -> None:
        """Keep the lease while a payment is under way, or drop the payment."""
        if not self._turn.take():
            log.warning("another daemon pays what is owed by now; the payment here is ended")
            self._end_upload()

    def _end_upload(self) -> None:
        for one in self._running:
            one.upload.end()
        self._running = []

    def _begin_some(self, pending: list[Attempt]) -> None:
        """Begin with the oldest debt that is due; of those that are paid here one at a time."""
        jobs = {job.id: job for job in self._storage.store.get_many([debt.job_id for debt in pending])}
        over = [debt for debt in pending if debt.job_id in jobs and _is_over(jobs[debt.job_id], debt)]
        now = self._storage.clock.monotonic()
        file_time = self._storage.file_time(self._storage.root.path) if over else 0.0
        for debt in over:
            attempt = self._directory(debt)
            if now < self._tried(debt).not_before or self._is_running(debt):
                continue
            try:
                if wait_s := fenced_s(self._adapters, debt, attempt, file_time):
                    self._due_in_s = min(self._due_in_s, wait_s)
                    continue
                apart = is_apart(attempt)
                if self._number_running(apart=apart) >= (MOST_APART if apart else 1):
                    continue
                payment = self._begin(debt, attempt, self._last_word(jobs[debt.job_id], debt), apart=apart)
            except OSError as error:
                log.error("job %s: storing what attempt %d owes cannot begin: %s", debt.job_id, debt.number, error)
                self._put_off(debt, str(error), interrupted=isinstance(error, NotBegun))
                continue
            if payment is not None:
                self._tried(debt).why = ""
                log.info("job %s: storing what attempt %d owes", debt.job_id, debt.number)
                self._running.append(_Running(debt, payment))
                continue
            self._put_off(debt)

    def _begin(self, pending: Attempt, attempt: AttemptDir, last_word: FinalRecordBy, *, apart: bool) -> Upload | None:
        """Raises OSError."""
        if not apart:
            return self._start(attempt, last_word)
        payment = SeparateUpload(self._adapters, pending, attempt, last_word is FinalRecordBy.ANYWAY)
        payment.begin()
        return payment

    def _last_word(self, job: Job, attempt: Attempt) -> FinalRecordBy:
        if job.state.is_terminal:
            return FinalRecordBy.HEADS
        return FinalRecordBy.ANYWAY if self._tried(attempt).failed >= PATIENT_TRIES - 1 else FinalRecordBy.WHEN_STORED

    def _finished(self, attempt: Attempt, status: int, why: str) -> None:
        if self._uploaded_at(attempt) is not None:
            return
        log.warning(
            "job %s: what attempt %d owes could not be stored (exit code %d); it is tried again%s",
            attempt.job_id, attempt.number, status, f": {why}" if why else _complaint(self._directory(attempt)),
        )  # fmt: skip
        self._put_off(attempt, why, interrupted=status == INTERRUPTED)

    def _put_off(self, attempt: Attempt, why: str = "", *, interrupted: bool = False) -> None:
        """`interrupted`: it says nothing about the store, and is no reason to give it up."""
        tries = self._tried(attempt)
        longest = LONGEST_INTERRUPTED_S if interrupted else LONGEST_PAUSE_S
        pause = growing_pause(tries.failed + tries.interrupted + 1, FIRST_PAUSE_S, longest)
        tries.failed += not interrupted
        tries.interrupted += interrupted
        tries.why, tries.not_before = why, self._storage.clock.monotonic() + pause

    def _tried(self, attempt: Attempt) -> _Tries:
        return self._tries.setdefault((attempt.job_id, attempt.number), _Tries())

    def _forget_others(self, pending: list[Attempt]) -> None:
        left = {(debt.job_id, debt.number) for debt in pending}
        self._tries = {key: tries for key, tries in self._tries.items() if key in left}

    def _uploaded_at(self, attempt: Attempt) -> float | None:
        """When it was paid, by the file system's clock; None = it is not."""
        try:
            return Path(self._directory(attempt).uploaded).lstat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _directory(self, attempt: Attempt) -> AttemptDir:
        return self._storage.root.job(attempt.job_id).attempt(attempt.number)


def _is_over(job: Job, attempt: Attempt) -> bool:
    """Whether nobody else is to pay: the job has ended, or its attempt has, and storing is all that is left."""
    return job.state.is_terminal or (job.state is JobState.STORING and job.attempt == attempt.number)


@dataclass(frozen=True, slots=True)
class _Process:
    """A paying process; it holds the attempt's lock while it lives."""

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


def start_upload(attempt: AttemptDir, last_word: FinalRecordBy = FinalRecordBy.HEADS) -> Upload | None:
    """Start ``controller pay`` with this interpreter. The lock lives as long as the process, whoever started it."""
    directory = Path(attempt.path)
    argv = [*CONTROLLER, "pay", "--launch", attempt.launch]
    if last_word:
        argv += ["--last-word", last_word.value]
    lock = open_own(str(directory / LOCK), os.O_RDWR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        with os.fdopen(open_own(str(directory / COMPLAINT), os.O_WRONLY | os.O_TRUNC), "wb") as complaint:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=complaint, stderr=complaint, pass_fds=(lock,), cwd=directory,
                start_new_session=True,
            )  # fmt: skip
    finally:
        os.close(lock)
    return _Process(process)


def _complaint(attempt: AttemptDir) -> str:
    """The end of what the process said, for the log."""
    text = find_text(str(Path(attempt.path, COMPLAINT)), MAX_CELL_BYTES)[-500:].strip()
    return f": {text}" if text else ""
