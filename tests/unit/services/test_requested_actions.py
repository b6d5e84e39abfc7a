"""Halts on their way: the cell first, then the scheduler, again and again, in every state."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import Checkpoint
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_batch.services.job_files.control_cell import read_control
from ffdl_batch.services.monitoring.scheduler_calls import AGAIN_S
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from tests.fakes.head import FakeHead
from tests.unit.services.chains import at_work, end
from tests.unit.services.conftest import Site


def request(site: Site, job: Job, what: RequestedAction = RequestedAction.HALT) -> None:
    site.platform.storage.store.set_requested_action(job.id, what)


def running(site: Site, what: RequestedAction) -> FakeHead:
    """The head of a job at work, with a request of its owner."""
    job, head = at_work(site)
    request(site, job, what)
    return head


def test_halt_withdraws_queued_job(site: Site) -> None:
    job = site.deployed()
    request(site, job)
    site.watch()
    native = NativeId(job.native_id)
    assert (site.scheduler.withdrawn, site.scheduler.signalled, site.scheduler.cancelled) == ([native], [], [])
    assert read_control(site.attempt(job)).requested_action == "halt"
    after = never_started(site, job)
    assert (after.state, after.message, after.requested_action) == (
        JobState.HALTED,
        "halted before it started",
        RequestedAction.NONE,
    )


def never_started(site: Site, job: Job) -> Job:
    """The scheduler has ended a job that waited, and every file that may still come has come."""
    site.end(job, EndCause.CANCELLED, started=None)
    site.clock.tick(SETTLE_S + 1)
    site.watch()
    return site.job(job.id)


def test_halt_repeats_signal_to_running_job_until_it_halts(site: Site) -> None:
    head = running(site, RequestedAction.HALT)
    job, native = head.job, NativeId(head.job.native_id)
    for _ in range(3):
        site.watch()
    assert site.scheduler.signalled == [(native, "URG")]
    assert read_control(site.attempt(job)).requested_action == "halt"
    site.clock.tick(AGAIN_S)
    site.watch()
    assert site.scheduler.signalled == [(native, "URG")] * 2
    head.ends(Outcome.HALTED, interruption="halt", message="halted on request; checkpoint confirmed after 1.0 s")
    assert end(site, job, EndCause.SUCCESS).state is JobState.HALTED
    assert site.platform.storage.store.attempts(job.id)[0].interruption == "halt"
    assert len(site.scheduler.signalled) == 2


def test_halt_signals_job_at_once_if_it_starts_during_withdrawal(site: Site) -> None:
    job = site.deployed()
    request(site, job)
    site.watch()
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    assert site.scheduler.signalled == [(NativeId(job.native_id), "URG")]


TIMED_OUT = {"interruption": "timeout", "checkpoint": Checkpoint(asked=True)}


@pytest.mark.parametrize(
    ("outcome", "values", "state", "words"),
    [
        (Outcome.HALTED, {"interruption": "halt", "message": "halted"}, JobState.HALTED, "halted"),
        (Outcome.COMPLETED, {"exit_code": 0}, JobState.COMPLETED, ""),
        (Outcome.CANCELLED, {}, JobState.HALTED, "no checkpoint was confirmed"),
        (Outcome.TIMED_OUT, TIMED_OUT, JobState.HALTED, "no checkpoint was confirmed"),
        (Outcome.FAILED, {"error_code": "S106"}, JobState.HALTED, "no checkpoint was confirmed"),
        (Outcome.FAILED, {"error_code": "C201", "message": "boom"}, JobState.FAILED, "boom"),
    ],
)
def test_halt_request_decides_final_state_for_each_outcome(
    site: Site, outcome: Outcome, values: dict[str, object], state: JobState, words: str
) -> None:
    head = running(site, RequestedAction.HALT)
    head.ends(outcome, **values)
    after = end(site, head.job, EndCause.FAILURE)
    assert (after.state, words in after.message) == (state, True)


def test_halt_applies_to_next_attempt_after_continuation(site: Site) -> None:
    head = running(site, RequestedAction.HALT)
    head.goes_on()
    site.watch(full=False)
    site.scheduler.accept(site.job(head.job.id).token)
    site.deploy()
    after = site.job(head.job.id)
    assert (after.state, after.attempt, after.requested_action) == (JobState.QUEUED, 2, RequestedAction.HALT)
    assert read_control(site.attempt(after)).requested_action == "halt"
    site.watch()
    assert site.scheduler.withdrawn == [NativeId(after.native_id)]
    assert never_started(site, after).state is JobState.HALTED


def test_halt_request_is_kept_when_submission_reply_was_lost(site: Site) -> None:
    site.scheduler.lose_reply = True
    job = site.deployed()
    assert job.state is JobState.DEPLOYING
    request(site, job)
    site.clock.tick(5)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).requested_action) == (JobState.QUEUED, RequestedAction.HALT)
    assert read_control(site.attempt(job)).requested_action == "halt"


@pytest.mark.parametrize(
    ("attempt", "requested", "state", "message"),
    [
        (1, RequestedAction.HALT, JobState.HALTED, "halted before it started"),
        (2, RequestedAction.HALT, JobState.HALTED, "halted before attempt 2 started"),
        (2, RequestedAction.CANCEL, JobState.CANCELLED, "cancelled by its owner before attempt 2 was deployed"),
    ],
)
def test_halt_or_cancel_message_names_attempt_that_did_not_start(
    site: Site, attempt: int, requested: RequestedAction, state: JobState, message: str
) -> None:
    job = site.accept() if attempt == 1 else site.move(site.deployed(), JobState.PENDING, cause=Cause.REQUEUED)
    site.scheduler.down = True
    site.deploy()
    request(site, job, requested)
    site.scheduler.down = False
    site.clock.tick(60)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).message) == (state, message)
    assert len(site.scheduler.submitted) == attempt - 1


def test_halt_withdraws_running_job_that_scheduler_requeued(site: Site) -> None:
    job = running(site, RequestedAction.HALT).job
    site.watch()
    site.scheduler.wait(NativeId(job.native_id), restarts=1)
    site.watch()
    assert site.scheduler.withdrawn == [NativeId(job.native_id)]
    assert end(site, job, EndCause.CANCELLED).state is JobState.HALTED


def test_halt_signals_job_if_control_file_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    running(site, RequestedAction.HALT)
    full = OSError("no space left on device")
    monkeypatch.setattr("ffdl_batch.services.monitoring.scheduler_calls.write_control", Mock(side_effect=full))
    site.watch()
    assert len(site.scheduler.signalled) == 1


def test_halt_logs_undelivered_signal_once_per_period_and_records_no_outage(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running(site, RequestedAction.HALT)
    error = NotNow("the signal URG for job 1 did not reach all nodes (Socket timed out); it is repeated")
    signal = Mock(side_effect=error)
    monkeypatch.setattr(site.scheduler, "signal", signal)
    for _ in range(3):
        site.watch()
        assert site.platform.adapters.outages() == ()
        site.clock.tick(AGAIN_S)
    assert signal.call_count == 3
    assert len([text for text in caplog.messages if "did not reach all nodes" in text]) == 1
    site.clock.tick(3600)
    site.watch()
    assert len([text for text in caplog.messages if "did not reach all nodes" in text]) == 2
