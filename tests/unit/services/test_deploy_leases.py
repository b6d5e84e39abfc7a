"""What the deployer does with its lease: no write that is not needed, and none left behind."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.store import Store
from tests.unit.services.conftest import Site


def test_deployer_submits_job_without_renewing_or_releasing_lease(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Store, "renew", lambda *_: asked.append("renew"))
    monkeypatch.setattr(Store, "release", lambda *_: asked.append("release"))
    assert site.deployed().state is JobState.QUEUED
    assert asked == []


def test_deployer_submits_job_when_lease_expired_while_writing_files(site: Site) -> None:
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


def test_deployer_releases_lease_when_cancel_precedes_rejection(site: Site) -> None:
    site.scheduler.refuse = "Invalid account"
    job = site.accept()

    def cancel(step: str) -> None:
        if step == "marked":
            site.platform.store.set_wish(job.id, Wish.CANCEL)

    Deployer(site.platform, cancel).step()
    assert site.job(job.id).state is JobState.DEPLOYING
    (leased,) = site.platform.store.claim_deployable("other", limit=1, lease_s=1)
    assert leased.job.id == job.id
