"""One manifest from the command line to stored results, on real Slurm and in a real container."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.outcome.controller_events import Event, EventKind, decode_events
from ffdl_batch.host.fast_dataclass import dataclass
from tests.cluster.images import CHECKOUT
from tests.cluster.people import EXAMPLE, Completed, Person
from tests.cluster.rig import Cluster

STATES = ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
SLURMCTLD = "10.77.0.1:6817"
PROBE = """\
import json, os, socket, sys

def reach(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=60).close()
        return "reached"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)

found = {address: reach(address) for address in sys.argv[1:]}
interfaces = sorted(name for _, name in socket.if_nameindex())
container = os.environ.get("APPTAINER_CONTAINER")
print("PROBE" + json.dumps({"reach": found, "interfaces": interfaces, "image": container,
                            "munge": os.path.exists("/run/munge/munge.socket.2")}))
"""


@dataclass(frozen=True)
class Walk:
    """What the module's jobs became, by name, and the command that submitted digits."""

    said: Completed
    jobs: dict[str, dict[str, Any]]


def fetch_digits() -> None:
    """Run the example's own fetching, on the host, where the package index can be reached."""
    path = CHECKOUT / "docs" / "examples" / "digits" / "fetch_data.py"
    spec = importlib.util.spec_from_file_location("fetch_data", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() == 0


@pytest.fixture(scope="module")
def listener(cluster: Cluster) -> Iterator[str]:
    """The address of something that every node can connect to, and a learner must not."""
    serve = (
        "import socket\nserver = socket.create_server(('10.77.0.1', 0))\nprint(server.getsockname()[1], flush=True)\n"
        "while True:\n    server.accept()[0].close()\n"
    )
    process = cluster.popen("ctl", ["python3", "-c", serve], user="alice")
    assert process.stdout is not None
    yield f"10.77.0.1:{int(process.stdout.readline())}"
    cluster.kill(process)


@pytest.fixture(scope="module")
def walk(alice: Person, listener: str) -> Walk:
    """Digits, and two jobs that look for the network."""
    fetch_digits()
    copy = f"rm -rf digits && mkdir -p digits/data && cd {EXAMPLE} && cp -r manifest.yml model ~/digits"
    alice.run("sh", "-c", f"{copy} && cp -r data/digits ~/digits/data && chmod -R u+w ~/digits")
    said = alice.run("ffdl-submit", "manifest.yml", "model", cwd=f"{alice.home}/digits")
    model = alice.model("probe", {"probe.py": PROBE})
    probe = alice.manifest("probe", f"python3 probe.py {listener} {SLURMCTLD}")
    ids = {level: alice.submit(probe, model, f"--network={level}") for level in ("auto", "host")}
    (ids["digits"],) = re.findall("training-[0-9a-z]{9}", said.stdout)
    return Walk(said, dict(zip(ids, alice.finish_all(list(ids.values())), strict=True)))


def events(alice: Person, job: dict[str, Any], source: str) -> list[Event]:
    """What one controller of the job reported."""
    return decode_events(alice.host_path(f"{job['job_dir']}/attempt-1/events/{source}.jsonl").read_text())


def test_submit_prints_submitted_batch_job_line_like_sbatch(walk: Walk) -> None:
    assert re.fullmatch(r"Submitted batch job training-[0-9a-z]{9}\n", walk.said.stdout)
    assert walk.said.returncode == 0


def test_submit_parsable_prints_bare_job_id(walk: Walk) -> None:
    assert re.fullmatch("training-[0-9a-z]{9}", walk.jobs["auto"]["id"])  # Person.submit uses --parsable


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("true", 0, marks=pytest.mark.full),
        pytest.param("exit 3", 3, marks=pytest.mark.full),
        ("kill -TERM $$", 143),
    ],
)
def test_submit_wait_exits_with_exit_status_of_job(alice: Person, command: str, code: int) -> None:
    model = alice.model("empty", {"README": "nothing here\n"})
    done = alice.run("ffdl-submit", "--wait", alice.manifest("waited", command), model, check=False, timeout_s=600)
    assert done.returncode == code, done
    (job_id,) = re.findall("^Submitted batch job (training-[0-9a-z]{9})$", done.stdout, re.MULTILINE)
    assert done.stdout.startswith(f"Submitted batch job {job_id}\n")
    assert alice.show(job_id)["ended_at"]


def test_completed_job_has_ordered_timestamp_for_every_state(walk: Walk) -> None:
    job = walk.jobs["digits"]
    assert (job["state"], job["error_code"], job["exit_code"]) == ("COMPLETED", "000", 0), job
    times = [job["timestamps"][state] for state in STATES]
    assert times == sorted(times)
    assert list(job["timestamps"]) == STATES


def test_job_events_list_every_state_in_order_without_gaps(alice: Person, walk: Walk) -> None:
    lines = alice.run("ffdl", "events", "--json", walk.jobs["digits"]["id"]).stdout.splitlines()
    seen = [json.loads(line)["event"] for line in lines]
    assert [event["state"] for event in seen] == STATES
    assert [event["seq"] for event in seen] == list(range(1, len(STATES) + 1))


