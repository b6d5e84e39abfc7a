"""Deploying: one execution per attempt, whatever the scheduler does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.store import Store
from tests.unit.services.conftest import MANIFEST, Site


def test_deployer_submits_job_once_under_its_token_and_writes_template_for_next_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Store, "renew", lambda *_: asked.append("renew"))
    monkeypatch.setattr(Store, "release", lambda *_: asked.append("release"))
    job = site.deployed()
    assert site.states(job) == ["PENDING", "DEPLOYING", "QUEUED"]
    assert [(str(n), t) for n, t in site.scheduler.submitted] == [(job.native_id, f"{job.id}-1")]
    assert job.network == "none"
    assert Path(site.attempt(job).launch).is_file()
    assert Path(site.platform.storage.root.job(job.id).model_archive).is_file()
    template = site.platform.storage.root.job(job.id).template
    assert f"{job.id}-next" in Path(template.launch).read_text()
    assert Path(template.path).stat().st_mode & 0o777 == 0o700
    assert [(r.attempt, r.attempt_dir) for r in site.scheduler.planned[-2:]] == [(1, site.attempt(job)), (2, template)]
    assert site.deploy() == 0
    assert asked == [], "its lease went with the last write"


@pytest.mark.parametrize(("heads", "gpus"), [(True, 1.0), (False, None)])
def test_deployer_records_gpus_of_attempt_from_its_plan(site: Site, heads: bool, gpus: float | None) -> None:
    site.scheduler.heads_go_on = heads
    job = site.deployed()
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert attempt.gpus == gpus


def test_deployer_keeps_job_deploying_until_unreachable_scheduler_answers(site: Site) -> None:
    job = site.accept()
    site.scheduler.down = True
    deployer = site.platform.deployer()
    for _ in range(5):
        deployer.step()
        site.clock.tick(60)
    seen = site.job(job.id)
    assert (seen.state, seen.pending_reason) == (JobState.DEPLOYING, "the scheduler does not answer")
    assert begun_at(site.attempt(seen)) is None
    (health,) = site.platform.adapters.health()
    assert health.unreachable_since is not None and "Unable to contact slurm controller" in health.detail
    site.scheduler.down = False
    deployer.step()
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.QUEUED, "")
    assert len(site.scheduler.submitted) == 1


def test_deployer_reports_unusable_job_directory_and_retries(site: Site) -> None:
    job = site.accept()
    in_the_way = Path(site.platform.storage.root.job(job.id).path)
    in_the_way.write_text("a file where the directory belongs")
    deployer = site.platform.deployer()
    deployer.step()
    assert "cannot be prepared" in site.job(job.id).pending_reason
    in_the_way.unlink()
    site.clock.tick(60)
    deployer.step()
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.QUEUED, "")


def lose_reply(site: Site) -> Job:
    """A job of whose submission the reply was lost; the scheduler answers again."""
    site.scheduler.lose_reply = True
    job = site.deployed()
    site.scheduler.lose_reply = False
    site.clock.tick(5)
    return job


def claim(site: Site, job: Job, native: object) -> None:
    path = Path(site.attempt(job).claim)
    path.mkdir()
    (path / "owner.json").write_text(f'{{"native_id": "{native}"}}')


def test_deployer_adopts_job_after_lost_reply(site: Site) -> None:
    job = lose_reply(site)
    assert job.state is JobState.DEPLOYING
    assert job.uncertain_since is not None
    site.deploy()
    job = site.job(job.id)
    assert (job.state, job.uncertain_since) == (JobState.QUEUED, None)
    assert len(site.scheduler.submitted) == 1


def test_deployer_resubmits_lost_request_after_credential_lifetime(site: Site) -> None:
    site.scheduler.swallow = True
    job = site.deployed()
    assert job.pending_reason == "timed out; nothing was accepted, but nobody knows"
    site.scheduler.swallow = False
    deployer = site.platform.deployer()
    for _ in range(10):
        site.clock.tick(25)
        deployer.step()
    assert site.scheduler.submitted == []
    reason = "its submission was not answered and may still arrive; if not within 300 s, it is submitted again"
    assert site.job(job.id).pending_reason == reason
    # the mark on disk has the real clock's time; the life counts from what is later
    site.clock.at = max(site.clock.at, (begun_at(site.attempt(site.job(job.id))) or 0.0)) + 301
    deployer.step()
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.QUEUED, "")
    assert len(site.scheduler.submitted) == 1


def test_deployer_keeps_claiming_duplicate_and_cancels_the_other(site: Site) -> None:
    job = lose_reply(site)
    late = site.scheduler.accept(job.token)
    claim(site, job, late)
    site.deploy()
    assert site.job(job.id).native_id == str(late)
    assert [str(n) for n in site.scheduler.cancelled] == [str(site.scheduler.submitted[0][0])]


def test_deployer_keeps_oldest_unclaimed_duplicate_and_withdraws_the_other(site: Site) -> None:
    late = site.scheduler.accept(lose_reply(site).token)
    site.deploy()
    assert (site.scheduler.withdrawn, site.scheduler.cancelled) == ([late], [])


@pytest.mark.parametrize("step", ["claimed", "deploying", "written", "template", "marked", "submitted"])
def test_deployer_submits_job_once_after_crash_at_any_step(site: Site, step: str) -> None:
    class Crashed(BaseException):
        """Stands for SIGKILL: nothing after it runs in that step."""

    def crash(reached: str) -> None:
        if reached == step:
            raise Crashed

    job = site.accept()
    with pytest.raises(Crashed):
        site.platform.deployer(crash).step()
    site.clock.at += 1000
    for _ in range(3):
        site.deploy()
        site.clock.at = max(site.clock.at, (begun_at(site.attempt(site.job(job.id))) or 0.0)) + 400
    assert site.job(job.id).state is JobState.QUEUED
    assert len(site.scheduler.submitted) == 1


def test_cancel_ends_job_at_once_before_deployment(site: Site) -> None:
    assert cancel_job(site.platform.storage, site.platform.adapters, site.caller, site.accept().id).state == "CANCELLED"
    assert site.deploy() == 0
    assert site.scheduler.submitted == []


def test_deployer_adopts_uncertain_submission_despite_requested_cancel(site: Site) -> None:
    job = lose_reply(site)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).requested_action) == (JobState.QUEUED, "cancel")


def test_deployer_removes_template_if_heads_of_backend_cannot_continue(site: Site) -> None:
    site.scheduler.heads_go_on = False
    job = site.accept()
    template = Path(site.platform.storage.root.job(job.id).template.path)
    template.mkdir(parents=True)
    site.deploy()
    assert site.job(job.id).state is JobState.QUEUED
    assert not template.exists()


def test_deployer_adopts_claimed_attempt_unknown_to_scheduler(site: Site) -> None:
    site.scheduler.swallow = True
    job = site.deployed()
    claim(site, job, 77)
    site.clock.tick(5)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).native_id) == (JobState.QUEUED, "77")


def test_deployer_drops_hold_and_begin_time_from_next_attempt_template(site: Site) -> None:
    begin = "2027-01-20T12:34:00+00:00"
    job = site.accept(manifest=MANIFEST + f"batch: {{hold: true, begin: '{begin}'}}\n")
    site.deploy()
    first, template = site.scheduler.planned[-2:]
    assert (first.spec.batch.hold, first.spec.batch.begin) == (True, begin)
    assert (template.spec.batch.hold, template.spec.batch.begin) == (False, "")
    assert site.job(job.id).state is JobState.QUEUED


def test_deployer_submits_job_when_lease_expired_while_writing_files(site: Site) -> None:
    job = site.accept()
    renewed: list[float] = []
    store = site.platform.storage.store

    def slow(step: str) -> None:
        if step == "written":
            site.clock.tick(site.platform.settings.lease_s + 1)
            renewed.append(store.now())

    site.platform.deployer(slow).step()
    assert renewed
    assert site.job(job.id).state is JobState.QUEUED


def test_deployer_releases_lease_when_cancel_precedes_rejection(site: Site) -> None:
    site.scheduler.refuse = "Invalid account"
    job = site.accept()

    def cancel(step: str) -> None:
        if step == "marked":
            site.platform.storage.store.set_requested_action(job.id, RequestedAction.CANCEL)

    site.platform.deployer(cancel).step()
    assert site.job(job.id).state is JobState.DEPLOYING
    (leased,) = site.platform.storage.store.claim_deployable("other", limit=1, lease_s=1)
    assert leased.job.id == job.id
