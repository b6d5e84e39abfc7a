"""What the watcher asks schedulers, through the circuit breaker: one that does not answer holds up nobody."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from ffdl_batch.domain.job import Job, JobId
from ffdl_batch.domain.observation import NativeId, Observation
from ffdl_batch.ports.scheduler import (
    AccountingUnreachable,
    ForgetsJobs,
    InvalidRequest,
    LosesJobs,
    SchedulerUnreachable,
)
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.wishes import Wishes

log = logging.getLogger(__name__)


class Questions:
    """One per watcher. Reads and writes no job."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._wishes = Wishes(platform)

    def forget_others(self, live: Collection[JobId]) -> None:
        """Remember wishes of these jobs alone."""
        self._wishes.forget_others(live)

    def observe(self, backend: str, jobs: Iterable[Job]) -> Mapping[NativeId, Observation] | None:
        """One question about all of `jobs`; None where there is no answer."""
        try:
            with self._platform.adapters.asking(backend) as adapter:
                return adapter.observe([NativeId.parse(job.native_id) for job in jobs])
        except SchedulerUnreachable as error:
            log.warning("backend %s does not answer: %s", backend, error)
        except InvalidRequest as error:
            self._platform.adapters.failed(backend, str(error))
            log.error("backend %s cannot be asked: %s", backend, error)
        return None

    def pass_on(self, backend: str, jobs: Sequence[Job], found: Mapping[JobId, Observation]) -> None:
        """Wishes that cannot be passed on now keep nobody's news from being written."""
        try:
            with self._platform.adapters.asking(backend) as adapter:
                self._wishes.pass_on(adapter, jobs, found)
        except SchedulerUnreachable as error:
            log.warning("backend %s takes no requests, they are repeated: %s", backend, error)

    def gone(self, backend: str, asked: Collection[NativeId]) -> tuple[frozenset[NativeId], frozenset[NativeId]]:
        """Of `asked`, those that the scheduler says it has forgotten; and of these, those that nobody ended."""
        try:
            with self._platform.adapters.asking(backend) as adapter:
                gone = adapter.is_forgotten(asked) if isinstance(adapter, ForgetsJobs) else frozenset[NativeId]()
                return gone, adapter.was_lost(gone) if gone and isinstance(adapter, LosesJobs) else frozenset()
        except AccountingUnreachable as error:  # which its adapter tells the log of
            log.debug("backend %s does not say whether it has forgotten %d jobs: %s", backend, len(asked), error)
            return frozenset(), frozenset()
        except SchedulerUnreachable as error:
            log.warning("backend %s does not say whether it has forgotten %d jobs: %s", backend, len(asked), error)
            return frozenset(), frozenset()
