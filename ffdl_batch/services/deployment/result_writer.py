"""What the workers of a step decided of the jobs they were given, written for several jobs at once.

A transaction costs far more than what it writes of one job. Each job is guarded by its own revision and by the lease
of the claim: what somebody else changed meanwhile is dropped, and its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.store import Store, StoreError

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
