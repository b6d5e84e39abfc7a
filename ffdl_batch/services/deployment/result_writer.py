"""Writes the decisions of a step's workers, for several jobs in one transaction, and reports slow submissions.

A transaction costs far more than the change of one job. Each job is guarded by its revision and by the lease of the
step: if another process has changed the job, the decision is dropped and the lease ends.

While a scheduler hangs, the thread of the step only waits for its workers. Meanwhile it shows on the jobs that their
submission has not been answered, and on the jobs behind them what they wait for. A decision about such a job is then
written to its current row (:meth:`InFlight.latest`). If only unanswered submissions are left, the next step begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.deployment.step_lease import Delay, StepLease
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

GROUP = 16
"""The maximum number of jobs in one transaction."""
GATHER_S = 0.01
"""How long a finished job waits for others."""
AWAIT_S = 1.0
"""How often it is checked whether submissions are slow, while none finishes."""
LONG_S = (5.0, 30.0)
"""After how many seconds an unanswered submission is reported."""
LOOK_EVERY_S = 5.0
"""How often new jobs are searched that wait behind an unanswered submission."""
MAX_BEHIND = 1000
UNANSWERED = "it was submitted more than {:g} s ago, and the scheduler has not answered yet"
BEHIND = "it waits for the scheduler, which has not answered a submission before it"

Decided = tuple[Job, Change]
"""A job as it was read, and its change."""
Outcome = Future[Sequence[Decided]]
"""The decisions about one or several jobs. A worker has released the jobs that are left out."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One submission, of one job or several."""

    jobs: Sequence[Job]
    since: float


