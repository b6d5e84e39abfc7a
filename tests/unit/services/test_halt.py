"""Halts and cancels as their owner asks for them: the row, the cell, and every state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.domain.job import Change, Job
from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState, Wish
from ffdl_batch.domain.views import JobView
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.control import ControlWish, read_control
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.halt import halt_job
from ffdl_batch.services.platform import Caller
from ffdl_batch.services.problems import Refused
from tests.unit.services.conftest import Site

LIVE = [JobState.QUEUED, JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING]


def moved(site: Site, job: Job, *states: JobState, cause: Cause = Cause.PROGRESS) -> Job:
    now = site.clock.now()
    updated = site.platform.store.apply(job, Change(tuple((state, now) for state in states), cause))
    assert updated is not None
    return updated


def halt(site: Site, job: Job) -> JobView:
    return halt_job(site.platform, site.caller, job.id)


def test_halt_ends_job_immediately_before_first_deployment(site: Site) -> None:
    job = site.accept()
    view = halt(site, job)
    assert (view.state, view.wish, view.message) == ("HALTED", "none", "halted before it was deployed")
    assert view.ended_at == site.clock.now()
    assert site.scheduler.submitted == []


def test_halt_ends_job_immediately_between_two_attempts(site: Site) -> None:
    job = moved(site, site.deployed(), JobState.PENDING, cause=Cause.REQUEUED)
    view = halt(site, job)
    assert (view.state, view.message) == ("HALTED", "halted before attempt 2 was deployed")
    assert [attempt.number for attempt in view.attempts] == [1]


@pytest.mark.parametrize("state", LIVE)
def test_halt_records_request_and_writes_control_file_when_job_is_on_scheduler(site: Site, state: JobState) -> None:
    job = site.deployed()
    job = job if state is JobState.QUEUED else moved(site, job, state)
    view = halt(site, job)
    assert (view.state, view.wish) == (state, "halt")
    assert read_control(site.attempt(job)).wish is ControlWish.HALT
    assert halt(site, job) == view, "twice in a row is once"
    assert site.scheduler.cancelled == []


def test_halt_records_request_when_deploying_job_has_no_directory(site: Site) -> None:
    job = site.accept()
    (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=60)
    assert site.platform.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())
    view = halt(site, job)
    assert (view.state, view.wish) == ("DEPLOYING", "halt")
    assert not Path(site.attempt(job).path).exists()


@pytest.mark.parametrize("ask", [halt_job, cancel_job])
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_halt_and_cancel_leave_ended_job_unchanged(site: Site, state: JobState, ask: Callable[..., JobView]) -> None:
    job = moved(site, site.deployed(), state)
    if (ask, state) != (cancel_job, JobState.HALTED):
        assert ask(site.platform, site.caller, job.id).state == state
        assert site.job(job.id) == job
    assert read_control(site.attempt(job)).wish is ControlWish.NONE


def test_cancel_marks_halted_job_as_cancelled(site: Site) -> None:
    job = moved(site, site.deployed(), JobState.HALTED)
    site.clock.tick(60)
    view = cancel_job(site.platform, site.caller, job.id)
    assert (view.state, view.wish, view.message) == ("CANCELLED", "none", "cancelled by its owner")
    assert (view.error_code, view.cure, view.ended_at) == ("000", "", site.clock.now())
    last = site.platform.store.history(job.id)[-1]
    assert (last.state, last.cause, last.message) == (JobState.CANCELLED, "cancelled", "cancelled by its owner")
    assert site.scheduler.cancelled == [], "the scheduler has nothing of it any more"
    before = site.job(job.id)
    assert cancel_job(site.platform, site.caller, job.id) == view
    assert halt_job(site.platform, site.caller, job.id) == view
    assert site.job(job.id) == before, "twice in a row is once"


def test_cancel_prevents_deployment_of_job_halted_while_pending(site: Site) -> None:
    job = site.accept()
    halt(site, job)
    assert cancel_job(site.platform, site.caller, job.id).state == "CANCELLED"
    Deployer(site.platform).step()
    assert site.scheduler.submitted == []


def test_cancel_applies_to_job_resumed_concurrently(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's other shell resumes the job between our look and our write."""
    job = moved(site, site.deployed(), JobState.HALTED)
    real, looks = site.platform.store.apply, []

    def late(seen: Job, change: Change) -> Job | None:
        looks.append(seen.state)
        if len(looks) == 1:
            assert real(seen, Change(((JobState.PENDING, site.clock.now()),), Cause.RESUMED)) is not None
        return real(seen, change)

    monkeypatch.setattr(site.platform.store, "apply", late)
    assert cancel_job(site.platform, site.caller, job.id).state == "CANCELLED"
    assert looks == [JobState.HALTED, JobState.PENDING]
    assert site.states(job)[-3:] == ["HALTED", "PENDING", "CANCELLED"]


