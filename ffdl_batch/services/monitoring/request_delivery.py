"""Passes the requests of owners, and changes of node exclusions, on to schedulers and controllers.

A request is repeated until it has taken effect, because it may be lost. All requests are idempotent. The control cell
is written before the signal is sent: a controller that is signalled reads the cell, and one that starts later finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.ports.capabilities import AvoidsNodes, StopsMany, Withdraws
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.native_job_identity import may_ask_of

log = logging.getLogger(__name__)

AGAIN_S = 15.0
CHECKPOINT_SIGNAL = "URG"
"""Harmless to processes that do not know it (default action: ignore)."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What was sent last for a job, and when. `waits`: the job waited in the queue then; `is_own`: what was listed
    under its id was surely the job, and the scheduler was asked."""

    requested_action: RequestedAction
    native_id: str
    waits: bool
    is_own: bool
    at: float


class RequestDelivery:
    """What was passed on and when; lost at a restart without harm."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage = storage
        self._sent: dict[JobId, _Sent] = {}

    def pass_on(
        self, adapter: Scheduler, jobs: Iterable[Job], seen: Mapping[JobId, Observation], doubtful: Collection[JobId]
    ) -> None:
        """Send what is due for those of `jobs` that somebody requests something of; raises SchedulerUnreachable.

        `seen` is what was listed of them. The scheduler is asked nothing of those that it does not list and of the
        `doubtful` ones: their controllers read the request when they begin.
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
            is_news = last is None or _is_other(last, sent)
            if not is_news and last is not None and now - last.at < AGAIN_S:
                continue
            self._sent[job.id] = sent
            self._write(job)
            if shown is not None and sent.is_own:
                due.append((job, shown.phase))
            elif shown is not None and is_news:
                why = "what is listed under this id is not surely the job"
                log.warning("job %s: %s is not asked to %s: %s", job.id, job.native_id, job.requested_action, why)
        self._send(adapter, due)

    def forget_others(self, live: Collection[JobId]) -> None:
        """Keep what was sent for `live` jobs only."""
        self._sent = {key: value for key, value in self._sent.items() if key in live}

    def _write(self, job: Job) -> None:
        try:
            write_control(self._storage.root, job, requested_action=job.requested_action)
        except OSError as error:  # the signal is still worth sending; the cell is tried again with the next one
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
        if isinstance(adapter, Withdraws):
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
    """Request the same of all of `jobs`: at once where the backend can, and one by one where that was refused."""
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
    """Whether something else is to be sent, so that it need not wait."""
    return replace(last, at=now.at) != now


def keep_off(root: Root, adapters: Adapters, job: Job, nodes: Collection[str]) -> None:
    """Have the waiting job start on none of `nodes`, which failed it."""
    try:
        with adapters.asking(job.backend) as adapter:
            if isinstance(adapter, AvoidsNodes) and may_ask_of(root, adapter, job):
                adapter.avoid(NativeId.parse(job.native_id), nodes)
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s cannot be kept off %s: %s", job.id, ", ".join(nodes), error)


def let_back(root: Root, adapters: Adapters, job: Job) -> bool:
    """Have the waiting job exclude only what its owner excludes; whether that was done."""
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
    """Cancel what the scheduler has under the job's native id: an attempt that is over, or a duplicate. Another job is
    left alone."""
    try:
        with adapters.asking(job.backend) as adapter:
            if may_ask_of(root, adapter, job):
                log.warning("job %s: cancelling %s: %s", job.id, job.native_id, why)
                adapter.cancel(NativeId.parse(job.native_id))
    except (InvalidRequest, SchedulerUnreachable) as error:
        log.warning("job %s: %s could not be cancelled, cancel it by hand: %s", job.id, job.native_id, error)
