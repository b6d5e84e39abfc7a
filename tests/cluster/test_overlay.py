"""Networks of jobs on the real cluster: slurmd runs the prolog, plain users join by Apptainer, no node is drained."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC

MARK = "--comment=ffdl-batch:job/2"
IMAGE = "/shared/images/custom.sif"
EXEC = f"apptainer -q exec --containall --no-home --pwd / --netns-path $net {IMAGE}"
FACTS = "job=/run/ffdl/job-$SLURM_JOB_ID; net=$(sed -n s/^netns=//p $job/network); "
# Two learners: the second one listens, the first one asks; and both try what is not theirs.
TALK = r"""
import json, socket, sys, time
rank, found = sys.argv[1], {}
def reach(address, port, kind=socket.SOCK_STREAM, tries=1, patience_s=2):
    for left in reversed(range(tries)):
        try:
            with socket.socket(socket.AF_INET, kind) as asked:
                asked.settimeout(patience_s)
                asked.connect((address, port))
                asked.send(b"hello")
                return asked.recv(100).decode()
        except OSError as error:
            said = str(error)
            if left: time.sleep(0.1)
    return said
if rank == "1":
    tcp, udp = socket.create_server(("10.200.1.1", 5000)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("10.200.1.1", 5000))
    connection, peer = tcp.accept()
    connection.sendall(connection.recv(100) + b" over tcp from " + peer[0].encode())
    text, peer = udp.recvfrom(100)
    udp.sendto(text + b" over udp", peer)
else:
    found["tcp"] = reach("10.200.1.1", 5000, tries=1000, patience_s=60)
    found["udp"] = reach("10.200.1.1", 5000, socket.SOCK_DGRAM, patience_s=60)
for name, address, port in (
    ("slurmctld", "10.77.0.1", 6817), ("slurmd", "10.77.0.11", 6818), ("lo", "127.0.0.1", 6818)
):
    found[name] = reach(address, port)
print(json.dumps({"rank": rank, **found}))
"""
PLAIN = 'exec 3<>"/dev/tcp/10.77.0.1/6817" && echo slurmctld answers'


def learners(alice: Person, *options: str, script: str) -> str:
    """What a job step of a shell script on each node prints."""
    return alice.run("srun", *options, "bash", "-c", script).stdout


def nothing_left(cluster: Cluster, node: str) -> None:
    """Wait for the epilog; then nothing of any job is on the node."""
    deadline = time.monotonic() + 300
    script = (
        "ls -d /run/ffdl/job-* /run/ffdl/[0-9]* /run/ffdl/slots/* /run/ffdl/locks/[0-9]* 2>/dev/null; "
        "grep /run/ffdl /proc/mounts; nft list tables | grep -vx 'table ip ffdl_node'; "
        "ip -o link show type vxlan; ip -o link | grep ffdl-; grep -i ':012b ' /proc/net/udp; "
        "ls /run/wireguard 2>/dev/null; pgrep -x wireguard-go; :"
    )
    while (left := cluster.run(node, ["sh", "-c", script]).stdout) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == ""


def is_served(cluster: Cluster, node: str) -> bool:
    """Whether Slurm gives the node to jobs, once it has heard of the last epilog: it is neither down nor drained.

    Slurm 20.11 may go on calling it mixed when its last job has ended; "planned" means that the backfill scheduler
    keeps it for a waiting job.
    """
    deadline = time.monotonic() + 300
    argv = ["sinfo", "-h", "-p", "main", "-n", node, "-o", "%T"]
    while (state := cluster.run("ctl", argv).stdout.strip()) == "completing" and time.monotonic() < deadline:
        time.sleep(0.2)
    print(f"{node} is {state}")  # what a failure shows
    return state in {"idle", "mixed", "allocated", "planned"}


def test_node_check_passes_and_capabilities_list_vxlan_and_egress(cluster: Cluster) -> None:
    for node in ("n1", "n2", "n3"):
        told = cluster.run(node, [f"{LIBEXEC}/check"])
        assert [line.split()[0] for line in told.stdout.splitlines()] == ["ok"] * 7
        known = dict(line.split("=", 1) for line in cluster.run(node, ["cat", "/run/ffdl/capabilities"]).stdout.split())
        assert (known["network"], known["slots"], known["mechanism"]) == ("yes", "32", "vxlan")
        assert known["egress"] == "yes"


@pytest.mark.full
def test_overlay_connects_srun_tasks_on_two_nodes_and_blocks_slurm_daemons(cluster: Cluster, alice: Person) -> None:
    path = alice.write("~/talk.py", TALK)
    script = f'{FACTS} rank=$(sed -n s/^rank=//p $job/network); echo "place $rank $SLURM_NODEID $(hostname)"; '
    script += (
        f"{EXEC.replace(' --netns-path', f' --bind {path}:/talk.py --netns-path')} python3 /talk.py $rank; {PLAIN}"
    )
    printed = learners(alice, MARK, "-N2", "-w", "n1,n2", script=script)
    assert set(re.findall("^place .*", printed, re.MULTILINE)) == {"place 0 0 n1", "place 1 1 n2"}
    found = {said["rank"]: said for said in map(json.loads, re.findall(r"^\{.*\}$", printed, re.MULTILINE))}
    assert found["0"]["tcp"] == "hello over tcp from 10.200.0.1"
    assert found["0"]["udp"] == "hello over udp"
    for said in found.values():
        assert "unreachable" in said["slurmctld"] and "unreachable" in said["slurmd"]
        assert "refused" in said["lo"]
    assert printed.count("slurmctld answers") == 2  # the same question from beside the container
    for node in ("n1", "n2"):
        nothing_left(cluster, node)


CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3); print('in')"


@pytest.mark.full
def test_overlay_egress_reaches_only_destination_in_job_comment(cluster: Cluster, alice: Person) -> None:
    comment = "--comment=ffdl-batch:egress/1/ctl:6817 and my own words"
    script = f"{FACTS} cat $job/network; for to in 'ctl 6817' 'ctl 22' 'n2 6818'; do set -- $to; "
    script += f'set -- $(getent ahostsv4 $1) $2; echo "$to"; {EXEC} python3 -c "$CONNECT" $1 ${{!#}} 2>&1 | tail -n 1; '
    script += 'python3 -c "$CONNECT" $1 ${!#}; done'
    printed = alice.run("srun", comment, "-w", "n1", "bash", "-c", script, env={"CONNECT": CONNECT}).stdout
    assert "\nlevel=egress\nnames=ctl=10.77.0.1\n" in printed
    lines = printed[printed.index("ctl 6817\n") :].splitlines()
    assert lines[:4] == ["ctl 6817", "in", "in", "ctl 22"], lines
    assert "unreachable" not in lines[5] and lines[5:7] == ["in", "n2 6818"], lines
    assert lines[4] != "in" and "unreachable" in lines[7] and lines[8] == "in", lines
    nothing_left(cluster, "n1")


@pytest.fixture
def alices_job(cluster: Cluster, alice: Person) -> Iterator[str]:
    """A job of alice's with a network on n1, running."""
    script = alice.write("~/sleep.sh", "#!/bin/sh\nsleep 300\n", executable=True)
    job = alice.run("sbatch", "--parsable", MARK, "-w", "n1", "--mem=100", "-o", "/dev/null", script).stdout.strip()
    facts = f"for i in $(seq 850); do [ -e /run/ffdl/job-{job}/network ] && exit 0; sleep 0.2; done; exit 1"
    cluster.run("n1", ["sh", "-c", facts])  # squeue says R while the prolog is still at work
    yield job
    alice.run("scancel", job)
    nothing_left(cluster, "n1")


