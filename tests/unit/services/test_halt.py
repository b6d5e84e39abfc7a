"""Halts and cancels as their owner asks for them: the row, the cell, and every state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest

from ffdl_batch.attempt.control_cell import CANCEL, HALT, Control
from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState, RequestedAction
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.services.job_control.stop import cancel_job, halt_job
from ffdl_batch.services.job_files.control_cell import (
    fence_earlier,
    read_control,
    read_drill,
    write_control,
)
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import Site

LIVE = [JobState.QUEUED, JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING]


def halt(site: Site, job: Job) -> JobView:
    return halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id)


def test_halt_ends_job_immediately_before_first_deployment(site: Site) -> None:
    view = halt(site, site.accept())
    assert (view.state, view.requested_action, view.message) == ("HALTED", "none", "halted before it was deployed")
    assert view.ended_at == site.clock.now()
    assert site.scheduler.submitted == []


def test_halt_ends_job_immediately_between_two_attempts(site: Site) -> None:
    view = halt(site, site.move(site.deployed(), JobState.PENDING, cause=Cause.REQUEUED))
    assert (view.state, view.message) == ("HALTED", "halted before attempt 2 was deployed")
    assert [attempt.number for attempt in view.attempts] == [1]


@pytest.mark.parametrize("state", LIVE)
def test_halt_records_request_and_writes_control_file_when_job_is_on_scheduler(site: Site, state: JobState) -> None:
    job = site.deployed()
    job = job if state is JobState.QUEUED else site.move(job, state)
    view = halt(site, job)
    assert (view.state, view.requested_action) == (state, "halt")
    assert read_control(site.attempt(job)).requested_action == HALT
    assert halt(site, job) == view, "twice in a row is once"
    assert site.scheduler.cancelled == []


def test_halt_records_request_when_deploying_job_has_no_directory(site: Site) -> None:
    job = site.accept()
    (leased,) = site.platform.storage.store.claim_deployable("other", limit=1, lease_s=60)
    assert site.platform.storage.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())
    view = halt(site, job)
    assert (view.state, view.requested_action) == ("DEPLOYING", "halt")
    assert not Path(site.attempt(job).path).exists()


@pytest.mark.parametrize("ask", [halt_job, cancel_job])
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_halt_and_cancel_leave_ended_job_unchanged(site: Site, state: JobState, ask: Callable[..., JobView]) -> None:
    job = site.move(site.deployed(), state)
    if (ask, state) != (cancel_job, JobState.HALTED):
        assert ask(site.platform.storage, site.platform.adapters, site.caller, job.id).state == state
        assert site.job(job.id) == job
    assert read_control(site.attempt(job)).requested_action == ""


def test_cancel_marks_halted_job_as_cancelled(site: Site) -> None:
    job = site.move(site.deployed(), JobState.HALTED)
    site.clock.tick(60)
    view = cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    assert (view.state, view.requested_action, view.message) == ("CANCELLED", "none", "cancelled by its owner")
    assert (view.error_code, view.cure, view.ended_at) == ("000", "", site.clock.now())
    last = site.platform.storage.store.history(job.id)[-1]
    assert (last.state, last.cause, last.message) == (JobState.CANCELLED, "cancelled", "cancelled by its owner")
    assert site.scheduler.cancelled == [], "the scheduler has nothing of it any more"
    before = site.job(job.id)
    assert cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id) == view
    assert halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id) == view
    assert site.job(job.id) == before, "twice in a row is once"


def test_cancel_applies_to_job_resumed_concurrently(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's other shell resumes the job between our look and our write."""
    job = site.move(site.deployed(), JobState.HALTED)
    real, looks = site.platform.storage.store.apply, []

    def late(seen: Job, change: Change) -> Job | None:
        looks.append(seen.state)
        if len(looks) == 1:
            assert real(seen, Change(((JobState.PENDING, site.clock.now()),), Cause.RESUMED)) is not None
        return real(seen, change)

    monkeypatch.setattr(site.platform.storage.store, "apply", late)
    assert cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id).state == "CANCELLED"
    assert looks == [JobState.HALTED, JobState.PENDING]
    assert site.states(job)[-3:] == ["HALTED", "PENDING", "CANCELLED"]


def test_cancel_overrides_halt_and_later_halt_does_not_replace_it(site: Site) -> None:
    job = site.deployed()
    halt(site, job)
    for ask in (cancel_job, halt_job):
        assert ask(site.platform.storage, site.platform.adapters, site.caller, job.id).requested_action == "cancel"
        assert read_control(site.attempt(job)).requested_action == CANCEL


def test_halt_is_recorded_when_control_file_cannot_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = site.deployed()
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("ffdl_batch.services.job_files.control_cell.write_text", Mock(side_effect=full))
    assert halt(site, job).requested_action == "halt"
    assert "could not be written now" in caplog.text


