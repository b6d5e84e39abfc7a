"""Network levels from the manifest to the running learner: what is asked for, what is had, and what ends the job."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC
from tests.cluster.rig.topology import FEATURES, node_named
from tests.cluster.talking import TALK, found_by, talk
from tests.cluster.trainings import attempt_log, begins, history, native_id, saver_model, steps, training, until_logged

SPREAD = "batch: {placement: spread, network: job}"
CONF = "/etc/apptainer/apptainer.conf"
HOOKS = "/etc/slurm/prolog.d"
SERVE = r"""
import socket, sys, threading
name, address, port = sys.argv[1:]
own = address, int(port)
tcp, udp = socket.create_server(own), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(own)
said = f" of {name}:{port}".encode()
def echo():
    while True:
        text, peer = udp.recvfrom(100)
        udp.sendto(b"udp" + said, peer)
threading.Thread(target=echo, daemon=True).start()
print("ready", flush=True)
while True:
    connection, peer = tcp.accept()
    connection.sendall(b"tcp" + said)
    connection.close()
"""
VISIT = r"""
import json, socket, sys
def ask(kind, address, port, patience_s):
    try:
        with socket.socket(socket.AF_INET, kind) as asked:
            asked.settimeout(patience_s)
            asked.connect((address, port))
            asked.send(b"?")
            return asked.recv(100).decode()
    except OSError as error:
        return "none"
