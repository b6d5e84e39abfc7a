"""Nodes that are up and do nothing, and a login node that nobody reaches: the training goes on, and is done once.

Nodes without power and without their link are in `test_interruptions`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import (
    attempt_log,
    begins,
    history,
    is_gapless,
    let_go,
    saver_model,
    started,
    steps,
    training,
    until_logged,
)

pytestmark = pytest.mark.full

LONG = (
    "batch: {checkpoint: {grace_s: 4}, env: {SAVE_EVERY: '2', STEPS: '100', PACE: '0.2', HOLD: '50'},"
    " retry: {timeouts: 0, preemptions: 0, failures: 0, node_failures: 1}}"
)
"""Nothing is left to be charged to the user."""
SILENT_S = 60
"""The least that counts: heartbeats come every 10 s."""
NODE_DOWN_S = 600.0
"""Slurm gives up a node that does not answer after SlurmdTimeout (30 s here), and asks in rounds."""


def controllers(person: Person, job_id: str, node: str) -> list[str]:
    """The processes of a job's controllers on a node."""
    found = person.run("pgrep", "-f", "--", f"--launch .*{job_id}", node=node, check=False)
    assert found.returncode in (0, 1), found  # 1 = there are none
    return found.stdout.split()


def stand_still(person: Person, job_id: str, node: str) -> None:
    """Stop the controllers of a job on a node, and all that they started; nothing of Slurm's."""
    stopped = controllers(person, job_id, node)
    assert stopped, f"no controller of {job_id} on {node}"
    person.run("kill", "-STOP", *stopped, node=node)
    rows = [line.split() for line in person.run("ps", "-e", "-o", "pid=,ppid=", node=node).stdout.splitlines()]
    below: list[str] = []
    parents = set(stopped)
    while parents:
        parents = {pid for pid, parent in rows if parent in parents and pid not in stopped and pid not in below}
        below += sorted(parents)
    assert below, f"no learner of {job_id} on {node}"
    person.run("kill", "-STOP", *below, node=node)


@pytest.fixture(scope="module")
def hung(cluster: Cluster, alice: Person) -> Iterator[Mapping[str, Any]]:
    """A training with a learner on each of two nodes. The second one freezes, and thaws when the job is elsewhere."""
    manifest = training(alice, "gang", extra=LONG, learners=2, gpus=0)
    job_id = alice.submit(manifest, saver_model(alice), "--no-requeue")
    for learner in (1, 2):
        path = f"{alice.state}/jobs/{job_id}/attempt-1/logs/learner-{learner}/training-log.txt"
        alice.run("sh", "-c", f"until grep -qs '^step 5$' {path}; do sleep 0.1; done", timeout_s=600)
    first, frozen = alice.run("scontrol", "show", "hostnames", started(alice, job_id)["nodes"]).stdout.split()
    cluster.freeze(frozen)
    try:
        until_logged(alice, job_id, "step", attempt=2, timeout_s=NODE_DOWN_S)
        moved = alice.show(job_id)
    finally:
        cluster.thaw(frozen)
    let_go(alice, job_id)
    yield {"job": alice.finish(job_id), "moved": moved, "first": first, "frozen": frozen}
    cluster.wait_idle()


def test_job_with_two_learners_continues_without_frozen_node(alice: Person, hung: Mapping[str, Any]) -> None:
    job = hung["job"]
    assert job["state"] == "COMPLETED", job
    assert [attempt["interruption"] for attempt in job["attempts"]] == ["node_failure", ""], job["attempts"]
    nodes = alice.run("scontrol", "show", "hostnames", job["nodes"]).stdout.split()
    assert hung["frozen"] not in nodes and len(nodes) == 2
    for learner in (1, 2):
        log = attempt_log(alice, job, 2, learner)
        begin = begins(log)[0]
        assert begin["RESUME"] == "1" and steps(log) == list(range(begin["from"] + 1, 101))


def test_thawed_node_writes_nothing_to_log_of_lost_attempt(alice: Person, hung: Mapping[str, Any]) -> None:
    job = hung["job"]
    wait_until(
        lambda: controllers(alice, job["id"], hung["frozen"]) == [],
        "the end of the node's controller of the attempt that it lost",
    )
    first = attempt_log(alice, job, 1, 2)
    time.sleep(2)
    assert attempt_log(alice, job, 1, 2) == first
    assert is_gapless(history(alice, job["id"]))


