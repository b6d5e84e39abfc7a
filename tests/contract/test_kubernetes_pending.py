"""Why a job waits, on the tests' API server: words of the scheduler, quotas, Kueue, and nodes that could hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.pending.evidence import evidence_of
from ffdl_batch.domain.pending.explanation import Explanation, WaitKind
from ffdl_batch.domain.pending.reason_text import actions_of
from ffdl_batch.domain.tenant import Tenant
from ffdl_batch.ports.capabilities import ForetellsStart
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.pending import cluster_reader
from ffdl_kubernetes.settings import read_settings
from ffdl_kubernetes.tenancy.provisioning import Manner, create_tenant
from tests.contract.test_kubernetes_adapter import Site
from tests.fakes.kubernetes.rig import FakeCluster, cluster, node

GPU = "nvidia.com/gpu"
LABEL = "nvidia.com/gpu.product"
A100 = Resources(cpus=0.5, gpus=2, gpu_type="a100", memory_bytes=1 << 28)
V100 = replace(A100, gpu_type="v100")
HOUR = BatchOptions(time_s=3600)
MERGE = "application/merge-patch+json"
TAINT = {"key": "team", "value": "x", "effect": "NoSchedule"}
NODES = [
    node("a1", gpus=2, labels={LABEL: "NVIDIA-A100"}),
    node("a2", gpus=2, labels={LABEL: "NVIDIA-A100"}, taints=[TAINT]),
    node("v1", gpus=4, labels={LABEL: "NVIDIA-V100"}),
    node("plain"),
]
TYPES = {"a100": "NVIDIA-A100", "v100": "NVIDIA-V100"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with cluster(tmp_path, nodes=NODES, kueue=True) as k8s:
        found = Site(tmp_path, k8s)
        found.settings["gpu_types"] = TYPES
        found.scheduler = found.start()
        try:
            yield found
        finally:
            found.close()


def wait_for_capacity(site: Site, resources: Resources = A100) -> NativeId:
    native = site.scheduler.submit(site.plan(resources=resources, batch=HOUR))
    site.wait(native, lambda one: "Insufficient" in one.reason)
    return native


def explained(site: Site, native: NativeId | None, resources: Resources = A100) -> Explanation:
    spec = JobSpec("x", Framework("custom", "1", "x"), resources=resources, batch=HOUR)
    (known,) = site.scheduler.explain_waiting([WaitingRequest(spec, site.scheduler.probe(), native)])
    assert known is not None
    return known


def test_kubernetes_explanation_reports_scheduler_words_and_whole_capacity(site: Site) -> None:
    running = site.scheduler.submit(site.plan(resources=A100, batch=HOUR))
    site.wait(running, lambda one: bool(one.nodes))
    known = explained(site, wait_for_capacity(site))
    assert known.reason is not None and known.reason.kind is WaitKind.NO_CAPACITY
    assert known.figures[f"nodes with Insufficient {GPU}"] == "1 of 4"
    (room,) = known.capacity
    assert (room.gpu_type, room.gpus, room.gpus_free, room.gpus_each) == ("a100", 2, None, 2)
    assert (room.learners_fitting, room.wanted, [one.name for one in room.away]) == (1, 1, ["a2"])
    assert known.figures["GPUs of type NVIDIA-V100 in the cluster"] == "4" and not known.lacks and not known.ahead
    assert evidence_of(known, None, None, 0.0)[0] == (
        "open nodes have 2 GPUs of type a100; if nothing else runs, there is room for 1 of 1 learner with 2 GPUs each "
        "on 1 of 1 open node; not to be had: a2 (kept for others by the taint team)"
    )
    assert not isinstance(site.scheduler, ForetellsStart)


def test_kubernetes_explanation_reports_request_that_no_node_can_ever_hold(site: Site) -> None:
    huge = replace(A100, gpus=4)
    native = wait_for_capacity(site, huge)
    known = explained(site, native, huge)
    assert known.reason is not None and known.reason.kind is WaitKind.TOO_MUCH
    assert "empty they have room for 0 of 1 learner; one node has at most 2 GPUs" in known.reason.detail
    assert explained(site, None, huge).capacity[0].learners_fitting == 0


def test_kubernetes_explanation_reports_quota_too_small_for_all_learners(site: Site) -> None:
    """One pod would fit, and so says its refusal."""
    quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    site.admin().create({**quota, "spec": {"hard": {f"requests.{GPU}": "3"}}})
    two = replace(V100, learners=2)
    native = site.scheduler.submit(site.plan(resources=two, batch=HOUR))
    site.wait(native, lambda one: "quota gpus" in one.reason)
    known = explained(site, native, two)
    assert known.reason is not None and known.reason.limit is not None
    limit = known.reason.limit
    assert (limit.resource, limit.most, limit.asked, limit.passes) == ("GPUs", "3", "4", False)
    assert "it will never start like this" in actions_of(known.reason)[0]
    before = explained(site, None, two).figures["quota gpus has"]
    assert before == "3 GPUs, and all learners together ask for 4: they never start"


SMALL = Resources(cpus=0.4, memory_bytes=1 << 28)


def limit_containers(site: Site, **limits: dict[str, str]) -> None:
    spec = {"limits": [{"type": "Container", **limits}]}
    site.admin().create({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lim"}, "spec": spec})


@pytest.mark.parametrize(("memory", "which", "cure"), [
    (1 << 28, "only the controller's part is refused", "; the job itself is allowed: change what sets"),
    (1 << 29, "the controller's part is refused too", "; ask for an amount that the namespace's LimitRange"),
])  # fmt: skip
def test_kubernetes_explanation_names_controller_that_limit_range_refuses(
    site: Site, memory: int, which: str, cure: str
) -> None:
    limit_containers(site, max={"cpu": "500m", "memory": "300Mi"}, min={"cpu": "200m"}, default={"cpu": "500m"})
    site.scheduler = site.start()
    small = replace(SMALL, memory_bytes=memory)
    native = site.scheduler.submit(site.plan(resources=small, batch=HOUR))
    site.wait(native, lambda one: "usage per Container" in one.reason)
    known = explained(site, native, small)
    assert known.reason is not None and known.reason.kind is WaitKind.REFUSED
    assert which in known.reason.detail and cure in known.reason.detail
    for part in ("cpu request 0.1, set by controller_cpus", "memory limit 512 MiB, set by controller_memory_bytes"):
        assert part in known.reason.detail


def test_kubernetes_explanation_names_settings_of_cpu_limits_that_exceed_quota(site: Site) -> None:
    create_tenant(
        Tenant("team-q", resources={"limits.cpu": "1"}), read_settings({"kubeconfig": str(site.k8s.kubeconfig)})
    )
    site.scheduler = site.start(namespace="team-q")
    native = site.scheduler.submit(site.plan(resources=SMALL, batch=HOUR))
    site.wait(native, lambda one: "never has so much" in one.reason)
    known = explained(site, native, SMALL)
    assert known.reason is not None and known.reason.limit is not None
    assert (known.reason.limit.most, known.reason.limit.asked) == ("1", "2")
    assert "the controller has 1 and requests 0.1, the learner has 1 and requests 0.4" in known.reason.detail
    (action,) = actions_of(known.reason)
    assert action.startswith('lower the CPU limits, not the request: set cpu_limit = "request" and a lower controller_')


@pytest.mark.parametrize("given", [False, True])
def test_kubernetes_pod_is_placed_under_quota_of_ephemeral_storage(site: Site, given: bool) -> None:
    """Without an amount in the manifest, the tenant's LimitRange gives one."""
    resources = {"limits.ephemeral-storage": "40Gi", "requests.ephemeral-storage": "40Gi"}
    settings = read_settings({"kubeconfig": str(site.k8s.kubeconfig), "namespace": "team-q"})
    create_tenant(Tenant("team-q", resources=resources), settings)
    if given:
        client = ClusterClient(settings)
        client.delete("LimitRange", "ffdl-batch-daemon")
        client.close()
    site.scheduler = site.start(namespace="team-q")
    assert site.scheduler.probe().default_storage_bytes == (0.0 if given else 10 * 2.0**30)
    asked = replace(SMALL, storage_bytes=1 << 30) if given else SMALL
    native = site.scheduler.submit(site.plan(resources=asked, batch=HOUR))
    assert site.wait(native, lambda one: bool(one.nodes)).phase is Phase.PENDING


