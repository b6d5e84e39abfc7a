"""What a cluster says of pods that wait, as values."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_batch.domain.pending.explanation import Limit, Reason, WaitKind
from ffdl_kubernetes.pending.explanation import read_pods, read_scheduling
from ffdl_kubernetes.pending.queues import position_in, queue_figures, read_queue
from ffdl_kubernetes.pending.quotas import quota_figures, read_quota


@pytest.mark.parametrize(("message", "kind", "figures"), [
    (
        "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {pool: x}. "
        "preemption: 0/5 nodes are available: 5 No preemption victims found for incoming pod.",
        WaitKind.NO_CAPACITY,
        {"nodes with Insufficient nvidia.com/gpu": "2 of 5",
         "nodes that had untolerated taint {pool: x}": "3 of 5"},
    ),
    (
        "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 node(s) had untolerated "
        "taint {a: b, c: d}.",
        WaitKind.KEPT_FOR_OTHERS,
        {"nodes that didn't match Pod's node affinity/selector": "1 of 3",
         "nodes that had untolerated taint {a: b, c: d}": "2 of 3"},
    ),
    (
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        WaitKind.WRONG_LABELS,
        {"nodes that didn't match Pod's node affinity/selector": "3 of 3"},
    ),
    ("0/1 nodes are available: 1 node(s) were unschedulable.", WaitKind.NODES_CLOSED,
     {"nodes that were unschedulable": "1 of 1"}),
    ("0/2 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
     WaitKind.NODES_CLOSED, {"nodes that had untolerated taint {node.kubernetes.io/unreachable: }": "2 of 2"}),
    # As 1.36 words it, which also looks for claims of devices.
    ("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). no new claims to "
     "deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod.",
     WaitKind.NO_CAPACITY,
     {"nodes with Insufficient cpu": "1 of 3", "nodes that had untolerated taint(s)": "2 of 3"}),
    ("0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: not "
     "eligible due to preemptionPolicy=Never.", WaitKind.KEPT_FOR_OTHERS,
     {"nodes that had untolerated taint(s)": "1 of 1"}),
    ('persistentvolumeclaim "jobs" not found', WaitKind.VOLUME, {}),
    ('0/2 nodes are available: persistentvolumeclaim "jobs" not found. preemption: 0/2 nodes are available: 2 '
     "Preemption is not helpful for scheduling.", WaitKind.VOLUME, {}),
    ("no nodes available to schedule pods", WaitKind.NO_CAPACITY, {}),
])  # fmt: skip
def test_read_scheduling_returns_kind_and_node_counts_from_message(
    message: str, kind: WaitKind, figures: dict[str, str]
) -> None:
    assert read_scheduling(message) == (kind, figures)


def test_read_quota_returns_limit_and_figures_of_exceeded_quota() -> None:
    refusal = (
        'pods "x" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=2,requests.cpu=1, used: '
        "requests.nvidia.com/gpu=3,requests.cpu=4, limited: requests.nvidia.com/gpu=4,requests.cpu=4"
    )
    assert read_quota(refusal) == Limit("quota", "GPUs (and 1 more)", name="team", most="4", used="3", asked="2")
    never = read_quota(refusal.replace("requests.cpu=1,", "requests.cpu=5,"))
    assert never is not None and not never.passes
    assert (never.resource, never.most, never.asked) == ("CPUs", "4", "5")
    assert read_quota('pods "x" is forbidden: violates PodSecurity') is None
    thing = {"metadata": {"name": "team"}, "status": {"hard": {"pods": "4"}, "used": {"pods": "3"}}}
    assert quota_figures([thing]) == {"quota team, pods": "3 of 4 in use"}


def workload(name: str, created: str = "", priority: int = 0, **conditions: tuple[str, str, str]) -> dict[str, Any]:
    told = [{"type": kind, "status": one[0], "reason": one[1], "message": one[2]} for kind, one in conditions.items()]
    return {
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"queueName": "gpus", "priority": priority},
        "status": {"conditions": told},
    }


def test_read_queue_maps_workload_conditions_to_pending_reason() -> None:
    short = workload("a", QuotaReserved=("False", "Pending", "insufficient unused quota for nvidia.com/gpu"))
    reason = read_queue("gpus", short)
    assert (reason.kind, reason.detail) == (WaitKind.QUEUE, "insufficient unused quota for nvidia.com/gpu")
    never = workload("a", QuotaReserved=("False", "Pending", "it requires more than the maximum capacity."))
    assert read_queue("gpus", never).kind is WaitKind.IMPOSSIBLE
    closed = workload("a", QuotaReserved=("False", "Inadmissible", "ClusterQueue x is inactive"))
    assert read_queue("gpus", closed).kind is WaitKind.QUEUE_CLOSED
    assert read_queue("gpus", {**short, "spec": {"active": False}}).kind is WaitKind.QUEUE_CLOSED
    assert read_queue("gpus", workload("a", Admitted=("True", "", ""))).kind is WaitKind.STARTING
    assert read_queue("gpus", None).kind is WaitKind.QUEUE


def test_position_in_queue_counts_older_and_higher_priority_workloads() -> None:
    mine = workload("mine", "2027-01-20T12:00:00Z")
    others = [
        workload("older", "2027-01-20T11:00:00Z"),
        workload("younger", "2027-01-20T13:00:00Z"),
        workload("dearer", "2027-01-20T13:00:00Z", 10),
        workload("runs", "2027-01-20T10:00:00Z", QuotaReserved=("True", "", "")),
        {**workload("elsewhere", "2027-01-20T10:00:00Z"), "spec": {"queueName": "cpus"}},
    ]
    assert position_in("gpus", mine, [mine, *others]) == 3
    assert queue_figures("gpus", [mine, *others]) == {"queue gpus": "4 jobs of the namespace wait in it"}
    assert queue_figures("", [mine]) == {}


def test_read_pods_maps_pod_state_to_pending_reason() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/1 nodes are available: 1 Insufficient cpu."}  # fmt: skip
    pod = {"metadata": {"name": "p"}, "status": {"conditions": [scheduled]}}
    reason, figures = read_pods([pod], "")
    assert (reason.kind, reason.code) == (WaitKind.NO_CAPACITY, "Unschedulable")
    assert figures == {"nodes with Insufficient cpu": "1 of 1"}
    gated = {"metadata": {"name": "p"}, "status": {"conditions": [{**scheduled, "reason": "SchedulingGated"}]}}
    assert read_pods([gated], "")[0].kind is WaitKind.QUEUE
    waits = {"name": "learner", "image": "x", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    pulling = {"metadata": {"name": "p"}, "status": {"containerStatuses": [waits]}}
    assert read_pods([pulling], "")[0].kind is WaitKind.IMAGE
    placed = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
    troubles = {"p": ("FailedMount", 'secret "keys" not found')}
    reason, _ = read_pods([placed], "", troubles)
    assert reason.kind is WaitKind.VOLUME and 'FailedMount): secret "keys" not found' in reason.detail
    assert read_pods([placed], "", {"p": ("FailedCreatePodSandBox", "no address")})[0].kind is WaitKind.BROKEN
    assert read_pods([placed], "")[0].kind is WaitKind.STARTING
    assert read_pods([], "is forbidden: violates PodSecurity")[0].kind is WaitKind.REFUSED
    refused = read_pods([], "is forbidden: no PriorityClass with name gold was found")[0]
    assert refused.detail.endswith("was found; correct priority_class")
    assert read_pods([], "")[0].kind is WaitKind.UNCONSIDERED
    unseen = {"metadata": {"name": "p"}, "spec": {"schedulerName": "default-scheduler"}, "status": {"phase": "Pending"}}
    assert read_pods([placed, unseen], "")[0] == Reason(WaitKind.UNCONSIDERED)
    reason = read_pods([{**unseen, "spec": {"schedulerName": "volcano"}}], "")[0]
    assert reason.kind is WaitKind.UNCONSIDERED and "waits for scheduler volcano; where none" in reason.detail
