"""The report of faults on both databases: whose incidents it has, and of when."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.incidents.incident import Evidence, Incident
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.reports.incident_report import FaultsAsked, report_faults
from tests.unit.services.conftest import Site

HOUR = 3600.0
LINE = Evidence("learner-1", "boom", 7.0)


def note(site: Site, job: Job, episode: str, kind: str = "user.exit") -> float:
    """An incident now; when that is."""
    now = site.clock.now()
    incident = Incident(job.id, 1, episode, kind, now, "C201", "m", ("n1",), 1, (LINE,), 7200.0)
    assert site.platform.storage.store.apply(site.job(job.id), Change(incidents=(incident,))) is not None
    return now


def test_fault_report_lists_incidents_of_period_with_job_name_and_owner(site: Site) -> None:
    job = site.deployed()
    since = site.clock.now()
    site.clock.tick(HOUR)
    note(site, job, "end-0", "node.gpu")
    site.clock.tick(HOUR)
    until = site.clock.now()
    site.clock.tick(HOUR)
    note(site, job, "end-1")
    report = report_faults(site.platform.storage, site.caller, FaultsAsked(since, until))
    (row,) = report.rows
    assert (row.job, row.episode, row.kind, row.name, row.user) == (job.id, "end-0", "node.gpu", "digits", job.user)
    assert (row.nodes, row.lost_gpu_hours, row.evidence[0].text) == (("n1",), 2.0, "boom")
    assert (report.since, report.until, report.incidents, report.before) == (since, until, 1, 0)
    whole = report_faults(site.platform.storage, site.caller, FaultsAsked(since))
    assert [row.episode for row in whole.rows] == ["end-0", "end-1"]
    assert whole.until == whole.as_of == pytest.approx(site.clock.now())
    late = report_faults(site.platform.storage, site.caller, FaultsAsked(until, rows_after=since))
    assert ([row.episode for row in late.rows], late.incidents) == (["end-0", "end-1"], 1)


def test_get_job_returns_only_its_own_incidents(site: Site) -> None:
    job, other = site.deployed("k1"), site.deployed("k2")
    note(site, job, "end-0")
    assert [one.episode for one in site.view(job).incidents] == ["end-0"]
    assert site.view(other).incidents == ()


def test_fault_report_shows_other_users_only_to_administrators(site: Site) -> None:
    job = site.deployed()
    since = site.clock.now() - 1
    note(site, job, "end-0")
    stranger = Caller(site.caller.uid + 1)
    assert report_faults(site.platform.storage, stranger, FaultsAsked(since)).rows == ()
    with pytest.raises(Refused, match="administrators"):
        report_faults(site.platform.storage, stranger, FaultsAsked(since, all_users=True))
    admin = Caller(site.caller.uid + 1, is_admin=True)
    assert report_faults(site.platform.storage, admin, FaultsAsked(since)).rows == ()
    everybody = report_faults(site.platform.storage, admin, FaultsAsked(since, all_users=True))
    assert (len(everybody.rows), everybody.own_only) == (1, False)
    own = report_faults(site.platform.storage, site.caller, FaultsAsked(since, all_users=True))
    assert (len(own.rows), own.own_only) == (1, True)  # a personal daemon has no job of another user


@pytest.mark.parametrize("until_h", [-1, 0])
def test_fault_report_rejects_empty_period(site: Site, until_h: float) -> None:
    now = site.clock.now()
    with pytest.raises(Refused, match="empty"):
        report_faults(site.platform.storage, site.caller, FaultsAsked(now, now + until_h * HOUR))