def test_digits_example_reaches_expected_accuracy(alice: Person, walk: Walk) -> None:
    job = walk.jobs["digits"]
    assert job["results"] == f"{alice.home}/digits/data/results/{job['id']}"
    result = json.loads(alice.read(f"{job['results']}/result.json"))
    assert result["accuracy"] >= 0.95
    assert (result["trained_on"], result["tested_on"], result["epochs"]) == (1437, 360, 100)


def test_results_logs_and_model_are_stored_in_ffdl_layout(alice: Person, walk: Walk) -> None:
    results = walk.jobs["digits"]["results"]
    names = alice.run("find", results, "-type", "f", "-printf", "%P\n").stdout.split()
    assert set(names) == {
        "result.json",
        "weights.npz",
        "learner-1/training-log.txt",
        "learner-1/.log-copy-complete",
        "_submitted_code/model.zip",
    }
    assert "epoch 100/100" in alice.read(f"{results}/learner-1/training-log.txt")


def test_slurm_accounting_has_one_allocation_with_requested_resources(alice: Person, walk: Walk) -> None:
    job = walk.jobs["digits"]
    token = f"{job['id']}-1"
    alice.accounted(job["native_id"])
    fields = "JobID,JobName,State,ExitCode,AllocTRES,NNodes,Timelimit,User"
    out = alice.run("sacct", "-n", "-X", "-P", "-S", "now-1days", f"--name={token}", "-o", fields).stdout
    (record,) = [line.split("|") for line in out.splitlines()]
    assert record[:4] == [job["native_id"], token, "COMPLETED", "0:0"]
    tres = dict(part.split("=") for part in record[4].split(","))
    assert (tres["cpu"], tres["mem"], tres["node"], tres["gres/gpu"]) == ("1", "512M", "1", "1")
    assert record[5:] == ["1", "00:10:00", "alice"]


def test_head_and_node_controllers_record_claim_phases_and_final_outcome(alice: Person, walk: Walk) -> None:
    job = walk.jobs["digits"]
    head, node = events(alice, job, "head"), events(alice, job, "node-0")
    claimed = next(event for event in head if event.kind is EventKind.CLAIMED)
    assert (claimed.fields["native_id"], claimed.fields["host"]) == (job["native_id"], job["nodes"])
    assert head[-1].kind is EventKind.FINAL and head[-1].fields["outcome"] == "completed"
    started = next(event for event in node if event.kind is EventKind.LEARNER_STARTED)
    assert started.fields["host"] == job["nodes"]
    assert [event.fields["phase"] for event in node if event.fields.get("status") == "ended"] == [
        "load-model",
        "load-data",
        "learner",
        "store-results",
        "store-logs",
    ]
    steps = alice.run("sacct", "-n", "-P", "-j", job["native_id"], "-o", "JobID").stdout.split()
    assert f"{job['native_id']}.0" in steps and f"{job['native_id']}.1" not in steps


def probed(alice: Person, job: dict[str, Any]) -> dict[str, Any]:
    """What the probe found."""
    assert job["state"] == "COMPLETED", job
    line = next(line for line in alice.logs(job["id"]).splitlines() if line.startswith("PROBE"))
    return dict(json.loads(line.removeprefix("PROBE")))


def test_learner_without_network_reaches_no_host(alice: Person, walk: Walk, listener: str) -> None:
    job = walk.jobs["auto"]
    assert (job["network_requested"], job["network"]) == ("auto", "none")
    found = probed(alice, job)
    assert found["image"] == "/shared/images/custom.sif"
    assert found["interfaces"] == ["lo"]
    assert found["reach"] == {listener: "Network is unreachable", SLURMCTLD: "Network is unreachable"}
    assert not found["munge"]


def test_network_probe_reaches_hosts_from_node_and_host_network(alice: Person, walk: Walk, listener: str) -> None:
    """The control: the addresses answer, so what the isolated learner saw was the isolation."""
    both = {listener: "reached", SLURMCTLD: "reached"}
    node = walk.jobs["auto"]["nodes"]
    outside = alice.run("python3", "-c", PROBE, listener, SLURMCTLD, node=node).stdout
    assert json.loads(outside.removeprefix("PROBE"))["reach"] == both
    job = walk.jobs["host"]
    assert job["network"] == "host"
    assert probed(alice, job)["reach"] == both


def test_final_record_and_claim_name_native_job_in_private_directories(alice: Person, walk: Walk) -> None:
    job = walk.jobs["digits"]
    attempt = Path(f"{job['job_dir']}/attempt-1")
    final = json.loads(alice.read(str(attempt / "final.json")))
    assert (final["outcome"], final["stored"], final["native_id"]) == ("completed", True, job["native_id"])
    assert json.loads(alice.read(str(attempt / "claim" / "owner.json")))["native_id"] == job["native_id"]
    modes = alice.run("stat", "-c", "%a %U", job["job_dir"], str(attempt)).stdout.splitlines()
    assert modes == ["700 alice", "700 alice"]
