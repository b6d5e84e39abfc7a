"""Jobs that reach no store, on Kubernetes: a real daemon, the tests' cluster, an S3 server, and a claim in between.

The kubelets of these tests give a pod that no NetworkPolicy lets out a network with nothing in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING
from tests import preloaded
from tests.contract.daemon_rig import PLAIN, until
from tests.contract.kubernetes_harness import CLAIM, policies_of
from tests.contract.test_kubernetes_jobs import RESULTS, World, own_bucket, world_in
from tests.fakes.s3_server import S3Server
from tests.preloaded import FFDL

SETTINGS = f"""
claim = "{CLAIM}"
volumes = {{ "/lab" = "{CLAIM}/projects" }}
network_policies = "enforced"
"""
MERGE = "application/merge-patch+json"
HELD = 'Multi-Attach error for volume "pvc-7" Volume is already used by pod(s) notebook-0'
ORDER = ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]


@contextlib.contextmanager
def claimed_in(base: Path, server: S3Server, nodes: int = 1) -> Iterator[World]:
    """A cluster whose nodes all have the claim."""
    claims = {CLAIM: str(base / "claim")}
    with world_in(base, server, SETTINGS, nodes=nodes, claims=claims, policies=True) as world:
        world.k8s.ask("POST", f"api/v1/namespaces/{world.k8s.namespace}/persistentvolumeclaims", {
            "metadata": {"name": CLAIM},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        })  # fmt: skip
        yield world


@pytest.fixture(scope="module")
def shared_claimed(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[World]:
    """The cluster and the daemon of a module's tests."""
    with claimed_in(tmp_path_factory.mktemp("claimed"), s3_server) as world:
        yield world


@pytest.fixture
def claimed(shared_claimed: World) -> Iterator[World]:
    with own_bucket(shared_claimed) as world:
        yield world


def ended(world: World, job_id: str) -> dict[str, Any]:
    job = world.await_state(job_id, "COMPLETED", "FAILED", "HALTED", "CANCELLED")
    job["attempts"] = [(one["interruption"], one["error_code"]) for one in job["attempts"]]
    return job


def egress_of(world: World, token: str) -> Any:
    job = world.k8s.ask("GET", f"apis/batch/v1/namespaces/{world.k8s.namespace}/jobs/{token}")
    (rules,) = policies_of(world.k8s, job["spec"]["template"]["metadata"]["labels"])
    return rules["egress"]


def attempts_of(world: World, job_id: str) -> list[str]:
    """Names of the Jobs that were made for it."""
    found = world.k8s.ask("GET", f"apis/batch/v1/namespaces/{world.k8s.namespace}/jobs")["items"]
    return sorted(name for one in found if (name := one["metadata"]["name"]).startswith(job_id))


def test_volume_claim_job_loads_and_stores_in_separate_pods_and_isolates_learner(claimed: World) -> None:
    reach = (
        "import os, socket; found = socket.socket(); "
        f"print('reached' if found.connect_ex(('127.0.0.1', {claimed.server.port})) == 0 else 'nothing')"
    )
    job_id = claimed.submit(f'cat "$DATA_DIR/a"; python3 -c "{reach}"; echo 42 >"$RESULT_DIR/answer"')
    job = ended(claimed, job_id)
    assert (job["state"], job["attempts"]) == ("COMPLETED", [("staged", "000"), ("", "000")]), (
        job, claimed.diagnosis(),
    )  # fmt: skip
    assert claimed.printed(job_id, attempt=2) == "from the store\nnothing\n"
    assert sorted(job["timestamps"], key=job["timestamps"].get) == ORDER
    stored = claimed.stored(f"out/{job_id}/")
    assert stored["answer"] == b"42\n" and stored["learner-1/training-log.txt"].endswith(b"nothing\n")
    assert "_submitted_code/model.zip" in stored
    assert attempts_of(claimed, job_id) == [f"{job_id}-1", f"{job_id}-2", f"{job_id}-2-store"]
    rule = {"to": [{"ipBlock": {"cidr": "127.0.0.1/32"}}], "ports": [{"protocol": "TCP", "port": claimed.server.port}]}
    loads, learns, stores = (egress_of(claimed, f"{job_id}-{part}") for part in ("1", "2", "2-store"))
    assert (rule in loads, learns, rule in stores) == (True, [], True), (loads, stores)


