"""Nodes that are not fit for a job, by their own controllers' word: it goes on elsewhere, or ends and says so."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.chains import accept, end
from tests.unit.services.conftest import MANIFEST, Site


def refuse(site: Site, job: Job, nodes: dict[str, bool], code: str = "S107") -> Job:
    """An attempt on `nodes`, of which some have no network for it."""
    head = site.head(job)
    head.says("head", EventKind.CLAIMED, native_id=head.job.native_id, restart=0)
    for rank, (node, is_fit) in enumerate(nodes.items()):
        head.says(f"node-{rank}", EventKind.STARTED, host=node)
        head.says(f"node-{rank}", EventKind.FAULT, code="" if is_fit else code, message=f"node {node} ...")
    names = " and ".join(node for node, is_fit in nodes.items() if not is_fit)
    head.ends(Outcome.FAILED, stored=False, error_code=code, message=f"no network on {names}")
    site.scheduler.run(NativeId(head.job.native_id), ",".join(nodes))
    end(site, job, EndCause.FAILURE)
    return site.job(job.id)


def test_node_without_job_network_is_excluded_from_next_attempt(site: Site) -> None:
    job = site.deployed()
    after = refuse(site, job, {"n1": True, "n2": False, "n3": True})
    assert (after.state, after.overrides.exclude, after.spent.node_failures) == (JobState.PENDING, ("n2",), 1)
    assert site.scheduler.planned[-1].spec.batch.exclude == ""
    site.deploy()
    assert site.scheduler.planned[-1].spec.batch.exclude == "n2"
    (attempt, _) = site.platform.storage.store.attempts(job.id)
    assert (attempt.outcome_code, attempt.interruption) == ("S107", "node_failure")


def test_job_fails_with_messages_of_all_attempts_when_no_node_has_network(site: Site) -> None:
    job = site.deployed()
    for number, nodes in enumerate(({"n1": False, "n2": False}, {"n3": False, "n4": True}), 1):
        assert (refuse(site, job, nodes).state, site.job(job.id).attempt) == (JobState.PENDING, number)
        site.deploy()
    after = refuse(site, job, {"n4": False, "n5": True})
    assert (after.state, after.error_code, after.attempt) == (JobState.FAILED, "S107", 3)
    assert after.message.startswith("no network on n4; ") and "the chain ends here" in after.message
    assert after.message.endswith("; attempt 2: no network on n3; attempt 1: no network on n1 and n2")
    assert after.overrides.exclude == ("n1", "n2", "n3", "n4")


def test_job_failure_message_omits_node_failures_of_other_kind(site: Site) -> None:
    job = accept(site, "node_failures: 1")
    assert refuse(site, job, {"n1": False}, "S106").state is JobState.PENDING
    site.deploy()
    after = refuse(site, job, {"n2": False})
    assert after.message == "no network on n2; no checkpoint was saved; batch.retry.node_failures allows 1"


@pytest.mark.parametrize("code", ["S107", "S108"])
def test_job_with_nodelist_fails_after_first_attempt_on_unfit_node(site: Site, code: str) -> None:
    job = site.accept(manifest=MANIFEST + "batch: {nodelist: n1}\n")
    site.deploy()
    after = refuse(site, job, {"n1": False}, code)
    assert (after.state, after.error_code, after.attempt) == (JobState.FAILED, code, 1)
    assert after.message.endswith("; the job names its nodes, so no other is tried")


def test_job_fails_on_unfit_node_if_backend_cannot_exclude_nodes(site: Site) -> None:
    class Alone(FakeScheduler):
        avoid = None  # type: ignore[assignment]

    site.scheduler = Alone()
    site.platform.adapters.use("fake", site.scheduler)
    after = refuse(site, site.deployed(), {"n1": False})
    assert (after.state, after.message.rpartition("; ")[2]) == (JobState.FAILED, "there is no other node to try")
