"""Elastic jobs of a pool on Kubernetes: a real daemon with its scaler, and the tests' cluster with its kubelets.

There is no claim: checkpoints go through a store, and what learners report comes in the logs of their pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.contract.daemon_rig import until
from tests.contract.test_kubernetes_jobs import RESULTS, World, own_bucket, world_in
from tests.fakes.s3_server import S3Server

POOL = """
[elastic.pools.default]
gpus = 4
interval_s = 1
min_between_s = 0
objective = "fair"
"""
ELASTIC = "elastic: {max_learners: 4, batch: {min: 16, max: 16, per_gpu_max: 16}}"
IN_PLACE = "elastic: {in_place: true, max_learners: 4, batch: {min: 4, max: 16, per_gpu_max: 4, start: 16}}"
TRAINING = """
import os, signal, sys, time
kept, state = os.path.join(os.environ["CHECKPOINT_DIR"], "attempts"), os.environ["JOB_STATE_DIR"]
before = open(kept).read() if os.path.exists(kept) else ""
asked, learners, attempt = [], int(os.environ["WORLD_SIZE"]), os.environ["FFDL_ATTEMPT"]
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
print("after", repr(before), "with", learners, flush=True)
while not asked and not os.path.exists(os.path.join(state, "go")):
    if os.environ["RANK"] == "0":
        print(f"ffdl-throughput: samples={10 * learners} seconds=1 remaining=1000000", flush=True)
    time.sleep(0.2)
if asked and os.environ["RANK"] == "0":
    open(kept, "w").write(before + attempt)
"""


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[World]:
    with world_in(tmp_path_factory.mktemp("pool"), s3_server, POOL) as found:
        yield found


@pytest.fixture
def pool(shared_pool: World) -> Iterator[World]:
    with own_bucket(shared_pool) as found:
        yield found


def submit(pool: World, elastic: str = ELASTIC) -> str:
    """The id of an elastic job that asks for the whole pool."""
    batch = f"checkpoint: {{grace_s: 20, saved_by: first}}, {elastic}"
    return pool.submit("python3 train.py", learners=4, stores=RESULTS, batch=batch, program=TRAINING)


def trains_with(pool: World, job_id: str, learners: int) -> int:
    """Wait until the job trains with this size, and return the attempt."""

    def attempt() -> int:
        job = pool.job(job_id)
        last = job["attempts"][-1] if job["attempts"] else {"number": 0, "learners": 0}
        begun = f"with {learners}\n" in pool.printed(job_id, last["number"])
        return int(last["number"]) if job["state"] == "PROCESSING" and last["learners"] == learners and begun else 0

    return int(until(attempt, lambda: f"{job_id} to train with {learners}: {pool.job(job_id)}; {pool.diagnosis()}"))


def finish(pool: World, job_id: str) -> None:
    """Let all learners of a job end."""
    for pod in pool.pods(job_id):
        for state in pool.k8s.place.glob(f"pods/{pod['metadata']['uid']}/volumes/empty/work/attempt-*/state"):
            (state / "go").touch()


def sizes(pool: World, job_id: str) -> list[tuple[int, int, int]]:
    """Of each attempt: learners, and completions and parallelism of its Job."""
    found = []
    for attempt in pool.job(job_id)["attempts"]:
        path = f"apis/batch/v1/namespaces/{pool.k8s.namespace}/jobs/{job_id}-{attempt['number']}"
        spec = pool.k8s.ask("GET", path)["spec"]
        found.append((attempt["learners"], spec["completions"], spec["parallelism"]))
    return found


def test_scaler_changes_number_of_pods_and_jobs_continue_from_checkpoints(pool: World) -> None:
    first = submit(pool)
    trains_with(pool, first, 4)
    second = submit(pool)
    trains_with(pool, first, 2)
    trains_with(pool, second, 2)
    finish(pool, first)
    pool.await_state(first, "COMPLETED")
    grown = trains_with(pool, second, 4)
    finish(pool, second)
    pool.await_state(second, "COMPLETED")
    assert (sizes(pool, first), sizes(pool, second)) == ([(4, 4, 4), (2, 2, 2)], [(2, 2, 2), (4, 4, 4)])
    assert pool.printed(second, grown, learner=4) == "after '1' with 4\n"
    assert pool.printed(first, 2, learner=2) == "after '1' with 2\n"
    explained = json.loads(pool.site.run("scaler", "status", "--json"))["pools"]
    assert [(one["name"], one["backend"], one["jobs"]) for one in explained] == [("default", "kubernetes", [])]
    assert "none differs" in pool.site.run("scaler", "replay")


def test_scaler_shrinks_job_in_place_whose_pods_share_no_files(pool: World) -> None:
    first = submit(pool, IN_PLACE)
    trains_with(pool, first, 4)
    second = submit(pool)
    trains_with(pool, second, 2)
    until(lambda: pool.job(first)["attempts"][0]["resizes"], lambda: f"a change in place; {pool.diagnosis()}")
    assert sizes(pool, first) == [(4, 2, 2)]
    states = {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod["status"]["phase"]
        for pod in pool.pods(first)
    }
    assert states == {"0": "Running", "1": "Running", "2": "Succeeded", "3": "Succeeded"}
    for job_id in (first, second):
        finish(pool, job_id)
        pool.await_state(job_id, "COMPLETED")
    (attempt,) = pool.job(first)["attempts"]
    assert (attempt["resizes"][0]["learners"], attempt["resizes"][0]["global_batch"]) == (2, 8)
    assert [pool.printed(first, learner=number).count("after") for number in (1, 2, 3, 4)] == [1] * 4
    assert "none differs" in pool.site.run("scaler", "replay")
