"""Why Jobs wait in a cluster, and what would start sooner: from what the watch has told, with one look at quotas, nodes
and queue for any number of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.explanation import Explanation, Foretold, Limit, Per, WaitKind
from ffdl_batch.ports.capabilities import WaitingRequest
from ffdl_batch.ports.scheduler import LaunchPlan
from ffdl_batch.runtimes.learner_start import RequestRefused
from ffdl_kubernetes.objects.job import job as job_of
from ffdl_kubernetes.objects.names import QUEUE_LABEL
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.job_states import has_begun, is_ending, is_finished
from ffdl_kubernetes.observing.kueue import Queues
from ffdl_kubernetes.pending import start_estimate
from ffdl_kubernetes.pending.capacity_queries import Look
from ffdl_kubernetes.pending.cluster_snapshot import ClusterNow
from ffdl_kubernetes.pending.evidence import (
    ahead_of,
    are_closed,
    gpu_of,
    gpus_by_type,
    room_for,
    shortage_of,
    too_much,
    types_of,
)
from ffdl_kubernetes.pending.node_capacity import Wish, opening_for, wish_of
from ffdl_kubernetes.pending.queue_capacity import QueueNow, figures_of
from ffdl_kubernetes.pending.quota_capacity import never
from ffdl_kubernetes.pending.reasons import plain_name, position_in, queue_figures, quota_figures, read_pods, read_queue
from ffdl_kubernetes.planning.pod_shape import asked_shape
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
_NOT_ROOM = frozenset({WaitKind.IMAGE, WaitKind.VOLUME, WaitKind.BROKEN, WaitKind.STARTING})
"""Where pods have their nodes: what nodes have free says nothing any more."""


class PodOutlooks(ABC):
    """The adapter's ExplainsWaiting and ForetellsStart."""

    _settings: KubernetesSettings
    _watcher: Watcher
    _queues: Queues
    _look: Look

    @property
    @abstractmethod
    def _namespace(self) -> str:
        """Where the jobs are."""

    @abstractmethod
    def _synced(self) -> None:
        """Until the watch has told everything. Raises SchedulerUnreachable."""

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """See :class:`ffdl_batch.ports.capabilities.ExplainsWaiting`."""
        self._synced()
        pods, workloads = self._watcher.pods_by_token(), self._queues.by_owner()
        refusals, troubles = self._watcher.refusals(), self._watcher.troubles()
        quotas, lacks = self._look.quotas()
        lacks = (*lacks, *self._look.cpu_limit()[1])
        cluster, plain = self._look.cluster(), Explanation(time.time(), figures=quota_figures(quotas), lacks=lacks)
        found: list[Explanation | None] = []
        for request in requests:
            token = request.native_id.job if request.native_id is not None else ""
            job = self._watcher.job(token) if token else None
            if not token:
                before = queue_figures(self._settings.queue, list(workloads.values()))
                known: Explanation | None = replace(plain, figures={**before, **plain.figures})
                wish = _wish_of(request.spec, self._settings)
            elif job is None or is_finished(job) or is_ending(job):
                known, wish = None, None
            else:
                told = Told(pods.get(token, []), refusals.get(token, ""), troubles)
                known, wish = _explain(job, told, workloads, plain, quotas), _as_made(job, told.pods)
            found.append(self._with_room(known, wish, request.spec, cluster, token) if known is not None else None)
        return found

    def foretell(self, plan: LaunchPlan, instead_of: NativeId | None = None) -> Foretold | None:
        """See :class:`ffdl_batch.ports.capabilities.ForetellsStart`: counted here, for no scheduler tells."""
        self._synced()
        token = instead_of.job if instead_of is not None else ""
        own_job, own_pods = self._watcher.job(token), self._watcher.pods_by_token().get(token, [])
        job = next(one for one in plan.objects if one["kind"] == "Job")
        wish = wish_of(job)
        wish = wish.beside({}, _as_made(own_job, own_pods).tolerations) if own_job is not None else wish
        there = start_estimate.There(
            cluster=self._look.cluster(),
            quotas=self._look.quotas()[0],
            queue=self._queue_now(),
            own_job=own_job,
            own_pods=own_pods,
        )
        return start_estimate.foretell(plan.objects, wish, there, time.time(), token)

    def _queue_now(self) -> QueueNow | None:
        return self._look.queue(self._settings.queue, self._queues.group()) if self._settings.queue else None

    def _with_room(
        self, known: Explanation, wish: Wish | None, spec: JobSpec, cluster: ClusterNow, token: str
    ) -> Explanation:
        """What nodes and queue have left, beside why it waits."""
        if wish is None or (known.reason is not None and known.reason.kind in _NOT_ROOM):
            return known
        queue = self._queue_now()
        figures, lacks = dict(known.figures), (*known.lacks, *filter(None, [cluster.lacks]))
        if queue is not None:
            figures, lacks = {**figures_of(queue), **figures}, (*lacks, *queue.lacks)
            known = _without_queue(known, self._settings.queue, self._namespace) if queue.is_missing else known
        known = replace(known, lacks=lacks, gpu_types=types_of(cluster, self._settings))
        if cluster.lacks:
            return replace(known, figures={**gpus_by_type(cluster.nodes, self._settings), **figures})
        mine = tuple(one for one in cluster.holders if token and one.token == token)
        opening = opening_for(wish, cluster, token)
        room = room_for(opening, spec.resources.gpu_type, cluster, self._settings)
        ahead = ahead_of(opening, cluster, self._namespace, gpu_of(wish, self._settings), mine)
        reason = known.reason
        if reason is not None and reason.kind is WaitKind.NO_ROOM and (detail := too_much(opening, self._settings)):
            reason = replace(reason, kind=WaitKind.TOO_MUCH, detail=detail)
        if reason is not None and reason.kind is WaitKind.KEPT_FOR_OTHERS and are_closed(opening, cluster):
            reason = replace(reason, kind=WaitKind.NODES_CLOSED)
        figures = {**shortage_of(opening), **figures}
        return replace(known, reason=reason, figures=figures, rooms=(room,), ahead=(ahead,))


