"""Who is where: ranks, names, addresses and ports, and the texts made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.node.learner_setup import LearnerSetup
from ffdl_batch.controller.rendezvous.learner_addresses import (
    hostfile_text,
    hosts_text,
    meet,
    node_values,
    place_values,
    seen_by,
    tf_config,
)
from ffdl_batch.domain.job.spec_errors import MOST_LEARNERS
from ffdl_batch.domain.launch.launch_file import LaunchFile, Network, Seat
from tests.unit.controller.rig import launch_file

PLAIN = launch_file(names="learner-training-7", network=Network(level="host"))
NODES = ("10.0.0.1", "10.0.0.2")
TWO_BY_TWO = replace(PLAIN, learners=4, nodes=2, seats=tuple(Seat(n // 2, index=n) for n in range(4)), ports=12000)
WITH_GPUS = replace(TWO_BY_TWO, seats=tuple(Seat(n // 2, index=n, gpus=2) for n in range(4)))
SPREAD = replace(PLAIN, learners=2, nodes=2)
ROLES = replace(
    PLAIN, learners=5, nodes=2, ports=12000,
    seats=(
        Seat(0, "ps", 0, service=True), Seat(0, "chief", 0), Seat(1, "worker", 0), Seat(1, "worker", 1),
        Seat(0, "evaluator", 0),
    ),
    command="python main.py", commands={"ps": "python ps.py"},
)  # fmt: skip
MPI = replace(
    PLAIN, learners=3, nodes=2,
    seats=(Seat(0, "launcher", 0, gpus=1), Seat(0, "worker", 0, True, 1), Seat(1, "worker", 1, True, 1)),
)  # fmt: skip
OF_PLACES = ("local_rank", "local_world_size", "machine_rank", "machines", "local_index", "port")


@pytest.mark.parametrize(
    ("launch", "learner_id", "places"),
    [
        (PLAIN, 1, "0 1 0 1 0 29501"),
        (SPREAD, 2, "0 1 1 2 0 29501"),
        (TWO_BY_TWO, 1, "0 2 0 2 0 12001"),
        (TWO_BY_TWO, 4, "1 2 1 2 1 12002"),
        (WITH_GPUS, 4, "0 1 3 4 1 12002"),
        (replace(WITH_GPUS, network=Network(level="job")), 4, "0 1 3 4 1 12002"),
        (ROLES, 5, "2 3 0 2 2 12003"),
        (replace(PLAIN, learners=3, nodes=2, learners_per_node=2), 2, "1 2 0 2 1 29502"),
    ],
)
def test_place_values_set_ranks_machine_and_port(launch: LaunchFile, learner_id: int, places: str) -> None:
    values = place_values(launch, learner_id)
    assert " ".join(values[name] for name in OF_PLACES) == places
    assert meet(launch, NODES)[learner_id - 1].port == int(values["port"])


def test_meet_gives_each_learner_a_distinct_port_other_than_master_port() -> None:
    ends = {(peer.address, peer.port) for peer in meet(ROLES, NODES)}
    assert len(ends) == 5
    assert not {port for _, port in ends} & {int(place_values(ROLES, 1)["master_port"])}


def test_place_values_set_role_index_and_role_command() -> None:
    values = [place_values(ROLES, learner_id) for learner_id in range(1, 6)]
    roles = "ps 0, chief 0, worker 0, worker 1, evaluator 0"
    assert ", ".join(f"{one['role']} {one['role_index']}" for one in values) == roles
    assert [one["command"] for one in values] == ["python ps.py"] + ["python main.py"] * 4
    plain = place_values(SPREAD, 2)
    assert (plain["role"], plain["role_index"], plain["master_port"]) == ("", "1", "29500")
    assert "command" not in plain  # a launch file that uses it without saying it is damaged


@pytest.mark.parametrize(
    ("nodes", "learner_id", "found"),
    [
        ((0, 0, 1, 1), 4, "learner-training-7-3 10.0.0.2 10.0.0.1"),
        ((1, 0, 0, 1), 2, "learner-training-7-1 10.0.0.1 10.0.0.2"),
    ],
)
def test_peer_values_set_name_address_and_address_of_first_learner(
    nodes: tuple[int, ...], learner_id: int, found: str
) -> None:
    launch = replace(TWO_BY_TWO, seats=tuple(Seat(node, index=n) for n, node in enumerate(nodes)))
    values = node_values(meet(launch, NODES), learner_id)
    assert f"{values['name']} {values['address']} {values['master_addr']}" == found


def test_level_none_maps_own_learner_to_loopback_and_others_to_nodes() -> None:
    launch = replace(SPREAD, network=Network(level="none"))
    first, second = (seen_by(launch, meet(launch, NODES), number) for number in (1, 2))
    masters = [node_values(peers, number)["master_addr"] for number, peers in ((1, first), (2, second))]
    assert masters == ["127.0.0.1", "10.0.0.1"]
    assert node_values(second, 2)["address"] == "127.0.0.1"
    assert hosts_text(launch, second, 2, "10.0.0.9 storage\n").splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
        "127.0.0.1 learner-training-7-1 learner-training-7-1.learner-training-7",
        "10.0.0.1 learner-training-7-0 learner-training-7-0.learner-training-7",
    ]


@pytest.mark.parametrize(
    ("launch", "level", "own", "master"),
    [
        (SPREAD, "none", "127.0.0.1", "10.0.0.1"),
        (SPREAD, "host", "10.0.0.2", "10.0.0.1"),
        (PLAIN, "none", "127.0.0.1", "127.0.0.1"),
        (PLAIN, "host", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_seats_values_use_addresses_visible_to_learner(
    tmp_path: Path, launch: LaunchFile, level: str, own: str, master: str
) -> None:
    last = launch.learners
    seats = LearnerSetup(replace(launch, network=Network(level=level), scratch_base=str(tmp_path)), "/l", last - 1)
    Path(seats.scratch).mkdir()
    seats.meet(*([NODES] if last > 1 else []))
    values = seats.values(last)
    assert (values["address"], values["master_addr"]) == (own, master)
    assert f"\n{own} learner-training-7-{last - 1} " in Path(values["hosts_file"]).read_text()


@pytest.mark.parametrize("level", ["job", "egress", "host"])
def test_seen_by_returns_same_peers_for_levels_with_network(level: str) -> None:
    launch = replace(SPREAD, network=Network(level=level))
    peers = meet(launch, NODES)
    assert seen_by(launch, peers, 2) == peers


CLUSTER = {
    "ps": ["10.0.0.1:12001"], "chief": ["10.0.0.1:12002"], "worker": ["10.0.0.2:12001", "10.0.0.2:12002"],
}  # fmt: skip


def task(role: str, index: int) -> dict[str, object]:
    return {"type": role, "index": index}


@pytest.mark.parametrize(
    ("launch", "learner_id", "expected"),
    [
        (SPREAD, 2, {"cluster": {"worker": ["10.0.0.1:29501", "10.0.0.2:29501"]}, "task": task("worker", 1)}),
        (ROLES, 4, {"cluster": CLUSTER, "task": task("worker", 1)}),
        (ROLES, 5, {"cluster": CLUSTER, "task": task("evaluator", 0)}),  # which is not in the cluster
    ],
)
def test_tf_config_lists_cluster_and_own_task(launch: LaunchFile, learner_id: int, expected: object) -> None:
    assert json.loads(tf_config(meet(launch, NODES), learner_id)) == expected


def test_tf_config_task_index_matches_position_in_cluster() -> None:
    """Also where the numbers of a role do not rise with the learners' ids."""
    launch = replace(PLAIN, learners=2, nodes=2, seats=(Seat(0, "worker", 1), Seat(1, "worker", 0)))
    peers = meet(launch, NODES)
    text = json.loads(tf_config(peers, 1))
    assert text["cluster"]["worker"][text["task"]["index"]] == f"{peers[0].address}:{peers[0].port}"


