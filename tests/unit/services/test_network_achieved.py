"""The network that node controllers found their learners in, on the job and on its attempts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.domain.views import JobView
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.query import get_job
from ffdl_batch.services.watch import Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site

FOUND: Mapping[str, str | bool] = {"level": "job", "mechanism": "vxlan", "seen": True}
UNSEEN = {**FOUND, "seen": False}


def head_of(site: Site, job: Job) -> FakeHead:
    return FakeHead(site.platform.root, site.job(job.id), site.clock.now())


def view(site: Site, watcher: Watcher, job: Job) -> JobView:
    watcher.step(full=True)
    return get_job(site.platform, site.caller, job.id)


def test_job_view_reports_no_network_without_controller_event(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head_of(site, job).starts()
    site.scheduler.run(NativeId(job.native_id))
    seen = view(site, watcher, job)
    assert (seen.network_requested, seen.network, seen.network_by) == ("auto", "none", "")


@pytest.mark.parametrize(
    ("told", "by"),
    [
        ((FOUND,), "vxlan"),
        ((UNSEEN, FOUND), "vxlan"),
        ((UNSEEN,), "vxlan; not looked at"),
        (({**FOUND, "mechanism": "wires (two)"},), "wires (two)"),
    ],
)
def test_job_view_reports_network_and_mechanism_found_by_node_controller(
    site: Site, watcher: Watcher, told: tuple[Mapping[str, str | bool], ...], by: str
) -> None:
    job = site.deployed()
    head = head_of(site, job)
    head.starts()
    for fields in told:
        head.says("node-0", EventKind.NETWORK, **fields)
    site.scheduler.run(NativeId(job.native_id))
    seen = view(site, watcher, job)
    assert (seen.network, seen.network_by) == ("job", by)
    assert view(site, watcher, job).updated_at == seen.updated_at  # and is not written again


def test_job_view_reports_network_of_each_attempt(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = head_of(site, job)
    head.starts()
    head.says("node-0", EventKind.NETWORK, **FOUND)
    site.scheduler.run(NativeId(job.native_id))
    view(site, watcher, job)
    head_of(site, job).goes_on()
    watcher.step(full=False)
    site.scheduler.accept(site.job(job.id).token)
    Deployer(site.platform).step()
    seen = view(site, watcher, job)
    assert (seen.network, seen.network_by) == ("none", "")
    assert [(one.network, one.network_by) for one in seen.attempts] == [("job", "vxlan"), ("none", "")]


def test_job_view_keeps_network_after_job_has_ended(site: Site, watcher: Watcher) -> None:
    """Also where everything is read at once."""
    job = site.deployed()
    head = head_of(site, job)
    head.starts()
    head.says("node-0", EventKind.NETWORK, **FOUND)
    head.ends(Outcome.COMPLETED)
    site.scheduler.run(NativeId(job.native_id))
    watcher.step(full=True)
    seen = view(site, watcher, job)
    assert (seen.network, seen.network_by) == ("job", "vxlan")
