"""Uploads that are pending when an attempt ends: when the job waits for them, and how it ends afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, Outcome, Scalar
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_batch.domain.outcome.verdict import VerdictKind, judge
from tests.unit.domain.test_verdict import RUN, event, facts, seen


def learner(seq: int, kind: EventKind, at: float, number: int = 1, **fields: Scalar) -> Event:
    return Event(seq, at, f"node-{number - 1}", kind, {"learner_id": number, **fields})


def at_work(*ends: Event, service: bool = False) -> list[Event]:
    """Two learners that were started, the first perhaps as a service, and how they ended."""
    first = learner(8, EventKind.LEARNER_STARTED, 21.0, 1, **({"service": True} if service else {}))
    return [*RUN[:2], first, learner(8, EventKind.LEARNER_STARTED, 21.0, 2), *ends]


ONE, TWO = (learner(9, EventKind.LEARNER_ENDED, 28.0, n, exit_code=0, ended_by="", asked="") for n in (1, 2))
STORES = event(10, "store-logs", 30.0)


def two(**fields: Scalar | None) -> Event:
    return replace(TWO, fields={**TWO.fields, **fields})


FAILED_ONCE = two(exit_code=3, restarted=True)


def service_ended(exit_code: int, ended_by: str = "") -> Event:
    return learner(9, EventKind.LEARNER_ENDED, 29.0, 1, exit_code=exit_code, ended_by=ended_by, asked="", service=True)


def left_with(events: Sequence[Event], **files: Any) -> AttemptFacts:
    ended = seen(Phase.ENDED, EndCause.FAILURE)
    return facts(JobState.PROCESSING, ended, events, learners=2, **files)


@pytest.mark.parametrize(
    ("events", "found", "is_over"),
    [
        (at_work(ONE, TWO), {}, True),
        (at_work(ONE), {2: 0}, True),
        (at_work(ONE), {}, False),
        (at_work(ONE), {2: 3}, False),
        (at_work(ONE, two(asked="warned")), {}, False),
        (at_work(ONE, two(exit_code=3)), {}, False),
        (at_work(ONE, two(exit_code=3), STORES), {}, True),
        (at_work(ONE, two(exit_code=139), STORES), {}, True),
        (at_work(ONE, two(exit_code=143), STORES), {}, False),
        (at_work(ONE, two(exit_code=137), STORES), {}, False),
        (at_work(ONE, two(exit_code=130), STORES), {}, False),
        (at_work(ONE, two(exit_code=None, signal=9), STORES), {}, False),
        (at_work(ONE, two(exit_code=137, out_of_memory=True), STORES), {}, True),
        (at_work(ONE, TWO, learner(20, EventKind.LEARNER_STARTED, 40.0)), {}, False),
        (at_work(TWO, service=True), {}, True),
        (at_work(service=True), {2: 0}, True),
        (at_work(TWO, service_ended(143, "service"), service=True), {}, True),
        (at_work(TWO, service_ended(1), service=True), {}, True),
        (at_work(service_ended(0), service=True), {}, False),
        (at_work(service_ended(1), service=True), {}, False),
        (at_work(service=True), {1: 0}, False),
        (at_work(ONE, FAILED_ONCE, STORES), {}, False),
        (at_work(two(exit_code=3), STORES), {}, False),
        (at_work(two(exit_code=3), STORES), {1: 3}, True),
        (at_work(ONE, two(exit_code=255, code="S107"), STORES), {}, False),
    ],
)  # fmt: skip
def test_verdict_sets_pending_upload_only_if_all_learners_are_finished(
    events: Sequence[Event], found: dict[int, int], is_over: bool
) -> None:
    verdict = judge(left_with(events, unreported_exits=found))
    assert (verdict.kind, verdict.steps[-1][0]) == (
        (VerdictKind.UPLOAD_PENDING, JobState.STORING) if is_over else (VerdictKind.ENDED, JobState.FAILED)
    )
    assert judge(replace(left_with(events, unreported_exits=found), is_settled=False)).kind is VerdictKind.NONE


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (at_work(TWO, service_ended(143, "service"), service=True), JobState.COMPLETED),
        (at_work(TWO, service_ended(1), service=True), JobState.COMPLETED),
        (at_work(service_ended(0), service=True), JobState.FAILED),
        (at_work(ONE, TWO), JobState.COMPLETED),
        (at_work(ONE, FAILED_ONCE), JobState.FAILED),
    ],
)
def test_verdict_completes_without_record_only_if_learners_stored(events: list[Event], state: JobState) -> None:
    stored = [learner(11, EventKind.STORED, 31.0, number) for number in (1, 2)]
    assert judge(left_with([*events, *stored])).steps[-1][0] is state
    if state is JobState.COMPLETED:
        assert judge(left_with([*events, *stored[1:]])).kind is VerdictKind.UPLOAD_PENDING


DONE = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=False, exit_code=0, stores_later=True)
FAILED = replace(DONE, outcome=Outcome.FAILED, exit_code=3, error_code="C201", message="learner 2 ended with status 3")
HALTED = replace(DONE, outcome=Outcome.HALTED, exit_code=None, interruption="halt", message="halted")


def left(final: FinalRecord, **files: Any) -> AttemptFacts:
    return left_with(at_work(ONE, TWO, STORES), final=final, **files)


@pytest.mark.parametrize(
    ("final", "state", "code"),
    [(DONE, JobState.COMPLETED, "000"), (FAILED, JobState.FAILED, "C201"), (HALTED, JobState.HALTED, "000")],
)
def test_verdict_applies_final_record_after_pending_upload(final: FinalRecord, state: JobState, code: str) -> None:
    pending, verdict = judge(left(final)), judge(left(final, uploaded_at=60.0))
    assert (pending.kind, pending.steps[-1][0]) == (VerdictKind.UPLOAD_PENDING, JobState.STORING)
    assert (verdict.kind, verdict.steps[-1], verdict.error_code) == (VerdictKind.ENDED, (state, 60.0), code)
    assert judge(replace(left(final), requested_action=RequestedAction.CANCEL)).steps[-1][0] is JobState.CANCELLED


def test_verdict_waits_for_pending_upload_only_if_results_are_storable() -> None:
    lost = left(replace(FAILED, exit_code=None, stores_later=False, error_code="S106", message="died"))
    assert judge(lost).kind is VerdictKind.UPLOAD_PENDING, "on a shared file system somebody else stores it"
    verdict = judge(replace(lost, is_storable=False))
    assert (verdict.kind, verdict.steps[-1][0], verdict.error_code) == (VerdictKind.ENDED, JobState.FAILED, "S106")
