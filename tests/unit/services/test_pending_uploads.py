"""Pending uploads: stored by one process at a time, when no controller can be storing any more."""

from __future__ import annotations

import os
from dataclasses import field, replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Storing
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.job import AttemptEnd, Change, Job, Token
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, Pod, encode
from ffdl_batch.domain.outcome.controller_events import EventKind, FinalRecord, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerError, SubmissionUncertain, TooMany
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import identity
from ffdl_batch.services.data.backend_uploads import unstored
from ffdl_batch.services.data.controller_fence import TWO_BEATS_S
from ffdl_batch.services.data.pending_uploads import (
    FIRST_PAUSE_S,
    LONGEST_INTERRUPTED_S,
    LONGEST_PAUSE_S,
    PATIENT_TRIES,
    PendingUploads,
    Upload,
    WriteFinalRecord,
    start_upload,
)
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.outcome.attempt_records import STILL_ALIVE_S, read_final
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING
from ffdl_batch.services.queries.jobs import get_events
from tests.unit.services.conftest import Site


@dataclass
class FakeUpload:
    """Ends when the test says so."""

    attempt: AttemptDir
    write_record: WriteFinalRecord = WriteFinalRecord.NEVER
    status: int | None = None
    ended: bool = False

    def poll(self) -> int | None:
        return self.status

    def end(self) -> None:
        self.ended = True


@dataclass
class FakeStarts:
    """Starts fake uploads and remembers them."""

    made: list[FakeUpload] = field(default_factory=list)

    def start(self, attempt: AttemptDir, write_record: WriteFinalRecord) -> Upload:
        self.made.append(FakeUpload(attempt, write_record))
        return self.made[-1]


def with_pending_upload(site: Site, key: str = "k1", state: JobState = JobState.FAILED) -> Job:
    """A job whose attempt ended with something left to store."""
    job = site.deployed(key)
    site.head(job).starts()
    cause = Cause.REQUEUED if state is JobState.PENDING else Cause.PROGRESS
    change = Change(((state, site.clock.now()),), cause, attempt_end=AttemptEnd(upload_pending=True))
    assert site.platform.storage.store.apply(job, change) is not None
    return site.job(job.id)


def complete_upload(site: Site, job: Job, uploads: PendingUploads, starts: FakeStarts) -> None:
    """Let the running upload succeed."""
    assert [upload.attempt for upload in starts.made] == [site.attempt(job)]
    Path(site.attempt(job).uploaded).write_text("{}")
    starts.made[0].status = 0
    assert uploads.step() == 1
    assert not site.platform.storage.store.attempts(job.id)[0].upload_pending


def test_pending_upload_starts_after_controllers_are_silent(site: Site) -> None:
    job, starts = with_pending_upload(site), FakeStarts()
    uploads = site.platform.pending_uploads(starts.start)
    uploads.step()
    assert (starts.made, uploads.is_uploading, uploads.is_busy()) == ([], False, True)
    site.clock.tick(STILL_ALIVE_S + 1)
    uploads.step()
    assert uploads.is_uploading
    complete_upload(site, job, uploads, starts)
    assert (uploads.is_uploading, uploads.is_busy()) == (False, False)


@pytest.mark.parametrize(("code", "cure"), [("S303", "check the results store"), ("C205", "chmod -R u+rwX")])
def test_pending_upload_completion_settles_error_of_failed_job(site: Site, code: str, cure: str) -> None:
    """The job has failed, and stays so; where its results are, and when they came there, is told."""
    job = site.deployed("k1")
    change = Change(
        ((JobState.FAILED, site.clock.now()),), error_code=code, attempt_end=AttemptEnd(upload_pending=True)
    )
    assert site.platform.storage.store.apply(job, change) is not None
    before = site.view(job)
    assert before.settled_at is None and before.attempts[0].uploaded_at is None and cure in before.cure
    uploaded = Path(site.attempt(job).uploaded)
    uploaded.parent.mkdir(parents=True, exist_ok=True)
    uploaded.write_text("{}")
    at = site.clock.now() + 60
    os.utime(uploaded, (at, at))
    assert site.platform.pending_uploads(FakeStarts().start).step() == 1
    after = site.view(job)
    assert (after.state, after.error_code, after.settled_at) == ("FAILED", code, at)
    assert (after.attempts[0].upload_pending, after.attempts[0].uploaded_at) == (False, at)
    assert after.cure == "nothing: it is stored by now"
    events, is_over = get_events(site.platform.storage.store, site.caller, job.id, 0)
    assert is_over
    assert (events[-1].cause, events[-1].message) == ("stored", "what attempt 1 could not store is stored now")


