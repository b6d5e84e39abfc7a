"""Jobs that reach no store, on Kubernetes: a real daemon, the tests' cluster, an S3 server, and a claim in between.

The kubelets of these tests give a pod that no NetworkPolicy lets out a network with nothing in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job import JobId
from ffdl_batch.domain.jobdir import Root
from tests.contract.daemon_rig import PLAIN, until
from tests.contract.kubernetes_harness import CLAIM
from tests.contract.test_kubernetes_jobs import RESULTS, STORES, World, own_bucket, world_in
from tests.fakes.s3_server import S3Server

SETTINGS = f"""
claim = "{CLAIM}"
volumes = {{ "/lab" = "{CLAIM}/projects" }}
network_policies = "enforced"
"""
MERGE = "application/merge-patch+json"
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
    return world.k8s.ask("GET", f"apis/networking.k8s.io/v1/namespaces/{world.k8s.namespace}/networkpolicies/{token}")[
        "spec"
    ]["egress"]


def test_volume_claim_job_loads_data_in_separate_pod_and_isolates_learner(claimed: World) -> None:
    only_data = "".join(line for line in STORES.splitlines(keepends=True) if "training_results" not in line)
    reach = (
        "import os, socket; found = socket.socket(); "
        f"print('reached' if found.connect_ex(('127.0.0.1', {claimed.server.port})) == 0 else 'nothing')"
    )
    job_id = claimed.submit(f'cat "$DATA_DIR/a"; python3 -c "{reach}"', stores=only_data)
    job = ended(claimed, job_id)
    assert (job["state"], job["attempts"]) == ("COMPLETED", [("staged", "000"), ("", "000")]), (
        job, claimed.diagnosis(),
    )  # fmt: skip
    assert claimed.printed(job_id, attempt=2) == "from the store\nnothing\n"
    assert sorted(job["timestamps"], key=job["timestamps"].get) == ORDER
    address = {"to": [{"ipBlock": {"cidr": "127.0.0.1/32"}}]}
    assert {**address, "ports": [{"protocol": "TCP", "port": claimed.server.port}]} in egress_of(claimed, f"{job_id}-1")
    assert egress_of(claimed, f"{job_id}-2") == []


def attempts_of(world: World, job_id: str) -> list[str]:
    """Names of the Jobs that were made for it."""
    found = world.k8s.ask("GET", f"apis/batch/v1/namespaces/{world.k8s.namespace}/jobs")["items"]
    return sorted(name for one in found if (name := one["metadata"]["name"]).startswith(job_id))


def test_volume_claim_job_stores_results_in_separate_pod(claimed: World) -> None:
    job_id = claimed.submit('cat "$DATA_DIR/a"; echo 42 >"$RESULT_DIR/answer"; echo over')
    job = ended(claimed, job_id)
    assert (job["state"], job["attempts"]) == ("COMPLETED", [("staged", "000"), ("", "000")]), (
        job, claimed.diagnosis(),
    )  # fmt: skip
    assert sorted(job["timestamps"], key=job["timestamps"].get) == ORDER
    stored = claimed.stored(f"out/{job_id}/")
    assert stored["answer"] == b"42\n" and stored["learner-1/training-log.txt"].endswith(b"over\n")
    assert "_submitted_code/model.zip" in stored
    assert attempts_of(claimed, job_id) == [f"{job_id}-1", f"{job_id}-2", f"{job_id}-2-store"]
    assert (egress_of(claimed, f"{job_id}-2"), bool(egress_of(claimed, f"{job_id}-2-store"))) == ([], True)


def test_daemon_finds_storing_pod_after_sigkill(claimed: World) -> None:
    job_id = claimed.submit(
        'echo 42 >"$RESULT_DIR/answer"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done; exit 3', stores=RESULTS
    )
    claimed.await_state(job_id, "PROCESSING")
    claimed.k8s.ask("PATCH", "api/v1/nodes/n1", {"spec": {"unschedulable": True}}, content=MERGE)
    (state,) = claimed.k8s.place.parent.glob(f"claim/jobs/{job_id}/attempt-1/state")
    (state / "go").touch()
    until(lambda: f"{job_id}-1-store" in attempts_of(claimed, job_id), "who stores")
    assert claimed.job(job_id)["state"] == "STORING"
    daemon = claimed.site.processes[-1]
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    claimed.k8s.ask("PATCH", "api/v1/nodes/n1", {"spec": {"unschedulable": False}}, content=MERGE)
    claimed.site.start(program=PLAIN)
    job = ended(claimed, job_id)
    assert (job["state"], job["error_code"], job["exit_code"]) == ("FAILED", "C201", 3), (job, claimed.diagnosis())
    assert claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"
    assert [one for one in attempts_of(claimed, job_id) if one.endswith("-store")] == [f"{job_id}-1-store"]


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
    assert not [one for one in job["attempts"] if one["owed"]]


def failed_to_store(world: World, job_id: str) -> bool:
    lines = world.site.log.splitlines()
    return any(job_id in line and "could not be stored (exit code 74)" in line for line in lines)


@pytest.mark.full
def test_volume_claim_job_completes_pending_upload_when_bucket_returns(claimed: World) -> None:
    """The bucket is away when the learner has ended, and comes back."""
    job_id = claimed.submit(
        'echo 42 >"$RESULT_DIR/answer"; until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done', stores=RESULTS
    )
    claimed.await_state(job_id, "PROCESSING")
    claimed.lose_bucket()
    (state,) = claimed.k8s.place.parent.glob(f"claim/jobs/{job_id}/attempt-1/state")
    (state / "go").touch()
    until(partial(failed_to_store, claimed, job_id), "that it cannot be stored")
    assert claimed.job(job_id)["state"] == "STORING"
    claimed.server.client.create_bucket(Bucket=claimed.bucket)
    job = ended(claimed, job_id)
    assert job["state"] == "COMPLETED", (job, claimed.diagnosis())
    assert claimed.stored(f"out/{job_id}/")["answer"] == b"42\n"


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
        assert not any(one["owed"] for one in two_nodes.job(job_id)["attempts"])
        return
    until(lambda: "answer" in two_nodes.stored(f"out/{job_id}/"), f"what it left; {two_nodes.diagnosis()}")
    assert two_nodes.stored(f"out/{job_id}/")["answer"] == b"42\n"
    until(lambda: not any(one["owed"] for one in two_nodes.job(job_id)["attempts"]), "that nothing is owed")
    assert attempts_of(two_nodes, job_id) == [f"{job_id}-1", f"{job_id}-1-store"]


DIRECTORY = """\
data_stores:
  - id: here
    type: mount_volume
    training_data: {{container: set}}
    training_results: {{container: out}}
    connection: {{type: host_mount, path: /lab/data}}
