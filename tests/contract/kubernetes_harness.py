"""The Kubernetes adapter for the contract suite: on the tests' cluster, whose kubelet runs shim and controller.

A claim is the place of jobs in the cluster, as on sites that have one; what a manifest names below the test's directory
is another. What pods write is seen in the claim, and what the adapter copied in the attempt's directory.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_kubernetes.adapter import KubernetesScheduler
from tests.contract.daemon_rig import until
from tests.contract.scheduler_harness import Harness
from tests.fakes.kubernetes.checkout import CONTROLLER_IMAGE, IMAGE, images
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node

__all__ = ["CONTROLLER_IMAGE", "IMAGE", "images"]
CLAIM, DATA = "jobs", ("store", "plain")
"""Claims: the jobs' own, and what manifests name below the test's directory."""


def printed_in(place: Path, most: int) -> dict[str, str]:
    """The ends of what containers of a cluster printed; the files of a pod may go meanwhile."""
    found = {}
    for directory, _, names in os.walk(place / "pods"):
        container = Path(directory)
        for name in names if container.parent.name == "containers" else ():
            if name.endswith(".log"):
                with contextlib.suppress(FileNotFoundError):
                    text = (container / name).read_text(errors="replace")
                    found[f"{container.parents[1].name[:8]} {container.name}"] = text[-most:]
    return found


class KubernetesHarness(Harness):
    """The adapter against the tests' API server and kubelets."""

    backend = "kubernetes"
    image = IMAGE
    forgets = True
    knows_nodes = shares_nodes = begins_next = sees_tree = _is_cordoned = False

    def __init__(self, base: Path, settings: Mapping[str, object] | None = None, **knobs: Any) -> None:
        self.place = base / "claim"
        kubelet = {**images(), "claims": {CLAIM: str(self.place), **{name: str(base / name) for name in DATA}}, **knobs}
        self._cluster = cluster(base, nodes=[node("n1", cpu="4", gpus=1)], kubelet=kubelet)
        self.k8s = self._cluster.__enter__()
        mine: dict[str, object] = {
            "kubeconfig": str(self.k8s.kubeconfig), "controller_image": CONTROLLER_IMAGE, "python": sys.executable,
            "run_as_user": 1000, "request_timeout_s": 60, "claim": CLAIM,
            "volumes": {str(base / name): name for name in DATA},
        }  # fmt: skip
        try:
            self._settings = {**mine, **(settings or {})}
            super().__init__(base, self._settings)
            self._make_claims()
        except BaseException:
            self._cluster.__exit__(None, None, None)
            raise

    def _make_claims(self) -> None:
        for name in (CLAIM, *DATA):
            self.k8s.ask("POST", f"api/v1/namespaces/{self.k8s.namespace}/persistentvolumeclaims", {
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
            })  # fmt: skip

    def request(self, command: str = "true", **changes: Any) -> LaunchRequest:
        """As the parent. A daemon has one tree, and its adapter is told at the start which it is."""
        if "root" in changes:
            self._close_scheduler()
            self.root = Root(changes["root"])
            self.scheduler = create_adapter(self.backend, self._settings, AdapterContext(self.root.path, "root", 0))
        return super().request(command, **changes)

    def _close_scheduler(self) -> None:
        assert isinstance(self.scheduler, KubernetesScheduler)
        self.scheduler.close()

    def archive(self, plan: LaunchPlan) -> Path:
        """In the daemon's tree: the launch file names the pod's."""
        return Path(self.root.job(plan.launch.job_id).model_archive)

    def seen_by_job(self, path: str) -> Path:
        jobs = Path(self.root.path, "jobs")
        return self.place / "jobs" / Path(path).relative_to(jobs)

    def wait(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """As the parent. A daemon looks at its jobs all the time; the adapter copies from the first look on."""
        self.scheduler.observe([])
        until(condition, what)

    def submit_waiting(self, command: str = "true") -> tuple[NativeId, LaunchPlan]:
        self._cordon(True)
        native, plan = self.submit(command)
        self.await_observation(native, lambda seen: "no node has room now" in seen.reason)
        return native, plan

    def let_run(self) -> None:
        self._cordon(False)

    def settle(self) -> None:
        if self._is_cordoned:
            self._cordon(False)
        super().settle()

    def _cordon(self, closed: bool) -> None:
        self._is_cordoned = closed
        change = {"spec": {"unschedulable": closed}}
        self.k8s.ask("PATCH", "api/v1/nodes/n1", change, content="application/merge-patch+json")

    def diagnosis(self) -> str:
        """What containers printed, and what the cluster complained about."""
        return f"{printed_in(self.k8s.place, 2500)}; cluster: {self.k8s.log.read_text()[-2000:]}"

    def close(self) -> None:
        self._close_scheduler()
        self._cluster.__exit__(None, None, None)


def policies_of(k8s: FakeCluster, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rules of the NetworkPolicies that choose pods with these labels."""
    path = f"apis/networking.k8s.io/v1/namespaces/{k8s.namespace}/networkpolicies"
    rules = [one["spec"] for one in k8s.ask("GET", path)["items"]]
    return [one for one in rules if one["podSelector"]["matchLabels"].items() <= labels.items()]
