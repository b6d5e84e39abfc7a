"""Asks schedulers for the states of jobs, and passes owners' requests and node exclusions on to them.

A request is repeated until it has taken effect, because it may be lost. All requests are idempotent. The control cell
is written before the signal is sent: a controller that is signalled reads the cell, and one that starts later finds it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import Absent
from ffdl_batch.domain.circuit_breaker import Circuit
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotNow, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import AvoidsNodes, ForgetsJobs, SharesListing, StopsMany
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.backends.adapters import Adapters, NotAsked
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.monitoring.shared_looks import Look, SharedLooks
from ffdl_batch.services.outcome.native_job_identity import may_ask_of

log = logging.getLogger(__name__)

AGAIN_S = 15.0
_GONE_BY_S = 8 * AGAIN_S
"""A failure this long ago that did not repeat is over."""
CHECKPOINT_SIGNAL = "URG"
"""Harmless to processes that do not know it (default action: ignore)."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last request that was sent for a job."""

    requested_action: RequestedAction
    native_id: str
    waits: bool
    """Whether the job waited in the queue then."""
    is_own: bool
    """Whether the entry with its id was certainly the job, so that the scheduler was asked."""
    at: float


class RequestDelivery:
    """Passes requests on and remembers when. The memory may be lost at a restart without harm."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage = storage
        self._sent: dict[JobId, _Sent] = {}

    def pass_on(
        self, adapter: Scheduler, jobs: Iterable[Job], seen: Mapping[JobId, Observation], doubtful: Collection[JobId]
    ) -> None:
        """Send the requests that are due for `jobs`. Raises SchedulerUnreachable.

        `seen` has their listings. For jobs that are not listed, and for `doubtful` ones, the scheduler is not asked:
        their controllers read the request when they begin.
        """
        now = self._storage.clock.monotonic()
        due: list[tuple[Job, Phase]] = []
        for job in jobs:
            shown = seen.get(job.id)
            if job.requested_action is RequestedAction.NONE or (shown is not None and shown.phase is Phase.ENDED):
                continue
            waits = shown is not None and shown.phase is Phase.PENDING
            last = self._sent.get(job.id)
            sent = _Sent(job.requested_action, job.native_id, waits, shown is not None and job.id not in doubtful, now)
            is_new = last is None or _is_other(last, sent)
            if not is_new and last is not None and now - last.at < AGAIN_S:
                continue
            self._sent[job.id] = sent
            self._write(job)
            if shown is not None and sent.is_own:
                due.append((job, shown.phase))
            elif shown is not None and is_new:
                why = "the entry with this id may not be the job"
                log.warning("job %s: %s is not asked to %s: %s", job.id, job.native_id, job.requested_action, why)
        self._send(adapter, due)

    def is_due(self, job: Job) -> bool:
        """Return whether a request for the job is due, so that the scheduler must be asked about it."""
        last = self._sent.get(job.id)
        if job.requested_action is RequestedAction.NONE:
            return False
        is_new = last is None or (last.requested_action, last.native_id) != (job.requested_action, job.native_id)
        return is_new or last is None or self._storage.clock.monotonic() - last.at >= AGAIN_S

    def forget_others(self, live: Collection[JobId]) -> None:
        """Forget the requests of all but `live` jobs."""
        self._sent = {key: value for key, value in self._sent.items() if key in live}

    def _write(self, job: Job) -> None:
        try:
            write_control(self._storage.root, job, requested_action=job.requested_action)
        except OSError as error:  # the signal is sent nevertheless; the cell is written with the next one
            log.error(
                "job %s: the request to %s could not be written for its controllers: %s",
                job.id,
                job.requested_action,
                error,
            )

    def _send(self, adapter: Scheduler, due: Sequence[tuple[Job, Phase]]) -> None:
        many = adapter if isinstance(adapter, StopsMany) else None
        _ask(
            [job for job, _ in due if job.requested_action is RequestedAction.CANCEL],
            adapter.cancel,
            many.cancel_many if many else None,
        )
        halted = [(job, phase) for job, phase in due if job.requested_action is RequestedAction.HALT]
        waiting = [job for job, phase in halted if phase in (Phase.PENDING, Phase.UNKNOWN)]
        _ask(waiting, adapter.withdraw, many.withdraw_many if many else None)
        _ask(
            [job for job, phase in halted if phase is not Phase.PENDING],
            lambda native: adapter.signal(native, CHECKPOINT_SIGNAL),
            (lambda natives: many.signal_many(natives, CHECKPOINT_SIGNAL)) if many else None,
        )


def _ask(
    jobs: Sequence[Job], one: Callable[[NativeId], None], many: Callable[[Collection[NativeId]], None] | None
) -> None:
    """Send the same request for all of `jobs`: together if the backend can, one by one if it refuses that."""
    if many is not None and len(jobs) > 1:
        try:
            many([NativeId.parse(job.native_id) for job in jobs])
        except InvalidRequest as error:
            log.warning("%d jobs are asked to stop one by one: %s", len(jobs), error)
        else:
            return
    for job in jobs:
        try:
            one(NativeId.parse(job.native_id))
        except InvalidRequest as error:
            log.warning("job %s: the request to %s cannot be passed on: %s", job.id, job.requested_action, error)


def _is_other(last: _Sent, now: _Sent) -> bool:
    """Whether the request differs from the last one, so that it is sent at once."""
    return replace(last, at=now.at) != now


class Questions:
    """Calls schedulers for a watcher, through the circuit breaker. Reads and writes no job.

    The circuit breaker logs outages. This class logs only requests that fail while the scheduler answers.
    """

    def __init__(self, storage: JobStorage, adapters: Adapters) -> None:
        self._storage, self._adapters = storage, adapters
        self._requests = RequestDelivery(storage)
        self._late: dict[str, Circuit] = {}
        self._shared: dict[str, SharedLooks] = {}

    def forget_others(self, live: Collection[JobId]) -> None:
        """Forget the requests of all but `live` jobs."""
        self._requests.forget_others(live)

    def observe(self, backend: str, jobs: Sequence[Job], *, must_ask: bool = False) -> Look | None:
        """List all of `jobs` with one call. Return None if the scheduler does not answer.

        If the hub of a site shares its listing, the scheduler is asked only if this shows a change or is missing, if
        `must_ask`, or if a request for a job is due. Return None if nothing is known yet, too.
        """
        ids = [NativeId.parse(job.native_id) for job in jobs]
        asked_at = self._storage.clock.monotonic()
        try:
            sharing = self._adapters.get(backend)
            if not isinstance(sharing, SharesListing) or not sharing.has_shared_listing:
                return Look(self._list(backend, ids))
            looks = self._shared.setdefault(backend, SharedLooks(random.random))
            look = looks.judge(ids, sharing.observe_shared(ids), asked_at)
            must_ask = must_ask or any(map(self._requests.is_due, jobs))
            if not must_ask and (look is not None or not looks.may_ask(asked_at)):
                return look
            listed = self._list(backend, ids)
            looks.note_own(asked_at, listed)
            return Look(listed)
        except SchedulerUnreachable as error:
            log.debug("backend %s did not list its jobs: %s", backend, error)
        except InvalidRequest as error:
            self._adapters.failed(backend, str(error))
            log.error("backend %s cannot be asked: %s", backend, error)
        return None

    def _list(self, backend: str, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        with self._adapters.asking(backend) as adapter:
            return adapter.observe(ids)

    def pass_on(
        self, backend: str, jobs: Sequence[Job], found: Mapping[JobId, Observation], doubtful: Collection[JobId]
    ) -> None:
        """Pass the requests of `jobs` on. If that fails, the requests are repeated later."""
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
        """Log that a request failed although the scheduler answers, because a node may be down. As with outages, not
        every repetition is logged."""
        now = self._storage.clock.monotonic()
        before = self._late.get(backend, Circuit())
        if now - before.again_at > _GONE_BY_S:  # a repetition has succeeded since
            before = Circuit()
        asked, permit = before.ask(now)
        assert permit is not None  # there is no pause between them
        after = self._late[backend] = asked.failed(permit, str(error), self._storage.clock.now(), again_at=now)
        if after.is_worth_logging(before):
            log.warning("backend %s: %s", backend, error)

    def absent(self, backend: str, asked: Collection[NativeId]) -> Absent:
        """Ask the scheduler what became of `asked`. Nothing is known of ids that are missing in the answer."""
        if not asked:
            return Absent()
        try:
            with self._adapters.asking(backend) as adapter:
                return adapter.find_absent(asked) if isinstance(adapter, ForgetsJobs) else Absent()
        except SchedulerUnreachable as error:  # the circuit breaker logs it
            log.debug("backend %s did not answer whether it has forgotten %d jobs: %s", backend, len(asked), error)
        return Absent()


def keep_off(root: Root, adapters: Adapters, job: Job, nodes: Collection[str]) -> None:
    """Exclude `nodes`, which failed the waiting job, from its eligible nodes."""
    try:
        with adapters.asking(job.backend) as adapter:
            if isinstance(adapter, AvoidsNodes) and may_ask_of(root, adapter, job):
                adapter.avoid(NativeId.parse(job.native_id), nodes)
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s cannot be kept off %s: %s", job.id, ", ".join(nodes), error)


def let_back(root: Root, adapters: Adapters, job: Job) -> bool:
    """Reduce the exclusions of the waiting job to those of its owner. Return whether that succeeded."""
    try:
        with adapters.asking(job.backend) as adapter:
            if not isinstance(adapter, AvoidsNodes) or not may_ask_of(root, adapter, job):
                return False
            adapter.exclude_only(NativeId.parse(job.native_id), job.spec.batch.exclude)
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s cannot be let back on %s: %s", job.id, ", ".join(job.overrides.exclude), error)
        return False
    return True


def take_away(root: Root, adapters: Adapters, job: Job, why: str) -> None:
    """Cancel the attempt with the job's native id, which is over or a duplicate. Leave the entry alone if it is another
    job."""
    try:
        with adapters.asking(job.backend) as adapter:
            if may_ask_of(root, adapter, job):
                log.warning("job %s: cancelling %s: %s", job.id, job.native_id, why)
                adapter.cancel(NativeId.parse(job.native_id))
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s: %s could not be cancelled, cancel it by hand: %s", job.id, job.native_id, error)
