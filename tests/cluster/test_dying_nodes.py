"""Nodes that are up and do nothing, and a login node that nobody reaches: the training goes on, and is done once.

Nodes without power and without their link are in `test_interruptions`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import (
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

LONG = (
    "batch: {checkpoint: {grace_s: 4}, env: {SAVE_EVERY: '2', STEPS: '100', PACE: '0.2'},"
    " retry: {timeouts: 0, preemptions: 0, failures: 0, node_failures: 1}}"
)
"""Nothing is left to be charged to the user."""
GIVEN_UP_S = 120.0
"""Slurm gives up a node that does not answer after SlurmdTimeout (30 s here), and asks in rounds."""


@pytest.fixture(scope="module")
def hung(cluster: Cluster, alice: Person) -> Iterator[Mapping[str, Any]]:
    """A training with a learner on each of two nodes. The second one freezes, and thaws when the job is elsewhere."""
    manifest = training(alice, "gang", extra=LONG, learners=2, gpus=0)
    job_id = alice.submit(manifest, saver_model(alice), "--no-requeue")
    for learner in (1, 2):
        path = f"{alice.state}/jobs/{job_id}/attempt-1/logs/learner-{learner}/training-log.txt"
        alice.run("sh", "-c", f"until grep -qs '^step 5$' {path}; do sleep 0.1; done", timeout_s=60)
    first, frozen = alice.run("scontrol", "show", "hostnames", started(alice, job_id)["nodes"]).stdout.split()
    cluster.freeze(frozen)
    try:
        until_logged(alice, job_id, "step", attempt=2, timeout_s=GIVEN_UP_S)
        moved = alice.show(job_id)
    finally:
        cluster.thaw(frozen)
    yield {"job": alice.finish(job_id), "moved": moved, "first": first, "frozen": frozen}
    cluster.wait_idle()


def test_a_gang_leaves_the_node_that_hangs(alice: Person, hung: Mapping[str, Any]) -> None:
    job = hung["job"]
    assert job["state"] == "COMPLETED", job
    assert [attempt["interruption"] for attempt in job["attempts"]] == ["node_failure", ""], job["attempts"]
    nodes = alice.run("scontrol", "show", "hostnames", job["nodes"]).stdout.split()
    assert hung["frozen"] not in nodes and len(nodes) == 2
    for learner in (1, 2):
        log = attempt_log(alice, job, 2, learner)
        begin = begins(log)[0]
        assert begin["RESUME"] == "1" and steps(log) == list(range(begin["from"] + 1, 101))


def test_a_node_that_wakes_up_writes_nothing(alice: Person, hung: Mapping[str, Any]) -> None:
    job = hung["job"]
    first = attempt_log(alice, job, 1, 2)
    time.sleep(2)
    assert attempt_log(alice, job, 1, 2) == first
    assert is_gapless(history(alice, job["id"]))
    pids = alice.run("pgrep", "-f", f"--launch .*{job['id']}", node=hung["frozen"], check=False).stdout.split()
    assert pids == [], "the node still has a controller of the attempt that it lost"


def test_a_daemon_that_nobody_reaches_is_not_missed(cluster: Cluster, alice: Person) -> None:
    """Its login node loses the network: no Slurm, and no word to anybody. The training warns, saves and goes on."""
    person = alice.at("far", "")
    extra = "batch: {checkpoint: {grace_s: 4}, env: {PACE: '0.2', STEPS: '150'}}"
    job_id = person.submit(training(alice, "far", extra=extra, gpus=0), saver_model(alice), "--time=10", node="login2")
    until_logged(person, job_id, "step 5")
    native = person.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-1").stdout.strip()
    cluster.cut("login2")
    try:
        person.run("scancel", "--signal=URG", native)
        until_logged(person, job_id, "step", attempt=2)
        asks = 'until ffdl list 2>&1 | grep "scheduler unreachable since"; do sleep 0.5; done'
        person.run("sh", "-c", asks, node="login2", timeout_s=90)
    finally:
        cluster.heal("login2")
    job = person.finish(job_id)
    assert job["state"] == "COMPLETED", job
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert [step for number in (1, 2) for step in steps(attempt_log(person, job, number))] == list(range(1, 151))
    assert is_gapless(history(person, job_id))
    person.kill_daemon("TERM")
