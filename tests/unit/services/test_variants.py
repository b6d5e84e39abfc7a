"""Which other requests are tried, and which waits count as those of jobs alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job import HistoryEntry, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.spec import BatchOptions, Framework, JobSpec, Resources, Role
from ffdl_batch.domain.waiting import Explanation, Limit, Measure, Per, Reason, WaitKind
from ffdl_batch.ports.scheduler import BackendFacts, NodeShape, PartitionShape
from ffdl_batch.services.variants import MOST, variants_of
from ffdl_batch.services.wait_history import FEWEST, are_alike, shape_of, summarise, waits_for_room, waits_of

FACTS = BackendFacts(
    nodes=(
        NodeShape("a", 8, 1 << 33, {"v100": 4}, ("main", "quick")),
        NodeShape("b", 8, 1 << 33, {"a100": 4, "h100": 2}, ("main", "big")),
        NodeShape("c", 8, 1 << 33, {}, ("cpu",)),
    ),
    partitions=(PartitionShape("main", is_default=True), PartitionShape("quick", max_time_s=1800),
                PartitionShape("big"), PartitionShape("cpu")),
)  # fmt: skip


def spec(gpus: float = 4, kind: str = "", learners: int = 1, **batch: object) -> JobSpec:
    each = Resources(gpus=gpus, gpu_type=kind, learners=learners)
    return JobSpec("x", Framework("custom", "1", "true"), resources=each, batch=BatchOptions(**batch))  # type: ignore[arg-type]


def options(one: JobSpec, known: Explanation | None = None) -> list[str]:
    return [variant.options for variant in variants_of(one, FACTS, known)]


def test_one_thing_differs_in_each() -> None:
    found = options(spec(4, "v100", 2, time_s=1800))
    assert found == [
        "--partition=quick",
        "--gpus=a100:4",
        "--gpus=h100:4",
        "--time=00:15:00",
        "--gpus=v100:2",
        "--learners=1",
    ]
    assert len(found) <= MOST


def test_partitions_that_cannot_hold_it_are_not_tried() -> None:
    assert options(spec(4, "", time_s=7200)) == ["--partition=big", "--time=01:00:00", "--time=00:30:00", "--gpus=2"]
    assert "--partition=cpu" in options(spec(0))


def test_without_a_time_limit_a_limit_is_tried() -> None:
    assert options(spec(1, "", partition="cpu,quick,big")) == ["--partition=main", "--time=04:00:00", "--time=01:00:00"]


def test_over_a_limit_of_a_job_s_time_what_it_gives_is_tried() -> None:
    def with_limit(most: str, per: Per = Per.JOB) -> Explanation:
        return Explanation(0.0, Reason(WaitKind.LIMIT, limit=Limit("QOS", "time", per, most=most)))

    assert options(spec(1, time_s=7200), with_limit("60")) == ["--time=01:00:00"]
    assert options(spec(1), with_limit("5")) == ["--time=00:05:00"]
    assert options(spec(1, time_s=7200), with_limit("")) == []
    assert options(spec(1, time_s=7200), with_limit("60", Per.ALL)) == []


def test_roles_are_left_as_they_are() -> None:
    assert not [
        one for one in options(spec(4, "", 2, roles={"ps": Role()})) if one.startswith(("--gpus", "--learners"))
    ]


def test_what_it_waits_for_beside_room_is_taken_off() -> None:
    waiting = spec(4, hold=True, begin="now+1hour", dependency="afterok:1")
    for variant in variants_of(waiting, FACTS):
        batch = variant.spec.batch
        assert not (batch.hold or batch.begin or batch.dependency)


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (Limit("QOS", "GPUs", Per.USER, most="6", used="4"), ["--gpus=v100:1", "--learners=1"]),
        (Limit("QOS", "GPUs", Per.JOB, most="4", used="99"), ["--gpus=v100:2", "--learners=1"]),
        (Limit("QOS", "GPUs", Per.USER, most="4", used="4"), []),
        (Limit("QOS", "GPUs", Per.USER, most="5", used="4", asked="8"), []),  # more than it gives, and others run
        (Limit("QOS", "CPUs", Per.USER, most="4", used="0"), []),
        (Limit("QOS", "GPUs", Per.ALL, Measure.RUN_MINUTES, most="4"), []),
        (Limit("QOS", "GPUs", Per.USER), []),
    ],
)
def test_within_a_limit(limit: Limit, found: list[str]) -> None:
    known = Explanation(0.0, Reason(WaitKind.LIMIT, "x", limit=limit))
    expected = found if "--gpus=v100:1" not in found else ["--gpus=v100:1"]  # a learner of 4 GPUs would be over it
    asked = spec(4, "v100", 2)
    assert options(asked, known) == expected


def test_a_like_shape() -> None:
    one = spec(4, "v100", 2, time_s=3600)
    assert are_alike(one, spec(8, "V100", 1, time_s=7200))
    assert not are_alike(one, spec(4, "a100", 2, time_s=3600))
    assert not are_alike(one, spec(4, "v100", 2, time_s=7300))
    assert not are_alike(one, spec(4, "v100", 2))
    assert not are_alike(one, replace(one, batch=replace(one.batch, partition="big")))
    assert shape_of(one) == "8 GPUs of type v100 and a like time limit"
    assert shape_of(spec(1)) == "1 GPU and a like time limit"


def test_what_waits_for_something_else_tells_nothing_of_room() -> None:
    assert waits_for_room(spec(4))
    for batch in ({"begin": "now+8hours"}, {"hold": True}, {"dependency": "afterok:1"}):
        assert not waits_for_room(spec(4, **batch))


def history(*rows: tuple[JobState, float]) -> list[HistoryEntry]:
    return [HistoryEntry(JobId("training-000000000"), number, at, state, 1) for number, (state, at) in enumerate(rows)]


def test_waits_are_from_queued_to_the_begin() -> None:
    q, p, d = JobState.QUEUED, JobState.PROCESSING, JobState.DOWNLOADING
    assert waits_of(history((JobState.DEPLOYING, 0), (q, 10), (d, 40), (p, 50))) == [30]
    assert waits_of(history((q, 10), (p, 20), (q, 100), (p, 160))) == [10, 60]  # it was requeued
    assert waits_of(history((q, 10), (JobState.CANCELLED, 500))) == []
    assert waits_of(history((q, 10), (JobState.PENDING, 20), (q, 30), (p, 35))) == [5]


def test_quantiles_of_enough_waits() -> None:
    assert summarise([1.0] * (FEWEST - 1), "x") is None
    found = summarise([float(n) for n in range(11)], "x")
    assert found is not None
    assert (found.jobs, found.median_s, found.ninth_decile_s, found.longest_s) == (11, 5.0, 9.0, 10.0)
