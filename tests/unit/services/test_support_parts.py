"""What a daemon gives for a support archive if its scheduler does not answer, and how much."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import SupportPart
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.services.queries import support_parts
from ffdl_batch.services.queries.jobs import health
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.secrets.job_secrets import keep_secret
from tests.fakes.scheduler import FakeScheduler
from tests.secret_search import Search
from tests.unit.services.conftest import MANIFEST, Site


class Silent(FakeScheduler):
    """Does not answer."""

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        raise SchedulerUnreachable(f"squeue hangs, asked about {len(ids)} jobs")


def collect(site: Site, job: Job, caller: Caller | None = None) -> dict[str, SupportPart]:
    platform = site.platform
    explain = partial(platform.explainer.explain_job, alternatives=False)
    state = health(platform.storage, platform.adapters, 0.0)
    found = support_parts.support_parts(
        platform.storage, platform.adapters, caller or site.caller, job.id, explain, state
    )
    return {part.name: part for part in found}


@pytest.fixture
def job(site: Site) -> Job:
    """A job that the scheduler has, with files."""
    found = site.deployed()
    attempt = site.attempt(found)
    Path(attempt.learner_logs(1)).mkdir(parents=True, exist_ok=True)
    Path(attempt.training_log(1)).write_text("from the learner\n")
    Path(attempt.launch).write_text(f"{'x' * 100_000}\n")
    return found


def test_support_parts_have_reason_if_scheduler_does_not_answer(site: Site, job: Job) -> None:
    site.platform.adapters.use("fake", Silent())
    parts = collect(site, job)
    assert "squeue hangs" in json.loads(parts["scheduler.json"].text)["unreachable"]
    assert parts[f"attempt-{job.attempt}/logs/learner-1/training-log.txt"].text == "from the learner\n"
    assert parts[f"attempt-{job.attempt}/claim"].left_out == "No such file or directory"


def test_support_parts_end_at_limit_of_size(site: Site, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collect(site, job)
    launch = f"attempt-{job.attempt}/launch.json"
    assert len(whole[launch].text) == 100_001
    monkeypatch.setattr(support_parts, "MOST_BYTES", sum(len(part.text) for part in whole.values()) - 50_000)
    cut = collect(site, job)
    assert cut[launch].left_out.startswith("omitted with all later parts: ")
    assert list(cut)[-1] == launch


def test_support_parts_have_no_credential_of_data_store_or_of_users_secret(site: Site) -> None:
    values = {"user_name": "plänted-user 7", "password": 'planted-"password"-7'}
    connection = {"auth_url": "https://s3.example.org", **values}
    store = {"id": "s3", "type": "s3_datastore", "training_data": {"container": "data"}, "connection": connection}
    keep_secret(site.platform.storage.root, "unused", "planted-unused-7")
    job = site.accept("k1", f"{MANIFEST}data_stores: {json.dumps([store])}\n")
    site.deploy()
    attempt = site.attempt(site.job(job.id))
    Path(attempt.learner_logs(1)).mkdir(parents=True, exist_ok=True)
    Path(attempt.training_log(1)).write_text(f"{values}\n{json.dumps(values)}\nplanted-unused-7\nepoch 1\n")
    parts = collect(site, site.job(job.id))
    search = Search({**values, "unused": "planted-unused-7"})
    assert {name for name, part in parts.items() if search.within(str(part).encode())} == set()
    assert parts["attempt-1/logs/learner-1/training-log.txt"].text.endswith("***\nepoch 1\n")
    assert "s3.example.org" in parts["manifest.yml"].text


def test_support_parts_of_other_users_job_are_refused(site: Site, job: Job) -> None:
    with pytest.raises(Refused):
        collect(site, job, replace(site.caller, uid=site.caller.uid + 1))
