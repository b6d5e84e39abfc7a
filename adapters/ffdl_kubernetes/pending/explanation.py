"""Explain why Jobs wait: what the scheduler, Kueue and quotas report, and which nodes could ever hold them."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.pending.explanation import Explanation, Reason, WaitKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_start import RequestRefused
from ffdl_kubernetes.objects.job import job as job_of
from ffdl_kubernetes.objects.names import QUEUE_LABEL
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.cures import reasons_alone, what_to_do
from ffdl_kubernetes.observing.job_states import has_begun, is_ending, is_finished, why_pending
from ffdl_kubernetes.observing.kueue import Queues, condition
from ffdl_kubernetes.pending.cluster_reader import ClusterReader
from ffdl_kubernetes.pending.node_fit import are_closed, capacity_of, fit_on, gpus_by_type, read_request, too_much
from ffdl_kubernetes.pending.queues import cluster_queue_figures, position_in, queue_figures, read_queue
from ffdl_kubernetes.pending.quotas import never_enough, quota_figures, read_quota
from ffdl_kubernetes.planning.pod_shape import asked_shape
from ffdl_kubernetes.quantities import QUOTA
from ffdl_kubernetes.settings import KubernetesSettings

_AVAILABLE = re.compile(r"(\d+)/(\d+) nodes are available: ?(.*?)\.?$", re.DOTALL)
_PART = re.compile(r"(\d+) (.+)")
_OF_PARTS: tuple[tuple[str, WaitKind], ...] = (
    (r"Insufficient |Too many pods", WaitKind.NO_CAPACITY),
    (r"untolerated taint \{node\.kubernetes\.io/", WaitKind.NODES_CLOSED),
    (r"untolerated taint", WaitKind.KEPT_FOR_OTHERS),
    (r"node affinity|node selector|didn't match", WaitKind.WRONG_LABELS),
    (r"unschedulable|not ready|unreachable", WaitKind.NODES_CLOSED),
    (r"[Pp]ersistent[Vv]olume|volume", WaitKind.VOLUME),
)
_DEFAULT = "default-scheduler"


def read_scheduling(message: str) -> tuple[WaitKind, dict[str, str]]:
    """Return why the scheduler finds no node for a pod, and how many nodes of how many it counts for each reason.

    If some nodes lack room, the pod waits for these. Otherwise the reason of most nodes counts.
    """
    match = _AVAILABLE.search(reasons_alone(" ".join(message.split())))
    if match is None:
        return next((kind for sign, kind in _OF_PARTS if re.search(sign, message)), WaitKind.NO_CAPACITY), {}
    counts: dict[str, int] = {}
    for text in re.split(r", (?=\d+ )", match[3]):
        if (part := _PART.fullmatch(text.strip())) is not None:
            counts[part[2].strip().rstrip(".")] = int(part[1])
    figures = {_of_nodes(what): f"{count} of {match[2]}" for what, count in counts.items()}
    kinds: dict[WaitKind, int] = {}
    for what, count in counts.items():
        kind = next((kind for sign, kind in _OF_PARTS if re.search(sign, what)), WaitKind.NO_CAPACITY)
        kinds[kind] = kinds.get(kind, 0) + count
    if not kinds:  # the reason is about the pod, not about nodes
        return next((kind for sign, kind in _OF_PARTS if re.search(sign, match[3])), WaitKind.NO_CAPACITY), figures
    if WaitKind.NO_CAPACITY in kinds:
        return WaitKind.NO_CAPACITY, figures
    return max(kinds, key=lambda kind: kinds[kind]), figures


def _of_nodes(what: str) -> str:
    plain = what.removeprefix("node(s) ")
    return f"nodes that {plain}" if plain != what else f"nodes with {what}"


def read_pods(
    pods: Sequence[Plain], refusal: str, pod_warnings: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> tuple[Reason, dict[str, str]]:
    """Return why pods do not run, or are refused, and the figures of the reason.

    `troubles` has, by name of a pod, reason and message of a node's event about its volumes and network.
    """
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            word, said = str(scheduled.get("reason", "")), str(scheduled.get("message", ""))
            if word == "SchedulingGated":
                return Reason(WaitKind.QUEUE, word, said), {}
            kind, figures = read_scheduling(said)
            return Reason(kind, word, "" if figures else f"{said}{what_to_do(said)}"), figures
    if why := why_pending(pods):
        return Reason(WaitKind.IMAGE if why.startswith("the image") else WaitKind.BROKEN, "", why), {}
    if why := why_pending(pods, pod_warnings=pod_warnings):
        return Reason(WaitKind.VOLUME if why.startswith("a volume") else WaitKind.BROKEN, "", why), {}
    if refusal:
        if (limit := read_quota(refusal)) is not None:
            more = QUOTA.sub("", refusal).rpartition("(")[2].rstrip(")") if refusal.endswith(")") else ""
            return Reason(WaitKind.LIMIT, detail=more, limit=limit), {}
        return Reason(WaitKind.REFUSED, "", f"{refusal}{what_to_do(refusal)}"), {}
    open_pods = [pod.get("spec", {}) for pod in pods if not pod.get("spec", {}).get("nodeName")]
    if pods and not open_pods:
        return Reason(WaitKind.STARTING), {}
    named = next((str(spec["schedulerName"]) for spec in open_pods if spec.get("schedulerName")), _DEFAULT)
    cure = "where none of that name runs, correct scheduler in [backend.kubernetes]"
    return Reason(WaitKind.UNCONSIDERED, "", f"it waits for scheduler {named}; {cure}" if named != _DEFAULT else ""), {}


Plain = Mapping[str, Any]
_HAS_NODES = frozenset({WaitKind.IMAGE, WaitKind.VOLUME, WaitKind.BROKEN, WaitKind.STARTING})
"""The pods have their nodes, so the capacity of nodes explains nothing."""


class PodExplanations(ABC):
    """The adapter's method about waiting jobs."""

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
        """See :class:`ffdl_batch.ports.scheduler.Scheduler`."""
        self._synced()
        pods, workloads = self._watcher.pods_by_token(), self._queues.by_owner()
        refusals, troubles = self._watcher.refusals(), self._watcher.pod_warnings()
        quotas, lacks = self._reader.quotas()
        lacks = (*lacks, *self._reader.demands()[1])
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
        limit = never_enough(job, refusing) or reason.limit
        reason = replace(reason, limit=replace(limit, cure=reason.limit.cure or limit.cure))
    return replace(plain, reason=reason, figures={**figures, **plain.figures})
