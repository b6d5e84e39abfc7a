"""What is wrong with a job's rows: each rule on rows that break that rule alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.admin.database.row_rules import LONGEST_LEASE_S, AttemptRow, HistoryRow, JobRow, faults_of

ID = "training-000000001"
NOW = 1000.0


def history(*states: str, causes: dict[int, str] | None = None, attempts: tuple[int, ...] = ()) -> list[HistoryRow]:
    return [
        HistoryRow(ID, n, float(n), state, (attempts or (0, *[1] * 9))[n - 1], (causes or {}).get(n, "progress"))
        for n, state in enumerate(states, 1)
    ]


RUNNING = JobRow(ID, "PROCESSING", "none", 1, "47", None, "", "", 0.0)
HISTORY = history("PENDING", "DEPLOYING", "QUEUED", "PROCESSING")
ATTEMPTS = [AttemptRow(ID, 1, f"{ID}-1", "47", None)]
ENDED = replace(RUNNING, state="FAILED", ended_at=5.0)
ENDS = history("PENDING", "DEPLOYING", "QUEUED", "PROCESSING", "FAILED")
OVER = [replace(ATTEMPTS[0], ended_at=5.0)]


def test_faults_of_returns_nothing_for_consistent_job() -> None:
    assert faults_of(RUNNING, HISTORY, ATTEMPTS, NOW) == []
    assert faults_of(ENDED, ENDS, OVER, NOW) == []
    pending = JobRow(ID, "PENDING", "none", 0, "", None, "login1", "token", NOW + 60)
    assert faults_of(pending, history("PENDING"), [], NOW) == []


def test_faults_of_returns_nothing_for_requeued_resumed_or_cancelled_job() -> None:
    """Requeued (and then the first attempt's pending upload was stored), resumed, cancelled after a halt."""
    second = [*OVER, AttemptRow(ID, 2, f"{ID}-2", "", None)]
    gone_on = [*HISTORY, HistoryRow(ID, 5, 5.0, "DEPLOYING", 2, "requeued")]
    job = replace(RUNNING, state="DEPLOYING", attempt=2, native_id="")
    assert faults_of(job, gone_on, second, NOW) == []
    resumed = [*ENDS, HistoryRow(ID, 6, 6.0, "PENDING", 1, "resumed")]
    assert faults_of(replace(RUNNING, state="PENDING", native_id=""), resumed, OVER, NOW) == []
    stored = [*gone_on, HistoryRow(ID, 6, 6.0, "DEPLOYING", 1, "stored")]
    went_on = [*stored, HistoryRow(ID, 7, 7.0, "QUEUED", 2, "progress")]
    assert faults_of(replace(job, state="QUEUED"), went_on, second, NOW) == []
    halted = [*HISTORY, HistoryRow(ID, 5, 5.0, "HALTED", 1, "progress")]
    cancelled = [*halted, HistoryRow(ID, 6, 6.0, "CANCELLED", 1, "cancelled")]
    assert faults_of(replace(ENDED, state="CANCELLED"), cancelled, OVER, NOW) == []


@pytest.mark.parametrize(("job", "entries", "attempts", "said"), [
    (replace(RUNNING, state="SLEEPING"), HISTORY, ATTEMPTS, "its state 'SLEEPING' is unknown"),
    (replace(RUNNING, requested_action="fly"), HISTORY, ATTEMPTS, "its request 'fly' is unknown"),
    (RUNNING, [*HISTORY[:3], replace(HISTORY[3], cause="luck")], ATTEMPTS, "entry 4 of its history, "),
    (RUNNING, [], ATTEMPTS, "it has no history"),
    (RUNNING, [HISTORY[0], *HISTORY[2:]], ATTEMPTS, "its history has a gap: it has the entries [1, 3, 4]"),
    (RUNNING, HISTORY[:3], ATTEMPTS, "its history ends with QUEUED, but it is PROCESSING"),
    (RUNNING, history("DEPLOYING", "QUEUED", "PROCESSING", attempts=(1, 1, 1)), ATTEMPTS,
     "its history begins with DEPLOYING"),
    (RUNNING, history("PENDING", "STORING", "QUEUED", "PROCESSING"), ATTEMPTS,
     "entry 3 of its history goes from STORING to QUEUED because of progress"),
    (RUNNING, [*HISTORY[:3], replace(HISTORY[3], at=1.0)], ATTEMPTS, "entry 4 of its history is earlier"),
    (RUNNING, [*HISTORY[:3], replace(HISTORY[3], attempt=3)], ATTEMPTS, "entry 4 of its history is of attempt 3"),
    (replace(RUNNING, ended_at=3.0), HISTORY, ATTEMPTS, "it is PROCESSING and has an end"),
    (replace(ENDED, ended_at=None), ENDS, OVER, "it is FAILED and has no end"),
    (RUNNING, HISTORY, [], "it is in attempt 1 and has the attempts []"),
    (replace(RUNNING, attempt=2), HISTORY, ATTEMPTS, "it is in attempt 2 and has the attempts [1]"),
    (RUNNING, HISTORY, [replace(ATTEMPTS[0], token=f"{ID}-7")], f"attempt 1 has the token '{ID}-7'"),
    (replace(RUNNING, attempt=2), HISTORY, [*ATTEMPTS, AttemptRow(ID, 2, f"{ID}-2", "47", None)],
     "attempt 1 has no end, and a later one has begun"),
    (replace(RUNNING, native_id="48"), HISTORY, ATTEMPTS, "its scheduler's id is '48', that of its attempt '47'"),
    (replace(RUNNING, lease_token="t"), HISTORY, ATTEMPTS, "its lease has the owner '' and the token 't'"),
    (replace(RUNNING, lease_owner="d", lease_token="t", lease_until=NOW + 1), HISTORY, ATTEMPTS,
     "it is PROCESSING, and leased by d for its deployment"),
    (JobRow(ID, "PENDING", "none", 0, "", None, "d", "t", NOW + LONGEST_LEASE_S + 1), history("PENDING"), [],
     "it is leased for 3601 s more: a clock was wrong"),
])  # fmt: skip
def test_faults_of_returns_exactly_one_fault_per_broken_rule(
    job: JobRow, entries: list[HistoryRow], attempts: list[AttemptRow], said: str
) -> None:
    found: list[Any] = faults_of(job, entries, attempts, NOW)
    assert len(found) == 1 and found[0].startswith(said), found