def test_pending_upload_starts_at_once_if_controllers_reported_their_end(site: Site) -> None:
    job, starts = with_pending_upload(site), FakeStarts()
    site.head(job).says("node-0", EventKind.ENDED)
    site.platform.pending_uploads(starts.start).step()
    assert len(starts.made) == 1


@pytest.mark.parametrize("cause", list(EndCause))
def test_pending_upload_starts_after_two_heartbeats_only_if_end_was_orderly(site: Site, cause: EndCause) -> None:
    job, starts = with_pending_upload(site), FakeStarts()
    site.scheduler.end(NativeId(job.native_id), cause, site.clock.now())
    uploads = site.platform.pending_uploads(starts.start)
    uploads.step()
    assert (len(starts.made), uploads.due_in_s) == (0, TWO_BEATS_S)
    site.clock.tick(TWO_BEATS_S)
    uploads.step()
    in_order = cause not in (EndCause.NODE_FAIL, EndCause.LAUNCH_FAILED, EndCause.REVOKED)
    assert (len(starts.made), uploads.due_in_s < STILL_ALIVE_S) == ((1, False) if in_order else (0, True))


def test_pending_upload_waits_longer_when_scheduler_is_unreachable(site: Site) -> None:
    job, starts = with_pending_upload(site), FakeStarts()
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now())
    site.scheduler.down = True
    site.clock.tick(TWO_BEATS_S)
    uploads = site.platform.pending_uploads(starts.start)
    uploads.step()
    assert starts.made == []
    site.clock.tick(uploads.due_in_s)
    uploads.step()
    assert len(starts.made) == 1


@pytest.mark.parametrize("lives", [True, False])
def test_pending_upload_starts_only_if_local_controller_process_is_dead(site: Site, lives: bool) -> None:
    job, starts = with_pending_upload(site), FakeStarts()
    name = {**identity(os.getpid())} if lives else {**identity(os.getpid()), "start_ticks": 1}
    site.head(job).says("node-0", EventKind.STARTED, **name)
    site.platform.pending_uploads(starts.start).step()
    assert len(starts.made) == (0 if lives else 1)
    site.clock.tick(10 * STILL_ALIVE_S)
    site.platform.pending_uploads(starts.start).step()
    assert len(starts.made) == (0 if lives else 2)


def test_pending_upload_of_halted_job_completes_after_cancel(site: Site) -> None:
    job, starts = with_pending_upload(site, state=JobState.HALTED), FakeStarts()
    uploads = site.platform.pending_uploads(starts.start)
    uploads.step()
    view = cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    assert (view.state, [attempt.upload_pending for attempt in view.attempts], uploads.is_busy()) == (
        "CANCELLED",
        [True],
        True,
    )
    site.clock.tick(STILL_ALIVE_S + 1)
    uploads.step()
    complete_upload(site, job, uploads, starts)


def test_pending_uploads_run_one_at_a_time(site: Site) -> None:
    with_pending_upload(site, "one"), with_pending_upload(site, "two")
    site.clock.tick(STILL_ALIVE_S + 1)
    starts = FakeStarts()
    uploads = site.platform.pending_uploads(starts.start)
    for _ in range(3):
        uploads.step()
    assert len(starts.made) == 1
    uploads.close()
    assert starts.made[0].ended


