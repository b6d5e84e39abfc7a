"""Parts of Slurm are away for seconds, or forget jobs: nothing ends by that, nothing is lost, all goes on."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import HELD, attempt_directory, counted, executions, let_go, wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

TRY_AGAIN = 75
OUTAGE_S = 6.0
SAVED_AFTER_S = 6.0
"""slurmctld writes what it knows at most five seconds later (src/slurmctld/state_save.c, SAVE_MAX_WAIT); killed before
that it forgets the job, or that it started it, and may give its id to another one."""
STATE = "/var/lib/slurmctld"
"""Where slurmctld keeps what it knows (StateSaveLocation)."""
FILTER = """\
#!/bin/sh
# Forgets the jobs whose ids stand in ~/forget/forgotten-by-{command}.
/usr/bin/{command} "$@" | grep -v -F -f ~/forget/forgotten-by-{command} || true
"""

WRAPPER = """\
#!/bin/sh
# Submits, keeps the answer to itself, and prints what Slurm never gave to a job.
echo "Welcome to the cluster"
/usr/bin/sbatch "$@" >> ~/greeting/submitted || exit
echo 4294967999
"""


@dataclass(frozen=True)
class Outage:
    """What users saw while slurmctld was away. `ending` ended meanwhile, `waiting` waited, `accepted` came then, and
    `cancelled` was cancelled then, which its learner had obeyed (`obeyed`) before slurmctld was back."""

    ending: str
    waiting: str
    accepted: str
    cancelled: str
    obeyed: bool
    seen: dict[str, dict[str, Any]]
    listed: subprocess.CompletedProcess[str]
    outages: list[dict[str, Any]]
    status: str
    refused: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def outage(cluster: Cluster, bob: Person) -> Outage:
    """slurmctld is away for some seconds of four jobs' lives."""
    ending, waiting = bob.start("outage-ends", HELD), bob.start("outage-waits", counted(0), "--hold")
    cancelled = bob.start("outage-cancelled", counted(600))
    bob.until(waiting, {"QUEUED"})
    bob.until(cancelled, {"PROCESSING"})
    bob.until(ending, {"PROCESSING"})
    stranger = bob.at("stranger", CONFIG)  # a daemon that has never seen this site
    with _without_controller(cluster):
        let_go(bob, ending)
        accepted = bob.start("outage-submitted", counted(0))
        refused = _try_to_submit(stranger)
        wait_until(lambda: bool(_outages(bob)), "the outage to be noticed")
        listed, outages = bob.run("ffdl", "list"), _outages(bob)
        status = bob.run("ffdl", "daemon", "status").stdout
        seen = {job_id: bob.show(job_id) for job_id in (ending, waiting, accepted)}
        bob.run("ffdl", "cancel", cancelled)
        for job_id in (cancelled, ending):
            final = f"{attempt_directory(bob, job_id)}/final.json"
            wait_until(partial(_is_there, bob, final), f"the last word of {job_id}")
        obeyed = json.loads(bob.read(f"{attempt_directory(bob, cancelled)}/final.json"))["outcome"] == "cancelled"
    stranger.kill_daemon("TERM")
    return Outage(ending, waiting, accepted, cancelled, obeyed, seen, listed, outages, status, refused)


def test_jobs_keep_last_known_state_while_slurmctld_is_down(outage: Outage) -> None:
    assert all(job_id in outage.listed.stdout for job_id in outage.seen)
    assert {job_id: job["ended_at"] for job_id, job in outage.seen.items()} == dict.fromkeys(outage.seen)
    assert outage.seen[outage.waiting]["state"] == "QUEUED"
    assert outage.seen[outage.accepted]["state"] in ("PENDING", "DEPLOYING")


