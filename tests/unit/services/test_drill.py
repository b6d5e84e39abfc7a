"""Interruptions that are played: the same signals as in earnest, and a note where the end would mean another thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ffdl_batch.domain.job import Change, Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.ports.scheduler import InvalidRequest
from ffdl_batch.services.control import Control, ControlWish, Drill, read_control
from ffdl_batch.services.drill import drill
from ffdl_batch.services.halt import halt_job
from ffdl_batch.services.platform import Caller
from ffdl_batch.services.problems import Refused
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import Site


@dataclass
class Signalled(FakeScheduler):
    """Notes signals, and what the cell said when each came."""

    signals: list[tuple[str, str]] = field(default_factory=list)
    noted: list[Control] = field(default_factory=list)
    refuse_signal: str = ""
    site: Site | None = None

    def signal(self, native_id: NativeId, signal: str) -> None:
        super().signal(native_id, signal)
        if self.refuse_signal:
            raise InvalidRequest(self.refuse_signal)
        self.signals.append((str(native_id), signal))
        assert self.site is not None
        (job,) = self.site.platform.store.live_deployed("fake")
        self.noted.append(read_control(self.site.attempt(job)))


@pytest.fixture
def scheduler(site: Site) -> Signalled:
    made = Signalled(site=site)
    site.platform.adapters.use("fake", made)
    site.scheduler = made
    return made


def processing(site: Site) -> Job:
    job = site.deployed()
    updated = site.platform.store.apply(job, Change(((JobState.PROCESSING, site.clock.now()),)))
    assert updated is not None
    return updated


@pytest.mark.parametrize(
    ("event", "signal", "note"),
    [("timeout", "URG", Drill.TIMEOUT), ("preempt", "TERM", Drill.PREEMPT), ("node-fail", "KILL", Drill.NODE_FAIL)],
)
def test_drill_records_event_before_sending_signal(
    site: Site, scheduler: Signalled, event: str, signal: str, note: Drill
) -> None:
    job = processing(site)
    view = drill(site.platform, site.caller, job.id, event)
    assert scheduler.signals == [(job.native_id, signal)]
    assert scheduler.noted == [Control(1, ControlWish.NONE, note)]
    assert (view.state, view.wish) == ("PROCESSING", "none")
    assert [attempt.number for attempt in view.attempts] == [1]


def test_drill_halt_requests_halt_and_records_drill(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    for _ in range(2):  # a request whose answer was lost is sent again
        assert drill(site.platform, site.caller, job.id, "halt").wish == "halt"
        assert read_control(site.attempt(job)) == Control(1, ControlWish.HALT, Drill.HALT)
    assert scheduler.signals == []


def test_drill_rejects_halt_event_after_user_halt(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    halt_job(site.platform, site.caller, job.id)
    with pytest.raises(Refused, match="is ending"):
        drill(site.platform, site.caller, job.id, "halt")
    assert read_control(site.attempt(job)) == Control(1, ControlWish.HALT)


def test_drill_clears_record_when_halt_request_is_rejected(
    site: Site, scheduler: Signalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = processing(site)
    monkeypatch.setattr(site.platform.store, "set_wish", lambda _job, _wish: None)
    with pytest.raises(Refused, match="changes too fast"):
        drill(site.platform, site.caller, job.id, "halt")
    assert read_control(site.attempt(job)) == Control(1)


@pytest.mark.parametrize("event", ["halt", "timeout", "preempt", "node-fail"])
def test_drill_rejects_job_that_is_not_processing(site: Site, scheduler: Signalled, event: str) -> None:
    job = site.deployed()
    with pytest.raises(Refused, match="in PROCESSING only") as refusal:
        drill(site.platform, site.caller, job.id, event)
    assert (refusal.value.status, refusal.value.problem.exit_code) == (409, 1)
    assert site.job(job.id) == job
    assert scheduler.signals == []


def test_drill_rejects_other_event_after_user_halt(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    halt_job(site.platform, site.caller, job.id)
    with pytest.raises(Refused, match="is ending"):
        drill(site.platform, site.caller, job.id, "preempt")
    assert scheduler.signals == []
    assert read_control(site.attempt(job)).drill is Drill.NONE


def test_drill_rejects_unknown_event(site: Site, scheduler: Signalled) -> None:
    with pytest.raises(Refused, match="known are halt, timeout, preempt, node-fail") as refusal:
        drill(site.platform, site.caller, processing(site).id, "earthquake")
    assert (refusal.value.status, refusal.value.problem.exit_code) == (400, 2)
    assert scheduler.signals == []


@pytest.mark.parametrize("event", ["preempt", "node-fail", "timeout"])
def test_drill_clears_record_when_signal_was_not_sent(site: Site, scheduler: Signalled, event: str) -> None:
    job = processing(site)
    scheduler.down = True
    with pytest.raises(Refused, match="nothing was played") as refusal:
        drill(site.platform, site.caller, job.id, event)
    assert (refusal.value.status, refusal.value.problem.exit_code) == (503, 75)
    site.clock.tick(60)  # else it is left alone
    scheduler.down, scheduler.refuse_signal = False, "Access/permission denied"
    with pytest.raises(Refused, match="Access/permission denied"):
        drill(site.platform, site.caller, job.id, event)
    assert read_control(site.attempt(job)) == Control(1)


def test_drill_sends_no_signal_when_record_cannot_be_written(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    Path(site.attempt(job).path).rename(Path(site.attempt(job).path + ".away"))
    with pytest.raises(Refused, match="could not be noted"):
        drill(site.platform, site.caller, job.id, "node-fail")
    assert scheduler.signals == []


def test_drill_reports_other_users_job_as_unknown(site: Site, scheduler: Signalled) -> None:
    job = processing(site)
    with pytest.raises(Refused) as refusal:
        drill(site.platform, Caller(site.caller.uid + 1), job.id, "timeout")
    assert refusal.value.status == 404
    assert scheduler.signals == []