def queue_objects(k8s: FakeCluster) -> None:
    group = "apis/kueue.x-k8s.io/v1beta1"
    covered = ["cpu", "memory", GPU]
    nominal = [{"name": name, "nominalQuota": most} for name, most in zip(covered, ("64", "64Gi", "4"), strict=True)]
    flavors = [{"name": "v100", "resources": nominal}]
    spec = {"resourceGroups": [{"coveredResources": covered, "flavors": flavors}]}
    version = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    k8s.ask("POST", f"{group}/clusterqueues", {
        **version, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": spec,
    })  # fmt: skip
    usage = [{"name": "v100", "resources": [{"name": GPU, "total": "1"}]}]
    status = {"status": {"flavorsReservation": usage, "pendingWorkloads": 2}}
    k8s.ask("PATCH", f"{group}/clusterqueues/all/status", status, content=MERGE)
    k8s.ask("POST", f"{group}/namespaces/{k8s.namespace}/localqueues", {
        **version, "kind": "LocalQueue", "metadata": {"name": "gpus"}, "spec": {"clusterQueue": "all"},
    })  # fmt: skip


def test_kubernetes_explanation_reports_use_of_cluster_queue(site: Site) -> None:
    queue_objects(site.k8s)
    site.scheduler = site.start(queue="gpus")
    known = explained(site, None, V100)
    assert known.figures[f"ClusterQueue all, {GPU} of flavor v100"] == "1 of 4 in use"
    assert known.figures["ClusterQueue all"] == "2 jobs of all namespaces wait in it"


