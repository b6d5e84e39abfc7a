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


def test_a_queued_job_is_withdrawn_and_halted(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    wish(site, job)
    watcher.step(full=True)
    native = NativeId(job.native_id)
    assert (site.scheduler.withdrawn, site.scheduler.signalled, site.scheduler.cancelled) == ([native], [], [])
    assert read_control(site.attempt(job)).wish == "halt"
    end(site, watcher, job, EndCause.CANCELLED, started=None)
    after = site.job(job.id)
    assert (after.state, after.message, after.wish) == (JobState.HALTED, "halted before it started", Wish.NONE)


def test_a_running_job_is_asked_again_until_it_has_halted(site: Site, watcher: Watcher) -> None:
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


def test_a_job_that_starts_while_it_is_withdrawn_is_asked_at_once(site: Site, watcher: Watcher) -> None:
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
def test_what_a_wish_to_halt_makes_of_each_end(
    site: Site, watcher: Watcher, outcome: Outcome, values: dict[str, object], state: JobState, words: str
) -> None:
    head = running(site, watcher)
    wish(site, head.job)
    head.ends(outcome, **values)
    end(site, watcher, head.job, EndCause.FAILURE)
    assert site.job(head.job.id).state is state
    assert words in site.job(head.job.id).message


def test_a_halt_after_the_head_went_on_halts_the_successor(site: Site, watcher: Watcher) -> None:
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


def test_a_halt_while_nobody_knows_whether_it_was_submitted(site: Site) -> None:
    site.scheduler.lose_reply = True
    job = site.deployed()
    assert job.state is JobState.DEPLOYING
    wish(site, job)
    site.clock.tick(5)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).wish) == (JobState.QUEUED, Wish.HALT)
    assert read_control(site.attempt(job)).wish == "halt"


def test_a_halt_of_what_was_surely_not_submitted_ends_it(site: Site) -> None:
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
def test_what_ends_before_a_later_attempt_says_which(site: Site, wished: Wish, state: JobState, message: str) -> None:
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


def test_a_halted_job_that_the_scheduler_requeues_is_withdrawn(site: Site, watcher: Watcher) -> None:
    head = running(site, watcher)
    wish(site, head.job)
    watcher.step(full=True)
    site.scheduler.wait(NativeId(head.job.native_id), restarts=1)
    watcher.step(full=True)
    assert site.scheduler.withdrawn == [NativeId(head.job.native_id)]
    end(site, watcher, head.job, EndCause.CANCELLED)
    assert site.job(head.job.id).state is JobState.HALTED


def test_a_wish_whose_cell_cannot_be_written_is_signalled_all_the_same(
    site: Site, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_values: object) -> bool:
        raise OSError("no space left on device")

    head = running(site, watcher)
    wish(site, head.job)
    monkeypatch.setattr("ffdl_batch.services.wishes.write_control", full)
    watcher.step(full=True)
    assert len(site.scheduler.signalled) == 1


def test_a_node_that_a_signal_does_not_reach_is_no_outage_and_the_log_hears_of_it_once(
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
