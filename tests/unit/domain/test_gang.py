"""How learners are laid over nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations, product

import pytest

from ffdl_batch.domain.job import learner_layout as gang_module
from ffdl_batch.domain.job.learner_layout import (
    Load,
    Member,
    Part,
    count_gpus,
    count_parameter_servers,
    deal,
    fullest,
    largest,
    lay_on_one,
    lay_out,
    members_of,
    parts_of,
    takes_for_one,
)
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Placement, Resources, Role
from ffdl_batch.domain.launch.launch_file import Seat

EACH = Load(2, 1000, 1)
ROOM = Load(8, 8000, 4)


def job(
    learners: int = 1, framework: str = "pytorch", command: str = "python x.py", gpus: float = 1,
    env: dict[str, str] | None = None, **roles: Role,
) -> JobSpec:  # fmt: skip
    resources = Resources(learners=learners, cpus=2, gpus=gpus, memory_bytes=1024**3)
    batch = BatchOptions(roles=roles, env=env or {})
    return JobSpec("x", Framework(framework, "1", command), resources=resources, batch=batch)


def plain(count: int, load: Load = EACH) -> list[Member]:
    return [Member(load, index=number) for number in range(count)]


def roles(**counts: int) -> list[Member]:
    return [Member(EACH, role, index) for role, count in counts.items() for index in range(count)]


def among(nodes: int, room: Load = ROOM) -> Callable[[Load], int]:
    return lambda load: nodes if load.fits(room) else 0


@pytest.mark.parametrize(
    ("learners", "nodes", "expected"),
    [(4, 2, (0, 0, 1, 1)), (5, 2, (0, 0, 0, 1, 1)), (3, 3, (0, 1, 2)), (1, 1, (0,)), (7, 3, (0, 0, 0, 1, 1, 2, 2))],
)
def test_deal_places_neighbours_together_and_more_on_first_nodes(
    learners: int, nodes: int, expected: tuple[int, ...]
) -> None:
    assert deal(plain(learners), nodes) == expected


def test_deal_spreads_each_role_evenly_and_fills_least_loaded_node() -> None:
    members = roles(chief=1, worker=3, evaluator=1)
    assert deal(members, 2) == (0, 0, 1, 1, 0)
    assert Counter(deal(members, 3)) == {0: 2, 1: 2, 2: 1}
    heavy = [Member(Load(1, 1, 4), "ps"), *(Member(EACH, "worker", number) for number in range(3))]
    assert deal(heavy, 2) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("placement", "there", "nodes_of", "load"),
    [
        (Placement.NODE, 10, (0, 1, 2, 3, 4, 5), EACH),
        (Placement.PACK, 10, (0, 0, 0, 1, 1, 1), Load(6, 3000, 3)),
        (Placement.SPREAD, 10, (0, 1, 2, 3, 4, 5), EACH),
        (Placement.SPREAD, 3, (0, 0, 1, 1, 2, 2), Load(4, 2000, 2)),
        (Placement.PACK, 3, (0, 0, 0, 1, 1, 1), Load(6, 3000, 3)),
    ],
)
def test_lay_out_uses_nodes_as_placement_requests_or_returns_none_if_learners_do_not_fit(
    placement: Placement, there: int, nodes_of: tuple[int, ...], load: Load
) -> None:
    gang = lay_out(plain(6), placement, among(there))
    assert gang is not None
    assert (gang.nodes, gang.nodes_of, gang.load) == (len(set(nodes_of)), nodes_of, load)
    assert lay_out(plain(9), placement, among(2)) is None
    assert lay_out(plain(1, Load(9, 1, 0)), placement, among(5)) is None


def test_fullest_returns_load_of_fullest_node() -> None:
    members = [Member(Load(4, 100, 0), "ps"), Member(Load(1, 900, 2), "worker"), Member(Load(1, 900, 2), "worker", 1)]
    assert fullest(members, (0, 0, 1)) == Load(5, 1000, 2)
    assert fullest([], ()) == Load()


LOADS = (Load(1, 100, 0), Load(2, 900, 1), Load(7, 50, 4))
ALIKE = (Load(1, 100, 1), Load(1, 100, 0, 1), Load(1, 100, 0, 1, 1))
"""All of which weigh as much as the others where learners are dealt."""
KINDS = [
    [Member(load, f"r{role}", index) for role, (load, count) in enumerate(zip(order, counts, strict=True))
     for index in range(count)]
    for loads in (LOADS, ALIKE) for order in permutations(loads) for counts in product((1, 3, 4, 7), repeat=3)
]  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
def test_lay_out_requests_load_of_fullest_node(nodes: int) -> None:
    for members in KINDS:
        gang = lay_out(members, Placement.PACK, lambda _: nodes, named=nodes)
        if len(members) >= nodes:
            assert gang is not None and gang.nodes == nodes
            assert gang.load == fullest(members, gang.nodes_of)


def test_lay_out_effort_stays_linear_in_number_of_learners() -> None:
    """Each number of nodes is tried, so what a try costs counts: it looks at kinds of nodes, not at learners."""
    added = 0

    class Counting(Load):
        __slots__ = ()

        def plus(self, other: Load) -> Load:
            nonlocal added
            added += 1
            return super().plus(other)

    members = [
        *(Member(Counting(1, 1000), "ps", index, True) for index in range(400)),
        *(Member(Counting(1, 1000, 1), "worker", index) for index in range(3600)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gang_module, "Load", Counting)
        assert lay_out(members, Placement.SPREAD, lambda _: 0) is None
    assert 0 < added < 8 * len(members)


@pytest.mark.parametrize(
    ("placement", "there", "named", "learners", "nodes"),
    [
        (Placement.PACK, 9, 0, 6, 2),
        (Placement.PACK, 9, 1, 6, 2),
        (Placement.PACK, 9, 4, 6, 4),
        (Placement.PACK, 9, 4, 3, 3),  # Slurm has its say about the fourth
        (Placement.SPREAD, 9, 0, 6, 6),
        (Placement.SPREAD, 9, 2, 6, 2),
        (Placement.SPREAD, 9, 1, 6, 6),  # one does not hold them: as many as there are
        (Placement.NODE, 9, 2, 6, 6),
        (Placement.NODE, 2, 2, 6, None),
    ],
)
def test_lay_out_includes_named_nodes_and_adds_others_if_needed(
    placement: Placement, there: int, named: int, learners: int, nodes: int | None
) -> None:
    gang = lay_out(plain(learners), placement, among(there), named)
    assert (gang and gang.nodes) == nodes


def test_lay_out_needs_no_table_for_one_learner_per_node() -> None:
    alone = lay_out(plain(3), Placement.NODE, among(9))
    shared = lay_out(plain(3), Placement.PACK, among(9))
    named = lay_out(roles(worker=3), Placement.NODE, among(9))
    assert alone is not None and shared is not None and named is not None
    assert alone.table == ()
    assert [seat.node for seat in shared.table] == [0, 0, 0]
    assert [(seat.node, seat.role, seat.index) for seat in named.table] == [(n, "worker", n) for n in range(3)]


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("PS_HOSTS_COUNT=1 python launcher.py", 1),
        ("export PS_HOSTS_COUNT='2'; python launcher.py", 2),
        ("PS_HOSTS_COUNT=3 python launcher.py", 2),
        ("MY_PS_HOSTS_COUNT=1 python x.py", 0),
        ("python train.py", 0),
    ],
)
def test_count_parameter_servers_reads_count_from_command(command: str, count: int) -> None:
    assert count_parameter_servers(command, learners=3) == count


PS_COMMAND = "PS_HOSTS_COUNT=2 python launcher.py"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (job(), [("", 0, False)]),
        (job(3), [("", 0, False), ("", 1, False), ("", 2, False)]),
        (job(3, command=PS_COMMAND), [("ps", 0, True), ("ps", 1, True), ("worker", 0, False)]),
        (job(2, command=PS_COMMAND), [("ps", 0, True), ("worker", 0, False)]),
        (job(1, command=PS_COMMAND), [("", 0, False)]),
        (job(2, env={"PS_HOSTS_COUNT": "1"}), [("ps", 0, True), ("worker", 0, False)]),
        (job(3, "horovod"), [("launcher", 0, False), ("worker", 0, True), ("worker", 1, True)]),
        (job(2, "pytorchmpi"), [("launcher", 0, False), ("worker", 0, True)]),
        (job(1, "horovod"), [("", 0, False)]),
        (job(4, chief=Role(), worker=Role(2), ps=Role(service=True)),
         [("chief", 0, False), ("worker", 0, False), ("worker", 1, False), ("ps", 0, True)]),
        # Who names roles means them, whatever FfDL would have made of the rest.
        (job(2, "horovod", PS_COMMAND, a=Role(), b=Role()), [("a", 0, False), ("b", 0, False)]),
    ],
)  # fmt: skip
def test_members_of_lists_roles_in_order_of_learner_ids(spec: JobSpec, expected: list[tuple[str, int, bool]]) -> None:
    assert [(one.role, one.index, one.service) for one in members_of(spec)] == expected


def test_members_of_inherits_job_resources_unless_role_sets_them() -> None:
    spec = job(
        3, ps=Role(cpus=0.5, gpus=0, memory_bytes=1, service=True), worker=Role(cpus=3.5), evaluator=Role(gpus=2)
    )
    assert [one.load for one in members_of(spec)] == [Load(1, 1, 0), Load(4, 1024, 1), Load(2, 1024, 2)]
    assert count_gpus(spec) == 3
    assert lay_on_one(members_of(spec)).gpus == 3
    assert largest(members_of(spec)) == Load(4, 1024, 2)


def test_parts_of_names_manifest_path_of_each_amount() -> None:
    ps, worker = parts_of(job(2, ps=Role(gpus=0), worker=Role()))
    assert (ps.path("gpus"), ps.per_learner("gpus")) == ("batch.roles.ps.gpus", "per learner of role ps")
    assert (ps.path("cpus"), ps.per_learner("cpus")) == ("cpus", "per learner")
    assert worker.path("gpus") == "gpus"
    assert parts_of(job(4)) == (Part(4, 2, 1, 1024**3),)


def test_gang_table_lists_role_and_gpus_of_each_learner() -> None:
    spec = job(3, ps=Role(gpus=0, service=True), worker=Role(2))
    gang = lay_out(members_of(spec), Placement.SPREAD, among(2))
    assert gang is not None
    assert gang.table == (Seat(0, "ps", 0, True, 0), Seat(0, "worker", 0, False, 1), Seat(1, "worker", 1, False, 1))
    assert gang.load == Load(4, 2048, 1)


@pytest.mark.parametrize(
    ("spec", "shared"),
    [
        (job(4, "horovod"), True),
        (job(4, "horovod", gpus=0), False),
        (job(4, "pytorch"), False),
        (job(1, "horovod", gpus=4), False),
        (job(2, "horovod", launcher=Role(), worker=Role()), False),
    ],
)
def test_takes_for_one_detects_mpi_learners_sharing_a_node(spec: JobSpec, shared: bool) -> None:
    members = members_of(spec)
    assert takes_for_one(spec, lay_on_one(members)) is shared
    apart = lay_out(members, Placement.NODE, among(9))
    assert apart is not None and not takes_for_one(spec, apart)
