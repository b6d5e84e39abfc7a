"""Simulated interruptions: the signals of real ones, and a note if the end would otherwise be misjudged."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

import pytest

from ffdl_batch.attempt.control_cell import HALT, Control
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.continuation import DrillEvent, Spent
from ffdl_batch.domain.outcome.controller_events import GoesOn, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_control.drill import drill
from ffdl_batch.services.job_control.stop import cancel_job, halt_job
from ffdl_batch.services.job_files.control_cell import read_control, write_control
from ffdl_batch.services.refusals import Refused
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.chains import at_work, end
from tests.unit.services.conftest import Site

SIMULATED = {"interruption": "timeout", "simulated": True}


@dataclass
class Signalled(FakeScheduler):
    """Notes signals, and what the cell said when each came."""

    signals: list[tuple[str, str]] = field(default_factory=list)
    noted: list[Control] = field(default_factory=list)
    refuse_signal: str = ""
    unanswered_signal: str = ""
    site: Site | None = None

    def signal(self, native_id: NativeId, signal: str) -> None:
        super().signal(native_id, signal)
        if self.refuse_signal:
            raise InvalidRequest(self.refuse_signal)
        if self.unanswered_signal:
            raise SchedulerUnreachable(self.unanswered_signal)
        self.signals.append((str(native_id), signal))
        assert self.site is not None
        (job,) = self.site.platform.storage.store.live_deployed("fake")
        self.noted.append(read_control(self.site.attempt(job)))


@pytest.fixture
def scheduler(site: Site) -> Signalled:
    made = Signalled(site=site)
    site.platform.adapters.use("fake", made)
    site.scheduler = made
    return made


def processing(site: Site) -> Job:
    return site.move(site.deployed(), JobState.PROCESSING)


def refused(site: Site, job: Job, event: str, words: str) -> tuple[int, int]:
    """Simulate an event that is refused with these words; return the refusal's HTTP status and exit status."""
    with pytest.raises(Refused, match=words) as refusal:
        drill(site.platform.storage, site.platform.adapters, site.caller, job.id, event)
    return refusal.value.status, refusal.value.problem.exit_code


@pytest.mark.parametrize(
    ("event", "signal", "note"),
    [
        ("timeout", "URG", DrillEvent.TIMEOUT),
        ("preempt", "TERM", DrillEvent.PREEMPT),
        ("node-fail", "KILL", DrillEvent.NODE_FAIL),
    ],
)
def test_drill_records_event_before_sending_signal(
    site: Site, scheduler: Signalled, event: str, signal: str, note: DrillEvent
) -> None:
    job = processing(site)
    view = drill(site.platform.storage, site.platform.adapters, site.caller, job.id, event)
    assert scheduler.signals == [(job.native_id, signal)]
    assert scheduler.noted == [Control(1, "", note)]
    assert (view.state, view.requested_action) == ("PROCESSING", "none")
    assert [attempt.number for attempt in view.attempts] == [1]


