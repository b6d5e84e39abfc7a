"""Explain why Jobs wait: what the scheduler, Kueue and quotas report, and which nodes could ever hold them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.pending.explanation import Explanation, WaitKind
from ffdl_batch.runtimes.learner_start import RequestRefused
from ffdl_kubernetes.objects.job import job as job_of
from ffdl_kubernetes.objects.names import QUEUE_LABEL
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.job_states import has_begun, is_ending, is_finished
from ffdl_kubernetes.observing.kueue import Queues
from ffdl_kubernetes.pending.cluster_reader import ClusterReader
from ffdl_kubernetes.pending.node_fit import are_closed, capacity_of, fit_on, gpus_by_type, read_request, too_much
from ffdl_kubernetes.pending.queues import cluster_queue_figures, position_in, queue_figures, read_queue
from ffdl_kubernetes.pending.quotas import never_enough, quota_figures
from ffdl_kubernetes.pending.reasons import read_pods
from ffdl_kubernetes.planning.pod_shape import asked_shape
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
_HAS_NODES = frozenset({WaitKind.IMAGE, WaitKind.VOLUME, WaitKind.BROKEN, WaitKind.STARTING})
"""The pods have their nodes, so the capacity of nodes explains nothing."""


class PodExplanations(ABC):
    """The adapter's ExplainsWaiting."""

    _settings: KubernetesSettings
    _watcher: Watcher
    _queues: Queues
    _reader: ClusterReader

    @property
    @abstractmethod
    def _namespace(self) -> str:
        """Return the namespace of the jobs."""

    @abstractmethod
    def _synced(self) -> None:
        """Wait until the watch has listed everything. Raises SchedulerUnreachable."""

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """See :class:`ffdl_batch.ports.capabilities.ExplainsWaiting`."""
        self._synced()
        pods, workloads = self._watcher.pods_by_token(), self._queues.by_owner()
        refusals, troubles = self._watcher.refusals(), self._watcher.pod_warnings()
        quotas, lacks = self._reader.quotas()
        lacks = (*lacks, *self._reader.cpu_limit()[1])
        plain = Explanation(time.time(), figures=quota_figures(quotas), lacks=lacks)
        found: list[Explanation | None] = []
        for request in requests:
            token = request.native_id.job if request.native_id is not None else ""
            job = self._watcher.job(token) if token else None
            if not token:
                found.append(self._explain_new(request.spec, workloads, plain, quotas))
            elif job is None or is_finished(job) or is_ending(job):
                found.append(None)
            else:
                about = Pods(pods.get(token, []), refusals.get(token, ""), troubles)
                known = _explain(job, about, workloads, plain, quotas)
                found.append(self._with_capacity(known, job, about.pods, request.spec) if known is not None else None)
        return found

    def _explain_new(
        self, spec: JobSpec, workloads: Mapping[str, Plain], plain: Explanation, quotas: Sequence[Plain]
    ) -> Explanation:
        """Explain what a request that was not submitted would meet."""
        before = queue_figures(self._settings.queue, list(workloads.values()))
        known = replace(plain, figures={**before, **plain.figures})
        try:
            job = job_of(asked_shape(spec, self._settings), self._settings)
        except RequestRefused:
            return known
        if (limit := never_enough(job, quotas)) is not None:
            never = f"{limit.most} {limit.resource}, and all learners together ask for {limit.asked}: they never start"
            known = replace(known, figures={**known.figures, f"quota {limit.name} has": never})
        return self._with_capacity(known, job, (), spec)

    def _with_capacity(self, known: Explanation, job: Plain, pods: Sequence[Plain], spec: JobSpec) -> Explanation:
        """Add the figures of Kueue's queue, and which nodes could ever hold the Job."""
        if known.reason is not None and known.reason.kind in _HAS_NODES:
            return known
        if name := self._settings.queue:
            queue = self._reader.queue(name, self._queues.group())
            figures, lacks = {**cluster_queue_figures(queue), **known.figures}, (*known.lacks, *queue.lacks)
            known = replace(known, figures=figures, lacks=lacks)
            known = _without_queue(known, name, self._namespace) if queue.is_missing else known
        nodes, lacks = self._reader.nodes()
        if lacks:
            return replace(known, lacks=(*known.lacks, *lacks))
        fit = fit_on(nodes, read_request(job, pods))
        reason = known.reason
        if reason is not None and reason.kind is WaitKind.NO_CAPACITY and (detail := too_much(fit, self._settings)):
            reason = replace(reason, kind=WaitKind.TOO_MUCH, detail=detail)
        if reason is not None and reason.kind is WaitKind.KEPT_FOR_OTHERS and are_closed(fit):
            reason = replace(reason, kind=WaitKind.NODES_CLOSED)
        figures = {**gpus_by_type(nodes, self._settings), **known.figures}
        room = capacity_of(fit, spec.resources.gpu_type, self._settings)
        return replace(known, reason=reason, figures=figures, capacity=(room,))


def _without_queue(known: Explanation, queue: str, namespace: str) -> Explanation:
    """Correct the reason if the namespace has no such queue: no Job is ever admitted then."""
    if known.reason is None or known.reason.kind is not WaitKind.QUEUE:
        return known
    missing = f"namespace {namespace} has no LocalQueue {queue}"
    return replace(known, reason=replace(known.reason, kind=WaitKind.QUEUE_CLOSED, detail=missing))


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a Job, why more were refused, and the events of nodes about any pods."""

    pods: Sequence[Plain]
    refusal: str
    troubles: Mapping[str, tuple[str, str]]


def _explain(
    job: Plain, about: Pods, workloads: Mapping[str, Plain], plain: Explanation, quotas: Sequence[Plain]
) -> Explanation | None:
    """Explain one Job; None if it does not wait any more."""
    pods = about.pods
    queue = str(job["metadata"].get("labels", {}).get(QUEUE_LABEL) or "")
    if job.get("spec", {}).get("suspend"):
        if not queue:
            return plain
        workload = workloads.get(job["metadata"]["uid"])
        reason = read_queue(queue, workload)
        place = position_in(queue, workload, list(workloads.values())) if workload is not None else None
        return replace(plain, reason=reason, position=place if reason.kind is WaitKind.QUEUE else None)
    waiting = [pod for pod in pods if not has_begun(pod)]
    if pods and not waiting:  # their controllers run and load data; learners' containers may still lack an image
        reason, _ = read_pods(pods, "")
        return None if reason.kind is WaitKind.STARTING else replace(plain, reason=reason)
    is_short = len(pods) < int(job.get("spec", {}).get("completions", 1))
    reason, figures = read_pods(waiting, about.refusal if is_short else "", about.troubles)
    if reason.limit is not None:
        refusing = [one for one in quotas if one["metadata"]["name"] == reason.limit.name]
        reason = replace(reason, limit=never_enough(job, refusing) or reason.limit)
    return replace(plain, reason=reason, figures={**figures, **plain.figures})
