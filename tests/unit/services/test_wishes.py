"""Halts on their way: the cell first, then the scheduler, again and again, in every state."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.continuation import Checkpoint
from ffdl_batch.domain.events import Outcome
from ffdl_batch.domain.job import Change, Job
from ffdl_batch.domain.job_state import Cause, JobState, Wish
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.ports.scheduler import NotNow
from ffdl_batch.services.control import read_control
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.watch import SETTLE_S, Watcher
from ffdl_batch.services.wishes import AGAIN_S
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site


def wish(site: Site, job: Job, what: Wish = Wish.HALT) -> None:
    site.platform.store.set_wish(job.id, what)


def running(site: Site, watcher: Watcher) -> FakeHead:
    job = site.deployed()
    head = FakeHead(site.platform.root, job, site.clock.now())
    head.starts()
    site.scheduler.run(NativeId(job.native_id))
    watcher.step(full=True)
    return head


def end(site: Site, watcher: Watcher, job: Job, cause: EndCause, started: float | None = 1.0) -> None:
    site.scheduler.end(NativeId(job.native_id), cause, site.clock.now(), started)
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)


def test_halt_withdraws_queued_job(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    wish(site, job)
    watcher.step(full=True)
    native = NativeId(job.native_id)
    assert (site.scheduler.withdrawn, site.scheduler.signalled, site.scheduler.cancelled) == ([native], [], [])
    assert read_control(site.attempt(job)).wish == "halt"
    end(site, watcher, job, EndCause.CANCELLED, started=None)
    after = site.job(job.id)
    assert (after.state, after.message, after.wish) == (JobState.HALTED, "halted before it started", Wish.NONE)


def test_halt_repeats_signal_to_running_job_until_it_halts(site: Site, watcher: Watcher) -> None:
    head = running(site, watcher)
    job, native = head.job, NativeId(head.job.native_id)
    wish(site, job)
    for _ in range(3):
        watcher.step(full=True)
    assert site.scheduler.signalled == [(native, "URG")]
    assert read_control(site.attempt(job)).wish == "halt"
    site.clock.tick(AGAIN_S)
    watcher.step(full=True)
    assert site.scheduler.signalled == [(native, "URG")] * 2
    head.ends(Outcome.HALTED, interruption="halt", message="halted on request; checkpoint confirmed after 1.0 s")
    end(site, watcher, job, EndCause.SUCCESS)
    assert (site.job(job.id).state, site.platform.store.attempts(job.id)[0].interruption) == (JobState.HALTED, "halt")
    assert len(site.scheduler.signalled) == 2


def test_halt_signals_job_at_once_if_it_starts_during_withdrawal(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    wish(site, job)
    watcher.step(full=True)
    site.scheduler.run(NativeId(job.native_id))
    watcher.step(full=True)
    assert site.scheduler.signalled == [(NativeId(job.native_id), "URG")]


@pytest.mark.parametrize(
    ("outcome", "values", "state", "words"),
    [
        (Outcome.HALTED, {"interruption": "halt", "message": "halted"}, JobState.HALTED, "halted"),
        (Outcome.COMPLETED, {"exit_code": 0}, JobState.COMPLETED, ""),
        (Outcome.CANCELLED, {}, JobState.HALTED, "no checkpoint was confirmed"),
        (
            Outcome.TIMED_OUT,
            {"interruption": "timeout", "checkpoint": Checkpoint(asked=True)},
            JobState.HALTED,
            "no checkpoint was confirmed",
        ),
        (Outcome.FAILED, {"error_code": "S106"}, JobState.HALTED, "no checkpoint was confirmed"),
        (Outcome.FAILED, {"error_code": "C201", "message": "boom"}, JobState.FAILED, "boom"),
    ],
)
def test_halt_request_decides_final_state_for_each_outcome(
    site: Site, watcher: Watcher, outcome: Outcome, values: dict[str, object], state: JobState, words: str
) -> None:
    head = running(site, watcher)
    wish(site, head.job)
    head.ends(outcome, **values)
    end(site, watcher, head.job, EndCause.FAILURE)
    assert site.job(head.job.id).state is state
    assert words in site.job(head.job.id).message


def test_halt_applies_to_next_attempt_after_continuation(site: Site, watcher: Watcher) -> None:
    head = running(site, watcher)
    wish(site, head.job)
    head.goes_on()
    watcher.step(full=False)
    site.scheduler.accept(site.job(head.job.id).token)
    Deployer(site.platform).step()
    after = site.job(head.job.id)
    assert (after.state, after.attempt, after.wish) == (JobState.QUEUED, 2, Wish.HALT)
    assert read_control(site.attempt(after)).wish == "halt"
    watcher.step(full=True)
    assert site.scheduler.withdrawn == [NativeId(after.native_id)]
    end(site, watcher, after, EndCause.CANCELLED, started=None)
    assert site.job(after.id).state is JobState.HALTED


def test_halt_request_is_kept_when_submission_reply_was_lost(site: Site) -> None:
    site.scheduler.lose_reply = True
    job = site.deployed()
    assert job.state is JobState.DEPLOYING
    wish(site, job)
    site.clock.tick(5)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).wish) == (JobState.QUEUED, Wish.HALT)
    assert read_control(site.attempt(job)).wish == "halt"


def test_halt_ends_job_that_was_not_submitted(site: Site) -> None:
    job = site.accept()
    site.scheduler.down = True
    Deployer(site.platform).step()
    wish(site, job)
    site.scheduler.down = False
    site.clock.tick(60)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).message) == (JobState.HALTED, "halted before it started")
    assert site.scheduler.submitted == []


@pytest.mark.parametrize(
    ("wished", "state", "message"),
    [
        (Wish.HALT, JobState.HALTED, "halted before attempt 2 started"),
        (Wish.CANCEL, JobState.CANCELLED, "cancelled by its owner before attempt 2 was deployed"),
    ],
)
def test_halt_or_cancel_message_names_attempt_that_did_not_start(
    site: Site, wished: Wish, state: JobState, message: str
) -> None:
    change = Change(((JobState.PENDING, site.clock.now()),), Cause.REQUEUED)
    job = site.platform.store.apply(site.deployed(), change)
    assert job is not None
    site.scheduler.down = True
    Deployer(site.platform).step()
    wish(site, job, wished)
    site.scheduler.down = False
    site.clock.tick(60)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).message) == (state, message)


def test_halt_withdraws_running_job_that_scheduler_requeued(site: Site, watcher: Watcher) -> None:
    head = running(site, watcher)
    wish(site, head.job)
    watcher.step(full=True)
    site.scheduler.wait(NativeId(head.job.native_id), restarts=1)
    watcher.step(full=True)
    assert site.scheduler.withdrawn == [NativeId(head.job.native_id)]
    end(site, watcher, head.job, EndCause.CANCELLED)
    assert site.job(head.job.id).state is JobState.HALTED


def test_halt_signals_job_if_control_file_cannot_be_written(
    site: Site, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_values: object) -> bool:
        raise OSError("no space left on device")

    head = running(site, watcher)
    wish(site, head.job)
    monkeypatch.setattr("ffdl_batch.services.wishes.write_control", full)
    watcher.step(full=True)
    assert len(site.scheduler.signalled) == 1


def test_halt_logs_undelivered_signal_once_per_period_and_records_no_outage(
    site: Site, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    head = running(site, watcher)
    wish(site, head.job)
    tries: list[str] = []

    def signal(native: NativeId, name: str) -> None:
        tries.append(name)
        raise NotNow("the signal URG for job 1 did not reach all nodes (Socket timed out); it is repeated")

    monkeypatch.setattr(site.scheduler, "signal", signal)
    for _ in range(3):
        watcher.step(full=True)
        assert site.platform.adapters.outages() == ()
        site.clock.tick(AGAIN_S)
    assert len(tries) == 3
    assert len([text for text in caplog.messages if "did not reach all nodes" in text]) == 1
    site.clock.tick(3600)
    watcher.step(full=True)
    assert len([text for text in caplog.messages if "did not reach all nodes" in text]) == 2
