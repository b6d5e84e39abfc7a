"""Whether quotas and queues leave room."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ffdl_kubernetes.pending.cluster_snapshot import ClusterNow
from ffdl_kubernetes.pending.node_capacity import Wish
from ffdl_kubernetes.pending.queue_capacity import QueueNow, admit, figures_of
from ffdl_kubernetes.pending.quota_capacity import lacking, needs_of, never
from ffdl_kubernetes.pending.start_estimate import There, foretell

GPU = "nvidia.com/gpu"
POD: dict[str, Any] = {"containers": [{"resources": {"requests": {"cpu": "2"}, "limits": {GPU: 1, "memory": "1Gi"}}}]}


def objects(pods: int = 2, **spec: Any) -> list[dict[str, Any]]:
    job = {"completions": pods, "template": {"spec": {**POD, **spec}}}
    return [{"kind": "Job", "spec": job}, {"kind": "ConfigMap"}, {"kind": "Secret"}, {"kind": "Service"}]


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def test_quota_needs_count_pods_resources_and_objects_of_request() -> None:
    need = needs_of(objects())
    assert need["pods"] == need["count/pods"] == 2 and need["cpu"] == need["requests.cpu"] == 4
    assert need[f"requests.{GPU}"] == need[f"limits.{GPU}"] == 2 and need["limits.memory"] == 2 * 1024**3
    assert need["count/jobs.batch"] == need["configmaps"] == need["count/secrets"] == need["services"] == 1


@pytest.mark.parametrize(("hard", "used", "freed", "said"), [
    ({f"requests.{GPU}": "2"}, {}, {}, ""),
    ({f"requests.{GPU}": "3"}, {f"requests.{GPU}": "2"}, {},
     f"quota q has 1 requests.{GPU} left of 3, and it asks for 2: it would wait until others end"),
    ({f"requests.{GPU}": "3"}, {f"requests.{GPU}": "2"}, {f"requests.{GPU}": Decimal(2)}, ""),
    ({"cpu": "3500m"}, {}, {}, "quota q has 3.5 cpu left of 3.5, and it asks for 4: it would never start"),
    ({"limits.memory": "1Gi"}, {"limits.memory": "2Gi"}, {},
     "quota q has 0 B limits.memory left of 1 GiB, and it asks for 2 GiB: it would never start"),
    ({"count/cronjobs.batch": "0"}, {}, {}, ""),
])  # fmt: skip
def test_quota_check_reports_shortage_and_whether_request_can_ever_start(
    hard: dict[str, str], used: dict[str, str], freed: dict[str, Decimal], said: str
) -> None:
    assert lacking(objects(), [quota(hard, used)], freed) == said


def test_quota_check_reports_resource_that_all_pods_together_never_get() -> None:
    quotas = [quota({"pods": "1"}) | {"metadata": {"name": "other"}}, quota({"requests.cpu": "3", "pods": "9"})]
    (job, *_) = objects(2)
    assert never(job, "q", quotas) == ("requests.cpu", "3", "4")
    assert never(objects(1)[0], "q", quotas) is None


@pytest.mark.parametrize(("scope", "limit", "counts"), [
    ("Terminating", None, False), ("Terminating", 60, True), ("NotTerminating", None, True),
    ("NotTerminating", 60, False), ("BestEffort", None, False), ("NotBestEffort", None, True),
])  # fmt: skip
def test_quota_check_counts_only_quotas_with_matching_scope(scope: str, limit: int | None, counts: bool) -> None:
    more = {} if limit is None else {"activeDeadlineSeconds": limit}
    assert bool(lacking(objects(**more), [quota({"pods": "0"}, scopes=[scope])], {})) is counts


def test_foretell_counts_quota_of_replaced_pods_as_free() -> None:
    own = {"spec": POD, "status": {"phase": "Pending"}}
    asked, hard, used = objects(1), {f"requests.{GPU}": "2"}, {f"requests.{GPU}": "2"}
    plain = There(ClusterNow(0.0, lacks="may not"), [quota(hard, used)])
    found = foretell(asked, Wish(1, {}, {}), plain, 0.0, "")
    assert found is not None and found.at is None and "quota q has 0" in found.said
    instead = There(ClusterNow(0.0, lacks="may not"), [quota(hard, used)], own_job={}, own_pods=[own])
    assert foretell(asked, Wish(1, {}, {}), instead, 0.0, "t") is None  # and of nodes nobody knows


def cluster_queue(flavors: dict[str, int], taken: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    listed = [
        {"name": name, "resources": [{"name": "cpu", "nominalQuota": "64"}, {"name": GPU, "nominalQuota": count}]}
        for name, count in flavors.items()
    ]
    usage = [{"name": name, "resources": [{"name": GPU, "total": str(count)}]} for name, count in (taken or {}).items()]
    status = {"flavorsReservation": usage, "pendingWorkloads": more.pop("pending", 0)}
    groups = [{"coveredResources": ["cpu", GPU], "flavors": listed}]
    return {"metadata": {"name": "cq"}, "spec": {"resourceGroups": groups, **more}, "status": status}


WISH = Wish(2, {"cpu": Decimal(4), GPU: Decimal(2), "pods": Decimal(1)}, {})
FLAVORS: dict[str, dict[str, Any]] = {
    "a100": {"spec": {"nodeLabels": {"gpu": "a100"}, "nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}],
                      "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    "v100": {"spec": {"nodeLabels": {"gpu": "v100"}}},
}  # fmt: skip


@pytest.mark.parametrize(("queue", "obstacle"), [
    (cluster_queue({"a100": 4}), ""),
    (cluster_queue({"a100": 3}), f"the queue has not so much cpu and {GPU} left"),
    (cluster_queue({"a100": 6}, {"a100": 3}), f"the queue has not so much cpu and {GPU} left"),
    (cluster_queue({"a100": 4}, stopPolicy="Hold"), "the queue is stopped"),
    (cluster_queue({"a100": 4}, queueingStrategy="StrictFIFO", pending=2),
     "others are before it, and the queue keeps to its order"),
    (cluster_queue({"a100": 4}, queueingStrategy="BestEffortFIFO", pending=2), ""),
    (cluster_queue({"a100": 4}, queueingStrategy="StrictFIFO", pending=1), ""),
])  # fmt: skip
def test_queue_admission_reports_obstacle_from_capacity_policy_and_order(queue: dict[str, Any], obstacle: str) -> None:
    assert admit(WISH, QueueNow(queue, FLAVORS), waits_itself=True).obstacle == obstacle


def test_queue_admission_returns_labels_and_tolerations_of_free_flavor() -> None:
    there = QueueNow(cluster_queue({"a100": 4, "v100": 8}, {"a100": 1}), FLAVORS)
    assert admit(WISH, there, waits_itself=False).labels == {"gpu": "v100"}
    asked = WISH.beside({"gpu": "a100"})
    assert "not so much" in admit(asked, there, waits_itself=False).obstacle
    free = admit(asked, QueueNow(cluster_queue({"v100": 8, "a100": 4}), FLAVORS), waits_itself=False)
    assert (free.labels, len(free.tolerations)) == ({"gpu": "a100"}, 1)


def test_queue_admission_reports_uncovered_resource_and_unreadable_queue() -> None:
    fpga = Wish(1, {"xilinx.com/fpga": Decimal(1)}, {})
    assert admit(fpga, QueueNow(cluster_queue({"a": 1})), waits_itself=False).obstacle == (
        "the queue gives no xilinx.com/fpga"
    )
    hidden = QueueNow(lacks=("it may not be read",))
    assert admit(WISH, hidden, waits_itself=False).obstacle and figures_of(hidden) == {}
    assert foretell([], WISH, There(ClusterNow(0.0), queue=hidden), 0.0, "") is None


def test_queue_figures_report_use_per_flavor_and_waiting_jobs() -> None:
    assert figures_of(QueueNow(cluster_queue({"a100": 8}, {"a100": 6}, pending=1))) == {
        "ClusterQueue cq, cpu of flavor a100": "0 of 64 in use",
        f"ClusterQueue cq, {GPU} of flavor a100": "6 of 8 in use",
        "ClusterQueue cq": "1 job of all namespaces waits in it",
    }
