"""The checker of the proof can fail: each fault that it must find is put in, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.proof.checker import Late, Outcome, expected, judge, slowest
from tests.proof.workload import make_tasks, manifest

TASKS = make_tasks(4, seed=1, prefix="t")


def good(index: int) -> Outcome:
    """A job as it should end."""
    task = TASKS[index]
    native = str(100 + index)
    executions = list(range(1, task.learners + 1))
    return Outcome(task, f"training-{index:09d}", "COMPLETED", executions, frozenset({native}), expected(task))


def test_proof_checker_accepts_faultless_jobs() -> None:
    tally = judge([good(index) for index in range(4)])
    assert tally.holds
    assert tally.line(0.84) == "jobs 4 COMPLETED 4 lost 0 doubled 0 wrong 0 slowest state seen late by 0.8 s"
    assert tally.troubles == ()


def test_proof_checker_computes_expected_value_per_learner() -> None:
    task = replace(TASKS[3], numbers="1\n2\n3\n-4\n")
    assert task.learners == 2
    assert [expected(task)[learner]["squares"] for learner in (1, 2)] == [1 + 9, 4 + 16]


MUTATIONS = {
    "wrong value": (replace(good(3), values={**expected(TASKS[3]), 2: {"squares": 0}}), (4, 0, 0, 1)),
    "missing value": (replace(good(3), values={1: expected(TASKS[3])[1]}), (4, 0, 0, 1)),
    "wrong number of GPUs": (replace(good(3), values={n: {**v, "gpus": 9} for n, v in expected(TASKS[3]).items()}),
                             (4, 0, 0, 1)),
    "refused": (replace(good(3), job_id="", state="", executions=[], allocations=frozenset(), values={}), (3, 1, 0, 0)),
    "unknown to the daemon": (replace(good(3), state="", values={}), (3, 1, 0, 0)),
    "not ended": (replace(good(3), state="PROCESSING", values={}), (3, 1, 0, 0)),
    "id of another job": (replace(good(3), job_id=good(0).job_id), (4, 2, 0, 0)),
    "no execution": (replace(good(3), executions=[1]), (4, 1, 0, 0)),
    "failed": (replace(good(3), state="FAILED", values={}), (3, 0, 0, 0)),
    "a learner ran twice": (replace(good(3), executions=[1, 2, 2]), (4, 0, 1, 0)),
    "two allocations": (replace(good(3), allocations=frozenset({"103", "104"})), (4, 0, 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("mutant, counts", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_proof_checker_detects_each_planted_fault(mutant: Outcome, counts: tuple[int, int, int, int]) -> None:
    tally = judge([good(0), good(1), good(2), mutant])
    assert (tally.completed, tally.lost, tally.doubled, tally.wrong) == counts
    assert not tally.holds
    assert any(mutant.task.name in trouble for trouble in tally.troubles)


def test_proof_checker_rejects_empty_run() -> None:
    assert not judge([]).holds


def test_proof_checker_names_slowest_seen_state() -> None:
    happened = {("a", "PROCESSING"): 10.0, ("a", "COMPLETED"): 12.0, ("b", "STORING"): 1.0}
    assert slowest(happened, {("a", "PROCESSING"): 10.5, ("a", "COMPLETED"): 14.0}) == Late(2.0, "a", "COMPLETED")
    assert slowest({}, {}) == Late(0.0)


def test_proof_workload_varies_inputs_gpus_and_learners() -> None:
    tasks = make_tasks(20, seed=3, prefix="p")
    assert len({task.numbers for task in tasks}) == 20
    assert {task.gpus for task in tasks} == {1, 2, 3, 4}
    assert {task.learners for task in tasks} == {1, 2}
    assert f"gpus: {tasks[2].gpus}\n" in manifest(tasks[2], "/store")
