"""An attempt that reaches no store has ended when somebody else has stored what it left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.events import FinalRecord, Outcome
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.known import Known
from ffdl_batch.domain.verdict import Move, judge
from tests.unit.domain.test_verdict import ONE, STORES, TWO, at_work, left_with

DONE = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=False, exit_code=0, stores_later=True)
FAILED = replace(DONE, outcome=Outcome.FAILED, exit_code=3, error_code="C201", message="learner 2 ended with status 3")
HALTED = replace(DONE, outcome=Outcome.HALTED, exit_code=None, interruption="halt", message="halted")


def left(final: FinalRecord, **evidence: Any) -> Known:
    return left_with(at_work(ONE, TWO, STORES), final=final, **evidence)


@pytest.mark.parametrize("final", [DONE, FAILED, HALTED])
def test_verdict_keeps_storing_while_upload_is_pending(final: FinalRecord) -> None:
    verdict = judge(left(final))
    assert (verdict.move, verdict.steps[-1][0]) == (Move.OWED, JobState.STORING)


@pytest.mark.parametrize(
    ("final", "state", "code"),
    [(DONE, JobState.COMPLETED, "000"), (FAILED, JobState.FAILED, "C201"), (HALTED, JobState.HALTED, "000")],
)
def test_verdict_applies_final_record_after_pending_upload_completes(
    final: FinalRecord, state: JobState, code: str
) -> None:
    verdict = judge(left(final, paid=60.0))
    assert (verdict.move, verdict.steps[-1], verdict.error_code) == (Move.ENDED, (state, 60.0), code)


def test_verdict_cancels_without_waiting_for_pending_upload() -> None:
    assert judge(replace(left(DONE), wish=Wish.CANCEL)).steps[-1][0] is JobState.CANCELLED


def test_verdict_waits_for_pending_upload_only_if_results_are_storable() -> None:
    lost = replace(DONE, outcome=Outcome.FAILED, exit_code=None, stores_later=False, error_code="S106", message="died")
    known = left(lost)
    assert judge(known).move is Move.OWED, "on a shared file system somebody else stores it"
    verdict = judge(replace(known, evidence=replace(known.evidence, storable=False)))
    assert (verdict.move, verdict.steps[-1][0], verdict.error_code) == (Move.ENDED, JobState.FAILED, "S106")
