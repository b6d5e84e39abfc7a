"""The network that a prolog made: what is believed of it, what is missing, and where learners are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller import job_network
from ffdl_batch.controller.job_network import JobNetwork, await_network, check_addresses, misplaced, place_of
from ffdl_batch.controller.node.supervisor import read_complaint
from ffdl_batch.domain.launch.launch_file import EnvDelivery, HostVariables, LaunchFile, LearnerCommand, Network, Seat
from tests.unit.controller.rig import launch_file

FACTS = {
    "job": "41", "netns": "/run/ffdl/3/net", "rank": "1", "nodes": "2", "learners": "2", "prefix": "10.200.1.",
    "mechanism": "vxlan", "mtu": "1450", "level": "job",
}  # fmt: skip
ENV = {"SLURM_JOB_ID": "41"}


def launch_of(directory: Path | str, level: str = "job") -> LaunchFile:
    return launch_file(
        learner=LearnerCommand(("x",), {}, EnvDelivery.FILE), learners=3, nodes=2, names="learner-training-7",
        seats=(Seat(0), Seat(1, index=1), Seat(1, index=2)), host=HostVariables(allocation="SLURM_JOB_ID"),
        network=Network("auto", level, "vxlan", str(directory)),
    )  # fmt: skip


def tell(directory: Path, name: str = "network", **changes: str) -> None:
    job = directory / "job-41"
    job.mkdir(exist_ok=True)
    facts = {**FACTS, **changes}
    (job / name).write_text("".join(f"{key}={value}\n" for key, value in facts.items() if value))


class Clock:
    """A clock that goes on by what is waited."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.at, self.then = 0.0, then

    def rest(self) -> None:
        self.at += 1.0
        self.then()

    def now(self) -> float:
        return self.at


def found(directory: Path, clock: Clock | None = None, level: str = "job", rank: int = 1) -> JobNetwork:
    clock = clock or Clock()
    return await_network(launch_of(directory, level), rank, ENV, clock.rest, clock.now)


def test_await_network_returns_facts_written_by_prolog(tmp_path: Path) -> None:
    tell(tmp_path)
    assert found(tmp_path) == JobNetwork("/run/ffdl/3/net", "10.200.1.1", "vxlan", "job")
    assert found(tmp_path).hosts == ""


def test_await_network_adds_named_destinations_to_hosts_file(tmp_path: Path) -> None:
    tell(tmp_path, level="egress", mechanism="vxlan+nat", names="data.example.org=192.0.2.7,b=192.0.2.8")
    network = found(tmp_path, level="egress")
    assert network.hosts == "192.0.2.7 data.example.org\n192.0.2.8 b\n"


def test_await_network_waits_for_late_facts(tmp_path: Path) -> None:
    clock = Clock(lambda: tell(tmp_path))
    assert found(tmp_path, clock).netns == "/run/ffdl/3/net"
    assert clock.at == 1.0


