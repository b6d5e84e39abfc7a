"""The report of a drill, and how it is printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.cli.commands.drill.report import DrillReport, Simulation, make_report, print_report
from ffdl_batch.domain.job.views import AttemptView, EventView
from ffdl_batch.domain.launch.limits import Lead, LeadFrom, needed_lead_s
from tests.unit.cli.drill_stage import CONFIRMED, JOB
from tests.unit.client.fake_daemon import make_job


def entry(seq: int, state: str, cause: str = "progress", attempt: int = 1) -> EventView:
    return EventView(JOB, seq, 10.0 * seq, state, attempt, cause)


@pytest.mark.parametrize(
    ("events", "started"),
    [
        ([entry(3, "DEPLOYING", "requeued", 2), entry(4, "PROCESSING", attempt=2)], (2, 10.0)),
        ([entry(3, "QUEUED", "requeued"), entry(4, "COMPLETED")], (1, 10.0)),
        ([entry(3, "HALTED"), entry(4, "PENDING", "resumed"), entry(6, "PROCESSING", attempt=2)], (2, 20.0)),
        ([entry(3, "COMPLETED")], None),
        ([entry(3, "PENDING", "requeued"), entry(4, "FAILED")], None),
        ([], None),
    ],
)
def test_make_report_finds_start_of_next_attempt(events: list[EventView], started: tuple[int, float] | None) -> None:
    before = [entry(1, "DEPLOYING", "requeued"), entry(2, "PROCESSING")]
    report = make_report(Simulation("timeout", 1, 20.0, 2), make_job(JOB), before + events, None)
    found = (report.next_attempt, report.next_started_after_s)
    assert found == (started or (None, None))
    assert not report.passed, "without a record of the attempt nothing is confirmed"


@pytest.mark.parametrize(("took_s", "needed"), [(0.0, 10), (0.1, 11), (3.2, 15), (60.0, 100)])
def test_needed_lead_adds_margin_and_upload_time(took_s: float, needed: int) -> None:
    assert needed_lead_s(took_s) == needed


def report_of(lead: Lead | None, *, trial: bool = False, attempt: AttemptView = CONFIRMED) -> DrillReport:
    job = replace(make_job(JOB), attempts=(attempt,))
    return make_report(Simulation("timeout", 1, 20.0, 2), job, [entry(3, "FAILED")], lead, trial=trial)


@pytest.mark.parametrize(
    ("lead", "trial", "line", "warning"),
    [
        (Lead(70, LeadFrom.DEFAULT), False, "15 s needed; this job has 70 s (from: default)", ""),
        (Lead(15, LeadFrom.MEASURED), False, "15 s needed; this job has 15 s (from: measured)", ""),
        (
            Lead(14, LeadFrom.DEFAULT), True, "15 s needed; a job of this manifest has 14 s (from: default)",
            "14 s before a time limit is too late to save; set batch: checkpoint: lead_s: 15 in the manifest",
        ),
        (
            Lead(10, LeadFrom.TIME_LIMIT), False, "15 s needed; this job has 10 s (from: time limit)",
            "10 s before a time limit is too late to save; the lead is at most half of the time limit: "
            "request 30 s or more (batch: time: …)",
        ),
        (
            Lead(), False, "15 s needed; this job has none",
            "it gets no warning before a time limit; to get one, leave out batch.signal (--signal) and "
            "batch.checkpoint.lead_s: 0",
        ),
        (None, False, "15 s needed; the lead of this job is not known, because its directory cannot be read here", ""),
    ],
)  # fmt: skip
def test_print_report_compares_kept_lead_with_needed_lead(
    capsys: pytest.CaptureFixture[str], lead: Lead | None, trial: bool, line: str, warning: str
) -> None:
    report = report_of(lead, trial=trial)
    print_report(report)
    lines = dict(text.split(":", 1) for text in capsys.readouterr().out.splitlines())
    assert lines["Lead"].strip() == line
    assert lines.get("Warning", "").strip() == warning
    assert (report.lead_needed_s, report.lead_known) == (15, lead is not None)


def test_print_report_notes_interruption_not_caused_by_drill(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report_of(None, attempt=replace(CONFIRMED, interruption="preemption", simulated=False)))
    assert "(not because of the drill: something else interrupted it first)" in capsys.readouterr().out
    print_report(report_of(None))
    assert "something else" not in capsys.readouterr().out


def ended(event: str, attempt: AttemptView, *, gave_up: bool = False, state: str = "FAILED") -> DrillReport:
    job = replace(make_job(JOB, state=state), attempts=(attempt,))
    return make_report(Simulation(event, 1, 20.0, 2), job, [entry(3, "PENDING", "requeued")], None, gave_up=gave_up)


@pytest.mark.parametrize(
    ("event", "attempt", "result", "cure"),
    [
        (
            "preempt", replace(CONFIRMED, checkpoint_confirmed=False), "no checkpoint was confirmed",
            "at a checkpoint request, write a new file below $CHECKPOINT_DIR, even if nothing is new, then exit with 0",
        ),
        (
            "halt", replace(CONFIRMED, checkpoint_confirmed=False, checkpoint_answered=False),
            "no checkpoint was confirmed",
            "catch the checkpoint signal (batch.checkpoint.signal, USR2 by default) or look for $JOB_STATE_DIR/halt, "
            "save below $CHECKPOINT_DIR, then exit with 0",
        ),
        (
            "node-fail", replace(CONFIRMED, checkpoint_saved_at=None), "no saved checkpoint is known",
            "save regularly below $CHECKPOINT_DIR: a node failure comes without a checkpoint request",
        ),
        (
            "node-fail", CONFIRMED, "a checkpoint exists; the next attempt has not started", "",
        ),
    ],
)  # fmt: skip
def test_print_report_shows_result_and_cure(
    capsys: pytest.CaptureFixture[str], event: str, attempt: AttemptView, result: str, cure: str
) -> None:
    print_report(ended(event, attempt))
    lines = dict(text.split(":", 1) for text in capsys.readouterr().out.splitlines())
    assert (lines["Result"].strip(), lines.get("What to do", "").strip()) == (result, cure)


def test_report_exits_124_after_node_failure_while_next_attempt_waits() -> None:
    assert ended("node-fail", CONFIRMED, gave_up=True, state="QUEUED").exit_code == 124
    assert ended("node-fail", CONFIRMED).exit_code == 1
    assert ended("node-fail", replace(CONFIRMED, checkpoint_saved_at=None), gave_up=True).exit_code == 1
    assert ended("timeout", CONFIRMED, gave_up=True, state="QUEUED").exit_code == 0
