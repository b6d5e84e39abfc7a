"""What the workers of a step decided of the jobs they were given, written for several jobs at once.

A transaction costs far more than what it writes of one job. Each job is guarded by its own revision and by the lease
of the claim: what somebody else changed meanwhile is dropped, and its lease ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import Store, StoreError

log = logging.getLogger(__name__)

GROUP = 16
"""How many jobs are written at once at most."""
GATHER_S = 0.01
"""How long a finished job waits for others."""
AWAIT_S = 1.0
"""How often, while none is finished, it is told that they take their time."""

Decided = tuple[Job, Change]
"""A job as it was read, and what is to be written of it."""
Outcome = Future[Sequence[Decided]]
"""Of one job or several; those that are left out, their worker has dealt with, and with their leases."""
LONG_S = (5.0, 30.0)
"""When a submission that is not answered is told of. What is answered within the first is no news."""
LOOK_EVERY_S = 5.0
"""While a scheduler hangs: how often it is looked for jobs that were submitted since."""
MAX_BEHIND = 1000
UNANSWERED = "it was submitted more than {:g} s ago, and the scheduler has not answered yet"
BEHIND = "it waits for the scheduler, which has not answered a submission before it"


@dataclass(slots=True, eq=False)
class _Flight:
    """One submission, of one job or several."""

    jobs: Sequence[Job]
    since: float


@dataclass(slots=True)
class _Step:
    """What one step of the deployer has leased. `own` are its jobs that may still be told something, as they are."""

    token: str = ""
    own: dict[JobId, Job] = field(default_factory=dict)
    reported: dict[JobId, tuple[int, Job]] = field(default_factory=dict)
    look_at: float = 0.0


class InFlight:
    """One per deployer, which does one step at a time. `sending` is safe in every thread; all else is for the one that
    does the step."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._flights: list[_Flight] = []
        self._step = _Step()

    def begin(self, token: str, jobs: Iterable[Job]) -> None:
        """A step has leased `jobs` under `token`."""
        self._step = _Step(token, {job.id: job for job in jobs})

    @contextmanager
    def sending(self, jobs: Sequence[Job]) -> Iterator[None]:
        """While a scheduler is asked to take `jobs`, which are of one backend."""
        flight = _Flight(jobs, self._storage.clock.monotonic())
        with self._lock:
            self._flights.append(flight)
        try:
            yield
        finally:
            with self._lock:
                self._flights.remove(flight)

    def latest(self, job: Job) -> Job:
        """The row as it is after what was told on it, where it was `job` before."""
        revision, after = self._step.reported.get(job.id, (-1, job))
        return after if revision == job.revision else job

    def report(self) -> None:
        """Say on jobs what they wait for, where a submission takes long. A courtesy: a database that refuses it is no
        reason to end the step."""
        now = self._storage.clock.monotonic()
        with self._lock:
            flights = list(self._flights)
        late = [flight for flight in flights if now - flight.since >= LONG_S[0]]
        if not late:
            return
        backends = {job.backend for flight in late for job in flight.jobs}
        try:
            self._report_own(late, flights, backends, now)
            if now >= self._step.look_at:
                self._step.look_at = now + LOOK_EVERY_S
                self._report_waiting(backends)
        except StoreError as error:
            log.warning("what jobs wait for could not be written: %s", error)

    def _report_own(self, late: Sequence[_Flight], flights: Sequence[_Flight], backends: set[str], now: float) -> None:
        """The jobs of the step: those in flight, and those whose turn has not come."""
        reasons = {job.id: _unanswered(now - flight.since) for flight in late for job in flight.jobs}
        flying = {job.id for flight in flights for job in flight.jobs}
        behind = [job for job in self._step.own.values() if job.id not in flying and job.backend in backends]
        reasons |= {job.id: BEHIND for job in behind if not job.pending_reason}
        news = [job for job in self._step.own.values() if reasons.get(job.id, job.pending_reason) != job.pending_reason]
        if not news:
            return
        changes = [(job, Change(columns={"pending_reason": reasons[job.id]})) for job in news]
        written = {job.id: job for job in self._storage.store.apply_many(changes, lease_token=self._step.token)}
        for job in news:
            if job.id in written:
                first = self._step.reported.get(job.id, (job.revision, job))[0]
                self._step.reported[job.id] = first, written[job.id]
                self._step.own[job.id] = written[job.id]
            else:  # it has gone on, or is another's
                del self._step.own[job.id]

    def _report_waiting(self, backends: Collection[str]) -> None:
        """Jobs that nobody has taken up yet, and that do not say already what they wait for."""
        pending = self._storage.store.list_jobs(uid=None, states={JobState.PENDING}, limit=MAX_BEHIND)
        behind = [job for job in pending if job.backend in backends and not job.pending_reason]
        change = Change(columns={"pending_reason": BEHIND})
        self._storage.store.apply_many(
            [(job, change) for job in behind if job.requested_action is RequestedAction.NONE]
        )


