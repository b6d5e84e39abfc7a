"""The simulated placements of `make bench BENCH=papers`, and the names that it stands for."""

from __future__ import annotations

import random

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.placement import (
    Choose,
    Job,
    held_by_gangs,
    held_by_pods,
    learners_of,
    pack,
    place,
    spread,
    waits_of,
)
from tests.benchmarks.shared_cache import measure_same_data


@pytest.mark.parametrize(("choose", "node"), [(pack, 1), (spread, 2)])
def test_learner_goes_to_fullest_or_emptiest_node_that_has_enough(choose: Choose, node: int) -> None:
    assert choose([1, 2, 4, 3], 2) == node
    assert choose([1, 2, 4, 3], 5) is None


def test_place_takes_all_learners_of_a_job_or_none() -> None:
    free = [4, 2]
    assert place(free, (4, 4), pack) is None and free == [4, 2]
    assert place(free, (4, 2), pack) == [0, 1] and free == [0, 0]


def test_gangs_hold_no_gpu_for_jobs_that_cannot_start_and_pods_do() -> None:
    for seed in range(5):
        assert held_by_gangs(50, 4, random.Random(seed)) == (0, 15)
        held, started = held_by_pods(50, 4, random.Random(seed))
        assert held == 60 - 4 * started > 0


def test_no_gpu_is_held_for_nothing_when_all_jobs_fit() -> None:
    assert held_by_gangs(15, 4, random.Random(1)) == held_by_pods(15, 4, random.Random(1)) == (0, 15)


def test_job_is_split_into_learners_that_fill_nodes() -> None:
    assert [list(learners_of(gpus)) for gpus in (1, 4, 10)] == [[1], [4], [4, 4, 2]]


def test_job_of_a_whole_node_waits_only_after_spreading() -> None:
    jobs = [Job(0, (1,), 100), Job(1, (1,), 100), Job(2, (4,), 10), Job(3, (1,), 10)]
    assert waits_of(jobs, [4, 4], pack) == [0, 0, 0, 0]
    assert waits_of(jobs, [4, 4], spread) == [0, 0, 98, 97]


def test_papers_is_a_name_for_parts_each_measured_once() -> None:
    names, knobs, _ = benchmarks._read(["gangs", "papers"])
    assert sorted(names) == sorted(benchmarks.PARTS) and names[0] == "gangs"
    assert set(benchmarks.PARTS) <= set(benchmarks.NAMES) and benchmarks.PAPERS not in benchmarks.NAMES
    assert not any(benchmarks._needs_cluster(name, knobs) for name in ("gangs", "packing", "same-data", "fairness"))


def test_one_copy_for_two_tenants_of_same_data_hits_more_often_than_a_copy_for_each() -> None:
    hits = {one.who: one.samples for one in measure_same_data(Knobs()) if one.unit == "%"}
    assert min(hits["ffdl, shared"]) > max(hits["ffdl, parts of users"])
