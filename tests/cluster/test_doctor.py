"""ffdl-admin doctor on the real cluster: it finds what is wrong before a job does, and says which file to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC
from tests.cluster.test_overlay import nothing_left

CONF = "/etc/apptainer/apptainer.conf"
ADMIN = "/opt/ffdl/venv/bin/ffdl-admin"
HOOKS = "/etc/slurm/prolog.d"
NODES = ("n1", "n2", "n3")


def doctor(person: Person, *words: str, node: str = "ctl") -> tuple[int, list[str]]:
    """Its exit code and its lines."""
    done = person.run(ADMIN, "doctor", *words, node=node, check=False, timeout_s=900)
    assert done.stderr == "", done
    return done.returncode, done.stdout.splitlines()


@contextmanager
def slot_missing(cluster: Cluster, node: str) -> Iterator[None]:
    cluster.run(node, ["sed", "-i.whole", "/ffdl.5.net/d", CONF])
    try:
        yield
    finally:
        cluster.run(node, ["mv", f"{CONF}.whole", CONF])


def test_doctor_passes_every_check_on_healthy_cluster(cluster: Cluster, alice: Person) -> None:
    cluster.wait_idle()  # jobs of others may just be ending
    code, lines = doctor(alice, "--nodes", "all")
    assert code == 0, lines
    assert lines[:3] == ["ok     slurm", "ok     slurm.conf: networks", "ok     slurm.conf: GPUs"]
    partitions = [f"ok     partition {name}: network levels job and egress on all 3 nodes"
                  for name in ("main", "short", "spot", "urgent")]  # fmt: skip
    assert lines[3:7] == partitions
    assert lines[7] == "ok     staging"
    assert lines[8].startswith(("ok     data mounts: on all 3 nodes", "note   data mounts: rclone 1.53")), lines[8]
    assert lines[9:] == [f"ok     node {name}" for name in NODES]
    for node in NODES:
        nothing_left(cluster, node)
    assert doctor(alice)[1] == lines[:7]


@pytest.mark.full
def test_doctor_checks_own_node_when_run_on_compute_node(cluster: Cluster, alice: Person) -> None:
    tried = [
        f"ok     this node: {name}" for name in ("vxlan", "filter", "acl", "ports", "hooks", "apptainer", "egress")
    ]
    code, lines = doctor(alice, node="n1")
    assert (code, lines[-7:]) == (0, tried)
    with slot_missing(cluster, "n1"):
        done = cluster.run("n1", [ADMIN, "doctor"], check=False)
        assert done.returncode == 1 and f"wrong  this node: apptainer: {CONF}: 1 of 32 slots" in done.stdout, done
        code, lines = doctor(alice, node="n1")  # what root found, a user reads
        assert code == 1 and any(f"{CONF}: 1 of 32 slots are not listed" in line for line in lines)
    assert cluster.run("n1", [ADMIN, "doctor"]).stdout.splitlines()[-7:] == tried


@pytest.mark.full
def test_doctor_names_node_and_file_when_apptainer_network_slot_is_missing(cluster: Cluster, alice: Person) -> None:
    with slot_missing(cluster, "n3"):
        code, lines = doctor(alice, "--nodes", "all")
        found = [line for line in lines if not line.startswith("ok ") and "data mounts" not in line]
        assert code == 1 and found, lines
        assert all(line.startswith("wrong  node n3: it has the feature 'ffdl-") for line in found), found
        assert f"{CONF}: 1 of 32 slots are not listed" in found[0]
    code, lines = doctor(alice, "--nodes", "n[3]")
    assert (code, lines[-1], [line for line in lines if line.startswith("wrong")]) == (0, "ok     node n3", []), lines
    nothing_left(cluster, "n3")


@pytest.mark.full
def test_doctor_reports_node_when_its_apptainer_creates_no_network(cluster: Cluster, alice: Person) -> None:
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


@pytest.mark.full
def test_doctor_notes_nodes_without_rclone_or_mount_epilog(cluster: Cluster, alice: Person) -> None:
    hooks = "/etc/slurm/epilog.d"
    made = f"mkdir /run/epilogs; cp -p {hooks}/00-keep {hooks}/50-ffdl /run/epilogs/; mount --bind /run/epilogs {hooks}"
    cluster.run("n2", ["mount", "--bind", "/dev/null", "/usr/bin/rclone"])
    cluster.run("n3", ["sh", "-ec", made])
    try:
        code, lines = doctor(alice, "--nodes", "all")
        found = [line for line in lines if "data mounts" in line]
        brought = 'rclone is not installed on n2: data are brought there, as data_mount = "auto" has it'
        assert (code, found[0]) == (0, f"note   data mounts: {brought}"), lines
        assert found[1].startswith("note   data mounts: Epilog of slurm.conf has no 60-ffdl-mounts on n3: "), lines
    finally:
        cluster.run("n2", ["umount", "/usr/bin/rclone"])
        cluster.run("n3", ["sh", "-ec", f"umount -l {hooks}; rm -r /run/epilogs"])


@contextmanager
def other_prologs(cluster: Cluster, node: str, keep: str) -> Iterator[None]:
    """Of the node's prolog.d only what `keep` names is left; slurmd sees a directory of that node's own there."""
    made = f"mkdir /run/hooks; cd {HOOKS}; for one in {keep}; do cp -p $one /run/hooks/; done; cd /"
    cluster.run(node, ["sh", "-ec", f"{made}; mount --bind /run/hooks {HOOKS}"])
    try:
        yield
    finally:
        cluster.run(node, ["sh", "-ec", f"umount {HOOKS}; rm -r /run/hooks"])


@pytest.mark.full
def test_doctor_reports_node_without_prolog_hook_and_does_not_drain_it(cluster: Cluster, alice: Person) -> None:
    with other_prologs(cluster, "n3", "00-keep"):
        code, lines = doctor(alice, "--nodes=n3")
        said = "wrong  node n3: it has the feature 'ffdl-network', but its prolog made nothing: prolog.d/50-ffdl "
        assert code == 1 and any(line.startswith(said) for line in lines), lines
        extra = "batch: {placement: spread, network: job}"
        job = alice.finish(alice.start("hookless", "echo begun", "-w", "n2,n3", gpus=0, learners=2, extra=extra))
        assert (job["state"], job["error_code"]) == ("FAILED", "S107"), job
        assert "DRAIN" not in cluster.scontrol("-o", "show", "node", "n3")
        done = cluster.run("n3", [f"{LIBEXEC}/check"], check=False)
        assert (done.returncode, f"FAIL  hooks: {HOOKS}/50-ffdl is not there" in done.stdout) == (1, True), done
    cluster.run("n3", [f"{LIBEXEC}/check"])
    cluster.wait_idle()
    nothing_left(cluster, "n3")


@pytest.mark.full
def test_doctor_stops_after_first_node_when_prolog_drains_it(cluster: Cluster, alice: Person) -> None:
    cluster.wait_idle()  # a node that is not is no first one to be asked
    try:
        with other_prologs(cluster, "n1", ""):
            code, lines = doctor(alice, "--nodes=n1,n2")
        drained = lines[-2].startswith("wrong  node n1: Slurm drained it because its prolog failed (")
        assert (code, drained) == (1, True), "\n".join([*lines, cluster.scontrol("-o", "show", "node", "n1")])
        said = "node n1 was drained by its prolog; run again with --nodes=n2 when that is mended"
        assert lines[-1] == f"note   node n2: not examined: {said}"
        assert doctor(alice, "--nodes=n2")[0] == 0
    finally:
        cluster.scontrol("update", "NodeName=n1", "State=RESUME")
    cluster.wait_idle()


@pytest.mark.full
def test_doctor_skips_busy_node_with_note_and_exits_75(cluster: Cluster, alice: Person) -> None:
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


@pytest.mark.full
def test_doctor_exits_2_for_malformed_or_unknown_node_list(alice: Person) -> None:
    for nodes, said in (
        ("n[1-", "which is not a list of nodes"),
        ("n[2-5]", "Slurm has no node n4, n5; it has n1, n2, n3"),
    ):
        done = alice.run(ADMIN, "doctor", f"--nodes={nodes}", check=False)
        assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True), done


@pytest.mark.full
def test_doctor_skips_drained_node_with_note_and_exits_75(cluster: Cluster, alice: Person) -> None:
    cluster.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        code, lines = doctor(alice, "--nodes=n1,n2")
        assert (code, lines[-2]) == (75, "ok     node n1"), lines
        said = "not examined: Slurm has it as drained: test; run again with --nodes=n2 when it takes jobs"
        assert lines[-1] == f"note   node n2: {said}"
    finally:
        cluster.scontrol("update", "NodeName=n2", "State=RESUME")
    cluster.wait_idle()