def test_tf_config_of_largest_job_fits_into_variable() -> None:
    many = replace(PLAIN, learners=MOST_LEARNERS, nodes=MOST_LEARNERS, ports=29000)
    peers = meet(many, ["255.255.255.255"] * MOST_LEARNERS)
    assert len(f"TF_CONFIG={tf_config(peers, 1)}") < 128 * 1024


def test_tf_config_is_empty_for_single_learner() -> None:
    assert tf_config(meet(PLAIN, ("127.0.0.1",)), 1) == ""


@pytest.mark.parametrize(("level", "keeps"), [("host", True), ("job", False), ("none", False), ("egress", False)])
def test_hosts_text_keeps_node_entries_only_at_level_host(level: str, keeps: bool) -> None:
    launch = replace(SPREAD, network=Network(level=level))
    overlay = level in ("job", "egress")
    text = hosts_text(launch, meet(launch, ("10.0.0.1", "10.0.1.1") if overlay else NODES), 1, "10.0.0.9 storage\n")
    assert text == (
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
        "10.0.0.1 learner-training-7-0 learner-training-7-0.learner-training-7\n"
        f"10.0.{'1.1' if overlay else '0.2'} learner-training-7-1 learner-training-7-1.learner-training-7\n"
    ) + ("10.0.0.9 storage\n" if keeps else "")


def test_job_network_gives_each_learner_its_own_address() -> None:
    for level in ("job", "egress"):
        launch = replace(TWO_BY_TWO, network=Network(level=level))
        peers = meet(launch, ("10.200.0.1", "10.200.1.1"))
        assert [peer.address for peer in peers] == ["10.200.0.1", "10.200.0.2", "10.200.1.1", "10.200.1.2"]
        assert [peer.port for peer in peers] == [12001, 12002, 12001, 12002]
        assert node_values(peers, 4)["master_addr"] == "10.200.0.1"
        assert json.loads(node_values(peers, 4)["tf_config"])["cluster"]["worker"][3] == "10.200.1.2:12002"


def test_hosts_text_lists_own_name_first_for_shared_address() -> None:
    """Else each of them would take itself for the first one."""
    peers = meet(SPREAD, ("10.0.0.1", "10.0.0.1"))
    for number in (1, 2):
        lines = hosts_text(SPREAD, peers, number, "").splitlines()
        assert next(line.split()[1] for line in lines if line.startswith("10.0.0.1 ")) == peers[number - 1].name


@pytest.mark.parametrize(
    ("launch", "gpus", "lines"),
    [
        (SPREAD, 4, ["0 slots=4", "1 slots=4"]),
        (SPREAD, 0, ["0 slots=1", "1 slots=1"]),
        (WITH_GPUS, 4, ["0 slots=2", "1 slots=2", "2 slots=2", "3 slots=2"]),
        (ROLES, 0, ["1 slots=1", "2 slots=1", "3 slots=1", "4 slots=1"]),
        (MPI, 1, ["0 slots=1", "1 slots=1", "2 slots=1"]),
    ],
)
def test_hostfile_text_lists_slots_for_mpi_and_hydra(launch: LaunchFile, gpus: int, lines: list[str]) -> None:
    text = hostfile_text(launch, meet(launch, NODES), gpus)
    assert text.splitlines() == [f"learner-training-7-{line}" for line in lines]
    hydra = hostfile_text(launch, meet(launch, NODES), gpus, ":")
    assert hydra == text.replace(" slots=", ":")