def test_list_and_daemon_status_report_outage_while_slurmctld_is_down(outage: Outage) -> None:
    assert re.search(
        r"^ffdl: slurm unreachable since .+ \(\d+ (s|min)\): .+; jobs continue; states are the last known ones$",
        outage.listed.stderr,
        re.MULTILINE,
    ), outage.listed.stderr
    assert [one["name"] for one in outage.outages] == ["slurm"]
    assert re.search(r"^Backend: +slurm .*unreachable since .*asked again at", outage.status, re.MULTILINE)


def test_cancel_stops_learners_during_outage_and_ends_job_afterwards(bob: Person, outage: Outage) -> None:
    assert outage.obeyed
    assert bob.finish(outage.cancelled)["state"] == "CANCELLED"
    assert _outages(bob) == []


def test_submit_exits_75_when_new_daemon_starts_during_outage(outage: Outage) -> None:
    assert outage.refused.returncode == TRY_AGAIN, outage.refused
    assert "Unable to contact slurm controller" in outage.refused.stderr
    assert "submit again" in outage.refused.stderr


def test_held_and_newly_accepted_jobs_run_once_after_outage(bob: Person, outage: Outage) -> None:
    bob.run("scontrol", "release", outage.seen[outage.waiting]["native_id"])
    for job_id in (outage.waiting, outage.accepted):
        assert (bob.finish(job_id)["state"], executions(bob, job_id)) == ("COMPLETED", 1)


@pytest.mark.full
def test_running_job_keeps_native_id_and_completes_after_slurmctld_crash(cluster: Cluster, bob: Person) -> None:
    job_id = bob.start("outage-crash", HELD)
    before = bob.until(job_id, {"PROCESSING"})
    time.sleep(SAVED_AFTER_S)
    with _without_controller(cluster, signal="KILL", at_least_s=1.0):
        assert bob.show(job_id)["state"] == "PROCESSING"
    let_go(bob, job_id)
    done = bob.finish(job_id)
    assert (done["state"], done["native_id"], executions(bob, job_id)) == ("COMPLETED", before["native_id"], 1)


@pytest.mark.full
def test_daemon_resubmits_job_that_slurmctld_lost(cluster: Cluster, bob: Person) -> None:
    """slurmctld comes back with what it knew before it accepted the job; the accounting has it waiting, for ever."""
    kept = f"{STATE}-before"
    with _without_controller(cluster, at_least_s=0.0):
        cluster.run("ctl", ["cp", "-a", STATE, kept])
    job_id = bob.start("lost", counted(0), "--hold")
    first = bob.until(job_id, {"QUEUED"})["native_id"]
    wait_until(lambda: bob.show(job_id)["pending_reason"] == "JobHeldUser", "a listing that shows it")
    assert bob.sacct(first, "State") == ["PENDING"]
    with _without_controller(cluster, signal="KILL", at_least_s=0.0):
        cluster.run("ctl", ["find", STATE, "-mindepth", "1", "-delete"])
        cluster.run("ctl", ["cp", "-a", f"{kept}/.", STATE])
    cluster.run("ctl", ["rm", "-r", kept])

    def is_held_again() -> bool:
        job = bob.show(job_id)
        return (job["attempt"], job["state"], job["pending_reason"]) == (2, "QUEUED", "JobHeldUser")

    wait_until(is_held_again, "the next attempt")
    job = bob.show(job_id)
    assert (job["attempts"][0]["error_code"], job["attempts"][0]["interruption"]) == ("S112", "node_failure"), job
    bob.run("scontrol", "release", job["native_id"])
    assert (bob.finish(job_id)["state"], executions(bob, job_id)) == ("COMPLETED", 1)


@pytest.mark.full
def test_job_completes_while_slurmdbd_is_down(cluster: Cluster, bob: Person) -> None:
    cluster.stop_slurmdbd()
    try:
        job_id = bob.start("without-accounting", counted(1))
        done = bob.finish(job_id)
    finally:
        cluster.start_slurmdbd()
    assert (done["state"], executions(bob, job_id)) == ("COMPLETED", 1)
    wait_until(lambda: bob.sacct(done["native_id"], "State") == ["COMPLETED"], "the record in the accounting")


