"""A daemon with exactly the permissions that are shipped: all works, and without any one of them something does not.

The API server of the tests enforces roles (RBAC) for each request, by the user of its token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.job.spec import Framework, JobSpec, NetworkLevel, Resources
from ffdl_batch.domain.launch.pod_protocol import FINALIZER
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.domain.scheduler_errors import SchedulerError
from ffdl_batch.domain.tenant import Tenant
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_kubernetes.api_discovery import may
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.settings import read_settings
from ffdl_kubernetes.tenancy.tenant_objects import PERMISSIONS, tenant_objects
from tests.contract.test_kubernetes_adapter import Site
from tests.contract.test_kubernetes_canary import enforced, kubelet
from tests.fakes.kubernetes.rig import FakeCluster, cluster, eventually, node

EACH = [(group, resource, verb) for group, resources, verbs in PERMISSIONS for resource in resources for verb in verbs]
WAIT_S, LACK_S = 120.0, 5.0
"""The second is waited out where something does not work."""
TWO = Resources(learners=2, cpus=0.1, memory_bytes=1 << 28)


def rules(without: tuple[str, str, str] | None = None) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in EACH
        if (group, resource, verb) != without
    ]


class Walk:
    """All that a daemon does in a namespace, as a user with a Role there. AssertionError or SchedulerError where
    something does not work."""

    def __init__(self, base: Path, k8s: FakeCluster, namespace: str, without: tuple[str, str, str] | None) -> None:
        self.k8s, self.namespace = k8s, namespace
        self.wait_s = LACK_S if without else WAIT_S
        self.admin = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig), "namespace": namespace}))
        for thing in tenant_objects(Tenant(namespace, users=(f"user-{namespace}",))):
            wanted: dict[str, Any] = {**thing}
            self.admin.create({**wanted, "rules": rules(without)} if wanted["kind"] == "Role" else wanted)
        self.site = Site(base / namespace, k8s)
        self.site.settings |= {"kubeconfig": str(k8s.kubeconfig_of(f"user-{namespace}")), "namespace": namespace}
        self.site.settings["service_account"] = "ffdl-batch-learner"
        if without:  # what may not be listed is waited for
            self.site.settings["request_timeout_s"] = 5
        self.adapter = self.site.scheduler = self.site.start(queue="gpus")
        self.plans = [self.site.plan(), self.site.plan(resources=TWO), self.site.plan()]

    def go(self) -> None:
        """All of it, once."""
        single, pair, _ = self.plans
        native = self.adapter.submit(single)
        self.let_go(single.token)
        self.completed(pair)
        self.await_(lambda: self.seen(native).nodes, "it has a node")
        self.run(single.token)
        self.await_(lambda: self.signalled(native), "the signal is there")
        self.await_(lambda: FINALIZER not in self.pod(single.token, "finalizers"), "the pod is read and let go")
        self.queued(NativeId(pair.token))
        self.refused()
        self.adapter.cancel(native)
        self.await_(lambda: self.job(single.token)["spec"].get("activeDeadlineSeconds"), "its Job is ended")
        self.adapter.cancel(NativeId(pair.token))
        self.await_(lambda: self.admin.get("Job", pair.token) is None, "one that never began is deleted")

    def completed(self, plan: LaunchPlan) -> None:
        """A Job of two learners over which a daemon died is completed by the next one."""
        self.k8s.fault("status", method="PATCH", path=f"/jobs/{plan.token}", code=500, count=4)
        with pytest.raises(SchedulerError):
            self.adapter.submit(plan)
        self.k8s.do("clear_faults")
        assert self.adapter.find(plan.token, plan.attempt_dir) == {NativeId(plan.token)}

    def let_go(self, token: str) -> None:
        """What Kueue does."""
        self.admin.patch("Job", token, {"spec": {"suspend": False}})

    def signalled(self, native: NativeId) -> object:
        """Only a controller that runs is signalled, which the watch has to tell of first."""
        self.adapter.signal(native, "URG")
        return self.pod(native.job, "annotations").get("ffdl-batch/signal")

    def run(self, token: str) -> None:
        """A controller runs. Without kubelets its log is empty."""
        meta = self.pods(token)[0]["metadata"]
        one = {"name": "controller", "image": "c", "imageID": "c", "ready": True, "restartCount": 0}
        status = {"initContainerStatuses": [{**one, "state": {"running": {"startedAt": "2026-11-20T10:00:00Z"}}}]}
        path = f"api/v1/namespaces/{self.namespace}/pods/{meta['name']}/status"
        self.admin._ask("PATCH", path, body={"status": status}, content="application/merge-patch+json")

    def queued(self, native: NativeId) -> None:
        """Kueue says why a Job waits."""
        self.await_(lambda: "queue gpus" in self.seen(native).reason, "it waits in the queue")
        job = self.job(native.job)
        self.admin.paths["Workload"] = ("apis/kueue.x-k8s.io/v1beta1", "workloads")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": native.job, "uid": job["metadata"]["uid"]}
        workload: dict[str, Any] = {
            "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "spec": {"active": False},
            "metadata": {"name": "one", "ownerReferences": [owner]},
        }  # fmt: skip
        self.admin.create(workload)
        self.await_(lambda: "put it aside" in self.seen(native).reason, "Kueue's word is told")

    def refused(self) -> None:
        """A quota that refuses pods is told of in events."""
        quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
        self.admin.create({**quota, "spec": {"hard": {"pods": "0"}}})
        native = self.adapter.submit(self.plans[2])
        self.let_go(native.job)
        self.await_(lambda: self.seen(native).reason.startswith("quota none never has so much"), "the quota is told")
        asked = WaitingRequest(JobSpec("x", Framework("custom", "1", "x")), self.adapter.probe(), native)
        (known,) = self.adapter.explain_waiting([asked])
        assert known is not None and "quota none, pods" in known.figures
        assert {text.partition(" is not known")[0] for text in known.lacks} == {
            "the capacity of nodes", "the use of the queue gpus",
        }  # fmt: skip

    def job(self, token: str) -> dict[str, Any]:
        found = self.admin.get("Job", token)
        assert found is not None, token
        return found

    def seen(self, native: NativeId) -> Observation:
        return self.adapter.observe([native])[native]

    def pods(self, token: str) -> list[dict[str, Any]]:
        return self.admin.list("Pod", {"labelSelector": f"batch.kubernetes.io/job-name={token}"})[0]

    def pod(self, token: str, part: str) -> Any:
        return self.pods(token)[0]["metadata"].get(part) or {}

    def await_(self, check: Callable[[], object], what: str) -> None:
        eventually(check, what, self.wait_s)

    def close(self) -> None:
        self.admin.close()
        self.site.close()


@pytest.fixture(scope="module")
def k8s(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    with cluster(tmp_path_factory.mktemp("rights"), nodes=[node("n1", cpu="64", memory="256Gi")], kueue=True) as found:
        yield found


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_kubernetes.client.PAUSE_S", 0.0)
    monkeypatch.setattr("ffdl_kubernetes.observing.cluster_watch.STALE_S", 0.3)
    monkeypatch.setattr("ffdl_kubernetes.adapter.HEARD_S", 0.0)
    monkeypatch.setattr("ffdl_kubernetes.observing.network_canary.POLL_S", 0.05)


def test_shipped_kubernetes_role_allows_all_daemon_operations_and_nothing_else(
    tmp_path: Path, k8s: FakeCluster
) -> None:
    walk = Walk(tmp_path, k8s, "all-of-it", None)
    try:
        assert all(may(walk.adapter._client, verb, group, resource) for group, resource, verb in EACH)
        assert not may(walk.adapter._client, "get", "", "secrets") and not may(
            walk.adapter._client, "list", "", "nodes"
        )
        walk.go()
        adapter = walk.site.start(network_policies="", queue="")
        walk.admin.delete("ResourceQuota", "none")
        with kubelet(walk.site, enforced, walk.namespace):
            walk.await_(lambda: NetworkLevel.NONE in adapter.probe().network_levels, "the canary is back")
        used = {tuple(one) for one in k8s.do("used", user="user-all-of-it")}
        assert used == set(EACH)
    finally:
        walk.close()


@pytest.mark.full
@pytest.mark.parametrize("without", EACH, ids=["-".join(part or "core" for part in one) for one in EACH])
def test_daemon_operations_fail_without_any_one_permission_of_the_role(
    tmp_path: Path, k8s: FakeCluster, without: tuple[str, str, str]
) -> None:
    walk = Walk(tmp_path, k8s, f"no-{EACH.index(without)}", without)
    try:
        with pytest.raises((AssertionError, SchedulerError)):
            walk.go()
    finally:
        k8s.do("clear_faults")
        walk.close()
