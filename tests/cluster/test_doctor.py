"""ffdl-admin doctor on the real cluster: it finds what is wrong before a job does, and says which file to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.test_overlay import nothing_left

CONF = "/etc/apptainer/apptainer.conf"
ADMIN = "/opt/ffdl/venv/bin/ffdl-admin"
NODES = ("n1", "n2", "n3")


def doctor(person: Person, *words: str, node: str = "ctl") -> tuple[int, list[str]]:
    """Its exit code and its lines."""
    done = person.run(ADMIN, "doctor", *words, node=node, check=False, timeout_s=300)
    assert done.stderr == "", done
    return done.returncode, done.stdout.splitlines()


@contextmanager
def slot_missing(cluster: Cluster, node: str) -> Iterator[None]:
    cluster.run(node, ["sed", "-i.whole", "/ffdl.5.net/d", CONF])
    try:
        yield
    finally:
        cluster.run(node, ["mv", f"{CONF}.whole", CONF])


def test_a_cluster_that_is_well(cluster: Cluster, alice: Person) -> None:
    code, lines = doctor(alice, "--nodes", "all")
    assert code == 0, lines
    assert lines[:3] == ["ok     slurm", "ok     slurm.conf: networks", "ok     slurm.conf: GPUs"]
    partitions = [f"ok     partition {name}: network levels job and egress on all 3 nodes"
                  for name in ("main", "short", "spot", "urgent")]  # fmt: skip
    assert lines[3:7] == partitions
    assert lines[7:] == [f"ok     node {name}" for name in NODES]
    for node in NODES:
        nothing_left(cluster, node)
    assert doctor(alice)[1] == lines[:7]


def test_a_compute_node_that_is_asked_itself(cluster: Cluster, alice: Person) -> None:
    tried = [f"ok     this node: {name}" for name in ("vxlan", "filter", "acl", "ports", "apptainer", "egress")]
    code, lines = doctor(alice, node="n1")
    assert (code, lines[-6:]) == (0, tried)
    with slot_missing(cluster, "n1"):
        done = cluster.run("n1", [ADMIN, "doctor"], check=False)
        assert done.returncode == 1 and f"wrong  this node: apptainer: {CONF}: 1 of 32 slots" in done.stdout, done
        code, lines = doctor(alice, node="n1")  # what root found, a user reads
        assert code == 1 and any(f"{CONF}: 1 of 32 slots are not listed" in line for line in lines)
    assert cluster.run("n1", [ADMIN, "doctor"]).stdout.splitlines()[-6:] == tried


def test_a_node_whose_apptainer_lacks_a_slot_is_named_with_the_file(cluster: Cluster, alice: Person) -> None:
    with slot_missing(cluster, "n3"):
        code, lines = doctor(alice, "--nodes", "all")
        found = [line for line in lines if not line.startswith("ok ")]
        assert code == 1 and found, lines
        assert all(line.startswith("wrong  node n3: it has the feature 'ffdl-") for line in found), found
        assert f"{CONF}: 1 of 32 slots are not listed" in found[0]
    assert doctor(alice, "--nodes", "n[3]") == (0, [*doctor(alice)[1], "ok     node n3"])
    nothing_left(cluster, "n3")


def test_a_node_whose_apptainer_makes_no_network_is_named(cluster: Cluster, alice: Person) -> None:
    """Level none; the control beside it, a container without a network of its own, starts."""
    program = "/usr/bin/apptainer"
    stub = f'#!/bin/sh\ncase "$*" in *--net*) echo "FATAL: no CNI" >&2; exit 255 ;; esac\nexec {program}.real "$@"\n'
    cluster.run("n3", ["sh", "-ec", f"cp {program} {program}.real; cat >/run/stub; chmod 755 /run/stub"], input=stub)
    cluster.run("n3", ["mount", "--bind", "/run/stub", program])
    try:
        code, lines = doctor(alice, "--nodes=n3")
        said = "apptainer --net --network none, which level none needs, failed there: FATAL: no CNI"
        assert (code, lines[-1]) == (1, f"wrong  node n3: {said}")
    finally:
        cluster.run("n3", ["sh", "-ec", f"umount {program}; rm {program}.real /run/stub"])


def test_a_busy_node_is_not_examined_and_not_wrong(cluster: Cluster, alice: Person) -> None:
    options = ("-w", "n2", "--exclusive", "--mem=0", "-o", "/dev/null", "--wrap", "sleep 300")
    job = alice.run("sbatch", "--parsable", *options).stdout.strip()
    try:
        wait_until(lambda: alice.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "RUNNING", "its start")
        code, lines = doctor(alice, "--nodes=n[1-2]")
        shown = alice.run("scontrol", "show", "job", job).stdout
        assert (code, lines[-2]) == (75, "ok     node n1"), (lines, shown)
        assert lines[-1].startswith("note   node n2: not examined: "), lines
        assert lines[-1].endswith("; Slurm has it as allocated; run again with --nodes=n2 when it takes jobs"), lines
    finally:
        alice.run("scancel", job)
    cluster.wait_idle()


def test_a_list_that_names_no_nodes_is_wrong_usage(alice: Person) -> None:
    for nodes, said in (
        ("n[1-", "which is no list of nodes"),
        ("n[2-5]", "Slurm has no node n4, n5; it has n1, n2, n3"),
    ):
        done = alice.run(ADMIN, "doctor", f"--nodes={nodes}", check=False)
        assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True), done


def test_a_drained_node_is_not_examined(cluster: Cluster, alice: Person) -> None:
    cluster.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        code, lines = doctor(alice, "--nodes=n1,n2")
        assert (code, lines[-2]) == (75, "ok     node n1"), lines
        said = "not examined: Slurm has it as drained; run again with --nodes=n2 when it takes jobs"
        assert lines[-1] == f"note   node n2: {said}"
    finally:
        cluster.scontrol("update", "NodeName=n2", "State=RESUME")
    cluster.wait_idle()