def _unanswered(for_s: float) -> str:
    return UNANSWERED.format(max(limit for limit in LONG_S if for_s >= limit))


class Outcomes:
    """The outcomes of one claim's jobs, as they come. `written` is called after each transaction, `dropped` with what
    was not written because somebody else had changed the job, or has its lease. `waiting` is called now and then while
    outcomes are waited for; `latest` gives a job as it is after what `waiting` has written of it."""

    def __init__(
        self,
        store: Store,
        token: str,
        written: Callable[[], None],
        dropped: Callable[[Sequence[Decided]], None] = lambda _: None,
        waiting: Callable[[], None] = lambda: None,
        latest: Callable[[Job], Job] = lambda job: job,
    ) -> None:
        self._store, self._token, self._written, self._dropped = store, token, written, dropped
        self._waiting, self._latest = waiting, latest
        self._finished: SimpleQueue[Outcome] = SimpleQueue()
        self._awaited = 0

    def expect(self, outcome: Outcome) -> None:
        """There will be this one, too."""
        self._awaited += 1
        outcome.add_done_callback(self._finished.put)

    def write(self) -> int:
        """Write all that are expected; returns how many jobs were changed.

        What fails for some jobs fails for them alone: the first failure is raised when all others are written.
        """
        changed = 0
        failures: list[BaseException] = []
        while self._awaited:
            group = self._gather()
            failures += [error for one in group if (error := one.exception()) is not None]
            ended = [one.result() for one in group if one.exception() is None]
            try:
                changed += self._write([decided for several in ended for decided in several])
            except StoreError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return changed

    def _gather(self) -> list[Outcome]:
        """The next outcome, and those that follow it closely."""
        group = [self._next()]
        while len(group) < min(self._awaited, GROUP):
            try:
                group.append(self._finished.get(timeout=GATHER_S))
            except Empty:
                break
        self._awaited -= len(group)
        return group

    def _next(self) -> Outcome:
        while True:
            try:
                return self._finished.get(timeout=AWAIT_S)
            except Empty:
                self._waiting()

    def _write(self, decided: Sequence[Decided]) -> int:
        if not decided:
            return 0
        decided = [(self._latest(job), change) for job, change in decided]
        jobs = [job for job, _ in decided]
        try:
            changed = {job.id for job in self._store.apply_many(decided, lease_token=self._token)}
        except BaseException:
            release_all(self._store, jobs, self._token)
            raise
        self._written()
        dropped = [(job, change) for job, change in decided if job.id not in changed]
        release_all(self._store, [job for job, _ in dropped], self._token, due=True)
        if dropped:
            self._dropped(dropped)
        return len(changed)


def release_all(store: Store, jobs: Sequence[Job], token: str, *, due: bool = False) -> None:
    """Give the leases of `jobs` back; with `due` the try is counted, and the next one may come at once."""
    for job in jobs:
        store.release(job.id, token, store.now() if due else None)
