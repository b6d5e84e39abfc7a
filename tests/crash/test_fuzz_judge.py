"""Each fault that the fuzzed kills look for is found where it is, and only there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ffdl_batch.domain.job.job import HistoryEntry, JobId
from ffdl_batch.domain.job_state import Cause, JobState
from tests.crash.fuzz.diary import Note, Promises
from tests.crash.fuzz.heads import Fate
from tests.crash.fuzz.judge import (
    AttemptRow,
    Findings,
    JobFacts,
    Row,
    fault_in_history,
    fault_in_spending,
    judge_array,
    judge_end,
    judge_job,
    judge_lease,
    judge_request,
)

ID = "training-000000001"
OWNER = "/state"
ONCE = {1: Counter({0: 1})}
ROW = Row(ID, Fate.WORKS, JobState.COMPLETED, "none", 1, 5, "000", "", "", "", 0.0)
WALK = (JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED, JobState.PROCESSING, JobState.COMPLETED)


def history(*states: JobState, causes: dict[int, Cause] | None = None) -> list[HistoryEntry]:
    """One entry a second, of attempt 1 from DEPLOYING on."""
    return [
        HistoryEntry(
            JobId(ID), seq, float(seq), state, int(seq > 1), (causes or {}).get(seq, Cause.PROGRESS), "", "000"
        )
        for seq, state in enumerate(states, 1)
    ]


def facts(row: Row | None = ROW, **values: object) -> JobFacts:
    whole = JobFacts(ID, row, history(*WALK), [AttemptRow(1, "", "000")], ONCE)
    return replace(whole, **values)  # type: ignore[arg-type]


def promised(*notes: Note) -> Promises:
    promises = Promises()
    for note in notes:
        promises.add(note)
    return promises


def at_the_end(given: JobFacts, *notes: Note) -> Findings:
    """Both judgements, of a job that was acknowledged."""
    found, promises = Findings(), promised(Note("submit", ID, answered=True), *notes)
    judge_job(given, promises.resumed[ID], found)
    judge_end(given, promises, frozenset(promises.acknowledged), found)
    return found


def test_fuzz_judge_accepts_job_that_ran_once_and_completed() -> None:
    assert at_the_end(facts()).is_clean
    assert at_the_end(facts()).sentences() == []


@pytest.mark.parametrize(
    ("row", "notes"),
    [
        (replace(ROW, state=JobState.CANCELLED), [Note("cancel", ID)]),
        (replace(ROW, state=JobState.HALTED), [Note("halt", ID)]),
        (replace(ROW, name=Fate.FAILS, state=JobState.FAILED, error_code="C201"), []),
    ],
)
def test_fuzz_judge_accepts_end_that_was_requested_or_intended(row: Row, notes: list[Note]) -> None:
    given = facts(row, history=history(*WALK[:-1], row.state))
    assert at_the_end(given, *notes).is_clean


@pytest.mark.parametrize(
    ("row", "executions"),
    [
        (replace(ROW, state=JobState.CANCELLED), ONCE),
        (replace(ROW, state=JobState.HALTED), ONCE),
        (replace(ROW, state=JobState.FAILED, error_code="S106"), ONCE),
        (replace(ROW, state=JobState.PROCESSING), ONCE),
        (replace(ROW, name=Fate.FAILS), ONCE),
        (ROW, {}),
    ],
)
def test_fuzz_judge_counts_unrequested_end_as_lost(row: Row, executions: dict[int, Counter[int]]) -> None:
    states = WALK if row.state is JobState.COMPLETED else (*WALK[:-2], row.state)
    found = at_the_end(facts(row, history=history(*states), executions=executions))
    assert (found.counts()["lost"], sum(found.counts().values())) == (1, 1)


@pytest.mark.parametrize("interruption", ["timeout", "preemption", "node_failure"])
def test_fuzz_judge_counts_interrupted_attempt_without_execution_as_lost(interruption: str) -> None:
    attempts = [AttemptRow(1, interruption, "S111"), AttemptRow(2, "", "000")]
    entries = [replace(entry, attempt=2) if entry.seq > 2 else entry for entry in history(*WALK)]
    given = facts(replace(ROW, attempt=2), history=entries, attempts=attempts)
    assert at_the_end(replace(given, executions={**ONCE, 2: Counter({0: 1})})).is_clean
    assert at_the_end(replace(given, executions={2: Counter({0: 1})})).counts()["lost"] == 1


def test_fuzz_judge_reports_two_executions_of_one_run_but_not_a_restart() -> None:
    assert at_the_end(facts(executions={1: Counter({0: 1, 1: 1})})).is_clean
    assert at_the_end(facts(executions={1: Counter({0: 2})})).counts()["executed_twice"] == 1


def test_fuzz_judge_reports_execution_of_unacknowledged_job() -> None:
    found = Findings()
    judge_end(facts(), Promises(), frozenset(), found)
    assert found.counts()["unacknowledged"] == 1
    judge_job(facts(None), 0, found)
    assert found.counts()["unacknowledged"] == 2


def test_fuzz_judge_reports_granted_resume_missing_from_history() -> None:
    assert at_the_end(facts(), Note("resume", ID)).is_clean
    assert at_the_end(facts(), Note("resume", ID), Note("resume", ID, answered=True)).counts()["lost"] == 1


@pytest.mark.parametrize(
    ("state", "requested_action", "before", "after", "lost"),
    [
        (JobState.QUEUED, "none", "halt", "halt", 1),
        (JobState.QUEUED, "halt", "cancel", "cancel", 1),
        (JobState.QUEUED, "halt", "halt", "halt", 0),
        (JobState.QUEUED, "cancel", "halt", "halt", 0),
        (JobState.HALTED, "none", "halt", "halt", 0),
        (JobState.PENDING, "none", "halt", None, 0),
        (JobState.QUEUED, "none", None, "halt", 0),
    ],
)
def test_fuzz_judge_reports_granted_request_missing_from_row(
    state: JobState, requested_action: str, before: str | None, after: str | None, lost: int
) -> None:
    found = Findings()
    judge_request(replace(ROW, state=state, requested_action=requested_action), before, after, found)
    assert found.counts()["lost"] == lost


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, 0),
        ({"lease_until": 9.0, "lease_token": "old"}, 0),
        ({"lease_token": "old"}, 1),
        ({"lease_owner": "host:/elsewhere"}, 1),
        ({"state": JobState.QUEUED}, 1),
        ({"state": JobState.CANCELLED}, 1),
    ],
)
def test_fuzz_judge_reports_lease_of_dead_daemon_or_wrong_state(changes: dict[str, object], faults: int) -> None:
    leased = replace(
        ROW, state=JobState.DEPLOYING, lease_owner=f"host:{OWNER}", lease_token="new", lease_until=11.0
    )  # fmt: skip
    found = Findings()
    judge_lease(replace(leased, **changes), OWNER, 10.0, frozenset({"old"}), found)  # type: ignore[arg-type]
    assert found.counts()["lease_faults"] == faults


def test_fault_in_history_accepts_complete_history() -> None:
    assert fault_in_history(JobState.COMPLETED, 1, history(*WALK), [1]) == ""
    back = history(*WALK[:-1], JobState.PENDING, causes={5: Cause.REQUEUED})
    assert fault_in_history(JobState.PENDING, 1, back, [1]) == ""


@pytest.mark.parametrize(
    ("entries", "attempts", "words"),
    [
        ([], [], "gaps"),
        (history(*WALK)[1:], [1], "gaps"),
        ([entry for entry in history(*WALK) if entry.seq != 3], [1], "gaps"),
        (history(*WALK[:-1]), [1], "the row says"),
        (history(*WALK[:-1], JobState.QUEUED, JobState.COMPLETED), [1], "goes from PROCESSING to QUEUED"),
        ([replace(e, at=0.0) if e.seq == 4 else e for e in history(*WALK)], [1], "time goes back"),
        ([replace(e, attempt=3) if e.seq > 2 else e for e in history(*WALK)], [1], "is of attempt 3"),
        (history(*WALK), [], "it has attempts"),
        (history(*WALK), [1, 2], "it has attempts"),
    ],
)
def test_fault_in_history_names_gap_order_and_attempt_faults(
    entries: list[HistoryEntry], attempts: list[int], words: str
) -> None:
    assert words in fault_in_history(JobState.COMPLETED, 1, entries, attempts)


@pytest.mark.parametrize(
    ("attempt", "lost"),
    [
        (AttemptRow(1, "node_failure", "S110"), 0),
        (AttemptRow(1, "node_failure", "S110", ended=True, is_owing=True), 0),
        (AttemptRow(1, "node_failure", "S110", ended=True), 1),
    ],
)
def test_fuzz_judge_reports_missing_results_without_pending_upload(attempt: AttemptRow, lost: int) -> None:
    found = Findings()
    judge_job(facts(attempts=[attempt], unstored={1: ["result"]}), 0, found)
    assert found.counts()["lost"] == lost


def test_fuzz_judge_reports_incomplete_array() -> None:
    found = Findings()
    judge_array("array-000000001", 3, 3, found)
    assert found.is_clean
    judge_array("array-000000001", 2, 3, found)
    assert found.counts()["lost"] == 1


@pytest.mark.parametrize(("by_drill", "charged", "is_fault"), [(False, 1, False), (True, 1, True), (True, 0, False)])
def test_fault_in_spending_reports_drill_charged_to_budget(by_drill: bool, charged: float, is_fault: bool) -> None:
    row = replace(ROW, spent={"preemptions": charged})
    attempts = [AttemptRow(1, "preemption", "S111", is_simulated=by_drill)]
    assert bool(fault_in_spending(row, history(*WALK), attempts)) is is_fault


def test_fault_in_spending_accepts_charge_for_scheduler_requeue() -> None:
    entries = history(*WALK[:-1], JobState.QUEUED, causes={5: Cause.REQUEUED})
    assert fault_in_spending(replace(ROW, spent={"node_failures": 1}), entries, []) == ""


def test_fuzz_judge_accepts_failed_element_of_failing_array() -> None:
    row = replace(ROW, name=f"{Fate.FAILS}[3]", state=JobState.FAILED, error_code="C201")
    assert at_the_end(facts(row, history=history(*WALK[:-1], JobState.FAILED))).is_clean
