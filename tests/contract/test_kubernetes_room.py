"""What a cluster has free for a job that waits, and what would start sooner: against the tests' API server, whose
scheduler then shows whether that was true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.evidence import evidence_of
from ffdl_batch.domain.pending.explanation import Explanation, Foretold
from ffdl_batch.domain.pending.reason_text import actions_of
from ffdl_batch.ports.capabilities import ForetellsStart, WaitingRequest
from ffdl_batch.ports.tenancy import Tenant
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.pending import capacity_queries
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


def begin(site: Site, resources: Resources = A100) -> NativeId:
    """A job whose pod has its node since now, and a time limit."""
    native = site.scheduler.submit(site.plan(resources=resources, batch=HOUR))
    site.wait(native, lambda one: bool(one.nodes))
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    site.set_status(native.job, startTime=started, phase="Running")
    return native


def wait_for_room(site: Site, resources: Resources = A100) -> NativeId:
    native = site.scheduler.submit(site.plan(resources=resources, batch=HOUR))
    site.wait(native, lambda one: "Insufficient" in one.reason)
    return native


def explained(site: Site, native: NativeId | None, resources: Resources = A100) -> Explanation:
    spec = JobSpec("x", Framework("custom", "1", "x"), resources=resources, batch=HOUR)
    (known,) = site.scheduler.explain_waiting([WaitingRequest(spec, site.scheduler.probe(), native)])
    assert known is not None
    return known


def foretold(site: Site, resources: Resources, native: NativeId | None = None) -> Foretold | None:
    assert isinstance(site.scheduler, ForetellsStart)
    return site.scheduler.foretell(site.plan(resources=resources, batch=HOUR), native)


def test_kubernetes_capacity_and_start_estimate_match_actual_scheduling(site: Site) -> None:
    began = time.time()
    begin(site)
    native = wait_for_room(site)
    known, now = explained(site, native), time.time()
    (room,), (ahead,) = known.rooms, known.ahead
    assert (room.gpu_type, room.gpus, room.gpus_free, room.gpus_each) == ("a100", 2, 0, 2)
    assert (room.learners_fitting, room.wanted, [one.name for one in room.away]) == (0, 1, ["a2"])
    assert (ahead.jobs, ahead.running, ahead.counts) == (0, 1, "pod")
    assert ahead.next_end is not None and began + 3500 < ahead.next_end < now + 3700
    assert known.gpu_types == ("a100", "v100") and not known.lacks
    said = evidence_of(known, None, None, now)
    assert said[0] == (
        "0 of 2 GPUs of type a100 are free; there is room for 0 of 1 learner with 2 GPUs each on 0 of 1 open node; "
        "not to be had: a2 (kept for others by the taint team)"
    )
    assert said[1].startswith("in the cluster 0 pods are before it, and 1 runs; the first of these reaches its time")
    itself = foretold(site, A100, native)
    assert itself is not None and itself.counted and itself.at == ahead.next_end and itself.nodes == "a1"
    other = foretold(site, V100, native)
    assert other is not None and other.at is not None and other.at <= time.time() and other.nodes == "v1"
    sooner = site.scheduler.submit(site.plan(resources=V100, batch=HOUR))
    seen = site.wait(sooner, lambda one: bool(one.nodes))
    still = site.observe(native)
    assert seen.nodes == "v1" and still is not None and not still.nodes


def test_kubernetes_explanation_places_new_request_behind_pending_pods(site: Site) -> None:
    begin(site)
    native = wait_for_room(site)
    ahead = explained(site, None).ahead[0]
    assert (ahead.jobs, ahead.own, ahead.gpus) == (1, 1, 2)
    assert evidence_of(explained(site, None), None, None, time.time())[1].startswith(
        "in the cluster 1 pod waits for room, 1 of them yours, for 2 GPUs, and 1 runs"
    )
    assert explained(site, native).ahead[0].jobs == 0


def test_kubernetes_start_estimate_frees_quota_of_replaced_pending_job(site: Site) -> None:
    quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    site.admin().create({**quota, "spec": {"hard": {f"requests.{GPU}": "4"}}})
    begin(site)
    native = wait_for_room(site)
    beside, instead = foretold(site, V100), foretold(site, V100, native)
    assert beside is not None and beside.at is None and beside.said.startswith(f"quota gpus has 0 requests.{GPU} left")
    assert instead is not None and instead.nodes == "v1"
    more = foretold(site, replace(V100, gpus=4), native)
    assert more is not None and more.at is None


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


def queue_objects(k8s: FakeCluster) -> None:
    group = "apis/kueue.x-k8s.io/v1beta1"
    covered = ["cpu", "memory", GPU]
    nominal = [{"name": name, "nominalQuota": most} for name, most in zip(covered, ("64", "64Gi", "4"), strict=True)]
    flavors = [{"name": "v100", "resources": nominal}]
    spec = {"resourceGroups": [{"coveredResources": covered, "flavors": flavors}]}
    version = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    k8s.ask("POST", f"{group}/resourceflavors", {
        **version, "kind": "ResourceFlavor", "metadata": {"name": "v100"},
        "spec": {"nodeLabels": {LABEL: "NVIDIA-V100"}},
    })  # fmt: skip
    k8s.ask("POST", f"{group}/clusterqueues", {
        **version, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": spec,
    })  # fmt: skip
    usage = [{"name": "v100", "resources": [{"name": GPU, "total": "1"}]}]
    status = {"status": {"flavorsReservation": usage, "pendingWorkloads": 2}}
    k8s.ask("PATCH", f"{group}/clusterqueues/all/status", status, content=MERGE)
    k8s.ask("POST", f"{group}/namespaces/{k8s.namespace}/localqueues", {
        **version, "kind": "LocalQueue", "metadata": {"name": "gpus"}, "spec": {"clusterQueue": "all"},
    })  # fmt: skip


def test_kubernetes_start_estimate_respects_kueue_quota_and_flavor(site: Site) -> None:
    queue_objects(site.k8s)
    site.scheduler = site.start(queue="gpus")
    known = explained(site, None, V100)
    assert known.figures[f"ClusterQueue all, {GPU} of flavor v100"] == "1 of 4 in use"
    assert known.figures["ClusterQueue all"] == "2 jobs of all namespaces wait in it"
    found = foretold(site, V100)
    assert found is not None and found.nodes == "v1" and found.at is not None, found
    other = foretold(site, A100)
    assert other is not None and other.at is None and "not so much" in other.said


def test_kubernetes_explanation_includes_nodes_after_tenant_gets_node_access(site: Site) -> None:
    name = "team-b"
    user = site.k8s.kubeconfig_of("bob")
    whole = read_settings({"kubeconfig": str(site.k8s.kubeconfig), "namespace": name})
    create_tenant(Tenant(name, users=("bob",)), whole)
    site.settings |= {"kubeconfig": str(user), "namespace": name, "service_account": "ffdl-batch-learner"}
    site.scheduler = site.start()
    blind = explained(site, None)
    assert not blind.rooms and foretold(site, V100) is None
    (lack,) = blind.lacks
    assert "nodes" in lack and f"ffdl-admin tenant create {name} --nodes --update" in lack
    steps = create_tenant(Tenant(name, nodes=True), whole, Manner(update=True))
    assert [step.about for step in steps][-2:] == [
        "ClusterRole ffdl-batch-nodes", f"ClusterRoleBinding ffdl-batch-nodes-{name}"
    ]  # fmt: skip
    site.scheduler = site.start()
    seeing = explained(site, None)
    assert seeing.rooms[0].gpus_free == 2 and not seeing.lacks
    found = foretold(site, V100)
    assert found is not None and found.nodes == "v1"


def test_kubernetes_explanation_counts_gpus_when_pods_cannot_be_listed(site: Site) -> None:
    cluster = read_settings({"kubeconfig": str(site.k8s.kubeconfig), "namespace": "team-c"})
    create_tenant(Tenant("team-c", users=("carl",)), cluster)
    site.k8s.grant("carl", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}], everywhere=True)
    site.settings |= {"kubeconfig": str(site.k8s.kubeconfig_of("carl")), "namespace": "team-c"}
    site.scheduler = site.start()
    known = explained(site, None)
    assert known.figures["GPUs of type NVIDIA-A100 in the cluster"] == "4" and not known.rooms
    assert "pods of all namespaces may not be listed" in known.lacks[0] and foretold(site, V100) is None


def test_kubernetes_explanation_reuses_one_node_listing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_queries, "LIFE_S", 3600.0)  # however long the questions take
    site.scheduler.probe()
    explained(site, None)
    site.k8s.counts(reset=True)
    for _ in range(3):
        explained(site, None)
        foretold(site, V100)
    counts = site.k8s.counts()
    assert counts.get("list nodes", 0) == 0, counts
    client = ClusterClient(read_settings({"kubeconfig": str(site.k8s.kubeconfig)}))
    assert len(list(client.items("api/v1/nodes"))) == len(NODES)
    client.close()
    assert site.k8s.counts()["list nodes"] == 1