def _without_queue(known: Explanation, queue: str, namespace: str) -> Explanation:
    """Where the namespace has no such queue, nothing will ever let a Job in."""
    if known.reason is None or known.reason.kind is not WaitKind.QUEUE:
        return known
    missing = f"namespace {namespace} has no LocalQueue {queue}"
    return replace(known, reason=replace(known.reason, kind=WaitKind.QUEUE_CLOSED, detail=missing))


@dataclass(frozen=True, slots=True)
class Told:
    """What there is of a Job beside itself: its pods, why more were refused, and what nodes said of any pods."""

    pods: Sequence[Plain]
    refusal: str
    troubles: Mapping[str, tuple[str, str]]


def _explain(
    job: Plain, told: Told, workloads: Mapping[str, Plain], plain: Explanation, quotas: Sequence[Plain]
) -> Explanation | None:
    """One Job; None where it does not wait any more."""
    pods = told.pods
    queue = str(job["metadata"].get("labels", {}).get(QUEUE_LABEL) or "")
    if job.get("spec", {}).get("suspend"):
        if not queue:
            return plain
        workload = workloads.get(job["metadata"]["uid"])
        reason = read_queue(queue, workload)
        place = position_in(queue, workload, list(workloads.values())) if workload is not None else None
        return replace(plain, reason=reason, position=place if reason.kind is WaitKind.QUEUE else None)
    waiting = [pod for pod in pods if not has_begun(pod)]
    if pods and not waiting:  # their controllers run, and bring data; learners' containers may still not be had
        reason, _ = read_pods(pods, "")
        return None if reason.kind is WaitKind.STARTING else replace(plain, reason=reason)
    is_short = len(pods) < int(job.get("spec", {}).get("completions", 1))
    reason, figures = read_pods(waiting, told.refusal if is_short else "", told.troubles)
    if reason.limit is not None and (found := never(job, reason.limit.name, quotas)) is not None:
        resource, most, asked = found
        limit = Limit("quota", plain_name(resource), Per.JOB, name=reason.limit.name, most=most, asked=asked)
        reason = replace(reason, limit=limit)
    return replace(plain, reason=reason, figures={**figures, **plain.figures})


def _wish_of(spec: JobSpec, settings: KubernetesSettings) -> Wish | None:
    """None for a request that would be refused."""
    try:
        return wish_of(job_of(asked_shape(spec, settings), settings))
    except RequestRefused:
        return None


def _as_made(job: Plain, pods: Sequence[Plain]) -> Wish:
    """What the Job asks for, and what the cluster's own rules let its pods tolerate beside that."""
    wish = wish_of(job)
    return wish.beside({}, pods[0].get("spec", {}).get("tolerations") or ()) if pods else wish
