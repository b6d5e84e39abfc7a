"""Trainings from submission to stored results, and through what interrupts them, on this release of Slurm.

Those that wait for Slurm's own clock (a time limit, a lost node) begin before the first test and are looked at last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.suites import Suite
from tests.cluster.trainings import (
    LAST,
    QUICK,
    attempt_log,
    begins,
    history,
    is_gapless,
    saver_model,
    started,
    steps,
    training,
    until_logged,
)
from tests.conformance.conftest import NODE_PYTHON

SAVING = "batch: {checkpoint: {grace_s: 4}, env: {SAVE_EVERY: '2'}}"
LONG = "batch: {checkpoint: {grace_s: 4}, env: {STEPS: '400'}}"
BUSY = "n3"
"""Where everything runs but the training that loses its node."""
Jobs = Mapping[str, Mapping[str, Any]]


def begin(alice: Person, name: str, *options: str, extra: str = QUICK, gpus: int = 1) -> str:
    """A training on the busy node, unless the first option says where."""
    where = options if options and options[0].startswith("--exclude=") else (f"--nodelist={BUSY}", *options)
    return alice.submit(training(alice, name, extra=extra, gpus=gpus), saver_model(alice), *where)


def all_steps(alice: Person, job: Mapping[str, Any]) -> list[int]:
    """The steps of all attempts, in order."""
    return [step for attempt in job["attempts"] for step in steps(attempt_log(alice, job, attempt["number"]))]


@pytest.fixture(scope="module", autouse=True)
def slow(cluster: Cluster, alice: Person) -> Mapping[str, str]:
    """A training with a limit of a minute, and one whose node loses its power."""
    ids = {
        "limit": begin(alice, "limit", "--time=1", extra=LONG, gpus=0),
        "lost": begin(alice, "lost", f"--exclude={BUSY}", "--no-requeue", extra=SAVING, gpus=0),
    }
    until_logged(alice, ids["lost"], "step 5")
    node = started(alice, ids["lost"])["nodes"]
    cluster.power_off(node)
    return {**ids, "node": node}


@pytest.fixture(scope="module")
def simple(alice: Person, slow: Mapping[str, str]) -> Jobs:
    """Jobs that nothing happens to."""
    command = "echo learner $LEARNER_ID; echo $LEARNER_ID >> $RESULT_DIR/learners"
    ids = {
        "good": alice.start("good", command, f"--exclude={slow['node']}", learners=2),
        "bad": alice.start("bad", "exit 9", f"--nodelist={BUSY}"),
        "hungry": alice.start(
            "hungry", "python3 -c 'held = bytearray(600 << 20); print(len(held))'", f"--nodelist={BUSY}", memory="64MiB"
        ),
    }
    return dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))


def test_job_with_two_learners_completes_and_stores_results(alice: Person, simple: Jobs) -> None:
    job = simple["good"]
    assert (job["state"], job["error_code"], job["exit_code"]) == ("COMPLETED", "000", 0), job
    assert sorted(alice.read(f"{job['results']}/learners").split()) == ["1", "2"]
    assert alice.logs(job["id"], "--learner=2") == "learner 2\n"
    final = json.loads(alice.read(f"{job['job_dir']}/attempt-1/final.json"))
    assert (final["outcome"], final["stored"], final["native_id"]) == ("completed", True, job["native_id"])
    assert alice.sacct(job["native_id"], "State", "ExitCode") == ["COMPLETED", "0:0"]
    assert is_gapless(history(alice, job["id"]))


def test_batch_script_runs_controller_with_python_of_node(alice: Person, simple: Jobs) -> None:
    script = alice.read(f"{simple['good']['job_dir']}/attempt-1/script.sh")
    assert f"exec {NODE_PYTHON} -I -S " in script


def test_jobs_report_isolated_network_levels_none_and_job(simple: Jobs) -> None:
    assert (simple["bad"]["network"], simple["good"]["network"]) == ("none", "job")


def test_job_reports_exit_status_of_failed_learner(simple: Jobs) -> None:
    job = simple["bad"]
    assert (job["state"], job["error_code"], job["exit_code"]) == ("FAILED", "C201", 9), job


def test_job_fails_with_c202_when_learner_exceeds_memory(cluster: Cluster, simple: Jobs) -> None:
    assert cluster.blueprint.confined, "this machine has no cgroup v1: Slurm cannot hold a job to its memory"
    assert (simple["hungry"]["state"], simple["hungry"]["error_code"]) == ("FAILED", "C202"), simple["hungry"]


def test_submit_test_only_reports_invalid_account(alice: Person) -> None:
    model, manifest = alice.model("empty", {"README": "nothing here\n"}), alice.manifest("refused", "true")
    done = alice.run("ffdl-submit", "--test-only", "--account=nobody", manifest, model, check=False)
    assert done.returncode != 0 and "account" in done.stderr.lower(), done


def test_resume_continues_halted_job_without_losing_steps(alice: Person) -> None:
    job_id = begin(alice, "halted")
    until_logged(alice, job_id, "step 3")
    alice.run("ffdl", "halt", "--wait", job_id)
    halted = alice.show(job_id)
    assert halted["state"] == "HALTED" and halted["attempts"][0]["checkpoint_confirmed"], halted
    assert halted["native_id"] not in alice.queue()
    alice.run("ffdl", "resume", "--wait", job_id)
    job = alice.show(job_id)
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
    assert all_steps(alice, job) == list(range(1, LAST + 1))


def test_cancel_ends_running_and_queued_jobs(alice: Person) -> None:
    running, waiting = begin(alice, "cancelled"), begin(alice, "never-ran", "--hold")
    until_logged(alice, running, "step 3")
    alice.until(waiting, {"QUEUED"})
    alice.run("ffdl", "cancel", running, waiting)
    ended = alice.finish_all([running, waiting])
    assert [job["state"] for job in ended] == ["CANCELLED", "CANCELLED"], ended
    assert {job["native_id"] for job in ended}.isdisjoint(alice.queue())


def test_job_continues_in_same_attempt_after_scontrol_requeue(alice: Person) -> None:
    """Slurm starts the same job again; nobody starts a second one."""
    job_id = begin(alice, "requeued", "--time=10", extra=SAVING)
    until_logged(alice, job_id, "step 5")
    native = alice.show(job_id)["native_id"]
    alice.run("scontrol", "requeue", native)
    job = alice.finish(job_id)
    assert (job["state"], job["native_id"], len(job["attempts"])) == ("COMPLETED", native, 1), job
    assert [run["FFDL_RESTART"] for run in begins(alice.logs(job_id))] == ["0", "1"]


def test_preempted_job_confirms_checkpoint_and_continues(alice: Person) -> None:
    job_id = begin(alice, "preempted", "--partition=main", "--time=10", gpus=4)
    until_logged(alice, job_id, "step 5")
    rival = alice.start("rival", "true", "--partition=urgent", f"--nodelist={BUSY}", gpus=4)
    job, other = alice.finish_all([job_id, rival])
    assert (job["state"], other["state"]) == ("COMPLETED", "COMPLETED"), (job, other)
    first, second = job["attempts"]
    assert (first["interruption"], first["checkpoint_confirmed"], second["interruption"]) == ("preemption", True, "")
    assert all_steps(alice, job) == list(range(1, LAST + 1))


def test_job_continues_past_time_limit_without_losing_steps(alice: Person, slow: Mapping[str, str]) -> None:
    job = alice.finish(slow["limit"])
    assert job["state"] == "COMPLETED", job
    assert len(job["attempts"]) >= 2, job["attempts"]
    assert {attempt["interruption"] for attempt in job["attempts"][:-1]} == {"timeout"}, job["attempts"]
    assert all_steps(alice, job) == list(range(1, 401))


def test_job_continues_on_another_node_after_power_loss(
    cluster: Cluster, alice: Person, slow: Mapping[str, str]
) -> None:
    job = alice.finish(slow["lost"])
    assert job["state"] == "COMPLETED", job
    assert job["attempts"][0]["interruption"] == "node_failure" and job["nodes"] != slow["node"], job["attempts"]
    second = attempt_log(alice, job, 2)
    assert begins(second)[0]["from"] >= 4 and steps(second)[-1] == LAST
    cluster.power_on(slow["node"])
    cluster.wait_idle()


def test_job_and_attempt_directories_are_private_to_owner(alice: Person, simple: Jobs, suite: Suite) -> None:
    job_dir = simple["good"]["job_dir"]
    modes = alice.run("stat", "-c", "%a %U", job_dir, str(Path(job_dir) / "attempt-1")).stdout.splitlines()
    assert modes == ["700 alice", "700 alice"], suite.name
