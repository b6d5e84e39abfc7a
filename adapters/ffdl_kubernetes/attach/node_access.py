"""Start a program of a job's owner in a pod of a running attempt."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import AttemptNode, NodeProgram
from ffdl_kubernetes.connection import load_config
from ffdl_kubernetes.lifecycle.pod_sync import index_of
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.settings import IN_CLUSTER, KubernetesSettings

LISTED_S = 2.0
"""Maximum wait for the list of pods, if the daemon was just started."""


class Reach:
    """The adapter's method about programs beside controllers."""

    _settings: KubernetesSettings
    _watcher: Watcher

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
        """See the port; the owner's credentials are those of the daemon's kubeconfig. The program runs beside the
        controller: the pod has one process namespace and one user, so learners are seen from there. Raises
        SchedulerUnreachable, too, where it is not known which pods there are."""
        names = self._names(place)
        if not names:
            self._watcher.await_sync(LISTED_S)
            names = self._names(place)
        if not names:
            raise InvalidRequest(f"pod {place.node_rank} of {place.native_id} does not run")
        return NodeProgram(attach_argv(self._settings, names[-1], argv))

    def _names(self, place: AttemptNode) -> list[str]:
        pods = self._watcher.pods_by_token().get(place.native_id.job, ())
        return [str(pod["metadata"]["name"]) for pod in pods if index_of(pod) == place.node_rank and _runs(pod)]


def attach_argv(settings: KubernetesSettings, pod: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the program that starts `argv` in a pod, with its own streams. Raises SchedulerMissing."""
    config = load_config(settings)
    where = ["--kubeconfig", IN_CLUSTER]
    if config.fname is not None:
        where = ["--kubeconfig", str(config.fname.absolute()), "--context", config.context_name]
    where += ["--namespace", settings.namespace or config.namespace, "--pod", pod]
    where += ["--timeout", str(settings.request_timeout_s)]
    return (sys.executable, "-I", "-m", "ffdl_kubernetes.attach", *where, "--", *argv)


def _runs(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
