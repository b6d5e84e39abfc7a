"""Why Jobs wait in a cluster: from what the watch has told, with one question about quotas for any number of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffdl_batch.domain.waiting import Explanation, WaitKind
from ffdl_batch.ports.capabilities import WaitingRequest
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.kueue import Queues
from ffdl_kubernetes.objects.names import QUEUE_LABEL
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.states import has_begun, is_ending, is_finished
from ffdl_kubernetes.waiting_reasons import position_in, queue_figures, quota_figures, read_pods, read_queue
from ffdl_kubernetes.watching import Watcher

Plain = Mapping[str, Any]


class PodOutlooks(ABC):
    """The adapter's ExplainsWaiting; it has no trial that tells a start."""

    _settings: KubernetesSettings
    _watcher: Watcher
    _queues: Queues

    @abstractmethod
    def _make(self) -> ClusterClient:
        """A client of its own."""

    @abstractmethod
    def _synced(self) -> None:
        """Until the watch has told everything. Raises SchedulerUnreachable."""

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """See :class:`ffdl_batch.ports.capabilities.ExplainsWaiting`."""
        self._synced()
        quotas, lacks = _quotas(self._make)
        plain = Explanation(known_at=time.time(), figures=quotas, lacks=lacks)
        pods, workloads = self._watcher.pods_by_token(), self._queues.by_owner()
        refusals, troubles = self._watcher.refusals(), self._watcher.troubles()
        found: list[Explanation | None] = []
        for request in requests:
            token = request.native_id.job if request.native_id is not None else ""
            job = self._watcher.job(token) if token else None
            if not token:
                before = queue_figures(self._settings.queue, list(workloads.values()))
                found.append(replace(plain, figures={**before, **plain.figures}))
            elif job is None or is_finished(job) or is_ending(job):
                found.append(None)
            else:
                told = Told(pods.get(token, []), refusals.get(token, ""), troubles)
                found.append(_explain(job, told, workloads, plain))
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """What there is of a Job beside itself: its pods, why more were refused, and what nodes said of any pods."""

    pods: Sequence[Plain]
    refusal: str
    troubles: Mapping[str, tuple[str, str]]


def _explain(job: Plain, told: Told, workloads: Mapping[str, Plain], plain: Explanation) -> Explanation | None:
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
    if pods and all(has_begun(pod) for pod in pods):
        return None
    waiting = [pod for pod in pods if not has_begun(pod)]
    is_short = len(pods) < int(job.get("spec", {}).get("completions", 1))
    reason, figures = read_pods(waiting, told.refusal if is_short else "", told.troubles)
    return replace(plain, reason=reason, figures={**figures, **plain.figures})


def _quotas(make: Callable[[], ClusterClient]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What of the namespace's quotas is in use, and why that could not be read."""
    client = make()
    try:
        return quota_figures(client.list("ResourceQuota", {})[0]), ()
    except Refused as refused:
        return {}, (f"quotas could not be read: {refused}",)
    finally:
        client.close()
