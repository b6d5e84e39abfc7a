"""Queues of Kueue: the adapter against the tests' API server, with a Workload that says what Kueue would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.job.spec import Framework, JobSpec, Resources
from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_batch.domain.pending.explanation import WaitKind
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from tests.contract.test_kubernetes_adapter import Site
from tests.fakes.kubernetes.rig import cluster, eventually, node


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with cluster(tmp_path, nodes=[node("n1")], kueue=True) as k8s:
        found = Site(tmp_path, k8s)
        found.settings["queue"] = "gpus"
        found.scheduler = found.start()
        yield found
        found.close()


def say(site: Site, token: str, *conditions: tuple[str, str, str, str]) -> None:
    """Kueue's Workload of a Job has these conditions from now on."""
    admin = site.admin()
    admin.paths["Workload"] = ("apis/kueue.x-k8s.io/v1beta1", "workloads")
    job = site.job(token)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": token, "uid": job["metadata"]["uid"], "controller": True}
    thing: dict[str, Any] = {
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
        "metadata": {"name": f"job-{token}", "ownerReferences": [owner]}, "spec": {"queueName": "gpus", "podSets": []},
    }  # fmt: skip
    admin.create(thing)
    listed = [dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in conditions]
    path = f"apis/kueue.x-k8s.io/v1beta1/namespaces/{site.k8s.namespace}/workloads/job-{token}/status"
    admin._ask("PATCH", path, body={"status": {"conditions": listed}}, content="application/merge-patch+json")


def suspend(site: Site, token: str, is_suspended: bool) -> None:
    site.admin().patch("Job", token, {"spec": {"suspend": is_suspended}})


def test_kueue_job_reports_pending_reason_until_it_is_admitted(site: Site) -> None:
    native = site.scheduler.submit(site.plan())
    job = site.job(native.job)
    assert job["spec"]["suspend"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    say(site, native.job, ("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu"))
    seen = site.wait(native, lambda one: "insufficient" in one.reason)
    assert seen.phase is Phase.PENDING
    assert "it starts when others of the queue end" in seen.reason
    suspend(site, native.job, False)
    site.wait(native, lambda one: bool(one.nodes))


def test_kueue_suspension_of_claimed_job_ends_it_as_preempted(site: Site) -> None:
    plan = site.plan()
    native = site.scheduler.submit(plan)
    suspend(site, native.job, False)
    site.wait(native, lambda one: bool(one.nodes))
    claim = Path(plan.attempt_dir.claim_owner)
    claim.parent.mkdir()
    claim.write_text("{}")
    say(site, native.job, ("Evicted", "True", "Preempted", "Preempted to accommodate a workload"))
    queues = site.scheduler._queues
    eventually(lambda: any(one.get("status") for one in queues.by_owner().values()), "Kueue's word is heard")
    suspend(site, native.job, True)
    seen = site.wait(native, lambda one: one.phase is Phase.COMPLETING)
    assert seen.end is None
    site.set_status(native.job, phase="Failed")
    seen = site.wait(native, lambda one: one.phase is Phase.ENDED)
    assert seen.end is EndCause.PREEMPTED and "another job took its room" in seen.reason
    # A look that deletes a Job as it changes meanwhile is refused, and the next one tries again.
    eventually(lambda: site.observe(native) and site.admin().get("Job", native.job) is None, "the Job is deleted")
    successor = site.start()
    assert successor.find(plan.token, plan.attempt_dir) == {native}
    again = successor.observe([native])[native]
    assert (again.phase, again.end, again.reason) == (Phase.ENDED, EndCause.PREEMPTED, seen.reason)


def test_kueue_suspension_before_start_returns_job_to_pending(site: Site) -> None:
    native = site.scheduler.submit(site.plan())
    suspend(site, native.job, False)
    site.wait(native, lambda one: bool(one.nodes))
    suspend(site, native.job, True)
    seen = site.wait(native, lambda one: one.native_state == "Suspended")
    assert seen.phase is Phase.PENDING
    assert site.admin().get("Job", native.job) is not None


def test_kubernetes_probe_rejects_queue_when_kueue_is_missing(tmp_path: Path) -> None:
    with cluster(tmp_path) as k8s:
        site = Site(tmp_path, k8s)
        with pytest.raises(InvalidRequest, match="the cluster has no Kueue"):
            site.start(queue="gpus").probe()
        warnings = site.plan(resources=Resources(learners=2, cpus=1, memory_bytes=1 << 28)).warnings
        assert any("there is no gang scheduling" in one for one in warnings)
        site.close()


def test_kubernetes_explanation_reports_missing_local_queue(site: Site) -> None:
    native = site.scheduler.submit(site.plan())
    spec = JobSpec("x", Framework("custom", "1", "x"))
    (known,) = site.scheduler.explain_waiting([WaitingRequest(spec, site.scheduler.probe(), native)])
    assert known is not None and known.reason is not None
    assert known.reason.kind is WaitKind.QUEUE_CLOSED
    assert known.reason.detail == f"namespace {site.k8s.namespace} has no LocalQueue gpus"
