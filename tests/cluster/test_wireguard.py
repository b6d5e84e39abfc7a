"""Networks of jobs by WireGuard on the real cluster: slurmd's prolog, plain users, what `ffdl show` and doctor say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.boot import LIBEXEC
from tests.cluster.rig.services import Service
from tests.cluster.talking import found_by, talk
from tests.cluster.test_overlay import nothing_left
from tests.cluster.wireguard_site import SECRET, wireguard, write_secret
from tests.proof.isolation.__main__ import prove
from tests.proof.isolation.breaks import BREAKS_OF_WIREGUARD
from tests.proof.isolation.stage import Stage
from tests.proof.isolation.verdict import holds, report

PEERS = "for net in /proc/self/ns/net /run/ffdl/[0-9]*/net; do nsenter --net=$net wg show all allowed-ips; done"
"""A program's device is known to wg on the node, the kernel's in its namespace."""
SPREAD = "batch: {placement: spread, network: job}"


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Iterator[None]:
    """The nodes' other mechanism."""
    with wireguard(cluster):
        yield


def test_wireguard_network_connects_learners_and_blocks_cluster_hosts(
    cluster: Cluster, alice: Person, site: None
) -> None:
    job = talk(alice, "wired", SPREAD, 2)
    assert (job["network_requested"], job["network"], job["network_by"]) == ("job", "job", "wireguard")
    assert "Network achieved:    job (wireguard)\n" in alice.run("ffdl", "show", job["id"]).stdout
    found = [found_by(alice, job, learner) for learner in (1, 2)]
    assert found[0]["addresses"] == ["10.200.0.1", "10.200.1.1"]
    for own, said in zip(found[0]["addresses"], found, strict=True):
        assert said["tcp"] == [f"tcp {i} to {own}" for i in (0, 1)]
        assert said["udp"] == [f"udp {i} to {own}" for i in (0, 1)]
        assert "unreachable" in said["slurmctld"] and all("unreachable" in text for text in said["slurmd"])
    for node in ("n1", "n2", "n3"):
        nothing_left(cluster, node)


@pytest.mark.full
def test_wireguard_peers_survive_slurmd_restart(cluster: Cluster, alice: Person, site: None) -> None:
    """It is no child of slurmd's that slurmd would end, and none of the job's that Slurm would."""
    script = alice.write("~/sleep.sh", "#!/bin/sh\nsleep 300\n", executable=True)
    options = ("-N2", "-w", "n1,n2", "--mem=100", "-o", "/dev/null", "--comment=ffdl-batch:job/1")
    job = alice.run("sbatch", "--parsable", *options, script).stdout.strip()
    facts = f"for i in $(seq 850); do [ -e /run/ffdl/job-{job}/network ] && exit 0; sleep 0.2; done; exit 1"
    try:
        for node in ("n1", "n2"):
            cluster.run(node, ["sh", "-c", facts])
        cluster.run("n1", ["nft", "flush", "ruleset"])
        assert f"the packet filter of job {job} was gone" in cluster.run("n1", [f"{LIBEXEC}/check"]).stdout
        shown = cluster.run("n1", ["sh", "-c", PEERS]).stdout
        assert "10.200.1.0/24" in shown
        cluster.services("n1").stop(Service.SLURMD)
        cluster.services("n1").start(Service.SLURMD)
        assert cluster.run("n1", ["sh", "-c", PEERS]).stdout == shown
    finally:
        alice.run("scancel", job)
    for node in ("n1", "n2"):
        nothing_left(cluster, node)


@pytest.mark.full
def test_doctor_names_node_with_different_wireguard_secret(cluster: Cluster, alice: Person, site: None) -> None:
    secret = cluster.run("n3", ["cat", SECRET]).stdout

    def told() -> list[str]:
        done = alice.run("ffdl-admin", "doctor", "--nodes", "all", check=False)
        return [line for line in done.stdout.splitlines() if line.startswith("wrong")]

    assert told() == []
    write_secret(cluster, "n3", secret[::-1])
    try:
        cluster.run("n3", [f"{LIBEXEC}/check"])
        (said,) = told()
        assert said.startswith("wrong  networks of jobs: the secret in the file NETWORK_SECRET")
        assert ": n1, n2; " in said and said.endswith(": n3)")
    finally:
        write_secret(cluster, "n3", secret)
        cluster.run("n3", [f"{LIBEXEC}/check"])


@pytest.mark.full
def test_isolation_proof_holds_for_wireguard_network(cluster: Cluster, site: None) -> None:
    with Stage(cluster) as stage:
        rounds = prove(stage, [("job", "job")])
    print(report(rounds))
    assert [trouble for found in rounds for trouble in found.troubles] == []
    assert holds(rounds)
    assert [found.name for found in rounds] == ["job/job wireguard"]


@pytest.mark.parametrize("broken", BREAKS_OF_WIREGUARD)
@pytest.mark.full
def test_isolation_proof_detects_broken_wireguard_network(cluster: Cluster, site: None, broken: str) -> None:
    with Stage(cluster) as stage:
        (found,) = prove(stage, [("job", "job")], broken, only="own job")
    refused = [one.probe.name for one in found.outcomes if one.trouble and not one.through]
    assert refused == [f"own job: {kind} to its learner 2" for kind in ("tcp", "udp")], found.troubles
