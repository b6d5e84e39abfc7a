"""A training that is over when its controllers are killed is stored and not run again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.controller_events import EventKind, FinalRecord, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.data.controller_fence import TWO_BEATS_S
from ffdl_batch.services.data.pending_uploads import FIRST_PAUSE_S, PATIENT_TRIES, WriteFinalRecord
from ffdl_batch.services.job_control.stop import cancel_job, halt_job
from ffdl_batch.services.monitoring.job_update import QUIET_S
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING
from tests.unit.services.chains import at_work, end
from tests.unit.services.conftest import Site
from tests.unit.services.test_pending_uploads import FakeStarts


def killed(site: Site, status: int = 0, cause: EndCause = EndCause.FAILURE) -> Job:
    """A job whose controllers were killed while they stored, and which cannot write a final record any more."""
    job, head = at_work(site)
    head.is_killed_storing(status)
    return end(site, job, cause)


def write_uploaded(site: Site, job: Job, **record: object) -> None:
    """Write what the uploading process writes."""
    attempt = site.attempt(job)
    values = {"outcome": Outcome.COMPLETED, "exit_code": 0, "stored": True, **record}
    final = FinalRecord(job.native_id, at=site.clock.now(), **values)  # type: ignore[arg-type]
    Path(attempt.final).write_text(json.dumps(to_plain(final)))
    Path(attempt.uploaded).write_text(json.dumps({"at": site.clock.now()}))
    Path(site.platform.storage.root.doorbell, job.id).touch()


def complete_upload(site: Site, job: Job, **record: object) -> Job:
    write_uploaded(site, job, **record)
    site.watch(full=False)
    return site.job(job.id)


@pytest.mark.parametrize(("status", "cause"), [(0, EndCause.FAILURE), (3, EndCause.TIMEOUT)])
def test_watcher_keeps_job_storing_without_rerun_when_controllers_are_killed(
    site: Site, status: int, cause: EndCause
) -> None:
    job = killed(site, status, cause)
    ended = site.clock.now() - SETTLE_S - 1
    site.deploy()
    (attempt,) = site.view(job).attempts
    assert (job.state, job.pending_reason, job.ended_at) == (JobState.STORING, UPLOAD_PENDING, None)
    assert (attempt.upload_pending, attempt.ended_at, attempt.store_by) == (True, ended, ended + STILL_ALIVE_S)
    assert len(site.scheduler.submitted) == 1
    before = job.revision
    site.watch()
    assert site.job(job.id).revision == before, "nothing new is nothing to write"


def test_watcher_completes_storing_job_after_pending_upload_is_stored(site: Site) -> None:
    job, starts = killed(site), FakeStarts()
    ended = site.clock.now() - SETTLE_S - 1
    uploads = site.platform.pending_uploads(starts.start)
    site.clock.tick(TWO_BEATS_S)
    uploads.step()
    assert [upload.write_record for upload in starts.made] == [WriteFinalRecord.WHEN_STORED]
    starts.made[0].status = 0
    write_uploaded(site, job)
    uploads.step()
    site.watch(full=False)
    after = site.job(job.id)
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (after.state, after.exit_code, after.ended_at) == (JobState.COMPLETED, 0, site.clock.now())
    assert (attempt.upload_pending, attempt.ended_at, after.pending_reason) == (False, ended, "")
    assert site.states(job)[-2:] == ["STORING", "COMPLETED"]


def test_watcher_fails_storing_job_with_learner_error_after_upload(site: Site) -> None:
    message = "learner 1 ended with exit code 3"
    record = {"outcome": Outcome.FAILED, "exit_code": 3, "error_code": "C201", "message": message}
    after = complete_upload(site, killed(site, status=3), **record)
    assert (after.state, after.error_code, after.exit_code, after.message) == (JobState.FAILED, "C201", 3, message)


def test_watcher_requeues_job_if_learner_was_killed_together_with_controllers(site: Site) -> None:
    assert killed(site, 143).state is JobState.PENDING


def test_watcher_keeps_job_storing_when_only_end_marker_of_learner_exists(site: Site) -> None:
    job = site.deployed()
    site.head(job).starts()
    Path(site.attempt(job).state, ".ended-1").write_text("0\n")
    after = end(site, job, EndCause.NODE_FAIL)
    assert (after.state, after.pending_reason) == (JobState.STORING, UPLOAD_PENDING)


def test_watcher_keeps_job_storing_when_head_controller_was_ended_during_upload(site: Site) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    head.is_killed_storing()
    head.ends(Outcome.CANCELLED, stored=False, message="ended from outside before everything was stored")
    assert end(site, job, EndCause.PREEMPTED).state is JobState.STORING
    assert complete_upload(site, job).state is JobState.COMPLETED


def test_watcher_cancels_job_with_pending_upload_when_cancelled_in_scheduler(site: Site) -> None:
    job = killed(site, cause=EndCause.CANCELLED)
    assert (job.state, site.platform.storage.store.attempts(job.id)[0].upload_pending) == (JobState.CANCELLED, True)


def test_cancel_ends_storing_job_and_keeps_its_pending_upload(site: Site) -> None:
    job = killed(site)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.watch()
    assert (site.job(job.id).state, site.platform.storage.store.attempts(job.id)[0].upload_pending) == (
        JobState.CANCELLED,
        True,
    )


def test_halt_keeps_storing_job_which_completes_after_upload(site: Site) -> None:
    job = killed(site)
    halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.watch()
    assert site.job(job.id).state is JobState.STORING
    assert complete_upload(site, job).state is JobState.COMPLETED


def test_watcher_clears_pending_upload_when_scheduler_requeues_job(site: Site) -> None:
    job, starts = killed(site), FakeStarts()
    native = NativeId(job.native_id)
    site.clock.tick(QUIET_S)
    site.scheduler.wait(native, "BeginTime", restarts=1)
    site.watch()
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (site.job(job.id).state, attempt.upload_pending, attempt.ended_at) == (JobState.QUEUED, False, None)
    site.clock.tick(STILL_ALIVE_S)
    site.platform.pending_uploads(starts.start).step()
    assert starts.made == []
    head = site.head(job)
    head.says("head", EventKind.CLAIMED, native_id=job.native_id, restart=1)
    head.says("node-0", EventKind.STARTED, host="n2")
    head.says("node-0", EventKind.STORED, learner_id=1)
    head.ends(Outcome.COMPLETED, restart=1)
    site.scheduler.end(native, EndCause.SUCCESS, site.clock.now())
    site.scheduler.seen[native] = replace(site.scheduler.seen[native], restarts=1)
    site.watch()
    assert site.job(job.id).state is JobState.COMPLETED
    assert len(site.scheduler.submitted) == 1


def test_job_fails_when_store_rejects_pending_upload_until_tries_are_exhausted(site: Site) -> None:
    job, starts = killed(site), FakeStarts()
    site.clock.tick(STILL_ALIVE_S)
    uploads = site.platform.pending_uploads(starts.start)
    for tried in range(PATIENT_TRIES):
        assert site.job(job.id).state is JobState.STORING
        uploads.step()
        starts.made[-1].status = 74
        uploads.step()
        site.clock.tick(FIRST_PAUSE_S * 2**tried)
    assert [one.write_record for one in starts.made] == ["when-stored"] * (PATIENT_TRIES - 1) + ["always"]
    write_uploaded(site, job, outcome=Outcome.FAILED, stored=False, error_code="S303", message="no space left")
    Path(site.attempt(job).uploaded).unlink()
    site.watch(full=False)
    after = site.job(job.id)
    assert (after.state, after.error_code, site.platform.storage.store.attempts(job.id)[0].upload_pending) == (
        "FAILED",
        "S303",
        True,
    )
    uploads.step()
    assert starts.made[-1].write_record is WriteFinalRecord.NEVER
