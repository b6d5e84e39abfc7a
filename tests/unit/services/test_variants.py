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


def test_variants_change_one_option_each() -> None:
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


def test_variants_skip_partitions_that_cannot_run_job() -> None:
    assert options(spec(4, "", time_s=7200)) == ["--partition=big", "--time=01:00:00", "--time=00:30:00", "--gpus=2"]
    assert "--partition=cpu" in options(spec(0))


def test_variants_try_time_limits_for_job_without_one() -> None:
    assert options(spec(1, "", partition="cpu,quick,big")) == ["--partition=main", "--time=04:00:00", "--time=01:00:00"]


def test_variants_shorten_time_to_per_job_time_limit() -> None:
    def with_limit(most: str, per: Per = Per.JOB) -> Explanation:
        return Explanation(0.0, Reason(WaitKind.LIMIT, limit=Limit("QOS", "time", per, most=most)))

    assert options(spec(1, time_s=7200), with_limit("60")) == ["--time=01:00:00"]
    assert options(spec(1), with_limit("5")) == ["--time=00:05:00"]
    assert options(spec(1, time_s=7200), with_limit("")) == []
    assert options(spec(1, time_s=7200), with_limit("60", Per.ALL)) == []


def test_variants_keep_gpus_and_learners_of_job_with_roles() -> None:
    assert not [
        one for one in options(spec(4, "", 2, roles={"ps": Role()})) if one.startswith(("--gpus", "--learners"))
    ]


def test_variants_remove_hold_begin_and_dependency() -> None:
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
def test_variants_offer_only_gpu_requests_within_known_limit(limit: Limit, found: list[str]) -> None:
    known = Explanation(0.0, Reason(WaitKind.LIMIT, "x", limit=limit))
    expected = found if "--gpus=v100:1" not in found else ["--gpus=v100:1"]  # a learner of 4 GPUs would be over it
    asked = spec(4, "v100", 2)
    assert options(asked, known) == expected


def test_are_alike_compares_total_gpus_type_partition_and_time_within_factor() -> None:
    one = spec(4, "v100", 2, time_s=3600)
    assert are_alike(one, spec(8, "V100", 1, time_s=7200))
    assert not are_alike(one, spec(4, "a100", 2, time_s=3600))
    assert not are_alike(one, spec(4, "v100", 2, time_s=7300))
    assert not are_alike(one, spec(4, "v100", 2))
    assert not are_alike(one, replace(one, batch=replace(one.batch, partition="big")))
    assert shape_of(one) == "8 GPUs of type v100 and a like time limit"
    assert shape_of(spec(1)) == "1 GPU and a like time limit"


def test_waits_for_capacity_is_false_for_begin_hold_or_dependency() -> None:
    assert waits_for_room(spec(4))
    for batch in ({"begin": "now+8hours"}, {"hold": True}, {"dependency": "afterok:1"}):
        assert not waits_for_room(spec(4, **batch))


def history(*rows: tuple[JobState, float]) -> list[HistoryEntry]:
    return [HistoryEntry(JobId("training-000000000"), number, at, state, 1) for number, (state, at) in enumerate(rows)]


def test_wait_history_measures_time_from_queued_to_start() -> None:
    q, p, d = JobState.QUEUED, JobState.PROCESSING, JobState.DOWNLOADING
    assert waits_of(history((JobState.DEPLOYING, 0), (q, 10), (d, 40), (p, 50))) == [30]
    assert waits_of(history((q, 10), (p, 20), (q, 100), (p, 160))) == [10, 60]  # it was requeued
    assert waits_of(history((q, 10), (JobState.CANCELLED, 500))) == []
    assert waits_of(history((q, 10), (JobState.PENDING, 20), (q, 30), (p, 35))) == [5]


def test_wait_summary_needs_minimum_number_of_waits() -> None:
    assert summarise([1.0] * (FEWEST - 1), "x") is None
    found = summarise([float(n) for n in range(11)], "x")
    assert found is not None
    assert (found.jobs, found.median_s, found.ninth_decile_s, found.longest_s) == (11, 5.0, 9.0, 10.0)
