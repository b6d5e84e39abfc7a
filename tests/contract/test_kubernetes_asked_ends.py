"""Ends that the daemon asks for, at an API server without a kubelet: cancels, and images that are missing."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from ffdl_batch.domain.job.spec import Resources
from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_kubernetes.client import MERGE
from ffdl_kubernetes.lifecycle.pod_sync import SILENT_S
from tests.contract.test_kubernetes_adapter import Site, site
from tests.fakes.kubernetes.rig import eventually

__all__ = ["site"]
LONG_AGO = "2026-01-01T00:00:00Z"


def lack_image(site: Site, token: str, seconds: float) -> None:
    """Its pod has had its node, and waits for the learner's image, for so long."""
    since = datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "python:3"'}}
    status = {
        "name": "learner", "image": "python:3", "imageID": "", "ready": False, "restartCount": 0, "state": waiting,
    }  # fmt: skip
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": since} for kind in ("PodScheduled", "Initialized")
    ]
    site.set_status(token, phase="Pending", conditions=conditions, containerStatuses=[status])


def test_kubernetes_cancel_ends_pending_job_and_removes_its_objects(site: Site) -> None:
    plan = site.plan(resources=Resources(gpus=2, cpus=1, memory_bytes=1 << 28))
    native = site.scheduler.submit(plan)
    site.wait(native, lambda one: bool(one.reason))
    site.scheduler.cancel(native)
    site.scheduler.cancel(native)
    seen = site.wait(native, lambda one: one.phase is Phase.ENDED)
    assert seen.end is EndCause.CANCELLED
    assert site.start().find(plan.token, plan.attempt_dir) == {native}
    assert site.admin().get("ConfigMap", plan.token) is None


def test_kubernetes_observe_keeps_failed_job_completing_until_its_pods_end(site: Site) -> None:
    """Up to 1.30 a Job whose deadline is over is Failed at once, and not when its pods have ended."""
    plan = site.plan(resources=Resources(learners=2, cpus=0.5, memory_bytes=256 * 1024**2))
    native = site.scheduler.submit(plan)
    site.wait(native, lambda one: bool(one.nodes))
    site.scheduler.cancel(native)
    site.wait(native, lambda one: one.phase is Phase.COMPLETING)
    job = site.job(plan.token)
    assert job["spec"]["activeDeadlineSeconds"] and site.admin().get("NetworkPolicy", plan.token)
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": LONG_AGO}
    path = f"apis/batch/v1/namespaces/{site.k8s.namespace}/jobs/{plan.token}/status"
    listed = [*job["status"]["conditions"], failed]
    site.admin()._ask("PATCH", path, body={"status": {"conditions": listed}}, content=MERGE)
    seen = site.wait(native, lambda one: one.native_state == "Failed")
    assert (seen.phase, seen.end) == (Phase.COMPLETING, None)
    site.set_status(plan.token, phase="Failed")
    seen = site.wait(native, lambda one: one.phase is Phase.ENDED)
    assert seen.end is EndCause.CANCELLED


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "deleted by the taint manager"])
def test_kubernetes_job_ends_while_its_pod_stays_on_node_that_does_not_answer(site: Site, is_cancelled: bool) -> None:
    """No kubelet confirms the end of the pod, which so stays until the node is back."""
    plan = site.plan()
    native = site.scheduler.submit(plan)
    site.wait(native, lambda one: bool(one.nodes))
    (pod,) = site.admin().list("Pod", {})[0]
    if is_cancelled:
        site.scheduler.cancel(native)
        site.wait(native, lambda one: one.phase is Phase.COMPLETING)
    else:
        gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "taint"}
        site.set_status(plan.token, phase="Running", conditions=[gone])
        site.admin().delete("Pod", pod["metadata"]["name"])
    name = pod["metadata"]["name"]
    eventually(
        lambda: site.scheduler._watcher.pods_by_token()[plan.token][0]["metadata"].get("deletionTimestamp"), name
    )
    seen = site.scheduler.observe([native])[native]
    assert seen.phase is not Phase.ENDED, "it has its grace"
    site.scheduler._pods._signs[name] -= SILENT_S + 1
    seen = site.wait(native, lambda one: one.phase is Phase.ENDED)
    assert seen.end is (EndCause.CANCELLED if is_cancelled else EndCause.NODE_FAIL)
    assert site.admin().list("Pod", {})[0], "nothing is forced: its containers may run"
    assert site.job(plan.token)["spec"]["activeDeadlineSeconds"], "the cluster ends it when the node is back"
    site.scheduler = site.start()
    later = site.wait(native, lambda one: one.phase in (Phase.ENDED, Phase.COMPLETING))
    assert later.end in (None, seen.end)


def test_kubernetes_adapter_ends_job_when_image_is_missing_for_too_long(site: Site) -> None:
    plan = site.plan()
    native = site.scheduler.submit(plan)
    site.wait(native, lambda one: bool(one.nodes))
    lack_image(site, plan.token, 500)
    seen = site.wait(native, lambda one: bool(one.reason))
    assert seen.phase is Phase.PENDING, "the patience is 900 s"
    assert seen.reason.startswith(
        'the image python:3 cannot be had (ImagePullBackOff): Back-off pulling image "python:3"'
    )
    lack_image(site, plan.token, 1000)
    site.wait(native, lambda one: one.phase is Phase.COMPLETING)
    site.set_status(plan.token, phase="Failed")
    seen = site.wait(native, lambda one: one.phase is Phase.ENDED)
    assert seen.end is EndCause.NO_IMAGE
    assert seen.reason.startswith("the image python:3 cannot be had")
    assert site.admin().list("NetworkPolicy", {})[0], "what isolates its pods stays as long as its Job"
    for _ in range(2):
        site.scheduler = site.start()
        assert site.scheduler.find(plan.token, plan.attempt_dir) == {native}
        # The pod may be there still: the daemon before lets it go a moment after it has told its end.
        later = site.wait(native, lambda one: one.phase is Phase.ENDED)
        known = later is not None and later.end is EndCause.NO_IMAGE
        assert known, "a daemon that was started again knows it, with the Job and without it"
        site.admin().delete("Job", plan.token)
        eventually(lambda: site.admin().get("Secret", plan.token) is None, "all that it owned goes with it")
