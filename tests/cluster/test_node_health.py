"""A line of the kernel's log on a real node: Slurm runs the program of root's, the job has it among its events, its
incident is the node's, and the next job keeps off that node. And drains, with the real slurmctld."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC

LOG = "/run/planted.log"
CONF = "/etc/slurm/slurm.conf"
LINES = f"HealthCheckProgram={LIBEXEC}/health\\nHealthCheckInterval=5\\nHealthCheckNodeState=ANY\\n"
NODES = ("n1", "n2", "n3")
OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
RULES = (
    "\n[nodes]\nexclude_unreliable = true\nthreshold = 1\n\n"
    '[[fault_policies]]\nname = "planted"\nmatch = "^no licence$"\n'
)
POLICY = 'kind = "user.licence"\nstop_retrying = true\n'
PLACE = "/tmp/health-that-drains"


@pytest.fixture(scope="module")
def watched(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with our program as Slurm's HealthCheckProgram."""
    plain = cluster.run("ctl", ["cat", CONF]).stdout
    cluster.run("ctl", ["sh", "-c", f"printf '{LINES}' >>{CONF} && scontrol reconfigure"])
    try:
        for node in NODES:
            cluster.run(node, ["sh", "-c", f": >>{LOG}"])
        looked = "until [ -e /run/ffdl/health/looked ]; do sleep 0.2; done"
        for node in NODES:
            cluster.run(node, ["sh", "-c", looked], timeout_s=600)
        yield cluster
    finally:
        cluster.run("ctl", ["sh", "-c", 'printf "%s" "$0" >/etc/slurm/slurm.conf && scontrol reconfigure', plain])
        cluster.wait_idle()
        for node in NODES:
            cluster.run(node, ["rm", "-rf", "/run/ffdl/health", LOG, PLACE])


@pytest.fixture(scope="module")
def careful(alice: Person) -> Iterator[Person]:
    """A user whose configuration has rules for nodes and a policy."""
    person = alice.at("careful", CONFIG + RULES + POLICY)
    yield person
    person.kill_daemon("TERM")


def plant(cluster: Cluster, node: str, line: str) -> None:
    cluster.run(node, ["sh", "-c", f'echo "$0" >>{LOG}', line])


def report(person: Person, what: str) -> Any:
    # Its exit code says for monitoring what is new.
    return json.loads(person.run("ffdl", "report", what, "--json", check=False).stdout)[what]


@pytest.fixture(scope="module")
def sick(watched: Cluster, careful: Person) -> dict[str, Any]:
    """A job that failed on n1 while its GPU fell off the bus."""
    command = "echo begun; while [ ! -e $RESULT_DIR/go ]; do sleep 0.1; done; exit 7"
    job_id = careful.start("sick", command, "-w", "n1")
    careful.until(job_id, {"PROCESSING"})
    plant(watched, "n1", OFF_THE_BUS)
    found = "until grep -qs 'off the bus' /run/ffdl/health/incidents; do sleep 0.2; done"
    watched.run("n1", ["sh", "-c", found], timeout_s=600)
    careful.run("sh", "-c", f"touch {careful.state}/jobs/{job_id}/attempt-1/results/go")
    return {"id": job_id, "job": careful.finish(job_id)}


def test_job_events_contain_planted_gpu_health_finding(careful: Person, sick: dict[str, Any]) -> None:
    text = careful.read(f"{careful.state}/jobs/{sick['id']}/attempt-1/events/node-0.jsonl")
    told = [event["x_lines"] for event in map(json.loads, text.splitlines()) if event["kind"] == "health"]
    (finding,) = [json.loads(line) for lines in told for line in lines.splitlines()]
    assert (finding["kind"], finding["device"]) == ("gpu", "0000:3b:00")
    assert finding["text"].startswith(OFF_THE_BUS)


def test_gpu_incident_is_attributed_to_node(careful: Person, sick: dict[str, Any]) -> None:
    assert sick["job"]["state"] == "FAILED"
    (row,) = [row for row in report(careful, "faults")["rows"] if row["job"] == sick["id"]]
    assert (row["kind"], row["nodes"]) == ("node.gpu", ["n1"])
    assert any(OFF_THE_BUS in line["text"] for line in row["evidence"])