def test_await_network_assumes_level_job_if_facts_name_no_level(tmp_path: Path) -> None:
    tell(tmp_path, level="")
    assert found(tmp_path).level == "job"
    with pytest.raises(PhaseFailed, match="level 'job', but 'egress' is needed"):
        found(tmp_path, level="egress")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job": "42"}, "job '42', but '41' is needed"),
        ({"level": "egress"}, "level 'egress', but 'job' is needed"),
        ({"nodes": "3"}, "nodes '3', but '2' is needed"),
        ({"rank": "0", "prefix": "10.200.0."}, "rank '0', but '1' is needed"),
        ({"learners": "1"}, "one for '1' learners, but 2 must run here"),
        ({"learners": "many"}, "one for 'many' learners"),
        ({"netns": ""}, "gives no namespace"),
        ({"netns": "run/ffdl"}, "gives no namespace"),
        ({"prefix": "10.200.0."}, "no addresses"),
    ],
)
def test_await_network_rejects_network_with_mismatched_facts(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    tell(tmp_path, **changes)
    with pytest.raises(PhaseFailed, match=said) as error:
        found(tmp_path)
    assert error.value.code == "S107"


@pytest.mark.parametrize("has_facts", [False, True])
@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("  1.0 ms  swept\nNO: no vxlan\n", "could not make it:.*; NO: no vxlan", "S107"),
        ("NO: scontrol did not tell\n", "could not make it: NO: scontrol", "S107"),
        ("NO: 192.0.2.1 cannot be a destination: it is outside NETWORK_EGRESS_TO of values.env\n",
         "outside NETWORK_EGRESS_TO", "C101"),
        ("NO: no IPv4 address for the destination data.exmaple.org (Name or service not known): correct it\n",
         r"destination data\.exmaple\.org", "C101"),
        ("NO: the destination data.example.org cannot be looked up: python3 did not end within 20 s\n",
         "cannot be looked up", "S107"),
    ],
)  # fmt: skip
def test_await_network_reports_prolog_error_in_spite_of_earlier_facts(
    tmp_path: Path, text: str, said: str, code: str, has_facts: bool
) -> None:
    (tmp_path / "job-41").mkdir()
    if has_facts:
        tell(tmp_path)
    (tmp_path / "job-41" / "error").write_text(text.replace("NO", "no network for this job"))
    clock = Clock()
    with pytest.raises(PhaseFailed, match=said.replace("NO", "no network for this job")) as error:
        found(tmp_path, clock)
    assert (error.value.code, clock.at) == (code, 0.0)


@pytest.mark.parametrize("begun", [False, True])
def test_await_network_names_prolog_that_did_not_run(tmp_path: Path, begun: bool) -> None:
    if begun:
        (tmp_path / "job-41").mkdir()
    clock = Clock()
    with pytest.raises(PhaseFailed, match=r"prolog\.d/50-ffdl.*docs/network\.md") as error:
        found(tmp_path, clock)
    assert error.value.code == "S107"
    assert ("neither network nor error" if begun else f"there is no {tmp_path}/job-41") in str(error.value)
    assert job_network.WAIT_S < clock.at < job_network.WAIT_S + 3


def test_await_network_fails_if_facts_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "job-41" / "network").mkdir(parents=True)
    with pytest.raises(PhaseFailed, match="Is a directory") as error:
        found(tmp_path)
    assert error.value.code == "S107"


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_ID": "../7"}])
def test_await_network_fails_without_valid_job_id(tmp_path: Path, env: dict[str, str]) -> None:
    tell(tmp_path)
    clock = Clock()
    with pytest.raises(PhaseFailed) as error:
        await_network(launch_of(tmp_path), 1, env, clock.rest, clock.now)
    assert (error.value.code, clock.at) == ("S107", Clock().at), "it does not wait first"


def test_has_own_network_only_for_levels_job_and_egress() -> None:
    assert [level for level in ("none", "job", "egress", "host") if job_network.has_own(launch_of("/", level))] == [
        "job",
        "egress",
    ]


def test_check_addresses_rejects_nodes_with_inconsistent_prefixes() -> None:
    check_addresses(("10.200.0.1", "10.200.1.1"))
    for wrong in (("10.200.0.1", "10.201.1.1"), ("10.200.1.1", "10.200.0.1"), ("10.200.0.1", "10.200.1.2")):
        with pytest.raises(PhaseFailed, match="NETWORK_PREFIX") as error:
            check_addresses(wrong)
        assert error.value.code == "S107"


