"""How learners are laid over nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from ffdl_batch.domain.gang import Load, Member, count_parameter_servers, deal, fullest, lay_out
from ffdl_batch.domain.spec import Placement

EACH = Load(2, 1000, 1)
ROOM = Load(8, 8000, 4)


def plain(count: int, load: Load = EACH) -> list[Member]:
    return [Member(load, index=number) for number in range(count)]


def roles(**counts: int) -> list[Member]:
    return [Member(EACH, role, index) for role, count in counts.items() for index in range(count)]


def among(nodes: int, room: Load = ROOM) -> object:
    return lambda load: nodes if load.fits(room) else 0


@pytest.mark.parametrize(
    ("learners", "nodes", "expected"),
    [(4, 2, (0, 0, 1, 1)), (5, 2, (0, 0, 0, 1, 1)), (3, 3, (0, 1, 2)), (1, 1, (0,)), (7, 3, (0, 0, 0, 1, 1, 2, 2))],
)
def test_neighbours_share_nodes_and_the_first_ones_have_more(
    learners: int, nodes: int, expected: tuple[int, ...]
) -> None:
    assert deal(plain(learners), nodes) == expected


def test_each_role_is_dealt_evenly_and_the_poorest_node_gets_what_is_left_over() -> None:
    members = roles(chief=1, worker=3, evaluator=1)
    assert deal(members, 2) == (0, 0, 1, 1, 0)
    assert Counter(deal(members, 3)) == {0: 2, 1: 2, 2: 1}
    heavy = [Member(Load(1, 1, 4), "ps"), *(Member(EACH, "worker", number) for number in range(3))]
    assert deal(heavy, 2) == (0, 0, 1, 1)


@pytest.mark.parametrize(("placement", "nodes"), [(Placement.NODE, 6), (Placement.PACK, 2), (Placement.SPREAD, 6)])
def test_placements_differ_in_how_many_nodes_they_take(placement: Placement, nodes: int) -> None:
    gang = lay_out(plain(6), placement, among(10))
    assert gang is not None
    assert gang.nodes == nodes
    assert len(set(gang.nodes_of)) == nodes


def test_spread_takes_what_there_is_and_pack_as_little_as_holds() -> None:
    spread, packed = (lay_out(plain(6), placement, among(3)) for placement in (Placement.SPREAD, Placement.PACK))
    assert spread is not None and packed is not None
    assert (spread.nodes, spread.nodes_of, spread.load) == (3, (0, 0, 1, 1, 2, 2), Load(4, 2000, 2))
    assert (packed.nodes, packed.nodes_of, packed.load) == (2, (0, 0, 0, 1, 1, 1), Load(6, 3000, 3))


@pytest.mark.parametrize("placement", list(Placement))
def test_what_does_not_fit_is_nowhere(placement: Placement) -> None:
    assert lay_out(plain(9), placement, among(2)) is None
    assert lay_out(plain(1, Load(9, 1, 0)), placement, among(5)) is None


def test_the_fullest_node_says_what_all_are_asked_for() -> None:
    members = [Member(Load(4, 100, 0), "ps"), Member(Load(1, 900, 2), "worker"), Member(Load(1, 900, 2), "worker", 1)]
    assert fullest(members, (0, 0, 1)) == Load(5, 1000, 2)
    assert fullest([], ()) == Load()


def test_one_learner_on_each_node_needs_no_table() -> None:
    alone, shared, named = (
        lay_out(members, placement, among(9))
        for members, placement in (
            (plain(3), Placement.NODE), (plain(3), Placement.PACK), (roles(worker=3), Placement.NODE)
        )
    )  # fmt: skip
    assert alone is not None and shared is not None and named is not None
    assert alone.table == ()
    assert [seat.node for seat in shared.table] == [0, 0, 0]
    assert [(seat.node, seat.role, seat.index) for seat in named.table] == [(n, "worker", n) for n in range(3)]


@pytest.mark.parametrize(
    ("command", "learners", "count"),
    [
        ("PS_HOSTS_COUNT=1 python launcher.py", 3, 1),
        ("export PS_HOSTS_COUNT='2'; python launcher.py", 3, 2),
        ("PS_HOSTS_COUNT=3 python launcher.py", 3, 2),
        ("MY_PS_HOSTS_COUNT=1 python x.py", 3, 0),
        ("python train.py", 3, 0),
    ],
)
def test_parameter_servers_are_counted_in_the_command(command: str, learners: int, count: int) -> None:
    assert count_parameter_servers(command, learners) == count
