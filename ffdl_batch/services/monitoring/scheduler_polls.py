"""What the watcher asks schedulers, through the circuit breaker: one that does not answer holds up nobody."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ffdl_batch.domain.circuit_breaker import Circuit
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerUnreachable
from ffdl_batch.ports.capabilities import DropsTasks, ForgetsJobs, LosesJobs
from ffdl_batch.services.backends.adapters import Adapters, NotAsked
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.monitoring.request_delivery import AGAIN_S, RequestDelivery

log = logging.getLogger(__name__)
_GONE_BY_S = 8 * AGAIN_S
"""What made a request fail so long ago, and did not since, is over."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Of ids that listings left out: `gone` are those that the scheduler says it has forgotten. Of these, nobody ended
    `lost`; and `dropped` are waiting tasks that it has taken out of their arrays, with the tokens of their attempts."""

    gone: frozenset[NativeId] = frozenset()
    lost: frozenset[NativeId] = frozenset()
    dropped: Mapping[NativeId, str] = field(default_factory=dict)


class Questions:
    """One per watcher. Reads and writes no job. The log hears of an outage from the breaker, which knows when it is
    news; here it hears of what is none."""

    def __init__(self, storage: JobStorage, adapters: Adapters) -> None:
        self._storage, self._adapters = storage, adapters
        self._requests = RequestDelivery(storage)
        self._late: dict[str, Circuit] = {}

    def forget_others(self, live: Collection[JobId]) -> None:
        """Remember requests for these jobs alone."""
        self._requests.forget_others(live)

    def observe(self, backend: str, jobs: Iterable[Job]) -> Mapping[NativeId, Observation] | None:
        """One question about all of `jobs`; None where there is no answer."""
        try:
            with self._adapters.asking(backend) as adapter:
                return adapter.observe([NativeId.parse(job.native_id) for job in jobs])
        except SchedulerUnreachable as error:
            log.debug("backend %s does not say how its jobs are: %s", backend, error)
        except InvalidRequest as error:
            self._adapters.failed(backend, str(error))
            log.error("backend %s cannot be asked: %s", backend, error)
        return None

    def pass_on(
        self, backend: str, jobs: Sequence[Job], found: Mapping[JobId, Observation], doubtful: Collection[JobId]
    ) -> None:
        """Wishes that cannot be passed on now keep nobody's news from being written."""
        try:
            with self._adapters.asking(backend) as adapter:
                self._requests.pass_on(adapter, jobs, found, doubtful)
        except NotAsked as error:
            log.debug("requests to backend %s are repeated: %s", backend, error)
        except NotNow as error:
            self._log_late(backend, error)
        except SchedulerUnreachable as error:
            log.debug("backend %s takes no requests, they are repeated: %s", backend, error)

    def _log_late(self, backend: str, error: NotNow) -> None:
        """The scheduler answers, and a request did not get through: a node may be away. The log hears of it as it does
        of an outage, and not at each repetition."""
        now = self._storage.clock.monotonic()
        before = self._late.get(backend, Circuit())
        if now - before.again_at > _GONE_BY_S:  # it was repeated since, and got through
            before = Circuit()
        asked, permit = before.ask(now)
        assert permit is not None  # no pause is put between them
        after = self._late[backend] = asked.failed(permit, str(error), self._storage.clock.now(), again_at=now)
        if after.is_worth_logging(before):
            log.warning("backend %s: %s", backend, error)

    def absent(self, backend: str, asked: Collection[NativeId]) -> Absent:
        """What became of `asked`; nothing is known of those that are not in the answer."""
        if not asked:
            return Absent()
        try:
            with self._adapters.asking(backend) as adapter:
                gone = adapter.is_forgotten(asked) if isinstance(adapter, ForgetsJobs) else frozenset[NativeId]()
                lost = adapter.was_lost(gone) if gone and isinstance(adapter, LosesJobs) else frozenset[NativeId]()
                tasks = [native for native in gone if native.task is not None]
                dropped = adapter.dropped(tasks) if tasks and isinstance(adapter, DropsTasks) else {}
                return Absent(gone, lost, dropped)
        except SchedulerUnreachable as error:  # which the breaker, or the accounting's, tells the log of
            log.debug("backend %s does not say whether it has forgotten %d jobs: %s", backend, len(asked), error)
        return Absent()