found = {}
for host, port in (("ctl", 7000), ("10.77.0.1", 7000), ("10.77.0.1", 7001), ("10.77.0.11", 7000), ("10.77.0.11", 7001),
                   ("10.77.0.12", 7001), ("10.77.0.2", 7000)):
    patience_s = 60 if f"{host}:{port}" in sys.argv or len(sys.argv) == 1 else 2  # who is to answer may be slow
    found[f"{host}:{port}"] = [ask(kind, host, port, patience_s) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
print("found", json.dumps(found), flush=True)
"""


def is_idle(cluster: Cluster, node: str) -> bool:
    """Whether Slurm would give the node to the next job."""
    return cluster.run("ctl", ["sinfo", "-h", "-p", "main", "-n", node, "-o", "%T"]).stdout.strip() == "idle"


@contextmanager
def changed(cluster: Cluster, node: str, change: str, back: str) -> Iterator[None]:
    """Two shell commands of root's around what is tried in between."""
    cluster.run(node, ["sh", "-ec", change])
    try:
        yield
    finally:
        cluster.run(node, ["sh", "-ec", back])


def test_job_network_connects_learners_and_blocks_cluster_hosts(cluster: Cluster, alice: Person) -> None:
    job = talk(alice, "meet", SPREAD, 2, "--comment=my run")
    assert (job["network_requested"], job["network"], job["network_by"]) == ("job", "job", "vxlan")
    first, second = (found_by(alice, job, learner) for learner in (1, 2))
    assert first["addresses"] == second["addresses"] == ["10.200.0.1", "10.200.1.1"]
    assert first["master"] == second["master"] == "10.200.0.1"
    for own, said in zip(first["addresses"], (first, second), strict=True):
        assert said["tcp"] == [f"tcp {i} to {own}" for i in (0, 1)]
        assert said["udp"] == [f"udp {i} to {own}" for i in (0, 1)]
        assert "unreachable" in said["slurmctld"] and all("unreachable" in text for text in said["slurmd"])
        assert "refused" in said["lo"]
        assert "10.77." not in said["hosts"]
    assert alice.sacct(job["native_id"], "Comment")[0] in ("ffdl-batch:job/1 my run", "")
    shown = alice.run("ffdl", "show", job["id"]).stdout
    assert "Network achieved:    job (vxlan)\n" in shown


@pytest.mark.full
def test_job_network_gives_learners_on_same_node_separate_addresses(alice: Person) -> None:
    job = talk(alice, "packed", "batch: {placement: pack}", 3, memory="1700MiB")
    assert (job["network_requested"], job["network"], job["network_by"]) == ("auto", "job", "vxlan")
    found = [found_by(alice, job, learner) for learner in (1, 2, 3)]
    assert found[0]["addresses"] == ["10.200.0.1", "10.200.0.2", "10.200.1.1"]
    for own, said in zip(found[0]["addresses"], found, strict=True):
        assert said["tcp"] == [f"tcp {i} to {own}" for i in range(3)]
        assert "unreachable" in said["slurmctld"]


@pytest.mark.full
def test_auto_network_gives_single_learner_no_network(alice: Person) -> None:
    job_id = alice.start("alone", "cat /proc/net/dev; sleep 2", gpus=0)
    job = alice.finish(job_id)
    assert (job["network_requested"], job["network"], job["state"]) == ("auto", "none", "COMPLETED")
    assert job["network_by"] == "apptainer --net --network none"
    assert re.findall(r"^ *(\w+): ", attempt_log(alice, job, 1), re.MULTILINE) == ["lo"]


@pytest.mark.full
def test_single_learner_without_network_resolves_its_names_to_loopback(alice: Person) -> None:
    """By the name of its host, as mpirun and gloo do, and by the names that it is told."""
    asked = "socket.gethostname(), os.environ['MASTER_ADDR'], 'localhost', prefix + '-0', f'{prefix}-0.{prefix}'"
    model = alice.model(
        "names",
        {
            "names.py": "import os, socket\nprefix = os.environ['LEARNER_NAME_PREFIX']\n"
            f"for name in ({asked}):\n    print('found', name, socket.gethostbyname(name))\n"
        },
    )
    shell = 'python3 -c "import socket; print(socket.gethostbyname(socket.gethostname()))"'
    text = alice.manifest("names", f"{shell} && python3 names.py", gpus=0)
    job = alice.finish(alice.submit(text, model))
    log = attempt_log(alice, job, 1)
    assert (job["network"], job["state"]) == ("none", "COMPLETED"), log
    assert "127.0.0.1" in log.splitlines()
    name = f"learner-{job['id']}-0"
    said = [line.split()[1:] for line in log.splitlines() if line.startswith("found ")]
    names = (name, "127.0.0.1", "localhost", name, f"{name}.learner-{job['id']}")
    assert said == [[one, "127.0.0.1"] for one in names]


@pytest.mark.full
def test_auto_network_is_none_when_daemon_host_has_no_apptainer(cluster: Cluster, alice: Person) -> None:
    with changed(cluster, "ctl", "mount --bind /dev/null /usr/bin/apptainer", "umount /usr/bin/apptainer"):
        lone = alice.at("bare", CONFIG)
        manifest = lone.manifest("bare", "cat /proc/net/dev; sleep 2", gpus=0)
        job = lone.finish(lone.submit(manifest, lone.model("empty", {"README": "nothing here\n"})))
    assert (job["network"], job["network_by"], job["warnings"]) == ("none", "apptainer --net --network none", [])
    assert re.findall(r"^ *(\w+): ", attempt_log(lone, job, 1), re.MULTILINE) == ["lo"]


@pytest.mark.full
def test_network_host_gives_learner_the_node_network(alice: Person) -> None:
    job = alice.finish(alice.start("hosted", "cat /proc/net/dev; sleep 2", gpus=0, extra="batch: {network: host}"))
    assert (job["network"], job["network_by"], job["state"]) == ("host", "none", "COMPLETED")
    assert len(re.findall(r"^ *(\w+): ", attempt_log(alice, job, 1), re.MULTILINE)) > 1


@pytest.mark.full
def test_array_elements_each_have_a_job_network(alice: Person) -> None:
    model = alice.model("talk", {"talk.py": TALK})
    extra = "batch: {placement: spread, network: job, array: '0-1'}"
    manifest = alice.manifest("elements", "python3 talk.py", extra, gpus=0, learners=2)
    ids = alice.run("ffdl-submit", "--parsable", manifest, model).stdout.split()
    listed = alice.run("ffdl", "list", "--json", "--array", ids[0]).stdout
    elements = sorted(set(re.findall(r"training-[0-9a-z]{9}", listed)))
    assert len(elements) == 2
    for job in alice.finish_all(elements):
        assert (job["state"], job["network"], job["network_by"]) == ("COMPLETED", "job", "vxlan"), job
        said = found_by(alice, job, 2)
        assert said["tcp"] == [f"tcp {i} to 10.200.1.1" for i in (0, 1)]


@pytest.mark.full
def test_resumed_job_has_job_network_after_halt(alice: Person) -> None:
    """Halted and resumed: another allocation, another network of the same addresses."""
    extra = "batch: {placement: spread, network: job, checkpoint: {grace_s: 4}}"
    job_id = alice.submit(training(alice, "goes-on", extra=extra, gpus=0, learners=2), saver_model(alice))
    until_logged(alice, job_id, "step 3")
    alice.run("ffdl", "halt", job_id)
    assert alice.finish(job_id)["state"] == "HALTED"
    alice.run("ffdl", "resume", job_id)
    job = alice.finish(job_id)
    assert (job["state"], job["network"], job["network_by"]) == ("COMPLETED", "job", "vxlan"), job
    assert [attempt["network_by"] for attempt in job["attempts"]] == ["vxlan", "vxlan"]
    log = attempt_log(alice, job, 2)
    assert begins(log)[0]["RESUME"] == "1" and steps(log)[-1] == 300


@pytest.mark.full
def test_requeued_job_completes_with_job_network(alice: Person) -> None:
    extra = "batch: {placement: spread, network: job, checkpoint: {grace_s: 4}}"
    job_id = alice.submit(training(alice, "again", extra=extra, gpus=0, learners=2), saver_model(alice), "--requeue")
    until_logged(alice, job_id, "step 3")
    alice.run("scontrol", "requeue", native_id(alice, job_id))
    job = alice.finish(job_id)
    assert (job["state"], job["network_by"]) == ("COMPLETED", "vxlan"), job


def test_network_egress_reaches_only_allowed_destinations(cluster: Cluster, alice: Person) -> None:
    """A server on the controller's host and one on a node of the job; the same questions at level host as a control."""
    server, visitor = alice.write("~/serve.py", SERVE), alice.model("visit", {"visit.py": VISIT})
    names = {node_named(name).address: name for name in ("ctl", "login2", "n1", "n2")}
    running = [
        cluster.popen(name, ["python3", server, name, address, str(port)], user="alice")
        for address, name in names.items()
        for port in (7000, 7001)
    ]
    let_through = ("ctl:7000", "10.77.0.1:7000", "10.77.0.11:7001")
    try:
        assert all(one.stdout is not None and one.stdout.readline() == "ready\n" for one in running)
        found = {}
        for level, places in (("{level: egress, allow: ['ctl:7000', '10.77.0.11:7001']}", let_through), ("host", ())):
            extra = f"batch: {{placement: spread, network: {level}}}"
            manifest = alice.manifest("visitors", " ".join(("python3 visit.py", *places)), extra, gpus=0, learners=2)
            job = alice.finish(alice.submit(manifest, visitor, "-w", "n1,n2"))
            assert job["state"] == "COMPLETED", (job["message"], attempt_log(alice, job, 1))
            found[job["network"]] = [found_by(alice, job, learner) for learner in (1, 2)]
            assert job["network_by"] == {"egress": "vxlan+nat", "host": "none"}[job["network"]]
    finally:
        for one in running:
            cluster.kill(one)
    for said in found["host"]:
        for place, answers in said.items():
            host, _, port = place.partition(":")
            assert answers == [f"{kind} of {names.get(host, host)}:{port}" for kind in ("tcp", "udp")]
    for here, there in zip(found["egress"], found["host"], strict=True):
        for place, answers in here.items():
            assert answers == (there[place] if place in let_through else ["none", "none"]), place


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        pytest.param(
            f"sed -i.whole '/ffdl.5.net/d' {CONF}",
            f"mv {CONF}.whole {CONF}",
            f"{CONF}: 1 of 32 slots are not listed, the first is 'allow netns paths = /run/ffdl/5/net'",
            id="prolog says what is missing",
        ),
        pytest.param(
            f"mount -t tmpfs none {LIBEXEC}",
            f"umount {LIBEXEC}",
            "Slurm's prolog on this node must run prolog.d/50-ffdl",
            id="no prolog",
        ),
    ],
)
@pytest.mark.full
def test_job_fails_without_starting_learners_when_node_has_no_network(
    cluster: Cluster, alice: Person, change: str, back: str, said: str
) -> None:
    with changed(cluster, "n3", change, back):
        job = alice.finish(alice.start("closed", "echo begun", "-w", "n2,n3", gpus=0, learners=2, extra=SPREAD))
    assert (job["state"], job["error_code"], len(job["attempts"])) == ("FAILED", "S107", 1), job
    assert "node n3 has no network for this job: " in job["message"] and said in job["message"], job["message"]
    assert job["message"].endswith("; the job names its nodes, so no other is tried")
    assert job["network_by"] == ""
    assert "begun" not in attempt_log(alice, job, 1) + attempt_log(alice, job, 1, 2)
    for node in ("n2", "n3"):
        wait_until(lambda node=node: is_idle(cluster, node), f"{node} to be idle")  # type: ignore[misc]


