"""Shrink running elastic jobs in place: decide whether this is possible, and release nodes whose learners have left.

Each step can be repeated: after a restart, the daemon continues from the row of the job's size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import has_ended
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.attempt_reports import latest_run
from ffdl_batch.domain.outcome.controller_events import HEAD, Event, EventKind, node_source, released_learners
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerError, SchedulerUnreachable
from ffdl_batch.ports.capabilities import ShrinksJobs
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.elastic.size_changes import SizeChanges, let_leave
from ffdl_batch.services.outcome.attempt_records import read_events, read_launch
from ffdl_batch.services.outcome.native_job_identity import does_run
from ffdl_batch.store import ElasticJob, JobSize

log = logging.getLogger(__name__)

LEAVE_S = 300.0
"""How long after the grace period of the controllers a shrinking job is halted because its learners have not left."""


class InPlaceChanges:
    """Shrinks jobs of all backends."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._refused: set[str] = set()
        """Jobs whose nodes the scheduler has refused to release."""
        self._since: dict[tuple[str, float], float] = {}
        """When this daemon first waited for the learners of a change (monotonic), by job and time of the request."""

    def batch_with(self, changes: SizeChanges, job: Job, learners: int) -> int | None:
        """Return the batch of a running job after it shrinks in place to this number of learners; None if it cannot.

        The job must permit it, the backend must be able to release nodes, and whole nodes must become free. Each GPU
        keeps its batch, even if the policy prefers another one.
        """
        elastic, resources = job.effective_spec.batch.elasticity, job.effective_spec.resources
        if elastic is None or not elastic.in_place or not 0 < learners < resources.learners:
            return None
        if job.id in self._refused:
            return None
        try:
            if not isinstance(self._adapters.get(job.backend), ShrinksJobs):
                return None
        except InvalidRequest:  # it is no longer configured
            return None
        attempt = changes.storage.root.job(job.id).attempt(job.attempt)
        launch = read_launch(attempt)
        if launch is None or not launch.shrinks or launch.seat_of(learners).node == launch.seat_of(learners + 1).node:
            return None
        if any(event.kind is EventKind.ASKED for event in latest_run(read_events(attempt))):  # the attempt is ending
            return None
        before, after = (workers_of(count, resources.gpus) for count in (resources.learners, learners))
        return elastic.batch_without_restart(job.global_batch or 0, before, after)

    def proceed(self, changes: SizeChanges, one: ElasticJob) -> bool:
        """Release the nodes of a shrinking job whose learners have left. Return whether the change is finished."""
        job, size = one.job, one.size
        if size is None or job.requested_action is not RequestedAction.NONE:
            return False
        let_leave(changes.storage, job, size.learners)
        try:
            attempt_dir = changes.storage.root.job(job.id).attempt(job.attempt)
            launch = read_launch(attempt_dir)
            if launch is None:
                return False
            leaving = _leaving(attempt_dir, launch, size.learners)
            if not set(range(size.learners + 1, launch.learners + 1)) <= released_learners(leaving):
                return self._halt_late(changes, job, size, launch.limits.kill_wait_s)
            nodes = _staying(attempt_dir, launch, size.learners, leaving)
            if nodes is None or not self._give_back(changes, job, nodes):
                return False
        except (OSError, SchedulerUnreachable) as error:
            log.debug("job %s: its nodes could not be released; the scaler tries again: %s", job.id, error)
            return False
        except SchedulerError as error:
            self._refused.add(job.id)
            log.warning("job %s: its nodes cannot be released, so the scaler halts the job: %s", job.id, error)
            return changes.halt(job, size, size.learners, size.global_batch)
        attempt = changes.storage.store.attempts(job.id)[-1]
        return changes.note_shrunk(job, size, attempt.resizes)

    def _halt_late(self, changes: SizeChanges, job: Job, size: JobSize, kill_wait_s: float) -> bool:
        """Halt a job whose learners should have left long ago. Return whether it was halted. The wall clock, which may
        be set, does not count."""
        now = changes.storage.clock.monotonic()
        waited_s = now - self._since.setdefault((job.id, size.requested_at), now)
        if waited_s < kill_wait_s + LEAVE_S:
            return False
        log.warning("job %s: its learners have not left after %.0f s, so the scaler halts the job", job.id, waited_s)
        return changes.halt(job, size, size.learners, size.global_batch)

    def _give_back(self, changes: SizeChanges, job: Job, nodes: tuple[str, ...]) -> bool:
        changes.reached("left")
        with self._adapters.asking(job.backend) as scheduler:
            if not does_run(changes.storage.root, scheduler, job):
                return False
            if not isinstance(scheduler, ShrinksJobs):
                raise InvalidRequest(f"backend {job.backend} cannot release nodes of running jobs")
            scheduler.shrink(NativeId.parse(job.native_id), nodes)
        changes.reached("given_back")
        return True


def _leaving(attempt: AttemptDir, launch: LaunchFile, learners: int) -> list[Event]:
    """Return the events of the nodes that are to be released, in the latest run. Raises OSError."""
    ranks = range(_staying_nodes(launch, learners), launch.nodes)
    return _of_latest_run(attempt, map(node_source, ranks))


def _of_latest_run(attempt: AttemptDir, sources: Iterable[str]) -> list[Event]:
    """Return the events of these controllers since the head's latest claim: the scheduler may have started the attempt
    again, on other nodes."""
    found = latest_run(read_events(attempt, [HEAD, *sources]))
    return [event for event in found if event.source != HEAD]


def _staying(
    attempt: AttemptDir, launch: LaunchFile, learners: int, leaving: Sequence[Event]
) -> tuple[str, ...] | None:
    """Return the names of the remaining nodes in order; None while a controller of another node runs, or if a name is
    unknown. Raises OSError."""
    stays = _staying_nodes(launch, learners)
    for rank in range(stays, launch.nodes):
        if not has_ended([event for event in leaving if event.source == node_source(rank)]):
            return None
    sources = [node_source(rank) for rank in range(stays)]
    names = {one.source: one.node for one in _of_latest_run(attempt, sources) if one.kind is EventKind.STARTED}
    found = tuple(names.get(source, "") for source in sources)
    return found if all(found) else None


def _staying_nodes(launch: LaunchFile, learners: int) -> int:
    return launch.seat_of(learners).node + 1
