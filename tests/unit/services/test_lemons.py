"""Jobs keep off nodes that failed often lately, where the site wants that; and are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ffdl_batch.domain.fault_policy import NodeRules
from ffdl_batch.domain.incident import Incident
from ffdl_batch.domain.job import Change
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import NativeId, Observation, Phase
from ffdl_batch.ports.scheduler import BackendFacts, InvalidRequest, LaunchPlan, LaunchRequest
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.judgement import NOWHERE_ELSE
from ffdl_batch.services.planning import plan_submission
from ffdl_batch.services.reports.nodes import report_nodes
from ffdl_batch.services.watch import Watcher
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import MANIFEST, Site

HOUR_S = 3600.0


class Named(FakeScheduler):
    """A backend with three nodes."""

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        del facts
        return frozenset({"n1", "n2", "n3"}) if partition in ("", "main") else frozenset({"n3"})


def with_rules(site: Site, rules: NodeRules) -> Site:
    settings = replace(site.platform.settings, nodes=rules)
    return replace(site, platform=replace(site.platform, settings=settings))


@pytest.fixture
def site(site: Site) -> Iterator[Site]:
    """With n3 that failed three jobs, n2 that failed one, and rules."""
    site.scheduler = Named(warns=lambda _: ())
    site.platform.adapters.use("fake", site.scheduler)
    site = with_rules(site, NodeRules(exclude_lemons=True))
    for number, node in enumerate(("n3", "n3", "n3", "n2")):
        job = site.accept(f"earlier-{number}")
        incident = Incident(job.id, 1, "end-0", "node.gpu", site.clock.now(), "S110", nodes=(node,))
        change = Change(((JobState.FAILED, site.clock.now()),), message="node failed", incidents=(incident,))
        assert site.platform.store.apply(job, change) is not None
    yield site


def excluded(site: Site) -> str:
    return site.scheduler.planned[-1].spec.batch.exclude


def test_a_job_is_kept_off_a_lemon_and_told(site: Site) -> None:
    job = site.deployed()
    assert [request.spec.batch.exclude for request in site.scheduler.planned[-2:]] == ["n3", "n3"]  # its template, too
    assert job.warnings == ("kept off n3, which failed 3 jobs lately (score 6.0)",)
    assert job.overrides.exclude == ()


def test_what_its_owner_excludes_stays_excluded(site: Site) -> None:
    site.accept(manifest=MANIFEST + "batch: {exclude: n1}\n")
    Deployer(site.platform).step()
    assert excluded(site) == "n1,n3"


def test_a_job_that_names_its_nodes_gets_them(site: Site) -> None:
    site.accept(manifest=MANIFEST + "batch: {nodelist: n3}\n")
    Deployer(site.platform).step()
    assert excluded(site) == ""


def test_the_last_node_of_a_partition_is_never_left_out(site: Site) -> None:
    site.accept(manifest=MANIFEST + "batch: {partition: small}\n")
    Deployer(site.platform).step()
    assert excluded(site) == ""


def test_a_day_later_the_node_is_used_again(site: Site) -> None:
    site.clock.tick(24 * HOUR_S + 1)
    assert site.deployed().warnings == ()
    assert excluded(site) == ""


def test_a_site_that_says_nothing_leaves_no_node_out(site: Site) -> None:
    site = with_rules(site, NodeRules())
    assert site.deployed().warnings == ()
    assert report_nodes(site.platform).threshold is None


def test_where_nothing_else_fits_the_lemon_is_used(site: Site) -> None:
    class Picky(Named):
        def plan(self, request: LaunchRequest) -> LaunchPlan:
            if request.spec.batch.exclude:
                raise InvalidRequest("no node is left")
            return super().plan(request)

    site.scheduler = Picky(warns=lambda _: ())
    site.platform.adapters.use("fake", site.scheduler)
    job = site.deployed()
    assert (job.state, job.warnings) == (JobState.QUEUED, ())


def test_a_waiting_job_without_other_nodes_is_let_on_it_again(site: Site) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    site.scheduler.seen[native] = Observation(Phase.PENDING, "PENDING", reason="ReqNodeNotAvail", nowhere=True)
    watcher = Watcher(site.platform)
    for _ in range(3):
        watcher.step(full=True)
        site.clock.tick(5)
    assert site.job(job.id).warnings[-1] == NOWHERE_ELSE
    assert site.scheduler.excluded == [(native, "")]


def test_a_plan_says_what_would_be_left_out(site: Site) -> None:
    view = plan_submission(site.platform, site.caller, site.submission("plan"), trial=False)
    assert "kept off n3, which failed 3 jobs lately (score 6.0)" in view.warnings


def test_the_report_has_scores_and_until_when(site: Site) -> None:
    report = report_nodes(site.platform)
    assert [(one.node, round(one.score), one.kinds) for one in report.nodes] == [
        ("n3", 6, {"node.gpu": 3}),
        ("n2", 2, {"node.gpu": 1}),
    ]
    assert report.threshold == 4.0
    until = report.nodes[0].excluded_until
    assert until is not None and until - report.nodes[0].last == 24 * HOUR_S
    assert report.nodes[1].excluded_until is None
