"""What Kueue says of a Job, in words with what to do; and what is said of a cluster without it."""

from __future__ import annotations

from typing import Any

import pytest

from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_kubernetes.observing.job_states import Beside, observe
from ffdl_kubernetes.observing.kueue import describe_gang_start, why_evicted, why_queued
from tests.unit.kubernetes.test_states import job, pod

FULL = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor a100, 2 more needed"
NEVER = "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor a100, request > maximum capacity"


def workload(*conditions: tuple[str, str, str, str], active: bool = True, **status: Any) -> dict[str, Any]:
    """Conditions are (type, status, reason, message)."""
    listed = [dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in conditions]
    return {
        "metadata": {"name": "job-training-1-ab12c"},
        "spec": {"active": active},
        "status": {"conditions": listed, **status},
    }


@pytest.mark.parametrize(("found", "words"), [
    (None, "it waits in the queue gpus (Kueue)"),
    (workload(), "it waits in the queue gpus (Kueue)"),
    (workload(("QuotaReserved", "False", "Pending", FULL)),
     f"it waits in the queue gpus (Kueue) ({FULL}): it starts when others of the queue end"),
    (workload(("QuotaReserved", "False", "Pending", NEVER)),
     f"the queue gpus (Kueue) never has so much ({NEVER}): ask for less, or for another queue"),
    (workload(("QuotaReserved", "False", "Inadmissible", "LocalQueue gpus doesn't exist")),
     "the queue gpus (Kueue) does not take it (LocalQueue gpus doesn't exist): ask who runs the queue, or name "
     "another one in queue"),
    (workload(("QuotaReserved", "True", "QuotaReserved", ""), admissionChecks=[{"name": "nodes", "state": "Pending",
        "message": "waits for nodes."}, {"name": "budget", "state": "Ready", "message": ""}]),
     "the queue gpus (Kueue) has room for it, and waits for its admission checks: nodes (waits for nodes)"),
    (workload(("QuotaReserved", "True", "QuotaReserved", ""), ("Admitted", "True", "Admitted", "")),
     "the queue gpus (Kueue) has admitted it: its pods are about to be made"),
    (workload(("QuotaReserved", "False", "Pending", ""), ("Evicted", "True", "Preempted", "by a job")),
     "it waits in the queue gpus (Kueue) again, because another job took its room (by a job): it starts when "
     "there is room"),
    (workload(("Evicted", "True", "Deactivated", "exceeded the number of re-queuing retries"), active=False),
     "the queue gpus (Kueue) has put it aside (exceeded the number of re-queuing retries): who runs the "
     "queue sets spec.active of the Workload job-training-1-ab12c to true, or cancel the job"),
])  # fmt: skip
def test_observe_reports_kueue_pending_reason_for_queued_job(found: dict[str, Any] | None, words: str) -> None:
    assert why_queued("gpus", found) == words
    seen = observe(job(suspend=True, queue="gpus"), [], Beside(workload=found))
    assert seen is not None and (seen.phase, seen.end, seen.reason) == (Phase.PENDING, None, words)


@pytest.mark.parametrize(("reason", "words"), [
    ("Preempted", "another job took its room"),
    ("PodsReadyTimeout", "not all ready"),
    ("ClusterQueueStopped", "the queue was stopped"),
    ("LocalQueueStopped", "the queue was stopped"),
    ("AdmissionCheck", "an admission check"),
    ("NodeFailures", "a node failed"),
    ("SomethingNew", "its queue took its room back (why not)"),
])  # fmt: skip
def test_observe_reports_preemption_with_kueue_reason_for_suspended_job_that_ran(reason: str, words: str) -> None:
    beside = Beside(workload=workload(("Evicted", "True", reason, "why not")), began=True)
    seen = observe(job(suspend=True, queue="gpus"), [pod(node="n1")], beside)
    assert seen is not None and (seen.phase, seen.end) == (Phase.COMPLETING, None)
    seen = observe(job(suspend=True, queue="gpus"), [], beside)
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, EndCause.PREEMPTED)
    assert words in seen.reason and seen.reason == why_evicted(beside.workload)


def test_observe_reports_preemption_for_missing_job_with_known_reason() -> None:
    seen = observe(None, [], Beside(preempted="another job took its room"))
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, EndCause.PREEMPTED)
    assert seen.reason == "another job took its room"
    assert why_evicted(None) == "it was suspended"


def test_observe_reports_preemption_with_known_reason_when_workload_is_missing() -> None:
    beside = Beside(began=True, preempted="another job took its room")
    seen = observe(job(suspend=True, queue="gpus"), [], beside)
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, EndCause.PREEMPTED)
    assert seen.reason == "another job took its room"


def test_observe_reports_pending_for_evicted_job_that_never_ran() -> None:
    evicted = workload(("Evicted", "True", "Preempted", ""), ("QuotaReserved", "False", "Pending", ""))
    seen = observe(job(suspend=True, queue="gpus"), [], Beside(workload=evicted))
    assert seen is not None and seen.phase is Phase.PENDING


@pytest.mark.parametrize(("served", "queue", "words"), [
    ({"kueue.x-k8s.io": ("v1beta1",)}, "gpus", "start together, when the queue gpus (Kueue) admits them"),
    ({"kueue.x-k8s.io": ("v1beta1",)}, "", "Kueue is there: name a LocalQueue in queue"),
    ({"scheduling.k8s.io": ("v1",)}, "", "start one by one (the cluster has no Kueue)"),
    ({"scheduling.k8s.io": ("v1", "v1alpha2")}, "", "the scheduler's own gangs (alpha, v1alpha2) are served"),
])  # fmt: skip
def test_gang_message_depends_on_queue_kueue_and_scheduler_api(
    served: dict[str, tuple[str, ...]], queue: str, words: str
) -> None:
    assert words in describe_gang_start(served, queue)
