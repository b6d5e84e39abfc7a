"""The daemon dies, submissions are doubled by hand or lost on their way: every job is executed exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import HELD, attempt_directory, counted, executions, let_go, wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster

pytestmark = pytest.mark.full

WALK = ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
CLAIMED_BY_ANOTHER = "73:0"
SPOILT = """\
#!/bin/sh
# Passes the request on and then behaves as ~/bin/faults says, one line for each call.
answer=$(/usr/bin/sbatch "$@") || exit
case $(flock ~/bin/faults.lock sh -c 'sed -n 1p ~/bin/faults; sed -i 1d ~/bin/faults') in
drop) echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1 ;;
hang) sleep 600 ;;
die) kill -KILL $$ ;;
*) echo "$answer" ;;
esac
"""


@dataclass(frozen=True)
class Killed:
    """What became of jobs whose daemon was killed in several phases of their lives."""

    waiting: str
    running: str
    storing: str


@pytest.fixture(scope="module")
def killed(bob: Person) -> Killed:
    """One daemon, killed while one job is held, one runs and one stores; back when the last two have ended."""
    waiting = bob.start("kill-waiting", counted(0), "--hold")
    running = bob.start("kill-running", HELD)
    storing = bob.start("kill-storing", counted(0) + '; head -c 300M /dev/zero > "$RESULT_DIR/big"')
    bob.until(waiting, {"QUEUED"})
    bob.until(running, {"PROCESSING"})
    events = bob.host_path(f"{attempt_directory(bob, storing)}/events/node-0.jsonl")
    wait_until(lambda: events.exists() and "store-results" in events.read_text(), "the storing of results")
    bob.kill_daemon()
    let_go(bob, running)
    wait_until(lambda: len(bob.queue()) == 1, "the end of two jobs")
    return Killed(waiting, running, storing)


def test_running_and_storing_jobs_complete_once_while_daemon_is_down(bob: Person, killed: Killed) -> None:
    listed = bob.run("ffdl", "list").stdout  # starts the next daemon
    assert killed.running in listed
    for job_id in (killed.running, killed.storing):
        job = bob.finish(job_id)
        assert (job["state"], job["exit_code"]) == ("COMPLETED", 0)
        assert list(job["timestamps"]) == WALK
        assert list(job["timestamps"].values()) == sorted(job["timestamps"].values())
        assert executions(bob, job_id) == 1


def test_held_job_stays_queued_after_daemon_kill_and_runs_once(bob: Person, killed: Killed) -> None:
    job = bob.show(killed.waiting)
    assert job["state"] == "QUEUED"
    assert "Held" in job["pending_reason"]
    bob.run("scontrol", "release", job["native_id"])
    done = bob.finish(killed.waiting)
    assert (done["state"], done["native_id"], executions(bob, killed.waiting)) == ("COMPLETED", job["native_id"], 1)


def test_daemon_adopts_duplicate_that_starts_first_and_cancels_known_native_job(bob: Person) -> None:
    job_id = bob.start("copy-first", counted(2), "--hold")
    known = bob.until(job_id, {"QUEUED"})["native_id"]
    copy = bob.run("sbatch", "--parsable", f"{attempt_directory(bob, job_id)}/script.sh").stdout.strip()
    bob.run("scontrol", "release", copy)
    done = bob.finish(job_id)
    assert (done["state"], done["native_id"], executions(bob, job_id)) == ("COMPLETED", copy, 1)
    wait_until(lambda: bob.sacct(known, "State")[0].startswith("CANCELLED"), f"the cancellation of {known}")


def test_duplicate_native_job_exits_without_learner_when_attempt_is_claimed(bob: Person) -> None:
    job_id = bob.start("copy-second", HELD)
    known = bob.until(job_id, {"PROCESSING"})["native_id"]
    copy = bob.run("sbatch", "--parsable", f"{attempt_directory(bob, job_id)}/script.sh").stdout.strip()
    wait_until(lambda: bob.sacct(copy, "End")[0] != "Unknown", f"the end of {copy}")
    assert bob.sacct(copy, "State", "ExitCode") == ["FAILED", CLAIMED_BY_ANOTHER]
    assert bob.run("sacct", "-nXP", "-j", f"{copy}.0", "-o", "JobID").stdout.strip() in ("", copy), "a step was started"
    let_go(bob, job_id)
    done = bob.finish(job_id)
    assert (done["state"], done["native_id"], executions(bob, job_id)) == ("COMPLETED", known, 1)


@pytest.fixture
def spoilt(cluster: Cluster, bob: Person) -> Iterator[Person]:
    """Bob with a second daemon on whose PATH sbatch loses answers."""
    bob.write("~/bin/sbatch", SPOILT, executable=True)
    bob.write("~/bin/faults", "drop\nhang\ndie\n")
    other = bob.at("spoilt", CONFIG + "command_timeout_s = 4\n")
    path = bob.run("sh", "-c", "echo $PATH").stdout.strip()
    person = Person(cluster, "bob", {**other.env, "PATH": f"{bob.home}/bin:{path}"})
    yield person
    person.kill_daemon("TERM")


def accounted(person: Person, job_id: str) -> list[str]:
    """What the accounting has under the name of the job's first attempt, once it knows that it ended."""

    def rows() -> list[str]:
        return person.run("sacct", "-nXP", f"--name={job_id}-1", "-o", "JobID,State").stdout.split()

    def has_ended() -> bool:
        found = rows()
        return bool(found) and not any(state in row for row in found for state in ("PENDING", "RUNNING"))

    wait_until(has_ended, "the accounting of its end")
    return rows()


def test_submit_runs_each_job_once_when_sbatch_answer_is_lost(spoilt: Person) -> None:
    jobs = [spoilt.start(f"spoilt-{fault}", counted(0)) for fault in ("drop", "hang", "die")]
    for job_id in jobs:
        job = spoilt.finish(job_id)
        assert (job["state"], executions(spoilt, job_id)) == ("COMPLETED", 1)
        assert accounted(spoilt, job_id) == [f"{job['native_id']}|COMPLETED"]
    assert spoilt.read("~/bin/faults".replace("~", spoilt.home)) == ""


def test_acknowledged_jobs_run_once_when_daemon_is_killed_immediately(bob: Person) -> None:
    """Five times, as early as a kill can come from outside; the next command starts the next daemon."""
    model = bob.model("empty", {"README": "nothing here\n"})
    manifest = bob.manifest("kill-at-once", counted(0))
    jobs = []
    for pause_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        jobs.append(bob.submit(manifest, model))
        time.sleep(pause_s)
        bob.kill_daemon()
    for job_id in jobs:
        assert (bob.finish(job_id)["state"], executions(bob, job_id)) == ("COMPLETED", 1)
