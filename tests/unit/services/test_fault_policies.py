"""What a site's fault policies do to a job: its incident, its next attempts, and the nodes of these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.incidents.classification import LearnerEnd, Printed
from ffdl_batch.domain.incidents.site_settings import FaultPolicy
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.log_text import Grep
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause
from ffdl_batch.services.incidents.incident_recorder import find_policy
from ffdl_batch.services.logs.line_search import Match, matching
from tests.unit.services.chains import at_work, end
from tests.unit.services.conftest import Site

NCCL = FaultPolicy("nccl", r"NCCL WARN .* ncclSystemError", "node.gpu", exclude_node=True)
LICENCE = FaultPolicy("licence", "no licence left", "user.licence", stop_retrying=True)


def failed(site: Site, printed: str, *policies: FaultPolicy) -> Job:
    """A job whose only learner printed that, and ended with 1, on a site with these policies."""
    site.set_settings(fault_policies=policies)
    job, head = at_work(site, "failures: 3")
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(printed)
    head.says("node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=1, ended_by="", asked="", began=True)
    head.ends(Outcome.FAILED, error_code="C201", message="learner 1 ended with exit code 1", exit_code=1)
    return end(site, job, EndCause.FAILURE)


def kinds(site: Site, job: Job) -> list[str]:
    return [one.incident.kind for one in site.platform.storage.store.incidents_of([job.id])[job.id]]


def test_fault_policy_stops_retries_and_is_named_in_message(site: Site) -> None:
    job = failed(site, "step 1\nRuntimeError: no licence left for solver\n", NCCL, LICENCE)
    assert (job.state, job.error_code) == (JobState.FAILED, "C201")
    assert job.message.endswith("the site's fault policy licence stops here")
    assert kinds(site, job) == ["user.licence"]


def test_fault_policy_excludes_node_from_next_attempts(site: Site) -> None:
    job = failed(site, "x [0] NCCL WARN Call to ibv_modify_qp failed, ncclSystemError\n", NCCL, LICENCE)
    assert (job.state, job.overrides.exclude) == (JobState.PENDING, ("n1",))
    (noticed,) = site.platform.storage.store.incidents_of([job.id])[job.id]
    assert (noticed.incident.kind, noticed.incident.nodes) == ("node.gpu", ("n1",))
    assert "policy nccl" in noticed.incident.message
    (said,) = (one.text for one in noticed.incident.evidence if one.source == "policy nccl")
    assert said == f"it matches a line of the log: {NCCL.match}"
    site.deploy()
    assert site.scheduler.planned[-1].spec.batch.exclude == "n1"


def test_fault_policy_without_match_leaves_retries_unchanged(site: Site) -> None:
    job = failed(site, "ordinary\nValueError: x\n", NCCL, LICENCE)
    assert (job.state, job.overrides.exclude) == (JobState.PENDING, ())
    assert "policy" not in job.message


def test_fault_policy_without_kind_keeps_classified_kind(site: Site) -> None:
    job = failed(site, "no licence left\n", replace(LICENCE, kind=""))
    assert job.state is JobState.FAILED
    assert kinds(site, job) == ["user.exit"]


def ends(*logs: Sequence[str]) -> list[LearnerEnd]:
    return [LearnerEnd(n, 1.0, 1, node=f"n{n}", log=[Printed(text) for text in log]) for n, log in enumerate(logs, 1)]


def test_find_policy_uses_first_matching_policy_and_quotes_last_line() -> None:
    found = find_policy([LICENCE, NCCL], ends(["no licence left 1", "x", "no licence left 2"], ["no licence left 3"]))
    assert found is not None
    policy, hit = found
    assert (policy.name, hit.line.text, hit.learner, hit.nodes) == ("licence", "no licence left 2", 1, ("n1",))


def test_find_policy_skips_pattern_that_takes_too_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.services.logs.line_search.LIMIT_S", 0.2)
    endless = FaultPolicy("endless", "(a+)+$", "user.exit")
    found = find_policy([endless, LICENCE], ends(["a" * 40 + "b", "no licence left"]))
    assert found is not None and found[0] is LICENCE
    assert "the fault policy endless could not be applied: the pattern takes too long" in caplog.text


def test_find_policy_tries_slow_pattern_once_for_all_learners(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher waits for it, and with it all other jobs."""
    asked: list[Grep] = []

    def counted(grep: Grep) -> AbstractContextManager[Match]:
        asked.append(grep)
        return matching(grep)

    monkeypatch.setattr("ffdl_batch.services.incidents.incident_recorder.matching", counted)
    monkeypatch.setattr("ffdl_batch.services.logs.line_search.LIMIT_S", 0.2)
    endless = FaultPolicy("endless", "(a+)+$", "user.exit")
    many = ends(*(["a" * 40 + "b"] for _ in range(8)))
    assert find_policy([endless], many) is None
    assert len(asked) == 1
    assert caplog.text.count("could not be applied") == 1


def test_find_policy_returns_none_without_log_lines() -> None:
    assert find_policy([FaultPolicy("all", ".*", "user.exit")], ends([])) is None
