"""Shrink the running Job of an attempt. Part of the adapter.

The daemon writes the number of remaining learners to ``control.json``, and the adapter passes it to the pods. When the
pods with the highest indexes have succeeded, their nodes are free, but the Job still counts these pods. `completions`
and `parallelism` of an Indexed Job can only be changed together (kubernetes.io, "Elastic Indexed Jobs"). A Job in a
Kueue queue must not be changed: Kueue suspends a Job whose parallelism changes, and releases the quota of ended pods
anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.lifecycle.pod_sync import index_of
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.job_states import is_ending, is_finished, is_over
from ffdl_kubernetes.settings import KubernetesSettings


class ShrinksInPlace(ABC):
    """See :class:`ffdl_batch.ports.capabilities.ShrinksJobs`."""

    _settings: KubernetesSettings
    _client: ClusterClient
    _watcher: Watcher

    @abstractmethod
    def _synced(self) -> None:
        """Wait until the watch has seen all Jobs and pods."""

    def shrink(self, native_id: NativeId, nodes: Sequence[str]) -> None:
        """See the capability. Each learner has its own pod, so the number of remaining pods is that of `nodes`."""
        token, size = native_id.job, len(nodes)
        self._synced()
        job = self._watcher.job(token)
        if job is None or is_finished(job) or is_ending(job):
            return
        pods = self._watcher.pods_by_token().get(token, [])
        leaving = sorted(pod["metadata"]["name"] for pod in pods if index_of(pod) >= size and not is_over(pod))
        if leaving:
            raise NotNow(f"pods to be removed from Job {token} have not ended yet: {', '.join(leaving)}")
        if self._settings.queue or job["spec"]["completions"] <= size:
            return
        try:
            found = self._client.patch("Job", token, {"spec": {"completions": size, "parallelism": size}})
        except Refused as refused:
            raise explain(refused, f"the new size of Job {token}") from refused
        if found is not None:
            self._watcher.put("Job", found)