def test_silent_job_continues_on_another_node_after_silence_limit(cluster: Cluster, alice: Person) -> None:
    """Controllers and learners are stopped, slurmd is not: Slurm would hold the allocation until its time limit."""
    person = alice.at("silent", f"silent_s = {SILENT_S}\n")
    job_id = person.submit(training(alice, "still", extra=LONG, gpus=0), saver_model(alice), "--no-requeue")
    until_logged(person, job_id, "step 5")
    node = started(person, job_id)["nodes"]
    native = person.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-1").stdout.strip()
    stand_still(person, job_id, node)
    frozen_log = attempt_log(person, person.show(job_id), 1)
    wait_until(lambda: "nothing was heard" in person.show(job_id)["pending_reason"], "a word to the owner")
    told = person.show(job_id)
    assert told["state"] == "PROCESSING" and node in told["pending_reason"], told
    assert person.run("squeue", "-h", "-o", "%T", "-j", native).stdout.strip() == "RUNNING"
    until_logged(person, job_id, "step", attempt=2, timeout_s=SILENT_S + NODE_DOWN_S)
    let_go(person, job_id)
    job = person.finish(job_id)
    assert job["state"] == "COMPLETED", job
    assert [attempt["interruption"] for attempt in job["attempts"]] == ["node_failure", ""], job["attempts"]
    assert job["nodes"] != node, "the node where it stood still is excluded"
    begin = begins(attempt_log(person, job, 2))[0]
    assert begin["RESUME"] == "1" and begin["from"] >= 4
    assert steps(attempt_log(person, job, 2)) == list(range(begin["from"] + 1, 101))
    # What Slurm wakes (CONT) to tell it that it ends has a moment at most.
    assert len(steps(attempt_log(person, job, 1))) - len(steps(frozen_log)) < 20
    assert is_gapless(history(person, job_id))
    shown = ("sinfo", "-h", "-N", "-n", node, "-o", "%T")
    wait_until(lambda: person.run(*shown).stdout.split()[0] != "completing", "the epilog")
    assert person.run(*shown).stdout.split()[0] in ("idle", "mixed", "allocated")
    assert controllers(person, job_id, node) == []
    person.kill_daemon("TERM")
    cluster.wait_idle()


def test_requeued_job_reuses_failed_node_when_no_other_node_fits(cluster: Cluster, alice: Person) -> None:
    """Slurm requeues it when its node is lost. Kept off that node it would wait for ever, on one that is well again."""
    job_id = alice.submit(training(alice, "only-there", extra=LONG, gpus=0), saver_model(alice), "--nodelist=n3")
    until_logged(alice, job_id, "step 5")
    cluster.power_off("n3")
    try:
        alice.until(job_id, {"QUEUED"}, NODE_DOWN_S)
    finally:
        cluster.power_on("n3")
    let_go(alice, job_id)
    job = alice.finish(job_id)
    assert (job["state"], job["nodes"]) == ("COMPLETED", "n3"), job
    assert [run["FFDL_RESTART"] for run in begins(alice.logs(job_id))] == ["0", "1"]
    assert any("n3 again" in warning for warning in job["warnings"]), job


def test_job_continues_while_daemon_has_no_network(cluster: Cluster, alice: Person) -> None:
    """Its login node loses the network: no Slurm, and no word to anybody. The training warns, saves and goes on."""
    person = alice.at("far", "")
    extra = "batch: {checkpoint: {grace_s: 60}, env: {PACE: '0.2', STEPS: '150', HOLD: '20'}}"
    job_id = person.submit(training(alice, "far", extra=extra, gpus=0), saver_model(alice), "--time=10", node="login2")
    until_logged(person, job_id, "step 5")
    native = person.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-1").stdout.strip()
    cluster.cut("login2")
    try:
        person.run("scancel", "--signal=URG", native)
        until_logged(person, job_id, "step", attempt=2)
        asks = 'until ffdl list 2>&1 | grep "slurm unreachable since"; do sleep 0.5; done'
        person.run("sh", "-c", asks, node="login2", timeout_s=600)
    finally:
        cluster.heal("login2")
    let_go(person, job_id)
    job = person.finish(job_id)
    assert job["state"] == "COMPLETED", job
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert [step for number in (1, 2) for step in steps(attempt_log(person, job, number))] == list(range(1, 151))
    assert is_gapless(history(person, job_id))
    person.kill_daemon("TERM")
