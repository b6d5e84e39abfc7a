"""Several learners in one homogeneous allocation of Slurm's: where they sit, and layouts that no cluster has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job.spec import SITE_DEFAULT, BatchOptions, Framework, Placement, Resources, Role
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchRequest
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.settings import SlurmSettings
from tests.unit.slurm.test_plan import FACTS, options, request

SMALL = Resources(learners=4, cpus=1, memory_bytes=10**9)
GPU = Resources(learners=4, cpus=1, gpus=1, memory_bytes=10**8)
IDLE = (
    "gpus: each of 2 nodes is asked for {0}, as many as the fullest one needs, and the learners have {1}; "
    "{2} of {3} are idle, and count for batch.retry.gpu_hours"
)
PACK, SPREAD = BatchOptions(placement=Placement.PACK), BatchOptions(placement=Placement.SPREAD)


def launch_of(made: LaunchRequest) -> LaunchFile:
    plan = make_plan(made, SlurmSettings())
    assert decode(next(file.text for file in plan.files if file.name == "launch.json")) == plan.launch
    return plan.launch


def with_framework(name: str, command: str, resources: Resources, batch: BatchOptions | None = None) -> LaunchRequest:
    made = request(resources, batch)
    return replace(made, spec=replace(made.spec, framework=Framework(name, "1", command)))


def roles(**named: Role) -> BatchOptions:
    return BatchOptions(roles=named)


@pytest.mark.parametrize(
    ("made", "gpus", "idle"),
    [
        (request(replace(GPU, learners=2)), 2.0, []),
        (request(GPU, PACK), 4.0, []),
        (request(replace(GPU, learners=3), SPREAD), 4.0, [IDLE.format(2, 3, 1, 4)]),
        (
            request(replace(GPU, learners=2), roles(chief=Role(gpus=4), eval=Role(gpus=0))),
            8.0,
            [IDLE.format(4, 4, 4, 8)],
        ),
        (request(SMALL, SPREAD), 0.0, []),
    ],
)
def test_plan_counts_allocated_gpus_and_warns_of_idle_gpus(made: LaunchRequest, gpus: float, idle: list[str]) -> None:
    plan = make_plan(made, SlurmSettings())
    assert plan.launch.succession is not None and plan.launch.succession.gpus == gpus
    assert [line for line in plan.warnings if "idle" in line] == idle


def test_plan_places_one_learner_per_node_by_default_and_without_node_facts() -> None:
    launch = launch_of(request(replace(SMALL, learners=3)))
    assert (launch.nodes, launch.seats, launch.names) == (3, (), "learner-training-0a1b2c3d4")
    unknown = launch_of(request(SMALL, PACK, facts=replace(FACTS, nodes=())))
    assert (unknown.nodes, unknown.seats) == (4, ())


def test_plan_places_roles_in_one_homogeneous_allocation() -> None:
    ps = Role(1, cpus=2, gpus=0, memory_bytes=2000 * 1024**2, service=True)
    worker, evaluator = Role(2, gpus=2, command="python3 worker.py"), Role(1, cpus=1.5, gpus=0)
    made = request(GPU, replace(PACK, roles={"ps": ps, "worker": worker, "evaluator": evaluator}))
    launch = launch_of(made)
    assert [(seat.node, seat.role, seat.index, seat.service, seat.gpus) for seat in launch.seats] == [
        (0, "ps", 0, True, 0), (0, "worker", 0, False, 2), (0, "worker", 1, False, 2), (0, "evaluator", 0, False, 0),
    ]  # fmt: skip
    asked = options(made)
    assert (asked["cpus-per-task"], asked["gres"], asked["mem"]) == ("6", "gpu:4", "2288M")
    assert (launch.command, launch.commands) == ("python3 train.py", {"worker": "python3 worker.py"})
    assert launch.succession is not None and launch.succession.gpus == 4.0
    rounded = "batch.roles.evaluator.cpus: 1.5 is rounded up to 2, Slurm gives whole CPUs"
    assert rounded in make_plan(made, SlurmSettings()).warnings


@pytest.mark.parametrize(
    ("resources", "batch", "field", "words"),
    [
        (replace(SMALL, learners=99), PACK, "learners", r"need more nodes than there are, but main has 3 nodes"),
        (replace(GPU, gpus=3, learners=3), SPREAD, "learners", r"main has 2 nodes that hold one"),
        (replace(GPU, learners=3), BatchOptions(), "learners", r"placement: pack"),
        (GPU, roles(a=Role(3), b=Role(1, gpus=9)), "batch.roles.b.gpus", "of role b, but no node"),
        (GPU, roles(a=Role(3), b=Role(1, cpus=99)), "batch.roles.b.cpus", "of role b, but no"),
        (GPU, roles(a=Role(4, memory_bytes=10**13)), "batch.roles.a.memory", "of role a, but no"),
        (GPU, roles(a=Role(4, cpus=60, gpus=4)), "batch.roles.a", "at once"),
        (replace(GPU, gpus=9), roles(a=Role(2), b=Role(2)), "gpus", "9 GPUs per learner, but no"),
        (GPU, roles(a=Role(3)), "learners", "the roles have 3 together"),
    ],
)
def test_plan_rejects_impossible_layout(resources: Resources, batch: BatchOptions, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        make_plan(request(resources, batch), SlurmSettings())
    assert [finding.path for finding in error.value.findings] == [field]


def test_plan_rejection_names_site_default_cpus_and_packed_mpi_learners_with_gpus() -> None:
    made = request(replace(SMALL, cpus=99), roles(a=Role(3), b=Role(1, cpus=1)))
    with pytest.raises(InvalidRequest, match="the site's default_cpus"):
        make_plan(replace(made, spec=replace(made.spec, sources={"cpus": SITE_DEFAULT})), SlurmSettings())
    with pytest.raises(InvalidRequest, match="one machine"):
        make_plan(with_framework("horovod", "python m.py", GPU, PACK), SlurmSettings())
