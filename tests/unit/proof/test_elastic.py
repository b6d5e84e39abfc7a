"""The checker of the proof of elastic jobs finds each fault that it is for."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ffdl_batch.elastic.policy import PoolJob, Rules, decide
from ffdl_batch.services.elastic.decision_records import Decision, encode
from ffdl_batch.services.elastic.pool_jobs import Described
from tests.proof.elastic.broken_daemon import BREAKS
from tests.proof.elastic.claims import Claims
from tests.proof.elastic.decisions import wrong_decisions
from tests.proof.elastic.evidence import Allocation, Course, Gpu, Outage, Session, Trained, expand
from tests.proof.elastic.jobs import JOBS
from tests.proof.elastic.scene import DAEMON, NODE, Plan
from tests.proof.elastic.verdict import ALL_GPUS, LOSS_TOLERANCE, ROUND_S, changes, longest_idle, troubles


def places(gpus: int) -> frozenset[Gpu]:
    return frozenset(ALL_GPUS[:gpus])


def allocation(attempt: int, start: float, end: float, gpus: int) -> Allocation:
    return Allocation(attempt, str(100 + attempt), start, end, gpus, places(gpus))


def decision(*chosen: tuple[int, int]) -> tuple[str, str]:
    """One of two jobs: the first runs with 2 GPUs and ends soon, the second waits. There are 4 GPUs."""
    common = {"restart_s": 30, "restarting_s": 0, "weight": 1, "tenant": "alice", "held": False, "hold": ""}
    jobs = [
        {"name": "a", "gpus": 2, "batch": 8, "remaining_s": 40, "sizes": [[2, 40, 8], [4, 20, 16]], **common},
        {"name": "b", "gpus": 0, "batch": 0, "remaining_s": None, "sizes": [[1, 900, 4], [2, 500, 8]], **common},
    ]
    return json.dumps({"gpus": 4, "jobs": jobs}), json.dumps(chosen)


FIXED = Trained(
    JOBS[0], 900, "COMPLETED", 0.0, 130.0, (Session(1, 0, 900, 900, 4, 512),), (allocation(1, 0, 130, 4),), 0.1
)
ELASTIC = replace(
    FIXED,
    ended=100.0,
    sessions=(Session(1, 0, 300, 300, 4, 512), Session(2, 300, 900, 900, 12, 2048)),
    allocations=(allocation(1, 0, 40, 4), allocation(2, 45, 100, 12)),
)
GOOD = (decision((2, 8), (2, 8)),)
WAITING = replace(FIXED, submitted=10.0, allocations=(allocation(1, 100, 150, 4),), ended=150.0)


def found(elastic: Trained, decisions: tuple[tuple[str, str], ...] = GOOD) -> list[str]:
    return list(troubles(Course((FIXED,)), Course((elastic,), decisions=decisions)))


def test_faultless_jobs_are_accepted() -> None:
    assert found(ELASTIC) == []


def test_checkpoint_that_a_kill_interrupted_may_be_whole() -> None:
    sessions = (Session(1, 0, 300, 330, 4, 512), Session(2, 330, 900, 900, 12, 2048))
    assert found(replace(ELASTIC, sessions=sessions)) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda one: replace(one, state="FAILED", why="C201 it failed"), "is FAILED, not COMPLETED: C201 it failed"),
        (lambda one: replace(one, loss=None), "the job printed no loss"),
        (lambda one: replace(one, loss=0.1 + 1.1 * LOSS_TOLERANCE), "with a fixed size"),
        (lambda one: replace(one, sessions=one.sessions[:1]), "300 of 900 samples were trained"),
        (
            lambda one: replace(one, sessions=(one.sessions[0], Session(2, 200, 900, 900, 12, 2048))),
            "attempt 2 started after sample 200, but 300 were saved",
        ),
        (
            lambda one: replace(one, allocations=(one.allocations[0], allocation(2, 39, 100, 8))),
            "attempts 1 and 2 ran at the same time",
        ),
        (
            lambda one: replace(one, allocations=(*one.allocations, replace(allocation(2, 100, 101, 8), native="999"))),
            "an attempt was submitted twice",
        ),
        (
            lambda one: replace(one, sessions=tuple(replace(each, gpus=4) for each in one.sessions)),
            "no job changed its size",
        ),
        (
            lambda one: replace(one, allocations=(one.allocations[0], allocation(2, 41 + ROUND_S, 100, 12))),
            "a change of size left it without GPUs for 31 s",
        ),
        (
            lambda one: replace(
                one, stopped=frozenset({1}), allocations=(one.allocations[0], allocation(2, 71, 100, 1))
            ),
            "a GPU was idle for 31 s while an elastic job waited",
        ),
        (
            lambda one: replace(one, allocations=(one.allocations[0], replace(one.allocations[1], places=places(11)))),
            "attempt 2 had 12 GPUs, but Slurm listed",
        ),
        (lambda one: replace(one, ended=120.0), "mean completion 120 s is more than 0.9 times the 130 s"),
    ],
)
def test_each_planted_fault_is_found(spoil: Callable[[Trained], Trained], words: str) -> None:
    assert any(words in trouble for trouble in found(spoil(ELASTIC)))


def test_requeue_of_an_attempt_is_no_second_submission() -> None:
    again = replace(ELASTIC.allocations[0], start=42.0, end=44.0)
    assert found(replace(ELASTIC, allocations=(ELASTIC.allocations[0], again, ELASTIC.allocations[1]))) == []


def test_gpus_are_not_idle_while_other_jobs_have_all_of_them() -> None:
    other = replace(FIXED, allocations=(allocation(1, 0, 100, len(ALL_GPUS)),))
    assert longest_idle(Course((other, WAITING))) == 0.0
    assert longest_idle(Course((replace(other, allocations=(allocation(1, 0, 70, 12),)), WAITING))) == 30.0


def test_each_gpu_is_idle_for_itself() -> None:
    """Two GPUs are idle one after the other: no GPU is idle for the whole time."""
    first, second = (frozenset({gpu}) for gpu in ALL_GPUS[:2])
    others = replace(
        FIXED,
        allocations=(
            Allocation(1, "1", 0, 150, 10, frozenset(ALL_GPUS[2:])),
            Allocation(2, "2", 30, 150, 1, first),
            Allocation(3, "3", 0, 60, 1, second),
        ),
    )
    assert longest_idle(Course((others, WAITING))) == 40.0
    assert longest_idle(Course((replace(others, submitted=0.0), replace(WAITING, submitted=61.0)))) == 39.0


def test_change_does_not_wait_within_a_round() -> None:
    assert longest_idle(Course((ELASTIC,))) == 0.0
    late = replace(ELASTIC, allocations=(ELASTIC.allocations[0], allocation(2, 50 + ROUND_S, 100, 12)))
    assert longest_idle(Course((late,))) == 10.0
    assert longest_idle(Course((replace(late, stopped=frozenset({1})),))) == 10.0 + ROUND_S


def test_gpus_are_judged_until_a_node_is_off() -> None:
    off = Outage("n1", 30.0, 40.0)
    assert longest_idle(Course((WAITING,))) == 90.0
    assert longest_idle(Course((WAITING,), (off,))) == 20.0
    assert changes(ELASTIC) == [5.0] == changes(ELASTIC, (Outage("n1", 50.0, 60.0),))
    assert changes(ELASTIC, (off,)) == []


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (((4, 16), (0, 0)), "decision 1 has the value"),  # a restart that gains less than it costs
        (((2, 8), (0, 0)), "decision 1 has the value"),  # GPUs stay idle
        (((2, 8), (1, 4)), "decision 1 has the value"),
        (((2, 9), (2, 8)), "decision 1 has the value -inf"),  # a batch that was not compared
        (((4, 16), (1, 4)), "decision 1 allocated 5 GPUs, but the pool has 4"),
    ],
)
def test_wrong_decision_is_found(chosen: tuple[tuple[int, int], ...], words: str) -> None:
    assert words in next(wrong_decisions([decision(*chosen)]))


def decided(rules: Rules, seed: int) -> tuple[str, str]:
    """What the scaler records of a decision about five jobs and 12 GPUs: two run, one of them has just begun."""
    chance = random.Random(seed)
    jobs = []
    for number in range(5):
        alone_s, gpus = chance.uniform(30, 900), (4, 3, 0, 0, 0)[number]
        seconds = np.array([math.inf, *(alone_s / size ** chance.uniform(0.3, 1) for size in range(1, 9))])
        present_s = float(seconds[gpus]) * 1.2 if gpus else math.inf
        job = PoolJob(
            str(number), seconds, np.arange(9) * 8, 20.0, gpus=gpus, present_batch=4 * gpus,
            present_remaining_s=present_s, restarting_s=float(5 * (number == 1)), tenant="alice",
        )  # fmt: skip
        jobs.append(Described(job, ""))
    targets = tuple(decide([one.job for one in jobs], 12, rules))
    stored = encode(Decision("default", 0.0, 12, {}, rules, tuple(jobs), targets))
    return stored.inputs, stored.targets


def test_decisions_of_the_policy_are_accepted() -> None:
    assert list(wrong_decisions([decided(Rules(), seed) for seed in range(30)])) == []


@pytest.mark.parametrize("rules", BREAKS.values(), ids=BREAKS)
def test_decisions_of_a_broken_policy_are_found(rules: Rules) -> None:
    assert len(list(wrong_decisions([decided(rules, seed) for seed in range(30)]))) > 10


CLAIMS = Claims(
    {"arrivals-1": {"fifo": 700.0, "throughput": 250.0, "completion": 100.0}},
    {"throughput": 1000, "completion": 300},
    {"baseline-min": 5, "baseline-max": 5, "baseline-random": 5, "completion": 5},
    {"baseline-min": 200.0, "baseline-max": 200.0, "baseline-random": 200.0, "completion": 100.0},
)


def test_claims_that_hold_are_accepted() -> None:
    assert list(CLAIMS.troubles()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"mean_s": {"s": {"fifo": 599.0, "throughput": 250.0, "completion": 100.0}}},
            "with fifo, jobs take 5.99 times",
        ),
        (
            {"mean_s": {"s": {"fifo": 700.0, "throughput": 199.0, "completion": 100.0}}},
            "with throughput, jobs take 1.99",
        ),
        ({"changes": {"throughput": 1000, "completion": 800}}, "0.80 times as many changes"),
        ({"paper_completed": {**CLAIMS.paper_completed, "completion": 4}}, "4 jobs complete, but 5 with baseline-min"),
        ({"paper_mean_s": {**CLAIMS.paper_mean_s, "baseline-max": 140.0}}, "with baseline-max, jobs take 1.40 times"),
    ],
)
def test_claim_that_does_not_hold_is_found(changes: dict[str, dict[str, object]], words: str) -> None:
    assert words in next(replace(CLAIMS, **changes).troubles())  # type: ignore[arg-type]


def test_every_third_kill_is_one_of_a_node() -> None:
    moments = Plan(elastic=True, kills=6).moments()
    assert [what for _, what in moments] == [DAEMON, DAEMON, NODE, DAEMON, DAEMON, NODE]
    assert moments == sorted(moments) == Plan(elastic=False, kills=6).moments() and Plan(True).moments() == []


def test_host_lists_are_expanded() -> None:
    assert expand("n1") == ["n1"] and expand("n[1-2,4]") == ["n1", "n2", "n4"] and expand("n1,n3") == ["n1", "n3"]
