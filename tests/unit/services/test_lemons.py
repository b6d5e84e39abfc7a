"""Jobs keep off nodes that failed often lately, where the site wants that; and are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.incidents.incident import Incident
from ffdl_batch.domain.incidents.site_settings import NodeRules
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.monitoring.job_update import NOWHERE_ELSE
from ffdl_batch.services.reports.incident_report import report_nodes
from ffdl_batch.services.submission.dry_run import plan_submission
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import MANIFEST, Site

HOUR_S = 3600.0


class Named(FakeScheduler):
    """A backend with three nodes."""

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        del facts
        return frozenset({"n1", "n2", "n3"}) if partition in ("", "main") else frozenset({"n3"})


def with_rules(site: Site, rules: NodeRules) -> Site:
    site.set_settings(nodes=rules)
    return site


@pytest.fixture
def site(site: Site) -> Iterator[Site]:
    """With n3 that failed three jobs, n2 that failed one, and rules."""
    site.scheduler = Named(warns=lambda _: ())
    site.platform.adapters.use("fake", site.scheduler)
    site = with_rules(site, NodeRules(exclude_unreliable=True))
    for number, node in enumerate(("n3", "n3", "n3", "n2")):
        job = site.accept(f"earlier-{number}")
        incident = Incident(job.id, 1, "end-0", "node.gpu", site.clock.now(), "S110", nodes=(node,))
        site.move(job, JobState.FAILED, message="node failed", incidents=(incident,))
    yield site


def excluded(site: Site) -> str:
    return site.scheduler.planned[-1].spec.batch.exclude


def test_deployer_excludes_unreliable_node_and_warns_owner(site: Site) -> None:
    job = site.deployed()
    assert [request.spec.batch.exclude for request in site.scheduler.planned[-2:]] == ["n3", "n3"]  # its template, too
    assert job.warnings == ("kept off n3, which failed 3 jobs lately (score 6.0)",)
    assert job.overrides.exclude == ()


@pytest.mark.parametrize(("batch", "nodes"), [("exclude: n1", "n1,n3"), ("nodelist: n3", ""), ("partition: small", "")])
def test_deployer_excludes_unreliable_node_beside_those_of_owner_but_no_named_or_last_node(
    site: Site, batch: str, nodes: str
) -> None:
    """The partition small has n3 alone."""
    site.accept(manifest=MANIFEST + f"batch: {{{batch}}}\n")
    site.deploy()
    assert excluded(site) == nodes


def test_deployer_stops_excluding_node_after_one_day(site: Site) -> None:
    site.clock.tick(24 * HOUR_S + 1)
    assert site.deployed().warnings == ()
    assert excluded(site) == ""


def test_deployer_excludes_no_node_by_default(site: Site) -> None:
    site = with_rules(site, NodeRules())
    assert site.deployed().warnings == ()
    assert (
        report_nodes(site.platform.storage.store, site.platform.settings, site.platform.node_exclusion).threshold
        is None
    )


@pytest.mark.parametrize(
    ("rules", "nodes"),
    [
        (NodeRules(exclude_unreliable=True, threshold=1.0, percent=100), "n3,n2"),
        (NodeRules(exclude_unreliable=True, threshold=7.0), ""),
        (NodeRules(exclude_unreliable=True, hours=1.0), ""),
        (NodeRules(exclude_unreliable=True, hours=3.0), "n3"),
    ],
)
def test_deployer_excludes_node_by_rules_of_site(site: Site, rules: NodeRules, nodes: str) -> None:
    site.clock.tick(2 * HOUR_S)
    with_rules(site, rules).deployed()
    assert excluded(site) == nodes


def test_deployer_uses_unreliable_node_when_scheduler_rejects_exclusion(site: Site) -> None:
    class Picky(Named):
        def plan(self, request: LaunchRequest) -> LaunchPlan:
            if request.spec.batch.exclude:
                raise InvalidRequest("no node is left")
            return super().plan(request)

    site.scheduler = Picky(warns=lambda _: ())
    site.platform.adapters.use("fake", site.scheduler)
    job = site.deployed()
    assert (job.state, job.warnings) == (JobState.QUEUED, ())


def test_watcher_lifts_node_exclusion_when_pending_job_has_no_other_node(site: Site) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    site.scheduler.seen[native] = Observation(Phase.PENDING, "PENDING", reason="ReqNodeNotAvail", nowhere=True)
    watcher = site.platform.watcher()
    for _ in range(3):
        watcher.step(full=True)
        site.clock.tick(5)
    assert site.job(job.id).warnings[-1] == NOWHERE_ELSE
    assert site.scheduler.excluded == [(native, "")]


def test_plan_submission_warns_about_node_exclusion(site: Site) -> None:
    view = plan_submission(
        site.platform.storage,
        site.platform.adapters,
        site.platform.node_exclusion,
        site.caller,
        site.submission("plan"),
        trial=False,
    )
    assert "kept off n3, which failed 3 jobs lately (score 6.0)" in view.warnings


def test_report_nodes_returns_scores_and_end_of_exclusion(site: Site) -> None:
    report = report_nodes(site.platform.storage.store, site.platform.settings, site.platform.node_exclusion)
    assert [(one.node, round(one.score), one.kinds) for one in report.nodes] == [
        ("n3", 6, {"node.gpu": 3}),
        ("n2", 2, {"node.gpu": 1}),
    ]
    assert report.threshold == 4.0
    until = report.nodes[0].excluded_until
    assert until is not None and until - report.nodes[0].last == 24 * HOUR_S
    assert report.nodes[1].excluded_until is None
