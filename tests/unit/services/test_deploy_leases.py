"""What the deployer does with its lease: no write that is not needed, and none left behind."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.store import Store
from tests.unit.services.conftest import Site


def test_a_job_is_deployed_without_renewing_and_releasing_its_lease(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Store, "renew", lambda *_: asked.append("renew"))
    monkeypatch.setattr(Store, "release", lambda *_: asked.append("release"))
    assert site.deployed().state is JobState.QUEUED
    assert asked == []


def test_a_lease_that_grew_old_while_files_were_written_is_renewed(site: Site) -> None:
    job = site.accept()
    renewed: list[float] = []
    store = site.platform.store

    def slow(step: str) -> None:
        if step == "written":
            site.clock.tick(site.platform.settings.lease_s + 1)
            renewed.append(store.now())

    Deployer(site.platform, slow).step()
    assert renewed
    assert site.job(job.id).state is JobState.QUEUED


def test_an_end_that_came_second_gives_the_lease_back_at_once(site: Site) -> None:
    site.scheduler.refuse = "Invalid account"
    job = site.accept()

    def cancel(step: str) -> None:
        if step == "marked":
            site.platform.store.set_wish(job.id, Wish.CANCEL)

    Deployer(site.platform, cancel).step()
    assert site.job(job.id).state is JobState.DEPLOYING
    (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=1)
    assert leased.job.id == job.id