def test_place_of_returns_network_namespace_of_live_process_only() -> None:
    own = place_of(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as child:  # the parent may be a process that nobody may look into
        try:
            assert own is not None and own == place_of(child.pid)
        finally:
            child.kill()
    assert place_of(2**22 + 1) is None


@pytest.mark.parametrize(
    ("level", "is_own", "is_slots", "said"),
    [
        ("host", True, False, ""),
        ("host", False, False, "another network than the node's"),
        ("none", False, False, ""),
        ("none", True, False, "in the node's network, and level none"),
        ("job", False, True, ""),
        ("job", True, False, "in the node's network, not in"),
        ("job", False, False, "in another network, not in"),
        ("egress", True, False, "in the node's network, not in"),
    ],
)
def test_misplaced_detects_learner_in_wrong_network(
    tmp_path: Path, level: str, is_own: bool, is_slots: bool, said: str
) -> None:
    slot = tmp_path / "net"
    slot.touch()
    own, there = place_of(os.getpid()), (slot.stat().st_dev, slot.stat().st_ino)
    assert own is not None
    place = own if is_own else there if is_slots else (0, 0)
    network = JobNetwork(str(slot), "10.200.0.1", "vxlan", level) if level in ("job", "egress") else None
    wrong = misplaced(level, place, network)
    assert said in wrong if said else wrong == ""


def test_misplaced_detects_learner_if_slot_is_missing() -> None:
    assert misplaced("job", (0, 0), JobNetwork("/nowhere/net", "10.200.0.1", "vxlan", "job"))


@pytest.mark.parametrize(
    ("level", "text", "code", "named"),
    [
        ("job", "FATAL: /run/ffdl/5/net is not an allowed netns path", "S107", "apptainer.conf"),
        ("job", "FATAL: container creation failed: stat /run/ffdl/1/net: permission denied", "S107", "check"),
        ("egress", "FATAL: --netns-path is only supported with a setuid installation", "S107", "apptainer.conf"),
        ("none", "ERROR: failed to create network namespace: operation not permitted", "S107", "network level none"),
        ("job", "FATAL: /etc/apptainer/apptainer.conf must be owned by root", "S107", "apptainer.conf"),
        ("host", "FATAL: /etc/apptainer/apptainer.conf must be owned by root", "S105", "runtime failed"),
        ("host", "something with netns", "S105", "runtime failed"),
        ("job", "FATAL: could not open image /x.sif", "S103", "image cannot be used"),
        ("host", "FATAL: Unable to handle docker://a/b:c uri: failed to get checksum for docker://a/b:c: pinging "
         "container registry", "S103", "image cannot be used"),
        ("host", 'pinging container registry r.example: Get "https://r.example/v2/": dial tcp: lookup r.example: no '
         "such host", "S105", "registry cannot be reached"),
        ("none", 'FATAL: While making image from oci registry: Get "https://r.example/v2/": dial tcp 192.0.2.1:443: '
         "i/o timeout", "S105", "registry cannot be reached"),
        ("host", "While making image from oci registry: reading manifest latest in r.example/nope: manifest unknown: "
         "no such image in container registry", "S103", "image cannot be used"),
        ("job", "no space left on device", "S105", "runtime failed"),
    ],
)  # fmt: skip
def test_read_complaint_classifies_runtime_errors_by_network_level(
    level: str, text: str, code: str, named: str
) -> None:
    said, found_code = read_complaint(launch_of("/run/ffdl", level), ["earlier", text], "n1")
    assert (found_code, named in said, "n1" in said, text in said) == (code, True, True, True), said


def test_read_complaint_names_shell_if_job_has_no_container() -> None:
    bare = launch_of("/", "host")
    bare = replace(bare, learner=replace(bare.learner, delivery=EnvDelivery.PROCESS))
    said = "the learner's shell did not start on n1: it printed nothing"
    assert read_complaint(bare, [], "n1") == (said, "S105")


def test_await_network_reads_bounded_part_of_facts_file(tmp_path: Path) -> None:
    tell(tmp_path)
    with (tmp_path / "job-41" / "network").open("a") as file:
        file.write("x" * (job_network.LONGEST_BYTES * 2))
    assert found(tmp_path).mechanism == "vxlan"