def test_cancel_overrides_halt_and_later_halt_does_not_replace_it(site: Site) -> None:
    job = site.deployed()
    halt(site, job)
    assert cancel_job(site.platform, site.caller, job.id).wish == "cancel"
    assert read_control(site.attempt(job)).wish is ControlWish.CANCEL
    assert halt(site, job).wish == "cancel"
    assert read_control(site.attempt(job)).wish is ControlWish.CANCEL


def test_halt_is_recorded_when_control_file_cannot_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    job = site.deployed()
    monkeypatch.setattr("ffdl_batch.services.control.write_whole", full)
    assert halt(site, job).wish == "halt"
    assert "could not be written now" in caplog.text


def test_halt_rereads_job_when_it_is_deployed_concurrently(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is deployed between our look and our write."""
    job = site.accept()
    real, looks = site.platform.store.apply, []

    def late(seen: Job, change: Change) -> Job | None:
        looks.append(seen.state)
        (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=60)
        site.platform.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())
        return real(seen, change)

    monkeypatch.setattr(site.platform.store, "apply", late)
    view = halt(site, job)
    assert (view.state, view.wish, looks) == ("DEPLOYING", "halt", [JobState.PENDING])


def test_halt_ends_job_that_is_requeued_concurrently(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher puts the job back to PENDING between our look and our write."""
    job = site.deployed()
    real = site.platform.store.set_wish

    def late(job_id: str, wish: Wish) -> Job | None:
        moved(site, site.job(job_id), JobState.PENDING, cause=Cause.REQUEUED)
        return real(job_id, wish)

    monkeypatch.setattr(site.platform.store, "set_wish", late)
    assert halt(site, job).state == "HALTED"


def test_cancel_applies_to_job_when_its_halt_completes_concurrently(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher sees the halted attempt end between our look and our write."""
    job = moved(site, site.deployed(), JobState.PROCESSING)
    halt(site, job)
    real = site.platform.store.set_wish

    def late(job_id: str, wish: Wish) -> Job | None:
        moved(site, site.job(job_id), JobState.HALTED)
        return real(job_id, wish)

    monkeypatch.setattr(site.platform.store, "set_wish", late)
    assert cancel_job(site.platform, site.caller, job.id).state == "CANCELLED"


def test_halt_is_refused_as_temporary_failure_when_job_cannot_be_updated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.accept()
    monkeypatch.setattr(site.platform.store, "apply", lambda *_: None)
    with pytest.raises(Refused) as refusal:
        halt(site, job)
    assert (refusal.value.status, refusal.value.problem.exit_code) == (503, 75)


def test_halt_and_cancel_return_404_for_job_of_another_user(site: Site) -> None:
    job = site.deployed()
    for ask in (halt_job, cancel_job):
        with pytest.raises(Refused) as refusal:
            ask(site.platform, Caller(site.caller.uid + 1), job.id)
        assert refusal.value.status == 404
    assert site.job(job.id) == job
