"""Nodes that are not fit for a job, by their own controllers' word: it goes on elsewhere, or ends and says so."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.watch import Watcher
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.chains import accept, end, head_of
from tests.unit.services.conftest import MANIFEST, Site


def refuse(site: Site, watcher: Watcher, job: Job, nodes: dict[str, bool], code: str = "S107") -> Job:
    """An attempt on `nodes`, of which some have no network for it."""
    head = head_of(site, job)
    head.says("head", EventKind.CLAIMED, native_id=head.job.native_id, restart=0)
    for rank, (node, is_fit) in enumerate(nodes.items()):
        head.says(f"node-{rank}", EventKind.STARTED, host=node)
        head.says(f"node-{rank}", EventKind.FAULT, code="" if is_fit else code, message=f"node {node} ...")
    names = " and ".join(node for node, is_fit in nodes.items() if not is_fit)
    head.ends(Outcome.FAILED, stored=False, error_code=code, message=f"no network on {names}")
    site.scheduler.run(NativeId(head.job.native_id), ",".join(nodes))
    end(site, watcher, job, EndCause.FAILURE)
    return site.job(job.id)


def test_a_node_without_its_network_is_left_for_others(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    after = refuse(site, watcher, job, {"n1": True, "n2": False, "n3": True})
    assert (after.state, after.overrides.exclude, after.spent.node_failures) == (JobState.PENDING, ("n2",), 1)
    assert site.scheduler.planned[-1].spec.batch.exclude == ""
    Deployer(site.platform).step()
    assert site.scheduler.planned[-1].spec.batch.exclude == "n2"
    (attempt, _) = site.platform.store.attempts(job.id)
    assert (attempt.outcome_code, attempt.interruption) == ("S107", "node_failure")


def test_a_site_without_networks_ends_the_job_soon_and_all_its_words_are_told(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    for number, nodes in enumerate(({"n1": False, "n2": False}, {"n3": False, "n4": True}), 1):
        assert (refuse(site, watcher, job, nodes).state, site.job(job.id).attempt) == (JobState.PENDING, number)
        Deployer(site.platform).step()
    after = refuse(site, watcher, job, {"n4": False, "n5": True})
    assert (after.state, after.error_code, after.attempt) == (JobState.FAILED, "S107", 3)
    assert after.message.startswith("no network on n4; ") and "the chain ends here" in after.message
    assert after.message.endswith("; attempt 2: no network on n3; attempt 1: no network on n1 and n2")
    assert after.overrides.exclude == ("n1", "n2", "n3", "n4")


def test_what_another_kind_of_node_failure_said_is_not_repeated(site: Site, watcher: Watcher) -> None:
    job = accept(site, "node_failures: 1")
    assert refuse(site, watcher, job, {"n1": False}, "S106").state is JobState.PENDING
    Deployer(site.platform).step()
    after = refuse(site, watcher, job, {"n2": False})
    assert after.message == "no network on n2; no checkpoint was saved; batch.retry.node_failures allows 1"


@pytest.mark.parametrize("code", ["S107", "S108"])
def test_who_names_the_nodes_gets_no_others(site: Site, watcher: Watcher, code: str) -> None:
    job = site.accept(manifest=MANIFEST + "batch: {nodelist: n1}\n")
    Deployer(site.platform).step()
    after = refuse(site, watcher, job, {"n1": False}, code)
    assert (after.state, after.error_code, after.attempt) == (JobState.FAILED, code, 1)
    assert after.message.endswith("; the job names its nodes, so no other is tried")


def test_where_there_is_one_node_alone_a_job_that_it_is_not_fit_for_ends(site: Site, watcher: Watcher) -> None:
    class Alone(FakeScheduler):
        avoid = None  # type: ignore[assignment]

    site.scheduler = Alone()
    site.platform.adapters.use("fake", site.scheduler)
    after = refuse(site, watcher, site.deployed(), {"n1": False})
    assert (after.state, after.message.rpartition("; ")[2]) == (JobState.FAILED, "there is no other node to try")