def test_kubernetes_explanation_includes_nodes_after_tenant_gets_node_access(site: Site) -> None:
    name = "team-b"
    user = site.k8s.kubeconfig_of("bob")
    whole = read_settings({"kubeconfig": str(site.k8s.kubeconfig), "namespace": name})
    create_tenant(Tenant(name, users=("bob",)), whole)
    site.settings |= {"kubeconfig": str(user), "namespace": name, "service_account": "ffdl-batch-learner"}
    site.scheduler = site.start()
    blind = explained(site, None)
    assert not blind.capacity
    (lack,) = blind.lacks
    assert "nodes" in lack and f"ffdl-admin tenant create {name} --nodes --update" in lack
    steps = create_tenant(Tenant(name, nodes=True), whole, Manner(update=True))
    assert [step.about for step in steps][-2:] == [
        "ClusterRole ffdl-batch-nodes", f"ClusterRoleBinding ffdl-batch-nodes-{name}"
    ]  # fmt: skip
    site.scheduler = site.start()
    seeing = explained(site, None)
    assert seeing.capacity[0].gpus == 2 and not seeing.lacks


def test_kubernetes_explanation_reuses_one_node_listing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "LIFE_S", 3600.0)  # however long the questions take
    site.scheduler.probe()
    explained(site, None)
    site.k8s.counts(reset=True)
    for _ in range(3):
        explained(site, None)
    counts = site.k8s.counts()
    assert counts.get("list nodes", 0) == 0, counts
    client = ClusterClient(read_settings({"kubeconfig": str(site.k8s.kubeconfig)}))
    assert len(list(client.items("api/v1/nodes"))) == len(NODES)
    client.close()
    assert site.k8s.counts()["list nodes"] == 1
