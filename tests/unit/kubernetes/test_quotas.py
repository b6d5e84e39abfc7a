"""What quotas and Kueue's queues have for a Job."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_kubernetes.pending.queues import Queue, cluster_queue_figures
from ffdl_kubernetes.pending.quotas import needs_of, never_enough

GPU = "nvidia.com/gpu"
POD: dict[str, Any] = {"containers": [{"resources": {"requests": {"cpu": "2"}, "limits": {GPU: 1, "memory": "1Gi"}}}]}


def job(pods: int = 2, **spec: Any) -> dict[str, Any]:
    return {"kind": "Job", "spec": {"completions": pods, "template": {"spec": {**POD, **spec}}}}


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def test_quota_needs_count_job_pods_and_resources() -> None:
    need = needs_of(job())
    assert need["pods"] == need["count/pods"] == 2 and need["cpu"] == need["requests.cpu"] == 4
    assert need[f"requests.{GPU}"] == need[f"limits.{GPU}"] == 2 and need["limits.memory"] == 2 * 1024**3
    assert need["count/jobs.batch"] == 1


@pytest.mark.parametrize(("hard", "figures"), [
    ({f"requests.{GPU}": "2"}, None),
    ({"cpu": "3500m"}, ("CPUs", "3.5", "4")),
    ({"limits.memory": "1Gi"}, ("memory", "1 GiB", "2 GiB")),
    ({"requests.cpu": "3", "pods": "9"}, ("CPUs", "3", "4")),
    ({"count/jobs.batch": "0"}, ("jobs.batch", "0", "1")),
    ({"count/cronjobs.batch": "0"}, None),
])  # fmt: skip
def test_never_enough_reports_resource_that_all_pods_together_never_get(
    hard: dict[str, str], figures: tuple[str, str, str] | None
) -> None:
    found = never_enough(job(), [quota({"pods": "5"}), quota(hard, dict.fromkeys(hard, "9"))])
    assert (found and (found.resource, found.most, found.asked)) == figures
    assert found is None or (found.name, found.passes) == ("q", False)


@pytest.mark.parametrize(("scope", "limit", "counts"), [
    ("Terminating", None, False), ("Terminating", 60, True), ("NotTerminating", None, True),
    ("NotTerminating", 60, False), ("BestEffort", None, False), ("NotBestEffort", None, True),
])  # fmt: skip
def test_never_enough_counts_only_quotas_with_matching_scope(scope: str, limit: int | None, counts: bool) -> None:
    more = {} if limit is None else {"activeDeadlineSeconds": limit}
    assert bool(never_enough(job(**more), [quota({"pods": "0"}, scopes=[scope])])) is counts


def test_cluster_queue_figures_report_use_per_flavor_and_waiting_jobs() -> None:
    resources = [{"name": "cpu", "nominalQuota": "64"}, {"name": GPU, "nominalQuota": 8}]
    usage = [{"name": "a100", "resources": [{"name": GPU, "total": "6"}]}]
    groups = [{"coveredResources": ["cpu", GPU], "flavors": [{"name": "a100", "resources": resources}]}]
    there = {
        "metadata": {"name": "cq"}, "spec": {"resourceGroups": groups},
        "status": {"flavorsReservation": usage, "pendingWorkloads": 1},
    }  # fmt: skip
    assert cluster_queue_figures(Queue(there)) == {
        "ClusterQueue cq, cpu of flavor a100": "0 of 64 in use",
        f"ClusterQueue cq, {GPU} of flavor a100": "6 of 8 in use",
        "ClusterQueue cq": "1 job of all namespaces waits in it",
    }
    assert cluster_queue_figures(Queue(lacks=("it may not be read",))) == {}
