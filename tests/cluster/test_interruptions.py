"""Time limits, preemption, lost nodes and dead controllers on real Slurm: the training goes on, or says why not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import (
    QUICK,
    attempt_log,
    begins,
    free_gpus,
    saver_model,
    started,
    steps,
    training,
    until_logged,
)

SAVING = "batch: {checkpoint: {grace_s: 4}, env: {SAVE_EVERY: '2'}}"


def start(alice: Person, name: str, *options: str, extra: str = QUICK) -> str:
    """A training that has made some steps."""
    job_id = alice.submit(training(alice, name, extra=extra), saver_model(alice), *options)
    until_logged(alice, job_id, "step 5")
    return job_id


def warn(alice: Person, native_id: str) -> None:
    """What Slurm sends to the steps before the time limit (sbatch --signal=URG@...)."""
    alice.run("scancel", "--signal=URG", native_id)


def all_steps(alice: Person, job: dict[str, Any]) -> list[int]:
    """The steps of all attempts, in order."""
    return [step for attempt in job["attempts"] for step in steps(attempt_log(alice, job, attempt["number"]))]


def causes(job: dict[str, Any]) -> Sequence[str]:
    """Why each attempt ended."""
    return [attempt["interruption"] for attempt in job["attempts"]]


def test_a_warned_training_goes_on_in_the_next_allocation(alice: Person) -> None:
    job_id = start(alice, "warned", "--time=10")
    warn(alice, alice.show(job_id)["native_id"])
    job = alice.finish(job_id)
    assert job["state"] == "COMPLETED", job
    assert len(job["attempts"]) == 2 and job["attempts"][0]["checkpoint_confirmed"]
    assert job["attempts"][0]["native_id"] != job["attempts"][1]["native_id"]
    assert all_steps(alice, job) == list(range(1, 61))
    assert begins(attempt_log(alice, job, 2))[0]["RESUME"] == "1"


def test_the_chain_goes_on_while_the_daemon_is_down(alice: Person) -> None:
    job_id = start(alice, "alone", "--time=10", extra="batch: {checkpoint: {grace_s: 4}, env: {PACE: '0.2'}}")
    first = alice.show(job_id)["native_id"]
    alice.kill_daemon("KILL")
    warn(alice, first)
    until_logged(alice, job_id, "step", attempt=2)
    second = alice.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-2").stdout.split()
    assert len(second) == 1 and second[0] != first
    warn(alice, second[0])
    until_logged(alice, job_id, "step", attempt=3)
    job = alice.finish(job_id)  # asking for it starts the daemon anew
    assert job["state"] == "COMPLETED", job
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2, 3]
    assert job["attempts"][1]["native_id"] == second[0]
    assert causes(job)[:2] in (["timeout", "timeout"], ["preemption", "preemption"])
    assert all_steps(alice, job) == list(range(1, 61))
    events = [json.loads(line) for line in alice.run("ffdl", "events", "--json", job_id).stdout.splitlines()]
    numbers = [event["seq"] for event in events if "seq" in event]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_chain_without_progress_stops_and_says_so(alice: Person, slow_limits: dict[str, str]) -> None:
    job = alice.finish(slow_limits["deaf"])
    assert (job["state"], job["error_code"]) == ("FAILED", "C203"), job
    assert len(job["attempts"]) == 1 and "no checkpoint was confirmed" in job["message"]


@pytest.fixture(scope="module", autouse=True)
def slow_limits(alice: Person) -> dict[str, str]:
    """Jobs with a real limit of a minute, started long before they are looked at."""
    model = saver_model(alice)
    deaf = training(alice, "limit-deaf", "python3 train.py --deaf", QUICK + "\n", cpus=1)
    saver = training(alice, "limit-saver", extra="batch: {checkpoint: {grace_s: 4}, env: {STEPS: '400'}}")
    return {
        "deaf": alice.submit(deaf, model, "--time=1", "--export=STEPS=100000"),
        "saver": alice.submit(saver, model, "--time=1"),
    }


def test_a_real_time_limit(alice: Person, slow_limits: dict[str, str]) -> None:
    job = alice.finish(slow_limits["saver"])
    assert job["state"] == "COMPLETED", job
    assert len(job["attempts"]) >= 2 and set(causes(job)[:-1]) == {"timeout"}, job["attempts"]
    assert all_steps(alice, job) == list(range(1, 401))


def preempt(bob: Person, node: str) -> None:
    """Take all GPUs of that node by a job of the partition that preempts, until it is done."""
    rival = bob.manifest("rival", "sleep 3", gpus=4)
    job_id = bob.submit(rival, bob.model("empty", {"README": ""}), "--partition=urgent", f"--nodelist={node}")
    assert bob.finish(job_id)["state"] == "COMPLETED"


def test_a_preempted_training_that_listens_goes_on_at_once(alice: Person, bob: Person) -> None:
    job_id = start(alice, "preempted", "--partition=main", "--nodelist=n3", "--gres=gpu:4")
    preempt(bob, "n3")
    job = alice.finish(job_id, 240)
    assert job["state"] == "COMPLETED", job
    assert causes(job)[0] == "preemption" and job["attempts"][0]["checkpoint_confirmed"], job["attempts"]
    assert all_steps(alice, job) == list(range(1, 61))


def test_a_training_that_saves_at_term_is_requeued_all_the_same(alice: Person, bob: Person) -> None:
    """It has ended before Slurm takes the nodes away; Slurm starts it anew, and nobody does so beside it."""
    extra = "batch: {checkpoint: {lead_s: 0}}"
    job_id = start(alice, "only-term", "--partition=main", "--nodelist=n3", "--gres=gpu:4", extra=extra)
    preempt(bob, "n3")
    job = alice.finish(job_id, 240)
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 1), job
    log = alice.logs(job_id)
    assert steps(log) == list(range(1, 61)) and [run["FFDL_RESTART"] for run in begins(log)] == ["0", "1"]


@pytest.mark.parametrize("lead", ["{grace_s: 4}", "{lead_s: 0}"])
def test_preemption_that_cancels_leads_to_a_next_attempt(alice: Person, bob: Person, lead: str) -> None:
    extra = f"batch: {{checkpoint: {lead}}}"
    job_id = start(alice, "spot", "--partition=spot", "--nodelist=n3", "--gres=gpu:4", extra=extra)
    preempt(bob, "n3")
    job = alice.finish(job_id, 240)
    assert (job["state"], causes(job)[0], len(job["attempts"])) == ("COMPLETED", "preemption", 2), job
    assert job["attempts"][0]["checkpoint_confirmed"] and all_steps(alice, job) == list(range(1, 61))


def test_slurms_own_requeue_is_adopted_and_not_doubled(alice: Person, bob: Person) -> None:
    """The training hears no warning, is ended with its allocation, and Slurm starts the same job anew."""
    model = saver_model(alice)
    # lead_s: 0 asks Slurm for no warning: then the steps get TERM at once, and the batch script nothing.
    manifest = training(alice, "requeued", "python3 train.py --deaf", SAVING.replace("grace_s: 4", "lead_s: 0"))
    job_id = alice.submit(manifest, model, "--partition=main", "--nodelist=n3", "--gres=gpu:4")
    until_logged(alice, job_id, "step 5")
    native = alice.show(job_id)["native_id"]
    preempt(bob, "n3")
    job = alice.finish(job_id, 240)
    assert (job["state"], job["native_id"], len(job["attempts"])) == ("COMPLETED", native, 1), job
    assert alice.run("squeue", "-h", "--states=all", "-o", "%A", "-n", f"{job_id}-2").stdout == ""
    log = alice.logs(job_id)
    assert [began["FFDL_RESTART"] for began in begins(log)] == ["0", "1"]
    assert begins(log)[1]["from"] >= 2 and steps(log)[-1] == 60


def test_a_lost_node(cluster: Cluster, alice: Person) -> None:
    job_id = start(alice, "lost-node", "--time=10", "--no-requeue", extra=SAVING)
    job = started(alice, job_id)
    lost = job["nodes"]
    cluster.power_off(lost)
    try:
        job = alice.finish(job_id, 240)
    finally:
        cluster.power_on(lost)
    assert job["state"] == "COMPLETED", job
    assert causes(job)[0] == "node_failure" and lost not in job["nodes"].split(","), job["attempts"]
    second = attempt_log(alice, job, 2)
    assert begins(second)[0]["from"] >= 4 and steps(second)[-1] == 60


@pytest.fixture
def cut_node(cluster: Cluster) -> Iterator[list[str]]:
    """Names of nodes to heal afterwards."""
    names: list[str] = []
    yield names
    for name in names:
        cluster.heal(name)


def test_a_node_that_comes_back_writes_nothing(cluster: Cluster, alice: Person, cut_node: list[str]) -> None:
    job_id = start(alice, "cut-off", "--no-requeue", extra="batch: {env: {SAVE_EVERY: '2', STEPS: '800'}}")
    node = started(alice, job_id)["nodes"]
    cut_node.append(node)
    cluster.cut(node)
    until_logged(alice, job_id, "step", attempt=2, timeout_s=180)
    cluster.heal(node)
    job = alice.finish(job_id, 240)
    assert job["state"] == "COMPLETED", job
    first, second = attempt_log(alice, job, 1), attempt_log(alice, job, 2)
    assert steps(second)[-1] == 800
    # What the lost attempt did after the newer one began is not in what the newer one made of the checkpoint.
    assert steps(second) == list(range(begins(second)[0]["from"] + 1, 801))
    time.sleep(2)
    assert attempt_log(alice, job, 1) == first


def test_the_owners_own_verbs(cluster: Cluster, alice: Person) -> None:
    held, asked, limited = (start(alice, f"verb-{n}", "--time=10", extra=SAVING) for n in range(3))
    native = {job_id: alice.show(job_id)["native_id"] for job_id in (held, asked, limited)}
    cluster.run("ctl", ["scontrol", "suspend", native[held]])
    alice.run("scontrol", "requeue", native[asked])
    cluster.run("ctl", ["scontrol", "update", f"JobId={native[limited]}", "TimeLimit=20"])
    deadline = time.monotonic() + 30
    while "SUSPENDED" not in json.dumps(alice.show(held)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert alice.show(held)["state"] == "PROCESSING" and "SUSPENDED" in json.dumps(alice.show(held))
    time.sleep(12)  # longer than what a controller that hears nothing would bear
    cluster.run("ctl", ["scontrol", "resume", native[held]])
    jobs = alice.finish_all([held, asked, limited])
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 3, jobs
    assert [job["native_id"] for job in jobs] == list(native.values())
    assert [len(begins(alice.logs(job["id"]))) for job in jobs] == [1, 2, 1]


def test_hold_release_and_scancel(alice: Person) -> None:
    job_id = alice.submit(training(alice, "held", extra=QUICK), saver_model(alice), "--begin=now+1hour")
    native = alice.until(job_id, {"QUEUED"})["native_id"]
    alice.run("scontrol", "hold", native)
    deadline = time.monotonic() + 30
    while "Held" not in alice.show(job_id)["pending_reason"] and time.monotonic() < deadline:
        time.sleep(0.5)
    assert "Held" in alice.show(job_id)["pending_reason"]
    alice.run("scontrol", "release", native)
    alice.run("scontrol", "update", f"JobId={native}", "StartTime=now")
    until_logged(alice, job_id, "step 5")
    alice.run("scancel", native)
    job = alice.finish(job_id)
    assert (job["state"], len(job["attempts"])) == ("CANCELLED", 1), job


@pytest.mark.parametrize("who", ["node", "head", "both"])
def test_a_killed_controller(cluster: Cluster, alice: Person, who: str) -> None:
    job_id = start(alice, f"killed-{who}", "--time=10", extra=SAVING)
    node = started(alice, job_id)["nodes"]
    kinds = {"node": ["node"], "head": ["head"], "both": ["head", "node"]}[who]
    for kind in kinds:
        found = cluster.run(node, ["pgrep", "-u", "alice", "-f", f" {kind} --launch .*{job_id}"]).stdout.split()
        for pid in found:
            cluster.run(node, ["kill", "-KILL", pid], check=False)
    ended = alice.finish(job_id, 240)
    assert ended["state"] == "COMPLETED", ended
    assert len(ended["attempts"]) == 2 and causes(ended)[0] == "node_failure"
    assert steps(attempt_log(alice, ended, 2))[-1] == 60
    deadline = time.monotonic() + 30
    while not free_gpus(alice, node) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert free_gpus(alice, node)