def test_pending_upload_retries_with_growing_pauses_after_failure(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with_pending_upload(site)
    site.clock.tick(STILL_ALIVE_S + 1)
    starts = FakeStarts()
    uploads = site.platform.pending_uploads(starts.start)
    for tried in range(PATIENT_TRIES):
        uploads.step()
        assert len(starts.made) == tried + 1
        starts.made[-1].status = 74
        uploads.step()
        site.clock.tick(FIRST_PAUSE_S * 2**tried - 1)
        uploads.step()
        assert len(starts.made) == tried + 1
        site.clock.tick(1)
    assert "failed (exit code 74)" in caplog.text
    assert not uploads.is_busy()


def test_pending_upload_of_continued_job_is_left_to_next_head(site: Site) -> None:
    job, starts = with_pending_upload(site, state=JobState.PENDING), FakeStarts()
    site.clock.tick(STILL_ALIVE_S + 1)
    uploads = site.platform.pending_uploads(starts.start)
    uploads.step()
    assert starts.made == []
    Path(site.platform.storage.root.job(job.id).attempt(1).uploaded).write_text("{}")
    assert uploads.step() == 1
    assert not site.platform.storage.store.attempts(job.id)[0].upload_pending


def test_pending_upload_is_postponed_when_process_cannot_start(site: Site) -> None:
    tried: list[AttemptDir] = []

    def refuse(attempt: AttemptDir, _: WriteFinalRecord) -> Upload | None:
        tried.append(attempt)
        raise OSError(f"{attempt.path}: no space left on device")

    with_pending_upload(site)
    uploads = site.platform.pending_uploads(refuse)
    for passed_s, times in ((STILL_ALIVE_S + 1, 1), (FIRST_PAUSE_S - 1, 1), (1, 2)):
        site.clock.tick(passed_s)
        uploads.step()
        assert (len(tried), uploads.is_uploading) == (times, False)


def test_pending_upload_is_not_started_twice_for_one_attempt(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = with_pending_upload(site)
    monkeypatch.setattr("ffdl_batch.services.data.pending_uploads.CONTROLLER", ["sh", "-c", "exec sleep 100"])
    first = start_upload(site.attempt(job))
    assert first is not None
    try:
        assert first.poll() is None
        assert start_upload(site.attempt(job)) is None
    finally:
        first.end()
    again = start_upload(site.attempt(job))
    assert again is not None
    again.end()


DONE = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=False, exit_code=0, stores_later=True)


@dataclass
class Cluster:
    """What the backend of the tests is told, and says."""

    begun: list[str] = field(default_factory=list)
    goes: dict[str, Storing] = field(default_factory=dict)
    refusal: SchedulerError | None = None

    def begin_storing(self, token: Token, _: AttemptDir) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.begun.append(token)

    def how_storing_goes(self, token: Token) -> Storing:
        return self.goes.get(token, Storing())


@pytest.fixture
def cluster(site: Site) -> Cluster:
    """The backend can do it."""
    found = Cluster()
    site.scheduler.begin_storing = found.begin_storing  # type: ignore[attr-defined]
    site.scheduler.how_storing_goes = found.how_storing_goes  # type: ignore[attr-defined]
    return found


def storing(site: Site, key: str = "k1", *, cut_off: bool = True) -> Job:
    """A job whose attempt has ended, and that is to be stored."""
    job = site.deployed(key)
    attempt = site.attempt(job)
    launch = LaunchFile(
        job.id, 1, job.token, attempt.path, attempt.path, "/d", LearnerCommand(("x",), {}),
        pod=Pod("/ffdl-pod", cut_off=cut_off),
    )  # fmt: skip
    Path(attempt.launch).write_text(encode(launch))
    write_cell(attempt.final, to_plain(DONE))
    now = site.clock.now()
    steps = ((JobState.PROCESSING, now), (JobState.STORING, now))
    change = Change(steps, columns={"pending_reason": UPLOAD_PENDING}, attempt_end=AttemptEnd(upload_pending=True))
    assert site.platform.storage.store.apply(job, change) is not None
    return site.job(job.id)


def test_pending_uploads_start_concurrently_and_once_in_each_life_of_daemon(site: Site, cluster: Cluster) -> None:
    jobs = [storing(site, key) for key in ("k1", "k2", "k3")]
    uploads = site.platform.pending_uploads()
    uploads.step()
    uploads.step()
    assert sorted(cluster.begun) == sorted(job.token for job in jobs)
    uploaded = site.attempt(jobs[0])
    Path(uploaded.uploaded).write_text("{}")
    assert uploads.step() == 1
    assert not site.platform.storage.store.attempts(jobs[0].id)[0].upload_pending
    uploads.close()
    cluster.begun.clear()
    site.platform.pending_uploads().step()
    assert sorted(cluster.begun) == sorted(job.token for job in jobs[1:])


def test_pending_upload_is_not_retried_until_restart_if_results_deny_access(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    job = with_pending_upload(site)
    site.clock.tick(STILL_ALIVE_S + 1)
    starts = FakeStarts()
    uploads = site.platform.pending_uploads(starts.start)
    uploads.step()
    starts.made[0].status = 77
    for _ in range(5):
        uploads.step()
        site.clock.tick(10 * LONGEST_PAUSE_S)
    assert (len(starts.made), uploads.is_busy()) == (1, False)
    assert "failed (exit code 77) and is tried again when the daemon starts again" in caplog.text
    uploads.close()
    again = FakeStarts()
    uploads = site.platform.pending_uploads(again.start)
    uploads.step()
    complete_upload(site, job, uploads, again)


@pytest.mark.parametrize("is_refused", [False, True])
def test_pending_upload_records_failure_after_too_many_errors_and_is_retried(
    site: Site, cluster: Cluster, is_refused: bool
) -> None:
    job = storing(site)
    cluster.refusal = InvalidRequest("a rule forbids it") if is_refused else None
    cluster.goes[job.token] = Storing("the store is away", ended=True)
    uploads = site.platform.pending_uploads()
    for _ in range(2 * PATIENT_TRIES):
        uploads.step()
        site.clock.tick(LONGEST_PAUSE_S)
    final = read_final(site.attempt(job))
    assert final is not None
    assert (final.outcome, final.error_code, final.stores_later) == (Outcome.FAILED, "S303", False)
    assert ("a rule forbids it" if is_refused else "the store is away") in final.message
    assert site.platform.storage.store.attempts(job.id)[0].upload_pending


@pytest.mark.parametrize(
    "refusal", [TooMany("quota pods is used up"), SubmissionUncertain("the connection broke"), None]
)
def test_pending_upload_is_retried_and_shows_reason_when_store_is_not_at_fault(
    site: Site, cluster: Cluster, refusal: SchedulerError | None
) -> None:
    """A quota that is used up, an answer that was lost; and a pod that was evicted, again and again."""
    job = storing(site)
    cluster.refusal = refusal
    cluster.goes[job.token] = Storing("pod x: Evicted", ended=True, interrupted=True)
    uploads = site.platform.pending_uploads()
    for _ in range(4 * PATIENT_TRIES):
        uploads.step()
        uploads.step()
        site.clock.tick(LONGEST_INTERRUPTED_S)
    shown = site.job(job.id)
    why = str(refusal) if refusal is not None else "pod x: Evicted"
    assert (shown.state, shown.pending_reason) == (JobState.STORING, f"{UPLOAD_PENDING}: {why}; it is tried again")
    final = read_final(site.attempt(job))
    assert final is not None and final.stores_later and uploads.is_busy()
    assert (len(cluster.begun) > PATIENT_TRIES) is (refusal is None)


def test_pending_upload_shows_pending_reason_of_pod_while_pod_waits(site: Site, cluster: Cluster) -> None:
    job = storing(site)
    uploads = site.platform.pending_uploads()
    cluster.goes[job.token] = Storing("no node has room now")
    uploads.step()
    uploads.step()
    assert site.job(job.id).pending_reason == f"{UPLOAD_PENDING}: no node has room now"
    revision = site.job(job.id).revision
    uploads.step()
    assert site.job(job.id).revision == revision, "nothing is written again"
    cluster.goes[job.token] = Storing()
    site.platform.pending_uploads().step()  # the next daemon, which knows nothing of what was said
    uploads.step()
    assert site.job(job.id).pending_reason == UPLOAD_PENDING


def test_unstored_adds_upload_error_to_halt_and_keeps_failure() -> None:
    halted = replace(DONE, outcome=Outcome.HALTED, message="halted", interruption="halt")
    found = unstored(halted, "no store")
    assert (found.outcome, found.error_code) == (Outcome.HALTED, "S305")
    assert found.message == "halted; results and logs cannot be stored: no store"
    failed = replace(DONE, outcome=Outcome.FAILED, error_code="C201", message="it ended with 3")
    assert unstored(failed, "no store") == replace(failed, stores_later=False)