@pytest.mark.full
def test_submission_waits_while_munge_is_stopped_and_succeeds_later(cluster: Cluster, bob: Person) -> None:
    """munged of the login node stands still: requests hang or fail, and succeed later."""
    bob.run("ffdl", "list")
    pid = cluster.run("ctl", ["cat", "/run/munge/munged.pid"]).stdout.strip()
    cluster.run("ctl", ["kill", "-STOP", pid])
    try:
        job_id = bob.start("without-munge", counted(0))
        time.sleep(3)
        job = bob.show(job_id)
    finally:
        cluster.run("ctl", ["kill", "-CONT", pid])
    assert job["state"] in ("PENDING", "DEPLOYING")
    assert (bob.finish(job_id)["state"], executions(bob, job_id)) == ("COMPLETED", 1)


@pytest.mark.full
def test_job_stays_pending_at_max_submit_jobs_and_runs_later(cluster: Cluster, bob: Person, outage: Outage) -> None:
    """The association's MaxSubmitJobs leaves room for one more job."""
    # Slurm may hear of its end only now, and then there would be room for two.
    wait_until(lambda: bool(bob.show(outage.ending)["ended_at"]), "the end of what ended in the outage")
    with _submit_limit(cluster, len(bob.queue()) + 1):
        first = bob.start("limit-first", HELD)
        bob.until(first, {"QUEUED", "PROCESSING"})
        second = bob.start("limit-second", counted(0))
        wait_until(lambda: "does not take the job now" in bob.show(second)["pending_reason"], "the limit to be met")
        assert (bob.show(second)["state"], bob.show(second)["attempt"]) == ("PENDING", 0)
        assert _outages(bob) == []
        let_go(bob, first)
        assert [bob.finish(job_id)["state"] for job_id in (first, second)] == ["COMPLETED", "COMPLETED"]
    assert [executions(bob, job_id) for job_id in (first, second)] == [1, 1]


@contextmanager
def _submit_limit(cluster: Cluster, jobs: int) -> Iterator[None]:
    def limit(number: int) -> None:
        cluster.run("ctl", ["sacctmgr", "-i", "modify", "user", "bob", "set", f"MaxSubmitJobs={number}"])

    limit(jobs)
    try:
        yield
    finally:
        limit(-1)


def behind(cluster: Cluster, bob: Person, programs: str, place: str) -> Person:
    """Bob with a daemon of his own in `place`; the programs in his directory `programs` stand before Slurm's."""
    path = bob.run("sh", "-c", "echo $PATH").stdout.strip()
    other = bob.at(place, CONFIG)
    return Person(cluster, "bob", {**other.env, "PATH": f"{bob.home}/{programs}:{path}"})


@pytest.fixture
def forgetful(cluster: Cluster, bob: Person) -> Iterator[Person]:
    """Bob with a second daemon whose squeue and sacct leave out jobs that Slurm has."""
    for command in ("squeue", "sacct"):
        bob.write(f"~/forget/{command}", FILTER.format(command=command), executable=True)
        bob.write(f"~/forget/forgotten-by-{command}", "no job\n")
    person = behind(cluster, bob, "forget", "forgetful")
    yield person
    person.kill_daemon("TERM")


@pytest.mark.full
def test_job_stays_processing_when_squeue_omits_it(forgetful: Person) -> None:
    job_id = forgetful.start("vanishing", HELD)
    native = forgetful.until(job_id, {"PROCESSING"})["native_id"]
    forgetful.write("~/forget/forgotten-by-squeue", f"{native}|\n")
    other = forgetful.start("visible", counted(0))  # its looks at Slurm are complete and do not show the first
    assert forgetful.finish(other)["state"] == "COMPLETED"
    assert forgetful.show(job_id)["state"] == "PROCESSING"
    let_go(forgetful, job_id)
    done = forgetful.finish(job_id)  # by the accounting's word
    assert (done["state"], executions(forgetful, job_id)) == ("COMPLETED", 1)


