"""New jobs that wait for the site's hub, which decides by the real rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

import pytest

from ffdl_batch.domain.admission import (
    Answer,
    Claim,
    encode_answers,
    encode_claims,
    read_answers,
    read_claims,
    read_ids,
)
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.incidents.incident import Evidence, Incident, IncidentRow
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.views import Resume
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.deployment.admission import AGAIN_S, LONGEST_PAUSE_S, TURN_S
from ffdl_batch.services.hub import HubRefused, HubUnavailable
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.site.hub.fair_window import FairWindow
from ffdl_batch.site.hub.incident_index import read_incidents
from ffdl_batch.site.hub.store import HubStore, open_hub_store
from ffdl_batch.site.hub.tenants import LeverKind, Quota
from ffdl_batch.store.database import connect
from tests.unit.services.conftest import Site
from tests.unit.services.pool_bench import Bench
from tests.unit.services.reports.test_faults import LINE, note

UID = 7001


@dataclass
class DirectHub:
    """A hub in this process; `is_away` = it does not answer."""

    store: HubStore
    is_away: bool = False
    asked: list[list[str]] = field(default_factory=list)
    sent: list[list[str]] = field(default_factory=list)

    def admit(self, claims: Sequence[Claim], handed: Sequence[str] = ()) -> dict[str, Answer]:
        if claims:
            self.asked.append([one.job for one in claims])
        self._answers()
        plain = encode_claims(claims, handed)
        answers = self.store.admission.decide(UID, read_claims(plain), read_ids(plain, "handed"))
        return read_answers(encode_answers(answers))

    def live_jobs(self) -> list[str]:
        self._answers()
        return self.store.admission.live(UID)

    def end_jobs(self, jobs: Sequence[str]) -> None:
        self._answers()
        self.store.admission.end(UID, jobs)

    def newest_incident(self) -> float:
        self._answers()
        return self.store.incidents.newest(UID)

    def send_incidents(self, rows: Sequence[IncidentRow]) -> None:
        self._answers()
        self.sent.append([one.episode for one in rows])
        self.store.incidents.add(UID, read_incidents({"incidents": to_plain(rows)}))

    def _answers(self) -> None:
        if self.is_away:
            raise HubUnavailable("the hub does not answer at hub.sock: refused")


@dataclass
class Tenancy:
    """A site whose user is a member of a tenant that may have one live job."""

    site: Site
    hub: DirectHub

    def __post_init__(self) -> None:
        self.site.platform = replace(self.site.platform, hub=self.hub)  # type: ignore[arg-type]
        self.deployer = self.site.platform.deployer()

    def accept_two(self) -> tuple[Job, Job]:
        """Two jobs, of which the first one is older."""
        first = self.site.accept("a")
        self.site.clock.tick(1.0)
        return first, self.site.accept("b")

    def report(self) -> float:
        return self.site.platform.admission.report_ended()

    def step_after(self, seconds: float) -> int:
        self.site.clock.tick(seconds)
        return self.deployer.step()


@pytest.fixture
def tenancy(site: Site, tmp_path: Path) -> Iterator[Tenancy]:
    database = connect(f"sqlite:///{tmp_path}/hub.db", False, site.clock)
    store = open_hub_store(database, lambda _: "alice")
    store.tenants.put("vision", None, ["vis"])
    store.tenants.add_member("vision", UID)
    store.tenants.put_quota("vision", Quota("", "jobs", 1))
    yield Tenancy(site, DirectHub(store))
    database.close()


def test_new_job_waits_for_quota_until_the_end_of_another_is_reported(tenancy: Tenancy) -> None:
    site = tenancy.site
    first, second = tenancy.accept_two()
    tenancy.deployer.step()
    assert (site.job(first.id).state, site.job(second.id).state) == (JobState.QUEUED, JobState.PENDING)
    assert (
        site.job(second.id).pending_reason == "waiting for quota of tenant vision: jobs limit 1, in use 1, requested 1"
    )
    tenancy.report()
    site.move(site.job(first.id), JobState.CANCELLED)
    assert tenancy.step_after(AGAIN_S) == 0
    tenancy.hub.is_away = True
    tenancy.report()
    assert site.platform.admission.is_busy()  # the daemon does not end before the hub knows
    tenancy.hub.is_away = False
    tenancy.report()
    assert not site.platform.admission.is_busy()
    assert tenancy.step_after(AGAIN_S) == 1
    assert site.job(second.id).state is JobState.QUEUED


def test_job_that_no_quota_could_hold_fails_with_limit_and_request(tenancy: Tenancy) -> None:
    tenancy.hub.store.tenants.put_quota("vision", Quota("", "gpus", 0))
    job = tenancy.site.accept()
    assert tenancy.deployer.step() == 1
    ended = tenancy.site.job(job.id)
    assert (ended.state, ended.error_code, ended.message) == (
        JobState.FAILED,
        "C106",
        "gpus: 1 exceeds the quota of tenant vision (0); request less, or choose another account with --account",
    )
    assert tenancy.site.scheduler.submitted == []


def test_daemon_that_starts_reports_jobs_that_ended_while_it_was_away(tenancy: Tenancy) -> None:
    site = tenancy.site
    first, second = tenancy.accept_two()
    tenancy.deployer.step()
    site.move(site.job(first.id), JobState.CANCELLED)
    tenancy.hub.store.admission.decide(UID, [Claim("unknown to the daemon", "another")])
    later = Tenancy(site, tenancy.hub)
    later.report()
    assert tenancy.hub.store.admission.live(UID) == []
    site.clock.tick(AGAIN_S)
    assert later.deployer.step() == 1
    assert site.job(second.id).state is JobState.QUEUED


def test_incidents_are_reported_once_and_before_the_end_of_their_job(tenancy: Tenancy) -> None:
    site, hub = tenancy.site, tenancy.hub
    first, _ = tenancy.accept_two()
    tenancy.deployer.step()
    note(site, first, "hang-0", "node.gpu")
    tenancy.report()
    site.clock.tick(LONGEST_PAUSE_S)
    tenancy.report()
    assert hub.sent == [["hang-0"]]
    note(site, first, "end-0")
    site.move(site.job(first.id), JobState.CANCELLED)
    hub.is_away = True
    site.clock.tick(LONGEST_PAUSE_S)
    tenancy.report()
    assert site.platform.admission.is_busy()
    hub.is_away = False
    site.clock.tick(LONGEST_PAUSE_S)
    tenancy.report()
    assert (hub.sent, hub.store.admission.live(UID)) == ([["hang-0"], ["end-0"]], [])
    later = Tenancy(site, hub)
    site.clock.tick(3600)
    note(site, first, "end-1")
    later.report()
    assert hub.sent[2:] == [["hang-0", "end-0", "end-1"]]  # those of a minute are sent again
    rows = hub.store.incidents.faults(0.0, None, None).rows
    assert [row.episode for row in rows] == ["hang-0", "end-0", "end-1"]
    row = rows[0]
    assert (row.job, row.user, row.kind, row.lost_gpu_hours) == (first.id, "alice", "node.gpu", 2.0)


def test_refused_incidents_keep_no_end_of_a_job_from_being_reported(
    tenancy: Tenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, hub = tenancy.site, tenancy.hub
    first, _ = tenancy.accept_two()
    tenancy.deployer.step()
    note(site, first, "end-0")
    site.move(site.job(first.id), JobState.CANCELLED)

    def refuse(rows: Sequence[IncidentRow]) -> None:
        raise HubRefused("the body is larger than 1048576 bytes", 413)

    monkeypatch.setattr(hub, "send_incidents", refuse)
    tenancy.report()
    assert (hub.store.admission.live(UID), site.platform.admission.is_busy()) == ([], False)


@pytest.mark.parametrize(("kind", "kept"), [("user.exit", ("", ())), ("node.gpu", ("m", ("health",)))])
def test_incidents_for_operators_have_no_output_of_learners(
    tenancy: Tenancy, kind: str, kept: tuple[str, tuple[str, ...]]
) -> None:
    site = tenancy.site
    first, _ = tenancy.accept_two()
    tenancy.deployer.step()
    evidence = (LINE, *((Evidence("health", "Xid 48", 7.0),) if kind == "node.gpu" else ()))
    incident = Incident(first.id, 1, "end-0", kind, site.clock.now(), "C201", "m", ("n1",), 1, evidence)
    assert site.platform.storage.store.apply(site.job(first.id), Change(incidents=(incident,))) is not None
    tenancy.report()
    (row,) = tenancy.hub.store.incidents.faults(0.0, None, None).rows
    assert (row.message, tuple(one.source for one in row.evidence)) == kept


def test_new_jobs_wait_while_hub_is_away_and_continuations_do_not(tenancy: Tenancy) -> None:
    site, hub = tenancy.site, tenancy.hub
    first = site.accept("a")
    tenancy.deployer.step()
    hub.is_away = True
    second = site.accept("b")
    continued = site.end(site.job(first.id), EndCause.PREEMPTED)
    assert continued.state is JobState.PENDING
    tenancy.deployer.step()
    assert site.job(continued.id).state is JobState.QUEUED
    waiting = site.job(second.id)
    reason = "waiting for the site's hub: the hub does not answer at hub.sock: refused"
    assert (waiting.state, waiting.pending_reason) == (JobState.PENDING, reason)
    asked = len(hub.asked)
    site.accept("c")
    tenancy.deployer.step()
    assert len(hub.asked) == asked  # not again at once
    assert 0 < tenancy.report() <= LONGEST_PAUSE_S
    hub.is_away = False
    hub.store.tenants.remove_quota("vision", "", "jobs")
    assert tenancy.step_after(LONGEST_PAUSE_S) == 2


def test_resumed_job_asks_again_and_cancelled_one_does_not_wait(tenancy: Tenancy) -> None:
    site, hub = tenancy.site, tenancy.hub
    job = site.accept("a")
    tenancy.deployer.step()
    site.move(site.job(job.id), JobState.HALTED)
    tenancy.report()
    tenancy.report()
    assert hub.store.admission.live(UID) == []
    platform = site.platform
    resume_job(platform.storage, platform.adapters, platform.store_checks, site.caller, job.id, Resume())
    hub.store.tenants.stop(LeverKind.USER, "alice", "ops", "")
    tenancy.step_after(AGAIN_S)
    assert site.job(job.id).pending_reason == "ops has stopped the submissions of the user alice"
    cancel_job(platform.storage, platform.adapters, site.caller, job.id)
    tenancy.step_after(AGAIN_S)
    assert site.job(job.id).state is JobState.CANCELLED


def test_job_without_account_belongs_to_tenant_of_configured_account(tenancy: Tenancy) -> None:
    tenancy.hub.store.tenants.put("speech", None, ["sp"])
    tenancy.hub.store.tenants.add_member("speech", UID)
    tenancy.site.platform.settings.backends["fake"] = {"account": "sp"}  # type: ignore[index]
    first, second = tenancy.accept_two()
    tenancy.deployer.step()
    assert {tenancy.site.job(job.id).state for job in (first, second)} == {JobState.QUEUED}  # not the quota of vision
    assert tenancy.hub.store.admission.uses()["speech"].whole["jobs"] == 2


def test_elements_of_an_array_ask_in_one_request(tenancy: Tenancy) -> None:
    tenancy.hub.store.tenants.put_quota("vision", Quota("", "jobs", 3))
    tenancy.site.accept_all(5)
    tenancy.deployer.step()
    assert [len(ids) for ids in tenancy.hub.asked] == [5]
    assert len(tenancy.hub.store.admission.live(UID)) == 3


def test_jobs_whose_turn_comes_later_follow_when_earlier_ones_were_handed_over(tenancy: Tenancy) -> None:
    tenancy.hub.store.tenants.remove_quota("vision", "", "jobs")
    tenancy.hub.store.admission._window = FairWindow(2, tenancy.site.clock.monotonic)
    jobs = tenancy.site.accept_all(7)
    handed = []
    for _ in range(4):
        tenancy.deployer.step()
        handed.append(sum(tenancy.site.job(job.id).state is JobState.QUEUED for job in jobs))
        tenancy.site.clock.tick(TURN_S)
    assert handed == [2, 4, 6, 7]


def test_account_that_no_scheduler_checks_is_no_way_past_the_quota(tenancy: Tenancy) -> None:
    tenancy.site.platform.settings.backends["fake"] = {"account": "elsewhere"}  # type: ignore[index]
    first, second = tenancy.accept_two()
    tenancy.deployer.step()
    assert [tenancy.site.job(job.id).state for job in (first, second)] == [JobState.QUEUED, JobState.PENDING]


def test_job_grows_without_waiting_for_the_hub_and_is_counted_with_its_new_size(tenancy: Tenancy) -> None:
    quotas = tenancy.hub.store.tenants
    quotas.remove_quota("vision", "", "jobs")
    quotas.put_quota("vision", Quota("", "gpus", 2))
    bench = Bench(tenancy.site)
    job = bench.arrive("first", learners=2)
    bench.report(job, 100.0, remaining=1e7)
    tenancy.report()
    bench.turn(tick_s=61)
    assert bench.checkpoints(job).state is JobState.HALTED
    tenancy.report()
    assert tenancy.hub.store.admission.live(UID) == [job.id], "it continues"
    tenancy.hub.is_away = True
    bench.turn(tick_s=2)
    assert (tenancy.site.job(job.id).state, bench.learners(job)) == (JobState.QUEUED, [4])
    tenancy.hub.is_away = False
    tenancy.report()
    assert tenancy.hub.store.admission.uses()["vision"].whole["gpus"] == 4
    assert tenancy.hub.asked == [[job.id]] * 2, "once to be admitted, and once to be counted"
    bench.start(job)
    bench.completes(tenancy.site.job(job.id))
    tenancy.report()
    assert tenancy.hub.store.admission.live(UID) == []


@pytest.mark.parametrize(
    "read",
    [read_claims, read_answers],
)
@pytest.mark.parametrize(
    "plain",
    [None, {}, {"jobs": 1}, {"jobs": [["a"]]}, {"jobs": [["a", "", -1, "", 0]]},
     {"jobs": [["a", "", float("nan"), "", 0]]}, {"jobs": [["a", "", 1, "", float("inf")]]},
     {"jobs": [["a", "", 1, "", -1]]}, {"jobs": [["a", "", 1e300, "", 1]]},
     {"jobs": [["a", "", 10**400, "", 1]]}, {"jobs": [["", "", 1, "", 0]]}, {"jobs": [["a" * 201, "", 1, "", 0]]},
     {"jobs": [["a", "", 1, "", 0]] * 1001}, {"jobs": [["a", "", 1, "", 0, False]]},
     {"jobs": [["a", "", 1, "", 0, False, 1]]},
     {"jobs": {"a": ["maybe", ""]}}, {"jobs": {"a": "go"}}],
)  # fmt: skip
def test_malformed_requests_and_answers_are_refused(read: Callable[[object], object], plain: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(plain)