WAITS = 'echo 42 >"$RESULT_DIR/answer"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done'


def go_on(world: World, job_id: str) -> None:
    """The learner ends."""
    (state,) = world.k8s.place.parent.glob(f"claim/jobs/{job_id}/attempt-1/state")
    (state / "go").touch()


def cordon(world: World, closed: bool) -> None:
    world.k8s.ask("PATCH", "api/v1/nodes/n1", {"spec": {"unschedulable": closed}}, content=MERGE)


def told(world: World, job_id: str, words: str) -> str:
    """Return why the results are not stored yet, once that has these words."""
    until(lambda: words in world.job(job_id)["pending_reason"], lambda: f"{words!r}: {world.job(job_id)}")
    job = world.job(job_id)
    assert job["state"] == "STORING" and job["pending_reason"].startswith(f"{UPLOAD_PENDING}: "), job
    return str(job["pending_reason"])


def test_pending_upload_reports_why_storing_pod_waits_and_outlasts_daemon_sigkill(claimed: World) -> None:
    job_id = claimed.submit(f"{WAITS}; exit 3", stores=RESULTS)
    claimed.await_state(job_id, "PROCESSING")
    cordon(claimed, True)
    go_on(claimed, job_id)
    assert "unschedulable" in told(claimed, job_id, "no node has room now")
    assert f"{job_id}-1-store" in attempts_of(claimed, job_id)
    claimed.kill_daemon()
    cordon(claimed, False)
    claimed.site.start(program=PLAIN)
    job = ended(claimed, job_id)
    assert (job["state"], job["error_code"], job["exit_code"]) == ("FAILED", "C201", 3), (job, claimed.diagnosis())
    assert job["pending_reason"] == "" and claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"
    assert [one for one in attempts_of(claimed, job_id) if one.endswith("-store")] == [f"{job_id}-1-store"]


def detach(world: World, away: bool) -> None:
    world.k8s.do("detach", claims={CLAIM: HELD} if away else {})


@pytest.mark.full
def test_pending_upload_waits_for_job_quota_and_completes_when_quota_is_removed(claimed: World) -> None:
    """Not even the Job is taken."""
    job_id = claimed.submit(WAITS, stores=RESULTS)
    claimed.await_state(job_id, "PROCESSING")
    where = f"api/v1/namespaces/{claimed.k8s.namespace}/resourcequotas"
    claimed.k8s.ask("POST", where, {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "1"}}})
    go_on(claimed, job_id)
    assert "it is tried again" in told(claimed, job_id, "quota none")
    claimed.k8s.ask("DELETE", f"{where}/none")
    job = ended(claimed, job_id)
    assert (job["state"], job["pending_reason"]) == ("COMPLETED", ""), (job, claimed.diagnosis())
    assert claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"


def test_pending_upload_reports_volume_attach_error_and_restarts_after_storing_pod_is_evicted(claimed: World) -> None:
    job_id = claimed.submit(WAITS, stores=RESULTS)
    claimed.await_state(job_id, "PROCESSING")
    detach(claimed, True)
    go_on(claimed, job_id)
    why = told(claimed, job_id, "FailedAttachVolume").removeprefix(f"{UPLOAD_PENDING}: ")
    assert why.startswith(f"a volume of it cannot be attached to its node (FailedAttachVolume): {HELD}; ")
    assert "it continues when that pod ends" in why
    where = f"api/v1/namespaces/{claimed.k8s.namespace}/pods?labelSelector=batch.kubernetes.io/job-name"
    (pod,) = claimed.k8s.ask("GET", f"{where}={job_id}-1-store")["items"]
    claimed.k8s.do("evict", namespace=claimed.k8s.namespace, pod=pod["metadata"]["name"])
    told(claimed, job_id, "EvictionByEvictionAPI")
    detach(claimed, False)
    until(
        lambda: claimed.site.log.count(f"{job_id}: the pending upload of attempt 1 begins") == 2,
        "that it is begun again",
    )
    job = ended(claimed, job_id)
    assert (job["state"], job["pending_reason"]) == ("COMPLETED", ""), (job, claimed.diagnosis())
    assert claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"
    assert attempts_of(claimed, job_id)[-1] == f"{job_id}-1-store"


