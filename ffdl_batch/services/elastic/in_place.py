"""Shrink running elastic jobs in place: decide whether that is possible, and release the nodes of learners that left.

Each step can be repeated: after a restart, the daemon continues from the row of the job's size.
"""

from __future__ import annotations

import logging

from ffdl_batch.attempt.learner_endings import has_ended
from ffdl_batch.domain.job.elastic import workers_of
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.domain.outcome.controller_events import EventKind, node_source, released_learners
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.ports.capabilities import ShrinksJobs
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.elastic.size_changes import SizeChanges, let_leave
from ffdl_batch.services.outcome.attempt_records import read_events, read_launch
from ffdl_batch.services.outcome.native_job_identity import may_ask_of
from ffdl_batch.store import ElasticJob

log = logging.getLogger(__name__)


class InPlaceChanges:
    """Shrinks jobs of all backends."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._refused: set[str] = set()
        """Backends whose scheduler has refused to release nodes."""

    def batch_with(self, changes: SizeChanges, job: Job, learners: int) -> int | None:
        """Return the batch of a running job after a change in place to this number of learners; None if it cannot be
        changed in place.

        The job must permit it, the backend must be able to release nodes, and whole nodes must become free. Each GPU
        keeps its batch, whatever batch the policy prefers: a change in place needs no new attempt.
        """
        elastic, resources = job.effective_spec.batch.elasticity, job.effective_spec.resources
        if elastic is None or not elastic.in_place or not 0 < learners < resources.learners:
            return None
        if job.backend in self._refused:
            return None
        try:
            if not isinstance(self._adapters.get(job.backend), ShrinksJobs):
                return None
        except InvalidRequest:  # it is no longer configured
            return None
        launch = read_launch(changes.storage.root.job(job.id).attempt(job.attempt))
        if launch is None or not launch.shrinks or launch.seat_of(learners).node == launch.seat_of(learners + 1).node:
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
            nodes = _nodes_left(changes, job, size.learners)
            if nodes is None or not self._give_back(changes, job, nodes):
                return False
        except (OSError, SchedulerUnreachable) as error:
            log.info("job %s: its nodes could not be released now; the scaler tries again: %s", job.id, error)
            return False
        except InvalidRequest as error:
            self._refused.add(job.backend)
            log.warning("job %s: its nodes cannot be released, so the scaler halts the job: %s", job.id, error)
            return changes.halt(job, size, size.learners, size.global_batch)
        attempt = changes.storage.store.attempts(job.id)[-1]
        return changes.note_shrunk(job, size, attempt.resizes)

    def _give_back(self, changes: SizeChanges, job: Job, nodes: tuple[str, ...]) -> bool:
        changes.reached("left")
        with self._adapters.asking(job.backend) as scheduler:
            if not may_ask_of(changes.storage.root, scheduler, job):
                return False
            if not isinstance(scheduler, ShrinksJobs):
                raise InvalidRequest(f"backend {job.backend} cannot release nodes of running jobs")
            scheduler.shrink(NativeId.parse(job.native_id), nodes)
        changes.reached("given_back")
        return True


def _nodes_left(changes: SizeChanges, job: Job, learners: int) -> tuple[str, ...] | None:
    """Return the names of the nodes that stay, in their order.

    Return None while a controller of another node runs, if one of its learners ended without leaving, or if a name is
    not known. Raises OSError.
    """
    attempt = changes.storage.root.job(job.id).attempt(job.attempt)
    launch = read_launch(attempt)
    if launch is None:
        return None
    events, stays = read_events(attempt), launch.seat_of(learners).node + 1
    by_node = [[event for event in events if event.source == node_source(rank)] for rank in range(launch.nodes)]
    has_left = set(range(learners + 1, launch.learners + 1)) <= released_learners(events)
    if not has_left or not all(has_ended(of_it) for of_it in by_node[stays:]):
        return None
    names = [[event.node for event in of_it if event.kind is EventKind.STARTED] for of_it in by_node[:stays]]
    return tuple(of_it[-1] for of_it in names) if all(names) else None
