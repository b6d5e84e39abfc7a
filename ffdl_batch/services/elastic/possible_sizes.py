"""Cache the numbers of learners with which each job of a pool can be planned, because planning attempts is slow."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import replace

from ffdl_batch.config.images import UnknownImage
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.scheduler_errors import SchedulerError, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.backends.node_exclusion import NodeExclusion
from ffdl_batch.services.deployment.attempt_planning import plan_attempt
from ffdl_batch.services.job_storage import JobStorage

log = logging.getLogger(__name__)

REFUSED_S = 600.0
"""How long results are cached. Nodes may have been added after that."""
MOST_ON_NODE = 64
"""If this many learners fit on a node, the number of learners per node counts as unlimited."""


@dataclass(frozen=True, slots=True)
class _PerNode:
    """How many learners of a job fit on one node."""

    learners: int
    gpus: float
    """GPUs per learner for which this was determined."""
    until: float
    """When this is determined again (monotonic)."""


class PossibleSizes:
    """Finds the numbers of learners that fill the nodes of each job."""

    def __init__(self, storage: JobStorage, adapters: Adapters, node_exclusion: NodeExclusion) -> None:
        self._storage, self._adapters, self._node_exclusion = storage, adapters, node_exclusion
        self._per_node: dict[JobId, _PerNode] = {}
        self._refused: dict[JobId, dict[int, float]] = {}
        """Numbers of learners with which a job cannot be planned → when each is tried again (monotonic)."""

    def forget(self, live: Collection[JobId]) -> None:
        """Remove all other jobs from the cache, and the refusals that have expired."""
        now = self._now()
        self._per_node = {job_id: found for job_id, found in self._per_node.items() if job_id in live}
        self._refused = {
            job_id: {learners: until for learners, until in sizes.items() if until > now}
            for job_id, sizes in self._refused.items()
            if job_id in live
        }

    def look(self, jobs: Iterable[Job]) -> None:
        """Determine how many learners fit on one node for jobs that are not cached. If the scheduler does not answer,
        keep the cached results."""
        for job in jobs:
            known, gpus = self._per_node.get(job.id), job.effective_spec.resources.gpus
            if known is not None and known.gpus == gpus and known.until > self._now():
                continue
            try:
                found = self._find_per_node(job)
            except SchedulerUnreachable as error:
                log.info("the possible sizes of jobs are not updated, because the scheduler does not answer: %s", error)
                return
            self._per_node[job.id] = _PerNode(found, gpus, self._now() + REFUSED_S)

    def of(self, job: Job) -> frozenset[int]:
        """Return the numbers of learners that the job may have. If nothing is known about its nodes, any number
        fits."""
        elastic, known = _elastic(job), self._per_node.get(job.id)
        per_node = MOST_ON_NODE if known is None else known.learners
        always, refused = _always(job), self._refused.get(job.id, ())
        return frozenset(
            number
            for number in range(elastic.min_learners, elastic.max_learners + 1)
            if number not in refused and (number in always or fills_nodes(number, per_node))
        )

    def can_plan(self, job: Job, learners: int, batch: int) -> bool:
        """Return whether an attempt with this size can be planned and leaves no GPU of its allocation idle. (The
        scheduler allocates the same number on each node.) If not, refuse the size for REFUSED_S.

        The present size is always accepted: if it cannot run, the deployer fails the job. Raises SchedulerUnreachable.
        """
        if learners == job.effective_spec.resources.learners:
            return True
        nodes = self._nodes(job, learners, batch)
        if nodes is not None and (learners in _always(job) or learners % nodes == 0):
            return True
        self._refused.setdefault(job.id, {})[learners] = self._now() + REFUSED_S
        return False

    def _find_per_node(self, job: Job) -> int:
        """Return the largest number of learners on one node, at most MOST_ON_NODE; 1 if each learner has its own
        node."""
        batch = replace(job.spec.batch, elasticity=None)
        unlimited = replace(job, spec=replace(job.spec, batch=batch))
        more = range(2, MOST_ON_NODE + 1)
        return 1 + bisect_left(more, True, key=lambda number: self._nodes(unlimited, number, 0) != 1)

    def _nodes(self, job: Job, learners: int, batch: int) -> int | None:
        """Return how many nodes the job gets with this number of learners; None if that cannot be planned. Raises
        SchedulerUnreachable."""
        overrides = replace(job.overrides, learners=learners, global_batch=batch)
        wanted = replace(job, overrides=overrides, attempt=job.attempt + 1)
        try:
            return plan_attempt(self._storage, self._adapters, self._node_exclusion, wanted).launch.nodes
        except SchedulerUnreachable:
            raise
        except (SchedulerError, UnknownImage, OSError) as error:
            log.debug("%s cannot have %d learners: %s", job.id, learners, error)
            return None

    def _now(self) -> float:
        return self._storage.clock.monotonic()


def fills_nodes(learners: int, per_node: int) -> bool:
    """Return whether jobs with this many learners can fill nodes on which `per_node` learners fit."""
    if per_node >= MOST_ON_NODE:
        return True
    return per_node % learners == 0 if learners <= per_node else learners % per_node == 0


def _always(job: Job) -> set[int]:
    """Return the numbers of learners that need not fill nodes: the minimum, the submitted and the present number."""
    return {_elastic(job).min_learners, job.spec.resources.learners, job.effective_spec.resources.learners}


def _elastic(job: Job) -> Elastic:
    elastic = job.spec.batch.elasticity
    assert elastic is not None  # it belongs to a pool
    return elastic
