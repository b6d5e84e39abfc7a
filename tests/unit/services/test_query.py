"""Views of jobs with several attempts."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.continuation import Spent
from ffdl_batch.domain.job import AttemptEnd, Change, JobId, Overrides
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.services.platform import Caller
from ffdl_batch.services.problems import Refused
from ffdl_batch.services.query import get_job, list_jobs
from tests.unit.services.conftest import Site


def test_a_job_is_shown_with_its_chain_and_a_list_without(site: Site) -> None:
    job = site.deployed()
    change = Change(
        ((JobState.PROCESSING, site.clock.now()), (JobState.DEPLOYING, site.clock.now())),
        Cause.REQUEUED,
        "the time limit was reached",
        "C203",
        {"spent": Spent(timeouts=1), "nodes": "n1"},
        AttemptEnd("timeout", gpu_seconds=5.0, owed=True),
        succeeded=True,
    )
    assert site.platform.store.apply(job, change) is not None
    view = get_job(site.platform, site.caller, job.id)
    assert [(a.number, a.interruption, a.error_code, a.nodes, a.owed) for a in view.attempts] == [
        (1, "timeout", "C203", "n1", True),
        (2, "", "", "", False),
    ]
    assert (view.attempt, view.native_id, view.nodes, view.results) == (2, "", "", "")
    assert view.logs == site.platform.root.job(job.id).attempt(2).logs
    (listed,) = list_jobs(site.platform, site.caller)
    assert (listed.attempts, listed.attempt) == ((), 2)


def test_times_are_those_of_the_current_attempt(site: Site) -> None:
    job = site.deployed()
    submitted = site.clock.now()
    site.clock.tick(10)
    change = Change(((JobState.PROCESSING, site.clock.now()), (JobState.PENDING, site.clock.now())), Cause.REQUEUED)
    updated = site.platform.store.apply(job, change)
    assert updated is not None
    view = get_job(site.platform, site.caller, job.id)
    assert view.timestamps == {"PENDING": submitted}, "it has reached nothing of its next attempt yet"
    (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=60)
    site.clock.tick(10)
    assert site.platform.store.begin_attempt(leased.job, leased.lease_token, site.clock.now())
    view = get_job(site.platform, site.caller, job.id)
    assert view.timestamps == {"PENDING": submitted, "DEPLOYING": submitted + 20}


def test_resources_are_those_that_the_attempt_has(site: Site) -> None:
    job = site.accept()
    assert site.platform.store.apply(job, Change(columns={"overrides": Overrides(2.0)})) is not None
    assert get_job(site.platform, site.caller, job.id).gpus == 2.0
    assert list_jobs(site.platform, site.caller)[0].gpus == 2.0


def test_what_was_altered_is_shown_where_it_is_set(site: Site) -> None:
    job = site.deployed()
    assert get_job(site.platform, site.caller, job.id).overrides == {}
    change = Change(columns={"overrides": Overrides(gpus=2.0, time_s=5400, exclude=("n1", "n2"))})
    assert site.platform.store.apply(job, change) is not None
    assert get_job(site.platform, site.caller, job.id).overrides == {
        "gpus": "2",
        "batch.time": "01:30:00",
        "batch.exclude": "n1,n2",
    }


def test_the_beginning_of_an_id_will_do(site: Site) -> None:
    job = site.deployed()
    assert get_job(site.platform, site.caller, job.id[: len("training-") + 3]).id == job.id
    for text in (job.id[: len("training-") + 2], "training-???", "training-zzz", job.id[9:]):
        with pytest.raises(Refused, match="there is no job"):
            get_job(site.platform, site.caller, text)
    stranger = Caller(site.caller.uid + 1, is_admin=True)
    with pytest.raises(Refused, match="there is no job"):
        get_job(site.platform, stranger, job.id[:-1])


def test_an_ambiguous_beginning_lists_the_candidates(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.deployed()
    many = [JobId(f"training-abc00000{n}") for n in range(6)]
    monkeypatch.setattr(site.platform.store, "find_ids", lambda _text, _uid, limit: many[:limit])
    with pytest.raises(Refused, match=r"several ids: training-abc000000, .*training-abc000004 and others") as refused:
        get_job(site.platform, site.caller, "training-abc")
    assert (refused.value.status, refused.value.problem.cure) == (404, "write one of them")