def test_why_reports_how_many_learners_cluster_can_ever_hold(claimed: World) -> None:
    """The node has 4 CPUs, and each of two learners wants 3."""
    job_id = claimed.submit("true", learners=2, stores="", cpus=3)
    until(lambda: "Insufficient cpu" in claimed.job(job_id)["pending_reason"], "it finds no room")
    claimed.await_state(job_id, "DOWNLOADING")  # one of them has its node
    status, reply = claimed.site.ask("GET", f"/api/v1/jobs/{job_id}/why")
    assert status == 200
    why = reply["why"]
    (room,) = why["explanation"]["capacity"]
    assert (room["learners_fitting"], room["wanted"], room["nodes"], room["gpus_free"]) == (1, 2, 1, None)
    assert why["waits"] and why["sentence"].startswith("some of its learners have their nodes, and others wait: ")
    assert "empty they have room for 1 of 2 learners; one node has at most 4 CPUs" in why["sentence"]
    assert "1 open node; if nothing else runs, there is room for 1 of 2 learners on 1 of 1 open node" in why["evidence"]
    assert not why["alternatives"]


@pytest.mark.full
def test_resume_continues_volume_claim_job_from_checkpoint_stored_at_halt(claimed: World) -> None:
    job_id = claimed.submit("exec python3 train.py", stores=RESULTS)
    until(lambda: "from epoch 0 resumed 0" in claimed.log(job_id, attempt=1), f"the training; {claimed.job(job_id)}")
    claimed.do(job_id, "halt")
    assert ended(claimed, job_id)["state"] == "HALTED", (claimed.job(job_id), claimed.diagnosis())
    assert claimed.stored(f"out/_wml_checkpoints/{job_id}/")["epoch"] == b"7"
    claimed.do(job_id, "resume")
    job = claimed.await_state(job_id, "COMPLETED", "FAILED")
    assert job["state"] == "COMPLETED", (job, claimed.diagnosis())
    assert claimed.printed(job_id, attempt=2).startswith("from epoch 7 resumed 1")
    assert not [one for one in job["attempts"] if one["upload_pending"]]


@pytest.fixture
def two_nodes(tmp_path: Path, s3_server: S3Server) -> Iterator[World]:
    with claimed_in(tmp_path, s3_server, nodes=2) as shared, own_bucket(shared) as world:
        yield world


@pytest.mark.parametrize("stores", [RESULTS, pytest.param("", marks=pytest.mark.full)], ids=["a store", "none"])
def test_node_loss_leaves_no_pending_upload_of_results_in_volume_claim(two_nodes: World, stores: str) -> None:
    """Its pod reached the store itself, and would have stored it; the claim is not where the daemon is."""
    job_id = two_nodes.submit(
        'echo 42 >"$RESULT_DIR/answer"; exec sleep 600', stores=stores, batch="network: host, retry: {node_failures: 0}"
    )
    two_nodes.await_state(job_id, "PROCESSING")
    answer = Path(Root(str(two_nodes.k8s.place.parent / "claim")).job(JobId(job_id)).attempt(1).results, "answer")
    until(lambda: answer.exists() and answer.read_text() == "42\n", "the result")
    (pod,) = two_nodes.pods(job_id)

    def is_over() -> bool:
        """A controller that was heard of just now may still store, and what it said last may be read late."""
        for beat in two_nodes.site.state.glob(f"jobs/{job_id}/attempt-1/events/*.heartbeat"):
            os.utime(beat, (1_000_000_000, 1_000_000_000))
        return two_nodes.job(job_id)["state"] in ("COMPLETED", "FAILED")

    two_nodes.k8s.do("lose_node", node=pod["spec"]["nodeName"])
    is_over()
    two_nodes.k8s.do("delete_node", node=pod["spec"]["nodeName"])
    until(is_over, f"its end; {two_nodes.diagnosis()}")
    job = ended(two_nodes, job_id)
    assert job["state"] == "FAILED" and job["attempts"][-1][0] == "node_failure", (job, two_nodes.diagnosis())
    if not stores:  # it stays where it is
        assert not any(one["upload_pending"] for one in two_nodes.job(job_id)["attempts"])
        return
    until(lambda: "answer" in two_nodes.stored(f"out/{job_id}/"), f"what it left; {two_nodes.diagnosis()}")
    assert two_nodes.stored(f"out/{job_id}/")["answer"] == b"42\n"
    until(lambda: not any(one["upload_pending"] for one in two_nodes.job(job_id)["attempts"]), "the upload")
    assert attempts_of(two_nodes, job_id) == [f"{job_id}-1", f"{job_id}-1-store"]