@pytest.mark.full
def test_job_continues_on_other_nodes_when_node_lacks_network_prolog(cluster: Cluster, alice: Person) -> None:
    """Slurm takes the first nodes first. The one that lacks the programs is not drained, and the job keeps off it."""
    with changed(cluster, "n1", f"mount -t tmpfs none {LIBEXEC}", f"umount {LIBEXEC}"):
        job_id = alice.start("elsewhere", "echo begun; sleep 1", gpus=0, learners=2, extra=SPREAD)
        job = alice.finish(job_id)
    assert job["state"] == "COMPLETED", textwrap.shorten(str(job), 2000)
    first, second = job["attempts"]
    assert (first["error_code"], first["interruption"], first["nodes"]) == ("S107", "node_failure", "n[1-2]")
    assert (second["nodes"], second["network_by"]) == ("n[2-3]", "vxlan")
    assert "begun" not in attempt_log(alice, job, 1) + attempt_log(alice, job, 1, 2)
    assert "begun" in attempt_log(alice, job, 2)
    assert any("node n1 has no network for this job: " in entry["message"] for entry in history(alice, job_id))
    wait_until(lambda: is_idle(cluster, "n1"), "n1 to be idle")


@pytest.mark.full
def test_job_fails_with_s107_when_apptainer_rejects_job_network(cluster: Cluster, alice: Person) -> None:
    """The prolog looks at apptainer.conf before; here the line goes away when it has looked."""
    hide, sign = f"sed '/allow netns paths/d' {CONF} >/run/hidden.conf", "/shared/line-is-gone"
    # The other node's prolog ends, and so the job begins, when the line is gone.
    hook = f"#!/bin/sh\\nuntil [ -e {sign} ]; do sleep 0.1; done\\n"
    waits = f"mkdir /run/hooks; cp -p {HOOKS}/* /run/hooks/; printf '{hook}' >/run/hooks/99-wait; "
    waits += f"chmod 755 /run/hooks/99-wait; mount --bind /run/hooks {HOOKS}"
    with (
        changed(cluster, "n3", f"cp {CONF} /run/whole.conf; {hide}", f"cp /run/whole.conf {CONF}; rm -f {sign}"),
        changed(cluster, "n2", waits, f"umount -l {HOOKS}; rm -r /run/hooks"),
    ):
        job_id = alice.start("late", "echo begun", "-w", "n2,n3", "--hold", gpus=0, learners=2, extra=SPREAD)
        watcher = "until ls /run/ffdl/job-*/network >/dev/null 2>&1; do sleep 0.05; done; "
        watcher += f"cp /run/hidden.conf {CONF}; touch {sign}"
        waiting = cluster.popen("n3", ["sh", "-c", watcher])
        alice.run("scontrol", "release", alice.until(job_id, {"QUEUED"})["native_id"])
        job = alice.finish(job_id)
        cluster.kill(waiting)
    assert (job["state"], job["error_code"]) == ("FAILED", "S107"), job
    assert "refused network level job on n3" in job["message"] and "apptainer.conf" in job["message"]


@pytest.mark.full
def test_submit_rejects_network_level_that_a_node_does_not_offer(cluster: Cluster, alice: Person) -> None:
    cluster.scontrol("update", "NodeName=n3", "AvailableFeatures=other", "ActiveFeatures=other")
    try:
        lone = alice.at("lone", CONFIG)
        model = lone.model("empty", {"README": "nothing here\n"})
        named = lone.manifest("named", "true", SPREAD, gpus=0, learners=2)
        refused = lone.run("ffdl-submit", named, model, check=False)
        assert refused.returncode != 0
        assert "n3 has not the feature 'ffdl-network'" in refused.stderr, refused.stderr
        auto = lone.manifest("auto", "true", "batch: {placement: spread}", gpus=0, learners=2)
        assert "network isolation: host (asked for: auto)" in lone.run("ffdl-submit", "--dry-run", auto, model).stdout
        chosen = lone.run("ffdl-submit", "--constraint=ffdl-network", "--dry-run", named, model).stdout
        assert '#SBATCH --comment="ffdl-batch:job/1 named"' in chosen
    finally:
        features = ",".join(FEATURES)
        cluster.scontrol("update", "NodeName=n3", f"AvailableFeatures={features}", f"ActiveFeatures={features}")