"""


def test_job_messages_name_volume_claim_path_of_pod_directories(claimed: World) -> None:
    """This machine has no such directory, and may have another one of that name."""
    job_id = claimed.submit("true", stores=DIRECTORY)
    job = ended(claimed, job_id)
    assert (job["state"], job["error_code"]) == ("FAILED", "S302"), (job, claimed.diagnosis())
    place = f"in the cluster's claim {CLAIM}, at projects/data"
    assert f"data directory /lab/data/set ({place}/set) does not exist on node n1" in job["message"]
    for name in ("set", "out"):
        (claimed.k8s.place.parent / "claim/projects/data" / name).mkdir(parents=True, exist_ok=True)
    job_id = claimed.submit('echo 42 >"$RESULT_DIR/answer"', stores=DIRECTORY, learners=2)
    job = ended(claimed, job_id)
    assert job["state"] == "COMPLETED", (job, claimed.diagnosis())
    (answer,) = (claimed.k8s.place.parent / "claim/projects/data/out").rglob("answer")
    assert answer.read_text() == "42\n" and job["results"] == ""
    note = f"/lab/data/out/{job_id} of the pods: they are {place}/out/{job_id}; read them in a pod that has it"
    assert job["results_note"] == note
    shown = claimed.job(job_id)
    assert [one["node"] for one in shown["learner_list"]] == ["n1", "n1"], shown
