"""What a cluster does to pods that have a node, or store what others left, and what the job's owner is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.observation import EndCause, Phase
from ffdl_batch.services.owed import OWED
from tests.contract.daemon_rig import until
from tests.contract.kubernetes_harness import CLAIM, CONTROLLER_IMAGE, IMAGE, KubernetesHarness
from tests.contract.test_kubernetes_claims import MERGE, attempts_of, claimed, ended, shared_claimed
from tests.contract.test_kubernetes_jobs import RESULTS, World

__all__ = ["claimed", "shared_claimed"]
HELD = 'Multi-Attach error for volume "pvc-7" Volume is already used by pod(s) notebook-0'
WAITS = 'echo 42 >"$RESULT_DIR/answer"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done'


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KubernetesHarness]:
    made = KubernetesHarness(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_kubernetes_job_reports_volume_attach_error_and_waits(harness: KubernetesHarness) -> None:
    harness.k8s.do("detach", claims={CLAIM: HELD})
    native, _ = harness.submit("true")
    seen = harness.await_observation(native, lambda one: "FailedAttachVolume" in one.reason)
    assert seen.phase is Phase.PENDING
    assert seen.reason.startswith(f"a volume of it cannot be attached to its node (FailedAttachVolume): {HELD}; ")
    assert "it goes on when that ends" in seen.reason
    harness.k8s.do("detach", claims={})
    assert harness.await_end(native).end is EndCause.SUCCESS


def cordoned(world: World, closed: bool) -> None:
    world.k8s.ask("PATCH", "api/v1/nodes/n1", {"spec": {"unschedulable": closed}}, content=MERGE)


def without_image(world: World, missing: bool) -> None:
    world.k8s.do("images", missing=[CONTROLLER_IMAGE] if missing else [])


def detached(world: World, away: bool) -> None:
    world.k8s.do("detach", claims={CLAIM: HELD} if away else {})


def full(world: World, refused: bool) -> None:
    where = f"api/v1/namespaces/{world.k8s.namespace}/resourcequotas"
    if refused:
        world.k8s.ask("POST", where, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}})
    else:
        world.k8s.ask("DELETE", f"{where}/small")


def taken(world: World, refused: bool) -> None:
    """Not even the Job is taken."""
    where = f"api/v1/namespaces/{world.k8s.namespace}/resourcequotas"
    if refused:
        world.k8s.ask("POST", where, {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "1"}}})
    else:
        world.k8s.ask("DELETE", f"{where}/none")


def go_on(world: World, job_id: str) -> None:
    """The learner ends."""
    (state,) = world.k8s.place.parent.glob(f"claim/jobs/{job_id}/attempt-1/state")
    (state / "go").touch()


def told(world: World, job_id: str, words: str) -> dict[str, Any]:
    until(lambda: words in world.job(job_id)["pending_reason"], f"{words!r}: {world.job(job_id)['pending_reason']!r}")
    job = world.job(job_id)
    assert job["state"] == "STORING" and job["pending_reason"].startswith(f"{OWED}: "), job
    return job


@pytest.mark.parametrize(
    ("obstacle", "words", "action"),
    [
        (cordoned, "no node has room now", "unschedulable"),
        pytest.param(without_image, "cannot be had", "correct its name", marks=pytest.mark.full),
        pytest.param(detached, "FailedAttachVolume", "it goes on when that ends", marks=pytest.mark.full),
        pytest.param(full, "quota small never has so much", "for a larger quota", marks=pytest.mark.full),
        pytest.param(taken, "quota none", "it is tried again", marks=pytest.mark.full),
    ],
)
def test_pending_upload_reports_obstacle_and_completes_when_it_is_removed(
    claimed: World, obstacle: Callable[[World, bool], None], words: str, action: str
) -> None:
    job_id = claimed.submit(WAITS, stores=RESULTS)
    until(lambda: list(claimed.k8s.place.parent.glob(f"claim/jobs/{job_id}/attempt-1/state")), "the training")
    claimed.await_state(job_id, "PROCESSING")
    obstacle(claimed, True)
    go_on(claimed, job_id)
    job = told(claimed, job_id, words)
    assert action in job["pending_reason"], job["pending_reason"]
    obstacle(claimed, False)
    job = ended(claimed, job_id)
    assert (job["state"], job["pending_reason"]) == ("COMPLETED", ""), (job, claimed.diagnosis())
    assert claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"


def test_pending_upload_restarts_after_storing_pod_is_evicted(claimed: World) -> None:
    job_id = claimed.submit(WAITS, stores=RESULTS)
    claimed.await_state(job_id, "PROCESSING")
    detached(claimed, True)
    go_on(claimed, job_id)
    told(claimed, job_id, "FailedAttachVolume")
    where = f"api/v1/namespaces/{claimed.k8s.namespace}/pods?labelSelector=batch.kubernetes.io/job-name"
    (pod,) = claimed.k8s.ask("GET", f"{where}={job_id}-1-store")["items"]
    claimed.k8s.do("evict", namespace=claimed.k8s.namespace, pod=pod["metadata"]["name"])
    told(claimed, job_id, "EvictionByEvictionAPI")
    detached(claimed, False)
    until(lambda: claimed.site.log.count(f"{job_id}: storing what attempt 1 owes") == 2, "that it is begun anew")
    job = ended(claimed, job_id)
    assert job["state"] == "COMPLETED", (job, claimed.diagnosis())
    assert claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"
    assert attempts_of(claimed, job_id)[-1] == f"{job_id}-1-store"


def test_why_suggests_fewer_learners_when_cluster_is_too_small(claimed: World) -> None:
    """The node has 4 CPUs, and each of two learners wants 3."""
    job_id = claimed.submit("true", learners=2, stores="", cpus=3)
    until(lambda: "Insufficient cpu" in claimed.job(job_id)["pending_reason"], "it finds no room")
    claimed.await_state(job_id, "DOWNLOADING")  # one of them has its node
    status, reply = claimed.site.ask("GET", f"/api/v1/jobs/{job_id}/why")
    assert status == 200
    why = reply["why"]
    (room,), (alternative,) = why["explanation"]["rooms"], why["alternatives"]
    assert (room["learners_fitting"], room["wanted"], room["nodes"]) == (1, 2, 1)
    assert why["waits"] and why["sentence"].startswith("some of its learners have their nodes, and others wait: ")
    assert "empty they have room for 1 of 2 learners; one node has at most 4 CPUs" in why["sentence"]
    assert (
        "even if nothing else ran, the nodes that take such pods now have room for 1 of 2 learners" in why["evidence"]
    )
    assert alternative["options"] == "--learners=1" and alternative["at"] is not None
    assert "or cancel it, and ask for one of the alternatives, which would start sooner" in why["actions"]
    claimed.k8s.do("pause", controller="jobs")  # else it may have ended before anybody asks
    claimed.do(job_id, "cancel")
    assert "it is being cancelled" in claimed.site.ask("GET", f"/api/v1/jobs/{job_id}/why")[1]["why"]["sentence"]
    claimed.k8s.do("pause", controller="jobs", paused=False)
    claimed.await_state(job_id, "CANCELLED")


@pytest.mark.full
def test_why_reports_missing_learner_image_while_job_waits(claimed: World) -> None:
    claimed.k8s.do("images", missing=[IMAGE])
    job_id = claimed.submit("true")
    until(lambda: "cannot be had" in claimed.job(job_id)["pending_reason"], "that an image is missing")
    status, reply = claimed.site.ask("GET", f"/api/v1/jobs/{job_id}/why")
    why = reply["why"]
    assert (status, why["waits"], why["alternatives"]) == (200, True, [])
    assert why["sentence"].startswith(f"it has its nodes, but its image cannot be had (the image {IMAGE} ")
    assert "correct its name" in why["sentence"]
    claimed.k8s.do("images", missing=[])
    assert ended(claimed, job_id)["state"] == "COMPLETED", claimed.diagnosis()
