"""Commands inside a learner whose job's step 0 has all CPUs, memory and GPUs of the job."""

from __future__ import annotations

import json

from tests.cluster.executions import wait_until
from tests.cluster.people import Person


def test_exec_and_top_reach_learner_when_step_holds_all_job_resources(alice: Person) -> None:
    job = alice.start("entered", "echo ready; sleep 600")
    alice.until(job, {"PROCESSING"})
    wait_until(lambda: "ready" in alice.logs(job), f"{job} to be ready")
    asked = "cat; (: </dev/nvidia0) 2>&1 | grep -o 'No such device'; echo $LEARNER_ID >&2; exit 7"
    done = alice.run("sh", "-c", 'echo in | ffdl exec "$0" -- bash -c "$1"', job, asked, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\nNo such device\n", "1\n")
    (table,) = json.loads(alice.run("ffdl", "top", "--once", "--json", job).stdout)["learners"]
    assert "sleep 600" in [row["command"] for row in table["processes"]]
    alice.run("ffdl", "cancel", job)
    alice.until(job, {"CANCELLED"})