class InFlight:
    """Reports submissions that a scheduler has not answered. One per step of the deployer.

    `sending` is safe in every thread. The other methods are for the thread of the step.
    """

    def __init__(self, storage: JobStorage, lease: StepLease, jobs: Iterable[Job]) -> None:
        self._storage, self._lease = storage, lease
        self._lock = threading.Lock()
        self._flights: list[_Flight] = []
        self._own = {job.id: job for job in jobs}
        """The current rows of the step's jobs."""
        self._reported: dict[JobId, tuple[int, Job]] = {}
        """The revision of a job before its reports, and its row after them."""
        self._look_at = 0.0
        self.is_followed = False
        """Whether the next step has begun, so that later jobs do not wait for this one."""

    @contextmanager
    def sending(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Mark `jobs`, which are of one backend, as being submitted during the block."""
        flight = _Flight(jobs, self._storage.clock.monotonic())
        with self._lock:
            self._flights.append(flight)
        try:
            yield
        finally:
            with self._lock:
                self._flights.remove(flight)

    def count(self) -> int:
        """Return the number of submissions that are not answered yet."""
        with self._lock:
            return len(self._flights)

    def latest(self, job: Job) -> Job:
        """Return the row after its reports, if it was `job` before."""
        revision, after = self._reported.get(job.id, (-1, job))
        return after if revision == job.revision else job

    def report(self) -> None:
        """Show on jobs what they wait for if a submission takes long. A database error does not end the step."""
        now = self._storage.clock.monotonic()
        with self._lock:
            flights = list(self._flights)
        late = [flight for flight in flights if now - flight.since >= LONG_S[0]]
        if not late:
            return
        backends = {job.backend for flight in late for job in flight.jobs}
        try:
            self._report_own(late, flights, backends, now)
            if now >= self._look_at and not self.is_followed:
                self._look_at = now + LOOK_EVERY_S
                self._report_waiting(backends)
        except StoreError as error:
            log.warning("the reasons for which jobs wait could not be written: %s", error)

    def _report_own(self, late: Sequence[_Flight], flights: Sequence[_Flight], backends: set[str], now: float) -> None:
        """Report on the jobs of the step: those in flight, and those that have not been submitted yet."""
        reasons = {job.id: _unanswered(now - flight.since) for flight in late for job in flight.jobs}
        flying = {job.id for flight in flights for job in flight.jobs}
        behind = [job for job in self._own.values() if job.id not in flying and job.backend in backends]
        reasons |= {job.id: BEHIND for job in behind if not job.pending_reason}
        changed = [job for job in self._own.values() if reasons.get(job.id, job.pending_reason) != job.pending_reason]
        if not changed:
            return
        changes = [(job, Change(columns={"pending_reason": reasons[job.id]})) for job in changed]
        written = {job.id: job for job in self._storage.store.apply_many(changes, lease_token=self._lease.token)}
        for job in changed:
            if job.id in written:
                first = self._reported.get(job.id, (job.revision, job))[0]
                self._reported[job.id] = first, written[job.id]
                self._own[job.id] = written[job.id]
            else:  # a decision about it has been written, or another daemon has its lease
                del self._own[job.id]

    def _report_waiting(self, backends: Collection[str]) -> None:
        """Report on jobs that no step has claimed yet and that show no reason yet."""
        pending = self._storage.store.list_jobs(uid=None, states={JobState.PENDING}, limit=MAX_BEHIND)
        behind = [job for job in pending if job.backend in backends and not job.pending_reason]
        change = Change(columns={"pending_reason": BEHIND})
        self._storage.store.apply_many(
            [(job, change) for job in behind if job.requested_action is RequestedAction.NONE]
        )


def _unanswered(for_s: float) -> str:
    return UNANSWERED.format(max(limit for limit in LONG_S if for_s >= limit))


class Outcomes:
    """Writes the outcomes of one step's jobs as they come.

    `written` is called after each transaction. `dropped` is called with the decisions that were not written because
    another process has changed the job or holds its lease.
    """

    def __init__(
        self,
        lease: StepLease,
        in_flight: InFlight,
        written: Callable[[], None],
        dropped: Callable[[Sequence[Decided]], None] = lambda _: None,
    ) -> None:
        self._lease, self._in_flight = lease, in_flight
        self._written, self._dropped = written, dropped
        self._finished: SimpleQueue[Outcome] = SimpleQueue()
        self._awaited = 0

    def expect(self, outcome: Outcome) -> None:
        """Add an outcome that :meth:`write` waits for."""
        self._awaited += 1
        outcome.add_done_callback(self._finished.put)

    def write(self, stalled: Callable[[], None] = lambda: None) -> int:
        """Write all expected outcomes. Return how many jobs were changed.

        `stalled` is called repeatedly while each outcome that is left is that of an unanswered submission. It may add
        outcomes. A failure affects only its own jobs: the first one is raised when all other outcomes are written.
        """
        changed = 0
        failures: list[BaseException] = []
        while self._awaited:
            group = self._gather(stalled)
            failures += [error for one in group if (error := one.exception()) is not None]
            ended = [one.result() for one in group if one.exception() is None]
            try:
                changed += self._write([decided for several in ended for decided in several])
            except StoreError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return changed

    def _gather(self, stalled: Callable[[], None]) -> list[Outcome]:
        """Return the next outcome and those that follow it closely."""
        group = [self._next(stalled)]
        while len(group) < min(self._awaited, GROUP):
            try:
                group.append(self._finished.get(timeout=GATHER_S))
            except Empty:
                break
        self._awaited -= len(group)
        return group

    def _next(self, stalled: Callable[[], None]) -> Outcome:
        while True:
            try:
                return self._finished.get(timeout=AWAIT_S)
            except Empty:
                if self._in_flight.count() == self._awaited:
                    stalled()
                self._in_flight.report()

    def _write(self, decided: Sequence[Decided]) -> int:
        if not decided:
            return 0
        decided = [(self._in_flight.latest(job), change) for job, change in decided]
        try:
            written = self._lease.store.apply_many(decided, lease_token=self._lease.token)
        except BaseException:
            self._lease.release(job for job, _ in decided)
            raise
        self._written()
        changed = {job.id for job in written}
        dropped = [(job, change) for job, change in decided if job.id not in changed]
        if dropped:
            self._lease.put_off([Delay(job, 0.0) for job, _ in dropped])
            self._dropped(dropped)
        return len(changed)