DIRECTORY = """\
data_stores:
  - id: here
    type: mount_volume
    training_data: {{container: set}}
    training_results: {{container: out}}
    connection: {{type: host_mount, path: /lab/data}}
"""


def downloaded(world: World, *arguments: str, status: int = 0) -> str:
    """What `ffdl download` prints on standard error; no Job of it stays."""
    done = preloaded.run(
        [*FFDL, "download", *arguments], env=world.site.environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == status, (done.stdout, done.stderr, world.diagnosis())
    until(
        lambda: not [name for name in attempts_of(world, "training-") if "-read-" in name], "the reader's Job is gone"
    )
    return done.stderr


def test_download_brings_results_and_checkpoint_from_volume_claim(claimed: World, tmp_path: Path) -> None:
    command = (
        'cd "$RESULT_DIR"; mkdir deep; echo 42 >deep/answer; ln deep/answer same; ln -s deep/answer link; '
        'head -c 3000000 /dev/zero >big; echo 7 >"$CHECKPOINT_DIR/e"'
    )
    job_id = claimed.submit(command, stores="")
    job = ended(claimed, job_id)
    assert job["state"] == "COMPLETED" and job["results_note"].endswith("; ffdl download fetches them"), job
    out = tmp_path / "out"
    downloaded(claimed, job_id, "--results", "--checkpoint", "--out", str(out))
    assert sorted(str(one.relative_to(out)) for one in out.rglob("*") if not one.is_dir()) == [
        "checkpoint/e", "results/big", "results/deep/answer", "results/link", "results/same",
    ]  # fmt: skip
    assert (out / "results/same").read_text() == (out / "results/link").read_text() == "42\n"
    assert (out / "results/big").stat().st_size == 3000000
    for gone in (claimed.k8s.place.parent / f"claim/jobs/{job_id}/attempt-1/results").iterdir():
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    (claimed.k8s.place.parent / f"claim/jobs/{job_id}/attempt-1/results").rmdir()
    assert "has no results (any more)" in downloaded(claimed, job_id, "--out", str(tmp_path / "none"), status=1)


def test_job_messages_name_volume_claim_path_of_pod_directories(claimed: World) -> None:
    """This machine has no such directory, and may have another one of that name."""
    job_id = claimed.submit("true", stores=DIRECTORY)
    job = ended(claimed, job_id)
    assert (job["state"], job["error_code"]) == ("FAILED", "S302"), (job, claimed.diagnosis())
    place = f"in the cluster's claim {CLAIM}, at projects/data"
    assert f"data directory /lab/data/set ({place}/set) does not exist on node n1" in job["message"]
    for name in ("set", "out"):
        directory = claimed.k8s.place.parent / "claim/projects/data" / name
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
    job_id = claimed.submit('echo 42 >"$RESULT_DIR/answer"', stores=DIRECTORY, learners=2)
    job = ended(claimed, job_id)
    assert job["state"] == "COMPLETED", (job, claimed.diagnosis())
    (answer,) = (claimed.k8s.place.parent / "claim/projects/data/out").rglob("answer")
    assert answer.read_text() == "42\n" and job["results"] == ""
    note = f"/lab/data/out/{job_id} of the pods: they are {place}/out/{job_id}; ffdl download fetches them"
    assert job["results_note"] == note
    downloaded(claimed, job_id, "--out", str(claimed.k8s.place.parent / "from-lab"))
    (brought,) = (claimed.k8s.place.parent / "from-lab").rglob("answer")
    assert brought.read_text() == "42\n"
    shown = claimed.job(job_id)
    assert [one["node"] for one in shown["learner_list"]] == ["n1", "n1"], shown
