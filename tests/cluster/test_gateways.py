"""Both ways to speak to Slurm pass the scheduler port's own suite on the real cluster, and both carry a job."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.contract_runs import AT_LEAST, GATEWAYS, count_passed, start_contract
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.test_options import SAME

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def suites(cluster: Cluster, alice: Person) -> dict[str, subprocess.CompletedProcess[str]]:
    """The suite over each gateway, both at once: most of its time is waiting."""
    running = {gateway: start_contract(alice, gateway, "/opt/ffdl/venv/bin/python") for gateway in GATEWAYS}
    done = {}
    try:
        for gateway, process in running.items():
            text, _ = process.communicate(timeout=1200)
            done[gateway] = subprocess.CompletedProcess([], process.returncode, text, "")
    finally:
        for process in running.values():
            cluster.kill(process)
    return done


@pytest.fixture(scope="module")
def pyslurm(alice: Person) -> Iterator[Person]:
    """Alice with a daemon that speaks to Slurm through libslurm."""
    person = alice.at("pyslurm", '[backend.slurm]\ngateway = "pyslurm"\n')
    yield person
    person.kill_daemon("TERM")


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_gateway_passes_scheduler_contract(suites: dict[str, subprocess.CompletedProcess[str]], gateway: str) -> None:
    assert count_passed(suites[gateway]) >= AT_LEAST


OPTIONS = (
    "--time=1:30", "--partition=main,short", "--account=ffdl", "--qos=high", "--nodelist=n1", "--exclude=n2",
    "--gres=gpu:v100:2", "--cpus-per-task=3", "--mem=300M", "--begin=2040-01-01T12:34:00", "--requeue", "--hold",
    "--signal=USR1@90", "--mail-type=END,FAIL", "--mail-user=alice@example.org", "--comment=it's $(x) \"quoted\" %j",
)  # fmt: skip


def test_cli_and_pyslurm_gateways_submit_identical_job_fields(alice: Person, pyslurm: Person) -> None:
    fields = []
    for person in (alice, pyslurm):
        job = person.until(person.start("options", "true", *OPTIONS), {"QUEUED"})
        found = person.batch_fields(job["native_id"])
        fields.append({name: found.get(name) for name in SAME})
        person.run("ffdl", "cancel", job["id"])
    assert fields[1] == fields[0]


def test_pyslurm_daemon_completes_fails_and_cancels_jobs(pyslurm: Person) -> None:
    other = pyslurm
    model = other.model("empty", {"README": "nothing here\n"})
    command = "echo here; echo 42 > $RESULT_DIR/answer"
    manifests = [other.manifest("good", command, learners=2), other.manifest("bad", "exit 9"),
                 other.manifest("long", "sleep 300")]  # fmt: skip
    comment = 'it\'s $(x) "quoted" %j'
    good, bad, long = other.submit_all(manifests, model, "--time=5", "--comment", comment, "--mail-type=NONE")
    other.until(long, {"PROCESSING"})
    other.run("ffdl", "cancel", long)
    ended = other.finish_all([good, bad, long])
    assert [job["state"] for job in ended] == ["COMPLETED", "FAILED", "CANCELLED"], ended
    assert other.read(f"{ended[0]['results']}/answer") == "42\n"
    assert (ended[1]["error_code"], ended[1]["exit_code"]) == ("C201", 9)
    fields = other.batch_fields(ended[0]["native_id"])
    assert (fields["JobName"], fields["NumNodes"], fields["TimeLimit"]) == (f"{good}-1", "2", "00:05:00")
    assert fields["Comment"] == f"ffdl-batch:job/1 {comment}"  # behind the mark that the nodes' prolog reads