def test_drill_halt_requests_halt_and_records_drill(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    for _ in range(2):  # a request whose answer was lost is sent again
        assert (
            drill(site.platform.storage, site.platform.adapters, site.caller, job.id, "halt").requested_action == "halt"
        )
        assert read_control(site.attempt(job)) == Control(1, HALT, DrillEvent.HALT)
    assert scheduler.signals == []


@pytest.mark.parametrize("event", ["halt", "preempt"])
def test_drill_rejects_event_after_user_halt(site: Site, scheduler: Signalled, event: str) -> None:
    job = processing(site)
    halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    refused(site, job, event, "is ending")
    assert scheduler.signals == []
    assert read_control(site.attempt(job)) == Control(1, HALT)


def test_drill_clears_record_when_halt_request_is_rejected(
    site: Site, scheduler: Signalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = processing(site)
    monkeypatch.setattr(site.platform.storage.store, "set_requested_action", lambda _job, _action: None)
    refused(site, job, "halt", "changes too fast")
    assert read_control(site.attempt(job)) == Control(1)


def test_drill_rejects_job_that_is_not_processing(site: Site, scheduler: Signalled) -> None:
    job = site.deployed()
    assert refused(site, job, "halt", "in PROCESSING only") == (409, 1)
    assert site.job(job.id) == job
    assert scheduler.signals == []


def test_drill_rejects_unknown_event(site: Site, scheduler: Signalled) -> None:
    words = "known are halt, timeout, preempt, node-fail"
    assert refused(site, processing(site), "earthquake", words) == (400, 2)
    assert scheduler.signals == []


def test_drill_clears_record_when_signal_was_not_sent(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    scheduler.down = True
    assert refused(site, job, "preempt", "nothing was simulated") == (503, 75)
    site.clock.tick(60)  # else it is left alone
    scheduler.down, scheduler.refuse_signal = False, "Access/permission denied"
    refused(site, job, "preempt", "Access/permission denied")
    assert read_control(site.attempt(job)) == Control(1)


@pytest.mark.parametrize(
    ("again", "down", "words"),
    [
        ("preempt", False, ""),
        ("preempt", True, "nothing was simulated"),
        ("timeout", False, "nothing was simulated"),
        ("halt", False, "preempt was already simulated"),
    ],
    ids=["repeated", "repeated while the scheduler is down", "followed by a time limit", "followed by a halt"],
)
def test_drill_keeps_record_of_event_that_ended_attempt(
    site: Site, scheduler: Signalled, again: str, down: bool, words: str
) -> None:
    """The answer was lost, or the watcher has not seen the end yet: the job counts as PROCESSING."""
    job, head = at_work(site)
    drill(site.platform.storage, site.platform.adapters, site.caller, job.id, "preempt")
    head.ends(Outcome.CANCELLED, stored=False, message="ended from outside before the learners had finished")
    scheduler.end(NativeId(job.native_id), EndCause.FAILURE, site.clock.now())
    scheduler.down = down
    if words:
        refused(site, job, again, words)
    else:
        assert drill(site.platform.storage, site.platform.adapters, site.caller, job.id, again).state == "PROCESSING"
    assert scheduler.signals == [(job.native_id, "TERM")]
    site.clock.tick(60)
    scheduler.down = False
    site.watch()
    after, (attempt,) = site.job(job.id), site.platform.storage.store.attempts(job.id)
    assert (after.state, after.requested_action, attempt.interruption, attempt.simulated) == (
        "PENDING",
        "none",
        "preemption",
        True,
    )


def test_drill_keeps_record_when_signal_may_have_been_sent(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    scheduler.unanswered_signal = "scancel was not answered"
    assert refused(site, job, "preempt", "scancel was not answered; the event may have been simulated") == (503, 75)
    assert read_control(site.attempt(job)) == Control(1, drill=DrillEvent.PREEMPT)
    site.clock.tick(60)  # else the scheduler is left alone
    scheduler.unanswered_signal = ""
    drill(site.platform.storage, site.platform.adapters, site.caller, job.id, "preempt")
    assert scheduler.signals == [(job.native_id, "TERM")]


def test_drill_plays_one_event_on_each_run(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    drill(site.platform.storage, site.platform.adapters, site.caller, job.id, "preempt")
    refused(site, job, "node-fail", f"preempt was already simulated on attempt 1 of {job.id}")
    Path(site.attempt(job).run_claim(1)).mkdir()
    drill(site.platform.storage, site.platform.adapters, site.caller, job.id, "node-fail")
    assert [signal for _, signal in scheduler.signals] == ["TERM", "KILL"]
    assert read_control(site.attempt(job)) == Control(1, drill=DrillEvent.NODE_FAIL, run=1)


def test_drill_sends_no_signal_when_record_cannot_be_written(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    Path(site.attempt(job).path).rename(Path(site.attempt(job).path + ".away"))
    refused(site, job, "node-fail", "could not be noted")
    assert scheduler.signals == []


def test_drill_reports_other_users_job_as_unknown(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    with pytest.raises(Refused) as refusal:
        drill(site.platform.storage, site.platform.adapters, Caller(site.caller.uid + 1), job.id, "timeout")
    assert refusal.value.status == 404
    assert scheduler.signals == []


def test_watcher_records_drilled_interruption_without_charging_retry_budget(site: Site) -> None:
    job, head = at_work(site)
    head.saves()
    write_control(site.platform.storage.root, job, drill=DrillEvent.NODE_FAIL)
    head.ends(Outcome.FAILED, error_code="S106", stored=False)
    after = end(site, job, EndCause.FAILURE)
    assert (after.state, after.spent.preemptions, after.spent.node_failures) == (JobState.PENDING, 0, 0)
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (attempt.interruption, attempt.simulated) == ("node_failure", True)
    said = "a drill simulated a node failure; a checkpoint was saved"
    assert site.platform.storage.store.history(job.id)[-1].message == said


@pytest.mark.parametrize("event", ["", "halt"], ids=["in earnest", "simulated"])
@pytest.mark.parametrize("with_record", [True, False], ids=["told by the head", "without a word of the head"])
def test_watcher_records_halt_as_drill_only_if_drill_requested_it(site: Site, event: str, with_record: bool) -> None:
    job, head = at_work(site)
    said = "a drill simulated a halt" if event else "halted on request"
    halt = (
        drill(site.platform.storage, site.platform.adapters, site.caller, job.id, event)
        if event
        else halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    )
    assert halt.requested_action == "halt"
    if with_record:
        head.ends(Outcome.HALTED, interruption="halt", simulated=bool(event), message=f"{said}; checkpoint confirmed")
    after = end(site, job, EndCause.SUCCESS if with_record else EndCause.CANCELLED)
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (after.state, attempt.interruption, attempt.simulated) == (JobState.HALTED, "halt", bool(event))
    assert site.platform.storage.store.history(job.id)[-1].message.startswith(f"{said}; ")


def test_watcher_records_cancel_after_drilled_halt_as_real_cancel(site: Site) -> None:
    job, _ = at_work(site)
    drill(site.platform.storage, site.platform.adapters, site.caller, job.id, "halt")
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    end(site, job, EndCause.CANCELLED)
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (site.job(job.id).state, attempt.simulated) == (JobState.CANCELLED, False)


def test_watcher_records_drilled_time_limit_without_charging_retry_budget(site: Site) -> None:
    job, head = at_work(site)
    message = "a drill simulated a time limit; checkpoint confirmed after 2.0 s"
    spent = Spent(gpu_seconds=60.0)
    head.begins_successor()
    head.ends(Outcome.HALTED, **SIMULATED, goes_on=GoesOn.SUCCESSOR, spent=spent, message=message)
    site.watch(full=False)
    after = site.job(job.id)
    assert (after.state, after.attempt, after.spent) == (JobState.DEPLOYING, 2, spent)
    first = site.platform.storage.store.attempts(job.id)[0]
    assert (first.interruption, first.simulated) == ("timeout", True)
    assert site.platform.storage.store.history(job.id)[-1].message == message


def test_watcher_ignores_drill_of_earlier_run_for_later_end(site: Site) -> None:
    job, head = at_work(site)
    write_control(site.platform.storage.root, job, drill=DrillEvent.NODE_FAIL)
    for run in (1, 2):
        Path(site.attempt(job).run_claim(run)).mkdir()
    head.ends(Outcome.FAILED, error_code="S106", stored=False)
    assert end(site, job, EndCause.FAILURE).spent.node_failures == 1
    attempt = site.platform.storage.store.attempts(job.id)[0]
    assert (attempt.interruption, attempt.simulated) == ("node_failure", False)