@pytest.mark.full
def test_node_exclusion_keeps_next_job_off_failed_node_unless_named(careful: Person, sick: dict[str, Any]) -> None:
    (node,) = report(careful, "nodes")["nodes"]
    assert (node["node"], node["kinds"]) == ("n1", {"node.gpu": 1})
    assert node["excluded_until"] is not None
    assert "n1" in careful.run("ffdl", "report", "nodes").stdout
    job = careful.finish(careful.start("elsewhere", "hostname"))
    assert (job["state"], job["nodes"] in {"n2", "n3"}) == ("COMPLETED", True)
    assert any(warning.startswith("kept off n1, which failed 1 job lately") for warning in job["warnings"])
    named = careful.finish(careful.start("there", "hostname", "-w", "n1"))
    assert (named["state"], named["nodes"]) == ("COMPLETED", "n1")


@pytest.mark.full
def test_fault_policy_stops_retries_of_matching_failure(careful: Person, sick: dict[str, Any]) -> None:
    del sick
    job = careful.finish(careful.start("unlicensed", "echo no licence; exit 1", extra="batch: {retry: {failures: 3}}"))
    assert (job["state"], job["attempt"]) == ("FAILED", 1)
    assert job["message"].endswith("the site's fault policy planted stops here")


def test_health_check_resumes_only_nodes_that_it_drained_itself(watched: Cluster, sick: dict[str, Any]) -> None:
    del sick

    def reason() -> str:
        shown = watched.run("ctl", ["scontrol", "-o", "show", "node", "n3"]).stdout
        return shown.partition("Reason=")[2].strip() if "DRAIN" in shown else ""

    def look() -> None:
        watched.run("n3", ["env", "SLURMD_NODENAME=n3", f"{PLACE}/health"])

    drains = """s/"HEALTH_DRAIN": "no"/"HEALTH_DRAIN": "yes"/; s/"HEALTH_RESUME": "no"/"HEALTH_RESUME": "yes"/"""
    drains += """; s/"HEALTH_GPUS": "yes"/"HEALTH_GPUS": "no"/"""
    own = f's#"FFDL_RUN": "/run/ffdl"#"FFDL_RUN": "{PLACE}/run"#; s#{LOG}#{PLACE}/log#'
    edit = f"sed -i '{drains}; {own}' {PLACE}/ffdl_health/settings.py"
    edit += f" && sed -i 's/SELDOM_S = 55.0/SELDOM_S = 0.0/' {PLACE}/ffdl_health/program.py"
    # The node has the GPU, and nvidia-smi does not list it, which confirms the line.
    edit += f" && sed -i 's#/sys/bus/pci/devices#{PLACE}/pci#' {PLACE}/ffdl_health/pci.py"
    edit += f""" && sed -i 's#"PATH": "#&{PLACE}/bin:#' {PLACE}/ffdl_health/bounded.py"""
    smi, gpu = f"{PLACE}/bin/nvidia-smi", f"{PLACE}/pci/0000:3b:00.0"
    edit += f" && mkdir -p {PLACE}/bin {gpu} && echo 0x10de >{gpu}/vendor"
    edit += f" && printf '#!/bin/sh\\nexit 15\\n' >{smi} && chmod 755 {smi}"
    watched.run("n3", ["sh", "-c", f"cp -r {LIBEXEC} {PLACE} && {edit} && : >{PLACE}/log"])
    look()
    watched.run("ctl", ["scontrol", "update", "nodename=n3", "state=drain", "reason=fan is loud"])
    try:
        watched.run("n3", ["sh", "-c", f'echo "$0" >>{PLACE}/log', OFF_THE_BUS])
        look()
        assert reason().startswith("fan is loud")
        watched.run("ctl", ["scontrol", "update", "nodename=n3", "state=resume"])
        look()
        assert reason().startswith("ffdl: gpu 0000:3b:00 NVRM: Xid")
        watched.run("n3", ["sh", "-c", f"rm -r {PLACE}/run && : >{PLACE}/log"])  # as a reboot does
        look()
        wait_until(lambda: not reason(), "the node to be resumed")
        watched.run("ctl", ["scontrol", "update", "nodename=n3", "state=drain", "reason=ask ffdl: first"])
        look()
        assert reason().startswith("ask ffdl: first")
    finally:
        watched.run("ctl", ["scontrol", "update", "nodename=n3", "state=resume"], check=False)
