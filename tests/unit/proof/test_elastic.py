"""The checker of the proof of elastic jobs finds each fault that it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.proof.elastic.jobs import GPUS, JOBS
from tests.proof.elastic.scene import Allocation, Session, Trained
from tests.proof.elastic.verdict import LOSS_TOLERANCE, ROUND_S, longest_idle, troubles

FIXED = Trained(JOBS[0], 900, "COMPLETED", 0.0, 100.0, (Session(1, 0, 900, 4, 512),), (Allocation(1, 0, 100, 4),), 0.1)
ELASTIC = replace(
    FIXED,
    sessions=(Session(1, 0, 300, 4, 512), Session(2, 300, 900, 12, 2048)),
    allocations=(Allocation(1, 0, 40, 4), Allocation(2, 45, 100, 12)),
)


def found(elastic: Trained) -> list[str]:
    return list(troubles([FIXED], [elastic]))


def test_faultless_jobs_are_accepted() -> None:
    assert found(ELASTIC) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda one: replace(one, state="FAILED"), "it is FAILED"),
        (lambda one: replace(one, loss=None), "it printed no loss"),
        (lambda one: replace(one, loss=0.1 + 1.1 * LOSS_TOLERANCE), "with a fixed size"),
        (lambda one: replace(one, sessions=one.sessions[:1]), "300 of 900 samples were trained"),
        (
            lambda one: replace(one, sessions=(one.sessions[0], Session(2, 200, 900, 12, 2048))),
            "attempt 2 began after sample 200, and 300 were saved",
        ),
        (
            lambda one: replace(one, allocations=(one.allocations[0], Allocation(2, 39, 100, 8))),
            "attempts 1 and 2 ran at the same time",
        ),
        (
            lambda one: replace(one, allocations=(*one.allocations, Allocation(2, 100, 101, 8))),
            "an attempt has two allocations",
        ),
        (
            lambda one: replace(one, sessions=tuple(replace(each, gpus=4) for each in one.sessions)),
            "no job ever had two sizes",
        ),
        (
            lambda one: replace(one, allocations=(one.allocations[0], Allocation(2, 41 + ROUND_S, 100, 12))),
            "GPUs were idle for 46 s while an elastic job waited",
        ),
    ],
)
def test_each_planted_fault_is_found(spoil: Callable[[Trained], Trained], words: str) -> None:
    assert any(words in trouble for trouble in found(spoil(ELASTIC)))


def test_gpus_are_not_idle_while_other_jobs_have_all_of_them() -> None:
    other = replace(FIXED, allocations=(Allocation(1, 0, 100, GPUS),))
    waiting = replace(FIXED, submitted=10.0, allocations=(Allocation(1, 100, 150, 4),), ended=150.0)
    assert longest_idle([other, waiting]) == 0.0
    assert longest_idle([replace(other, allocations=(Allocation(1, 0, 70, GPUS),)), waiting]) == 30.0