@pytest.mark.full
def test_job_completes_from_final_record_when_squeue_and_sacct_omit_it(forgetful: Person, bob: Person) -> None:
    """Both listings answer in full and leave the job out; what the controllers stored decides."""
    job_id = forgetful.start("forgotten", HELD)
    native = forgetful.until(job_id, {"PROCESSING"})["native_id"]
    for command in ("squeue", "sacct"):
        forgetful.write(f"~/forget/forgotten-by-{command}", f"{native}|\n")
    let_go(forgetful, job_id)
    wait_until(lambda: native not in bob.queue(), "the end in Slurm")
    assert (forgetful.finish(job_id)["state"], executions(forgetful, job_id)) == ("COMPLETED", 1)


@pytest.fixture
def greeted(cluster: Cluster, bob: Person) -> Iterator[Person]:
    """Bob with a daemon of his own, whose sbatch greets and prints a number that is no job's."""
    bob.write("~/greeting/sbatch", WRAPPER, executable=True)
    person = behind(cluster, bob, "greeting", "greeted")
    yield person
    person.kill_daemon("TERM")


@pytest.mark.full
def test_submit_ignores_invalid_native_id_printed_by_sbatch_wrapper(greeted: Person) -> None:
    job_id = greeted.start("greeted", counted(1))
    done = greeted.finish(job_id)
    assert (done["state"], done["attempt"], executions(greeted, job_id)) == ("COMPLETED", 1, 1), done
    assert greeted.accounted(done["native_id"], "State") == ["COMPLETED"]
    assert _outages(greeted) == []


@pytest.mark.parametrize("number", ["0", "4294967293", "4294967999"])
@pytest.mark.full
def test_sacct_rejects_list_with_invalid_job_id(greeted: Person, number: str) -> None:
    """sacct refuses all of them together, which is why none is put into its list; 4294967292 might be a job's."""
    native = greeted.finish(greeted.start("accounted", counted(0)))["native_id"]
    greeted.sacct(native, "State")
    refused = greeted.run("sacct", "-n", "-X", f"--jobs={native},{number}", check=False)
    assert refused.returncode == 1 and "Bad job/step specified" in refused.stderr
    assert greeted.run("sacct", "-n", "-X", "-P", "-o", "JobID", f"--jobs={native},4294967292").stdout == f"{native}\n"


def test_job_that_ended_during_outage_becomes_completed_once(bob: Person, outage: Outage) -> None:
    """The last test: a node may take more than a minute to tell the controller of an end that it could not tell."""
    assert (bob.finish(outage.ending)["state"], executions(bob, outage.ending)) == ("COMPLETED", 1)


def _outages(person: Person) -> list[dict[str, Any]]:
    """The backends that a listing says do not answer."""
    found: list[dict[str, Any]] = json.loads(person.run("ffdl", "list", "--json").stdout)["outages"]
    return found


def _is_there(person: Person, path: str) -> bool:
    return person.run("test", "-s", path, check=False).returncode == 0


def _try_to_submit(person: Person) -> subprocess.CompletedProcess[str]:
    model = person.model("empty", {"README": "nothing here\n"})
    manifest = person.manifest("refused", "true")
    return person.run("ffdl-submit", "--parsable", manifest, model, check=False)


@contextmanager
def _without_controller(cluster: Cluster, signal: str = "TERM", at_least_s: float = OUTAGE_S) -> Iterator[None]:
    """slurmctld is down for the time of the block, and for some seconds at least."""
    cluster.stop_slurmctld(signal=signal)
    began = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, at_least_s - (time.monotonic() - began)))
    finally:
        cluster.start_slurmctld()