def test_network_slot_rejects_other_user_of_same_group(
    cluster: Cluster, alice: Person, bob: Person, alices_job: str
) -> None:
    facts = cluster.run("n1", ["cat", f"/run/ffdl/job-{alices_job}/network"]).stdout
    net = dict(line.split("=", 1) for line in facts.split())["netns"]
    join = f"id -Gn; apptainer -q exec --netns-path {net} {IMAGE} cat /proc/net/fib_trie"
    printed = {}
    for person in (alice, bob):
        done = person.run("srun", "--overlap", "-w", "n1", "--mem=100", "bash", "-c", f"{join} 2>&1", check=False)
        assert "researchers" in done.stdout.splitlines()[0], done
        printed[person.name] = done.stdout
    assert "10.200.0.1" in printed["alice"]
    assert f"stat {net}: permission denied" in printed["bob"]


def test_apptainer_rejects_network_namespace_path_that_is_not_a_slot(alice: Person, alices_job: str) -> None:
    for path in ("/proc/self/ns/net", "/run/ffdl/33/../1/net"):
        done = alice.run(
            "srun", "-w", "n1", "--mem=100", "apptainer", "exec", "--netns-path", path, IMAGE, "true", check=False
        )
        assert done.returncode != 0
        assert "is not an allowed netns path" in done.stderr or "no such file" in done.stderr, done


def test_prolog_writes_error_and_keeps_node_in_service_when_slot_is_missing(cluster: Cluster, alice: Person) -> None:
    conf = "/etc/apptainer/apptainer.conf"
    cluster.run("n3", ["sed", "-i.whole", "/ffdl.5.net/d", conf])
    try:
        printed = learners(
            alice, MARK, "-w", "n3", script="cat /run/ffdl/job-$SLURM_JOB_ID/error; ls /run/ffdl/job-$SLURM_JOB_ID"
        )
        assert f"{conf}: 1 of 32 slots are not listed, the first is 'allow netns paths = /run/ffdl/5/net'" in printed
        assert "network" not in printed.splitlines()
        nothing_left(cluster, "n3")
        assert cluster.run("n3", [f"{LIBEXEC}/check"], check=False).returncode == 1
        assert is_served(cluster, "n3")
    finally:
        cluster.run("n3", ["mv", f"{conf}.whole", conf])
    assert cluster.run("n3", [f"{LIBEXEC}/check"]).returncode == 0
    assert "netns=" in learners(alice, MARK, "-w", "n3", script="cat /run/ffdl/job-$SLURM_JOB_ID/network")
    nothing_left(cluster, "n3")


