"""What an attempt left in the claim, because its pods reach no store or were lost: a Job of its own stores it.

It is planned with the attempt, named by the token with a suffix, and belongs to no other Job: it outlives the
attempt's. A second start finds it; one that failed is deleted before it is started again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.backend_facts import Storing
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.launch.launch_file import LaunchFile, encode
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.launch.pod_protocol import SHIM
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_batch.runtimes.pod import SHIM_TEXT
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.lifecycle.marker_files import elsewhere
from ffdl_kubernetes.lifecycle.pod_sync import Pods
from ffdl_kubernetes.lifecycle.submission import Sender, read_objects
from ffdl_kubernetes.lifecycle.termination import sent_after_cleanup
from ffdl_kubernetes.objects.job import job
from ffdl_kubernetes.objects.names import STORING, Plain, labels, of_storing, placed
from ffdl_kubernetes.objects.network_policy import Ways, places_of, policy
from ffdl_kubernetes.objects.pod_files import configuration, private
from ffdl_kubernetes.objects.pod_template import PodShape, for_staging
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.disruptions import why_lost
from ffdl_kubernetes.observing.job_states import Beside, has_run, is_finished, observe
from ffdl_kubernetes.observing.kueue import Queues
from ffdl_kubernetes.observing.log_follower import termination_message
from ffdl_kubernetes.settings import KubernetesSettings

OBJECTS = "store-objects.json"
"""In the attempt's directory: the plan of that Job, where a claim keeps what pods leave."""


def plan_storing(
    launch: LaunchFile, shape: PodShape, secrets: Mapping[str, str], settings: KubernetesSettings, namespace: str
) -> list[Plain]:
    """Return the objects of the Job that stores pending uploads, the Job first; none if there is nothing to store.
    `secrets` are files of the Secret, as in plans."""
    assert launch.pod is not None
    if launch.pod.apart or not launch.stores_elsewhere:
        return []
    own_launch = replace(launch, pod=replace(launch.pod, cut_off=False, uploads_pending=True))
    places = [f"{place}/" for place in (launch.stores.results, launch.stores.logs, launch.stores.model) if place]
    outside = tuple(one for one in shape.outside if any(place.startswith(f"{one.target}/") for place in places))
    own = replace(
        for_staging(shape, settings), token=f"{shape.token}{STORING}", stores=True, limit_s=settings.load_patience_s,
        has_private=bool(secrets), outside=outside, policy="",
    )  # fmt: skip
    objects = _objects(own_launch, own, secrets, settings)
    return [placed(one, namespace) for one in objects] if namespace else objects


def _objects(
    launch: LaunchFile, shape: PodShape, secrets: Mapping[str, str], settings: KubernetesSettings
) -> list[Plain]:
    name, of_pods = (shape.token, shape.job_id, shape.attempt), of_storing(labels(shape.job_id, shape.attempt))
    objects = [
        job(shape, settings),
        configuration(*name, {"launch.json": encode(launch), SHIM: SHIM_TEXT}),
        *([private(*name, secrets)] if shape.has_private else []),
        policy(shape.token, of_pods, Ways(NetworkLevel.NONE, stores=places_of(launch.uploads)), settings),
    ]
    for one in objects:
        meta: Any = one["metadata"]
        meta["labels"] = of_pods
    return objects


class StoresFromClaims:
    """See :class:`ffdl_batch.ports.capabilities.StoresApart`."""

    _settings: KubernetesSettings
    _client: ClusterClient
    _sender: Sender
    _root: Root
    _pods: Pods
    _watcher: Watcher
    _queues: Queues
    _gone: dict[str, dict[str, Mapping[str, Any]]]

    def _synced(self) -> None:
        raise NotImplementedError

    def begin_storing(self, token: Token, attempt_dir: AttemptDir) -> None:
        """See the capability."""
        self._synced()
        if words := elsewhere(attempt_dir, self._client):
            raise NotNow(words)
        job_id = token.rpartition("-")[0]
        archive = Path(self._root.job(job_id).model_archive)
        objects = read_objects(attempt_dir, OBJECTS)
        begin = functools.partial(self._sender.send, objects, attempt_dir, archive)
        self._watcher.put("Job", sent_after_cleanup(begin, self._client, self._watcher, self._synced, self._root))

    def how_storing_goes(self, token: Token) -> Storing:
        """See the capability. Sends no request: the watch knows."""
        self._synced()
        name = f"{token}{STORING}"
        found = self._watcher.job(name)
        if found is None:
            attempt = self._root.job(token.rpartition("-")[0]).attempt(int(token.rpartition("-")[2]))
            if words := elsewhere(attempt, self._client):
                return Storing(words)
            return Storing(f"Job {name} is gone", ended=True)
        pods = self._watcher.pods_by_token().get(name, [])
        if pods and len(lost := self._pods.lost(pods)) == len(pods):
            self._delete_failed(name)
            return Storing(why_lost(pods, lost), ended=True, interrupted=True)
        if not is_finished(found):
            return Storing(_why_waiting(found, pods, self._beside_storing(found)))
        if self._pods.has_more(found, pods, ()):
            return Storing()
        why, interrupted = _why_failed(found, [*pods, *self._gone.get(name, {}).values()])
        if why:
            self._delete_failed(name)
        return Storing(
            why or f"Job {name} succeeded, but did not report that all is stored", ended=True, interrupted=interrupted
        )

    def _beside_storing(self, found: Mapping[str, Any]) -> Beside:
        refusal = self._watcher.refusals().get(str(found["metadata"]["name"]), "")
        workload = self._queues.by_owner().get(found["metadata"]["uid"])
        return Beside(refusal, workload, pod_warnings=self._watcher.pod_warnings())

    def _delete_failed(self, name: str) -> None:
        try:
            self._client.delete("Job", name)
        except Refused as refused:
            raise explain(refused, f"the deletion of Job {name}") from refused


def _why_waiting(found: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], beside: Beside) -> str:
    """Return what the pod of the Job waits for; "" if it stores."""
    seen = observe(found, pods, beside)
    return (seen.lacks or seen.reason) if seen is not None else ""


def _why_failed(found: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Return the last message of the pod, or that of the cluster ("" if the Job has not failed), and whether the
    cluster is the cause, so that another node or a later attempt may succeed."""
    seen = observe(found, pods)
    if seen is None or seen.end is EndCause.SUCCESS:
        return "", False
    said = next(filter(None, (str((termination_message(pod) or {}).get("error", "")) for pod in pods)), "")
    by_cluster = seen.end in (EndCause.PREEMPTED, EndCause.NODE_FAIL) or (bool(pods) and not any(map(has_run, pods)))
    return said or seen.reason or f"Job {found['metadata']['name']} failed", by_cluster and not said