def test_halt_rereads_job_when_it_is_deployed_concurrently(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is deployed between our look and our write."""
    job = site.accept()
    real, looks = site.platform.storage.store.apply, []

    def late(seen: Job, change: Change) -> Job | None:
        looks.append(seen.state)
        (leased,) = site.platform.storage.store.claim_deployable("other", limit=1, lease_s=60)
        site.platform.storage.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())
        return real(seen, change)

    monkeypatch.setattr(site.platform.storage.store, "apply", late)
    view = halt(site, job)
    assert (view.state, view.requested_action, looks) == ("DEPLOYING", "halt", [JobState.PENDING])


@pytest.mark.parametrize(
    ("cancels", "state"), [(False, JobState.PENDING), (True, JobState.HALTED)], ids=["halt, requeued", "cancel, halted"]
)
def test_halt_and_cancel_apply_to_job_whose_attempt_ends_concurrently(
    site: Site, monkeypatch: pytest.MonkeyPatch, cancels: bool, state: JobState
) -> None:
    """The watcher puts the job back to PENDING, or sees the halted attempt end, between our look and our write."""
    job = site.deployed()
    if cancels:
        job = site.move(job, JobState.PROCESSING)
        halt(site, job)
    real = site.platform.storage.store.set_requested_action

    def late(job_id: str, action: RequestedAction) -> Job | None:
        site.move(site.job(job_id), state, cause=Cause.PROGRESS if cancels else Cause.REQUEUED)
        return real(job_id, action)

    monkeypatch.setattr(site.platform.storage.store, "set_requested_action", late)
    view = (
        cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id) if cancels else halt(site, job)
    )
    assert view.state == ("CANCELLED" if cancels else "HALTED")


def test_halt_is_refused_as_temporary_failure_when_job_cannot_be_updated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.accept()
    monkeypatch.setattr(site.platform.storage.store, "apply", lambda *_: None)
    with pytest.raises(Refused) as refusal:
        halt(site, job)
    assert (refusal.value.status, refusal.value.problem.exit_code) == (503, 75)


def test_halt_and_cancel_return_404_for_job_of_another_user(site: Site) -> None:
    job = site.deployed()
    for ask in (halt_job, cancel_job):
        with pytest.raises(Refused) as refusal:
            ask(site.platform.storage, site.platform.adapters, Caller(site.caller.uid + 1), job.id)
        assert refusal.value.status == 404
    assert site.job(job.id) == job


NEW = {
    "attempt": 1,
    "requested_action": "",
    "drill": "",
    "run": 0,
    "abandon_mark": None,
    "learners": None,
    "format": FORMAT,
}


def cell(site: Site, job: Job) -> object:
    return json.loads(Path(site.attempt(job).control).read_text())


def test_write_control_keeps_request_and_drill_independent_and_rewrites_no_equal_value(site: Site) -> None:
    job = site.deployed()
    assert read_control(site.attempt(job)) == Control(1)
    assert write_control(site.platform.storage.root, job, requested_action=RequestedAction.HALT)
    assert write_control(site.platform.storage.root, job, drill=DrillEvent.NODE_FAIL)
    assert cell(site, job) == {**NEW, "requested_action": "halt", "drill": "node-fail"}
    assert write_control(site.platform.storage.root, job, requested_action=RequestedAction.NONE)
    assert cell(site, job) == {**NEW, "drill": "node-fail"}
    before = Path(site.attempt(job).control).stat()
    assert before.st_mode & 0o777 == 0o600
    assert write_control(site.platform.storage.root, job, requested_action=RequestedAction.NONE)
    assert Path(site.attempt(job).control).stat().st_ino == before.st_ino


def test_read_drill_applies_only_to_current_run(site: Site) -> None:
    """The scheduler may start the same attempt again: what interrupts that run is none of the drill's."""
    job = site.deployed()
    attempt = site.attempt(job)
    for run, drill in ((1, DrillEvent.TIMEOUT), (2, DrillEvent.PREEMPT)):
        Path(attempt.run_claim(run)).mkdir()
        assert read_drill(attempt) == ""
        write_control(site.platform.storage.root, job, drill=drill)
        assert (read_drill(attempt), read_control(attempt).run) == (drill, run)
    write_control(site.platform.storage.root, job, drill="")
    assert read_control(attempt) == Control(1)


def test_write_control_returns_false_without_attempt_directory(site: Site) -> None:
    job = site.accept()
    assert not write_control(site.platform.storage.root, job, requested_action=RequestedAction.HALT)
    assert not write_control(site.platform.storage.root, replace(job, attempt=1), requested_action=RequestedAction.HALT)
    assert read_control(site.attempt(job)) == Control()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"attempt": "x"}', '{"requested_action": "dance"}'])
def test_write_control_replaces_damaged_cell(site: Site, text: str) -> None:
    job = site.deployed()
    Path(site.attempt(job).control).write_text(text)
    assert read_control(site.attempt(job)) == Control()
    write_control(site.platform.storage.root, job, requested_action=RequestedAction.HALT)
    assert read_control(site.attempt(job)) == Control(1, HALT)


def test_control_fence_writes_newer_attempt_into_existing_cells(site: Site) -> None:
    job = site.deployed()
    write_control(site.platform.storage.root, job, requested_action=RequestedAction.HALT)
    assert fence_earlier(site.platform.storage.root, job) == 0
    third = replace(job, attempt=3)  # the second never had a directory
    assert fence_earlier(site.platform.storage.root, third) == 1
    assert read_control(site.attempt(job)) == Control(3, HALT)
    write_control(site.platform.storage.root, job, drill=DrillEvent.PREEMPT)
    assert read_control(site.attempt(job)).attempt == 3, "an older row does not lift the fence"


def test_write_control_loses_no_update_from_concurrent_threads(site: Site) -> None:
    job = site.deployed()

    def write(*values: dict[str, Any]) -> None:
        for value in values * 25:
            write_control(site.platform.storage.root, job, **value)

    actions, drills = (
        [{"requested_action": RequestedAction.NONE}, {"requested_action": RequestedAction.HALT}],
        [{"drill": ""}, {"drill": DrillEvent.PREEMPT}],
    )
    threads = [Thread(target=write, args=values) for values in (actions, drills)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_control(site.attempt(job)) == Control(1, HALT, DrillEvent.PREEMPT)
    assert not [path for path in Path(site.attempt(job).path).iterdir() if path.name.startswith(".control")]