@pytest.mark.full
def test_node_has_no_network_of_previous_job_after_power_cycle(cluster: Cluster, alice: Person) -> None:
    script = alice.write("~/sleep.sh", "#!/bin/sh\nsleep 300\n", executable=True)
    options = ("--no-requeue", "-N2", "-w", "n1,n2", "--mem=100", "-o", "/dev/null")
    job = alice.run("sbatch", "--parsable", MARK, *options, script).stdout.strip()
    for node in ("n1", "n2"):
        facts = f"for i in $(seq 850); do [ -e /run/ffdl/job-{job}/network ] && exit 0; sleep 0.2; done; exit 1"
        cluster.run(node, ["sh", "-c", facts])
        cluster.run(node, ["nsenter", "--net=/run/ffdl/1/net", "ip", "link", "show", "eth0"])
    before = cluster.run("n2", ["cat", "/run/ffdl/booted"]).stdout
    try:
        cluster.power_off("n2")
        cluster.power_on("n2")
        nothing_left(cluster, "n2")
        assert cluster.run("n2", ["cat", "/run/ffdl/booted"]).stdout != before
    finally:
        alice.run("scancel", job)
    nothing_left(cluster, "n1")
    cluster.wait_idle()
    printed = learners(alice, MARK, "-N2", "-w", "n1,n2", script=f"{FACTS} {EXEC} true && echo $net")
    assert printed.splitlines() == ["/run/ffdl/1/net"] * 2
    for node in ("n1", "n2"):
        nothing_left(cluster, node)


@pytest.mark.full
def test_boot_service_restart_restores_filter_and_keeps_running_network(cluster: Cluster, alices_job: str) -> None:
    cluster.run("n1", ["nft", "flush", "ruleset"])
    cluster.run("n1", [f"{LIBEXEC}/boot"])
    cluster.run("n1", ["nsenter", "--net=/run/ffdl/1/net", "ip", "link", "show", "eth0"])
    assert f"table inet ffdl_{alices_job}" in cluster.run("n1", ["nft", "list", "tables"]).stdout


@pytest.mark.full
def test_array_task_gets_network_of_its_own_comment(cluster: Cluster, alice: Person) -> None:
    """The last task's number is the array's: slurmctld, asked for it, tells of all tasks."""
    place = f"{alice.home}/array"
    script = "#!/bin/sh\ncp /run/ffdl/job-$SLURM_JOB_ID/network $1/$SLURM_ARRAY_TASK_ID; exec sleep 20\n"
    path = alice.write(f"{place}/run.sh", script, executable=True)
    options = ("--array=0-1", "--hold", "-w", "n3", "--mem=100", "-o", "/dev/null")
    job = alice.run("sbatch", "--parsable", MARK, *options, path, place).stdout.strip()
    alice.run("scontrol", "update", f"JobId={job}_0", "Comment=ffdl-batch:job/3 mine")
    alice.run("scontrol", "release", job)
    try:
        for task, learners_most in (("0", "3"), ("1", "2")):
            alice.run("sh", "-c", f"until grep -qs '^level=' {place}/{task}; do sleep 0.1; done", timeout_s=600)
            assert f"\nlearners={learners_most}\n" in alice.read(f"{place}/{task}")
    finally:
        alice.run("scancel", job)
    nothing_left(cluster, "n3")


@pytest.mark.full
def test_prolog_creates_no_network_for_job_without_ffdl_comment(cluster: Cluster, alice: Person) -> None:
    for options in ((), ("--comment=my run",)):
        printed = learners(
            alice, *options, "-w", "n3", script="ls -d /run/ffdl/job-$SLURM_JOB_ID /run/ffdl/[0-9]* 2>&1; :"
        )
        assert printed.count("No such file") == 2
    assert is_served(cluster, "n3")


def test_hostlist_expansion_matches_scontrol(cluster: Cluster) -> None:
    lists = ("n1", "n[1-2]", "n[1-3,7,09-11],login", "r[0-1]n[01-03]", "a-[1-2],c", "n[3,1-2]")
    program = f"import sys; sys.path.insert(0, {LIBEXEC!r}); from ffdl_network.hostlist import expand\n"
    program += "for text in sys.argv[1:]: print('\\n'.join(expand(text)))"
    ours = cluster.run("n1", ["/usr/bin/python3", "-I", "-S", "-c", program, *lists]).stdout.split()
    assert ours == [name for text in lists for name in cluster.scontrol("show", "hostnames", text).split()]
