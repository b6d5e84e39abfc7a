"""Make the running Job of an attempt smaller: a part of the adapter.

The daemon writes into ``control.json`` how many learners stay, and the adapter brings that to the pods. The pods with
the highest indexes have ended with success by then, so their nodes are free, and only the Job still
counts them. `completions` and `parallelism` of an Indexed Job change together (kubernetes.io, "Elastic Indexed Jobs").
A Job in a queue of Kueue does not change: Kueue suspends a Job whose parallelism changes, and it gives back the quota
of pods that have ended by itself.
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
        """Return when the watch has seen all Jobs and pods."""

    def shrink(self, native_id: NativeId, nodes: Sequence[str]) -> None:
        """See the capability. Each learner has a pod, so the number of `nodes` is that of the pods that stay."""
        token, size = native_id.job, len(nodes)
        self._synced()
        job = self._watcher.job(token)
        if job is None or is_finished(job) or is_ending(job):
            return
        pods = self._watcher.pods_by_token().get(token, [])
        leaving = sorted(pod["metadata"]["name"] for pod in pods if index_of(pod) >= size and not is_over(pod))
        if leaving:
            raise NotNow(f"pods of Job {token} that leave it have not ended yet: {', '.join(leaving)}")
        if self._settings.queue or job["spec"]["completions"] <= size:
            return
        try:
            found = self._client.patch("Job", token, {"spec": {"completions": size, "parallelism": size}})
        except Refused as refused:
            raise explain(refused, f"the new size of Job {token}") from refused
        if found is not None:
            self._watcher.put("Job", found)
