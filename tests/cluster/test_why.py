"""Why jobs wait on the real cluster: each reason with its figures, and alternatives that really start sooner."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster

LIMITED = "high"
"""A QOS that alice may use; it gets a limit for as long as this file runs."""


@pytest.fixture(scope="module")
def crowd(cluster: Cluster, alice: Person, bob: Person) -> Iterator[list[str]]:
    """Bob has all V100s: four on each of two nodes, for 30 and for 60 minutes. The QOS has a limit of a GPU a user."""
    cluster.run("ctl", ["sacctmgr", "-i", "modify", "qos", LIMITED, "set", "MaxTRESPerUser=gres/gpu=1"])
    jobs = []
    for node, minutes in (("n1", 30), ("n2", 60)):
        argv = ["sbatch", "--parsable", "--gres=gpu:v100:4", f"--nodelist={node}", f"--time={minutes}"]
        jobs.append(bob.run(*argv, "--wrap=sleep 7200").stdout.strip())
    until(lambda: set(jobs) <= set(bob.run("squeue", "-h", "-t", "R", "-u", "bob", "-o", "%A").stdout.split()))
    yield jobs
    bob.run("scancel", *jobs)
    cluster.run("ctl", ["sacctmgr", "-i", "modify", "qos", LIMITED, "set", "MaxTRESPerUser=gres/gpu=-1"])
    alice.run("scancel", "-u", "alice", check=False)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def why(alice: Person, job: str, word: str, *options: str) -> dict[str, Any]:
    """What `ffdl why` says of the job once Slurm gives `word` as its reason."""
    deadline = time.monotonic() + 300
    while True:
        found: dict[str, Any] = json.loads(alice.run("ffdl", "why", "--json", *options, job).stdout)["why"]
        reason = (found["explanation"] or {}).get("reason") or {}
        if reason.get("code") == word:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(1)


@pytest.fixture(scope="module")
def next_one(alice: Person, crowd: list[str]) -> str:
    """The job that is next: it waits for two V100s."""
    job = alice.start("next", "true", "--time=30", "--partition=main", "--gpus=v100:2")
    alice.until(job, {"QUEUED"})
    return job


def test_why_explains_resources_with_free_gpus_and_expected_start(alice: Person, next_one: str) -> None:
    found = why(alice, next_one, "Resources")
    known = found["explanation"]
    assert found["waits"] and "waits until what it asks for is free (Resources)" in found["sentence"]
    room = known["capacity"][0]
    assert (room["gpu_type"], room["gpus"], room["gpus_free"], room["fitting"], room["wanted"]) == ("v100", 8, 0, 0, 1)
    assert known["ahead"][0]["running"] >= 2 and known["ahead"][0]["jobs"] == 0
    # The first of bob's jobs reaches its limit then. The scheduler says it when its next round has planned the job.
    until(lambda: (why(alice, next_one, "Resources")["explanation"]["expected_start"] or 0) > time.time())
    shown = alice.run("ffdl", "why", next_one).stdout
    assert "0 of 8 GPUs of type v100 in main are free" in shown and "May start:" in shown


@pytest.mark.full
def test_why_suggests_alternative_that_starts_sooner(alice: Person, next_one: str) -> None:
    found = why(alice, next_one, "Resources")
    options = {one["options"]: one for one in found["alternatives"]}
    assert "--gpus=a100:2" in options, found
    named = options["--gpus=a100:2"]
    assert named["sooner_s"] > 60 and not named["preempts"]
    sooner = alice.start("sooner", "true", "--time=30", "--partition=main", named["options"])
    assert alice.finish(sooner)["state"] == "COMPLETED"
    assert alice.show(next_one)["state"] == "QUEUED"


@pytest.mark.full
def test_why_counts_jobs_ahead_for_pending_reason_priority(alice: Person, next_one: str) -> None:
    behind = alice.start("behind", "true", "--time=60", "--partition=main", "--gpus=v100:2")
    found = why(alice, behind, "Priority", "--no-alternatives")
    ahead = found["explanation"]["ahead"][0]
    assert (ahead["jobs"], ahead["own"], ahead["gpus"]) == (1, 1, 2) and not found["alternatives"]


def test_why_reports_qos_limit_and_alternative_within_it(alice: Person, crowd: list[str]) -> None:
    job = alice.start("limited", "true", "--time=10", f"--qos={LIMITED}", "--gpus=a100:2")
    found = why(alice, job, "QOSMaxGRESPerUser")
    limit = found["explanation"]["reason"]["limit"]
    assert (limit["owner"], limit["name"], limit["resource"]) == ("QOS", LIMITED, "GPUs")
    assert (limit["per"], limit["most"], limit["used"], limit["asked"]) == ("user", "1", "0", "2")
    assert "the limit is 1, 0 in use, it asks for 2" in found["sentence"]
    assert [one["options"] for one in found["alternatives"]] == ["--gpus=a100:1"]
    kept = alice.start("kept", "true", "--time=10", f"--qos={LIMITED}", found["alternatives"][0]["options"])
    assert alice.finish(kept)["state"] == "COMPLETED"


@pytest.mark.full
def test_why_explains_dependency_begin_time_and_hold(alice: Person, crowd: list[str]) -> None:
    native = alice.run("sbatch", "--parsable", "--hold", "--wrap=true").stdout.strip()
    depends = alice.start("depends", "true", f"--dependency=afterok:{native}")
    later = alice.start("later", "true", "--begin=now+2hours")
    held = alice.start("held", "true", "--hold")
    found = why(alice, depends, "Dependency")
    assert found["explanation"]["blockers"][0]["kind"] == "dependency" and not found["alternatives"]
    assert f"it depends on afterok:{native}" in "\n".join(found["evidence"])
    found = why(alice, later, "BeginTime")
    assert found["explanation"]["expected_start"] > time.time() + 3600
    found = why(alice, held, "JobHeldUser")
    assert "on hold, by you" in found["sentence"] and found["trial"] is None
    alice.run("ffdl", "cancel", depends, later, held)
    alice.run("scancel", native)  # without a time limit: whoever asks when it is over hears of the next century


@pytest.mark.full
def test_why_names_drained_node_with_drain_reason(cluster: Cluster, alice: Person) -> None:
    cluster.scontrol("update", "NodeName=n3", "State=DRAIN", "Reason=fan is broken")
    try:
        job = alice.start("away", "true", "--time=10", "--nodelist=n3", "--gpus=a100:1")
        found = why(alice, job, "ReqNodeNotAvail")
        room = found["explanation"]["capacity"][0]
        assert [(one["name"], one["why"]) for one in room["away"]] == [("n3", "fan is broken")]
    finally:
        alice.run("ffdl", "cancel", job)
        alice.finish(job)
        cluster.scontrol("update", "NodeName=n3", "State=RESUME")
    until(lambda: cluster.run("ctl", ["sinfo", "-h", "-n", "n3", "-o", "%T"]).stdout.split()[:1] == ["idle"])


def test_plan_reports_expected_wait_and_alternatives_unless_disabled(alice: Person, crowd: list[str]) -> None:
    manifest = alice.manifest("planned", "true")
    model = alice.model("empty", {"README": "nothing here\n"})
    options = ("--time=30", "--partition=main", "--gpus=v100:2")
    shown = alice.run("ffdl", "plan", "--json", *options, manifest, model).stdout
    outlook = json.loads(shown)["outlook"]
    assert outlook["explanation"]["capacity"][0]["gpus_free"] == 0
    assert "--gpus=a100:2" in [one["options"] for one in outlook["alternatives"]], outlook
    plain = alice.run("ffdl", "plan", "--no-why", "--json", *options, manifest, model).stdout
    assert "outlook" not in json.loads(plain)


@pytest.mark.full
def test_why_marks_explanation_stale_while_slurmctld_is_down(cluster: Cluster, alice: Person, next_one: str) -> None:
    why(alice, next_one, "Resources")
    cluster.stop_slurmctld()
    try:
        deadline = time.monotonic() + 300
        while not (found := json.loads(alice.run("ffdl", "why", "--json", next_one).stdout)["why"])["stale"]:
            assert time.monotonic() < deadline, found
            time.sleep(1)
    finally:
        cluster.start_slurmctld()
    assert "the following is its answer from" in found["stale"]
    assert found["explanation"]["reason"]["code"] == "Resources"
