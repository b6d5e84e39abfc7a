"""Find the elastic jobs that belong to a pool, and postpone those that the scaler has not admitted.

A job is admitted if the scaler has stored a size for its next attempt.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence

from ffdl_batch.config.settings import ElasticPool, Settings
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.deployment.step_lease import Delay, StepLease
from ffdl_batch.store import JobSize, LeasedJob, SizeState, Store

NEEDED = ("numpy", "scipy")
"""Modules that the scaler needs."""
INSTALL = "pip install 'ffdl-batch[elastic]'"
"""Command that installs NEEDED."""


def missing_modules() -> tuple[str, ...]:
    """Return those of NEEDED that are not installed."""
    return tuple(name for name in NEEDED if importlib.util.find_spec(name) is None)


_WAITS = "waits for GPUs of pool "


def waits_for_pool(job: Job) -> bool:
    """Return whether a PENDING job waits only for a scaler to admit it, not for another job or for its first check."""
    return job.pending_reason.startswith(_WAITS)


def is_admitted(job: Job, size: JobSize | None) -> bool:
    """Return whether a scaler has admitted the next attempt of a PENDING job."""
    return size is not None and size.state is SizeState.ADMITTED and size.attempt == job.attempt + 1


class ElasticPools:
    """The configured pools. One instance per daemon. Thread-safe."""

    def __init__(self, settings: Settings, adapters: Adapters, store: Store) -> None:
        self._settings, self._adapters, self._store = settings, adapters, store
        self.missing = missing_modules() if settings.elastic else ()
        """Missing modules. If there are any, no pool is scaled."""
        self.job_waits = threading.Event()
        """Set when a job starts to wait for a decision."""
        self.wake: Callable[[], None] = lambda: None
        """Called after `job_waits` is set."""

    @property
    def pools(self) -> dict[str, ElasticPool]:
        """All configured pools by name."""
        return dict(self._settings.elastic)

    def pool_of(self, job: Job) -> str | None:
        """Return the pool that the job belongs to; None if it belongs to none."""
        elastic = job.spec.batch.elasticity
        pool = None if elastic is None else self._settings.elastic.get(elastic.pool)
        if elastic is None or pool is None or self.backend_of(pool) != job.backend:
            return None
        default = str(self._settings.backend_settings(job.backend).get("partition", ""))
        return elastic.pool if pool.partition in ("", job.spec.batch.partition or default) else None

    def backend_of(self, pool: ElasticPool) -> str:
        """Return the backend of the pool's jobs."""
        return pool.backend or self._adapters.default_name()

    def problem_of(self, name: str) -> str:
        """Return why the pool is not scaled; "" if it is."""
        if self.missing:
            needed = " and ".join(self.missing)
            return f"{needed} not installed, so jobs run as submitted; to install: {INSTALL}"
        try:
            self._adapters.get(self.backend_of(self._settings.elastic[name]))
        except InvalidRequest as error:
            return f"{self._settings.origins.get('elastic', 'the configuration')}: elastic.pools.{name}: {error}"
        return ""

    def sort_out(self, lease: StepLease, leased: Sequence[LeasedJob]) -> list[LeasedJob]:
        """Return the jobs of `leased` that may be submitted. Postpone the others until a scaler admits them."""
        if not self._settings.elastic or self.missing:
            return list(leased)
        asked = {one.job.id: pool for one in leased if _would_begin(one.job) and (pool := self.pool_of(one.job))}
        if not asked:
            return list(leased)
        held = self._unadmitted({one.job.id: one.job for one in leased if one.job.id in asked}, asked)
        reasons = {job_id: self._reason(job, asked[job_id]) for job_id, job in held.items()}
        lease.put_off(
            [
                Delay(
                    job,
                    self._settings.elastic[asked[job.id]].interval_s,
                    "" if job.pending_reason == reasons[job.id] else reasons[job.id],
                )
                for job in held.values()
            ]
        )
        if admitted := held.keys() - self._unadmitted(held, asked).keys():
            self._store.make_due(admitted)  # its scaler admitted them before they were postponed
        if any(job.pending_reason != reasons[job.id] for job in held.values()):
            self.job_waits.set()
            self.wake()
        return [one for one in leased if one.job.id not in held]

    def _unadmitted(self, jobs: Mapping[JobId, Job], asked: Mapping[JobId, str]) -> dict[JobId, Job]:
        """Return the jobs that must wait for a decision of the scaler. `asked` has the pool of each job."""
        paused, sizes = self._store.elastic.paused(), self._store.elastic.sizes(jobs)
        return {
            job_id: job
            for job_id, job in jobs.items()
            if asked[job_id] not in paused and not is_admitted(job, sizes.get(job_id))
        }

    def _reason(self, job: Job, name: str) -> str:
        elastic, gpus = job.spec.batch.elasticity, self._settings.elastic[name].gpus
        assert elastic is not None  # it belongs to a pool
        least = workers_of(elastic.min_learners, job.effective_spec.resources.gpus)
        return f"{_WAITS}{name}" + (f", which has {gpus}; it needs {least}" if least > gpus else "")


def _would_begin(job: Job) -> bool:
    return job.state is JobState.PENDING and job.requested_action is RequestedAction.NONE
