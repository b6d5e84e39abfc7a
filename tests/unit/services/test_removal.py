"""Removal of jobs: which may go, what goes with them, and what a killed daemon leaves to the janitor."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from ffdl_batch.config.settings import Retention
from ffdl_batch.daemon.loops import Loops
from ffdl_batch.domain.job.job import AttemptEnd, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.services.job_control import removal
from ffdl_batch.services.job_control.removal import remove_expired, remove_job
from ffdl_batch.services.job_control.stop import get_array
from ffdl_batch.services.job_files import removal as files
from ffdl_batch.services.job_files.orphan_cleanup import sweep
from ffdl_batch.services.job_files.removal import end_removed_jobs
from ffdl_batch.services.queries.jobs import list_jobs
from ffdl_batch.services.refusals import Refused
from ffdl_batch.services.reports.usage import Period, job_uses
from tests.unit.services.conftest import ArraySite, Site

DAY_S = 86400.0


class Killed(BaseException):
    """The daemon ends here."""


def ended(site: Site, key: str = "k1", state: JobState = JobState.COMPLETED, *, pending: bool = False) -> Job:
    """A job whose attempt has ended, with a checkpoint."""
    job = site.move(site.deployed(key), state, attempt_end=AttemptEnd(upload_pending=pending))
    Path(site.platform.storage.root.job(job.id).checkpoints, "epoch-1").write_bytes(b"x" * 100_000)
    return job


def remove(site: Site, job: Job, *, caller: Caller | None = None, is_trial: bool = False) -> JobView:
    return remove_job(site.platform.storage, site.platform.adapters, caller or site.caller, job.id, is_trial=is_trial)


def directory(site: Site, job: Job) -> Path:
    return Path(site.platform.storage.root.job(job.id).path)


def listed(site: Site) -> Sequence[str]:
    return [job.id for job in list_jobs(site.platform.storage, site.caller)]


def test_remove_deletes_directory_and_hides_job_that_usage_report_keeps(site: Site) -> None:
    job, other = ended(site), ended(site, "k2")
    for path in (directory(site, job) / "checkpoints", Path(site.attempt(job).results)):
        path.chmod(0o500)
    before = sorted(used(site))
    view = remove(site, job)
    assert view.disk_bytes is not None and view.disk_bytes > 100_000
    assert not directory(site, job).exists()
    assert listed(site) == [other.id] and directory(site, other).exists()
    with pytest.raises(Refused, match=f"{job.id} was removed"):
        site.view(job)
    assert sorted(used(site)) == before == sorted([job.id, other.id])
    assert remove(site, job).id == job.id, "idempotent"


def used(site: Site) -> list[str]:
    period = Period(0.0, site.clock.now() + 1)
    return [use.job for use in job_uses(site.platform.storage, site.platform.settings, site.caller, period)]


@pytest.mark.parametrize(
    ("state", "pending", "why"),
    [
        (JobState.PROCESSING, False, "is PROCESSING and has not ended"),
        (JobState.STORING, False, "is STORING and has not ended"),
        (JobState.HALTED, False, "is HALTED and can be resumed"),
        (JobState.FAILED, True, "results or logs of attempt 1 .* are not stored yet"),
    ],
)
def test_job_that_runs_waits_or_has_pending_upload_is_not_removed(
    site: Site, state: JobState, *, pending: bool, why: str
) -> None:
    job = ended(site, state=state, pending=pending)
    for is_trial in (True, False):
        with pytest.raises(Refused, match=why) as refusal:
            remove(site, job, is_trial=is_trial)
        assert refusal.value.status == 409
    site.clock.tick(100 * DAY_S)
    assert remove_expired(site.platform.storage, 1) == 0
    assert (site.job(job.id), (directory(site, job) / "checkpoints/epoch-1").exists()) == (job, True)


def test_dry_run_removes_nothing(site: Site) -> None:
    job = ended(site)
    assert (remove(site, job, is_trial=True).disk_bytes or 0) > 100_000
    assert (site.job(job.id), listed(site)) == (job, [job.id])


def test_job_of_other_user_is_unknown(site: Site) -> None:
    job = ended(site)
    with pytest.raises(Refused, match="there is no job"):
        remove(site, job, caller=Caller(site.caller.uid + 1))
    assert site.job(job.id) == job


def test_job_that_was_resumed_meanwhile_is_not_removed(site: Site) -> None:
    job = ended(site, state=JobState.FAILED)
    site.move(job, JobState.PENDING, cause=Cause.RESUMED)
    assert not removal.mark_removed(site.platform.storage, job)
    assert directory(site, job).exists()


def test_retention_removes_jobs_after_days_and_only_then(site: Site) -> None:
    old = [ended(site, state.value, state) for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)]
    site.clock.tick(29 * DAY_S)
    young = ended(site, "young")
    site.clock.tick(1.5 * DAY_S)
    turn(site, 0)
    assert len(listed(site)) == 4, "0 = never"
    turn(site, 31)
    assert len(listed(site)) == 4
    turn(site, 30)
    assert listed(site) == [young.id]
    assert [directory(site, job).exists() for job in (*old, young)] == [False, False, False, True]


def turn(site: Site, days: int) -> None:
    """One turn of the janitor with this setting."""
    settings = replace(site.platform.settings, retention=Retention(days))
    loops = Loops(replace(site.platform, settings=settings), lambda: None)
    try:
        loops._sweep_turn()
    finally:
        loops.stop()
        loops.join()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (removal, "mark_removed"),
        (removal, "remove_files"),
        (files, "_note_removed"),
        (files, "finish_removal"),
        (files, "remove_tree"),
    ],
)
def test_daemon_killed_at_any_step_leaves_whole_job_or_rest_that_janitor_removes(
    site: Site, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    job = ended(site)

    def die(*_: object) -> None:
        if name == "remove_tree":
            next(directory(site, job).parent.glob(f".removing-{job.id}-*/checkpoints/epoch-1")).unlink()
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, name, die)
        remove(site, job)
    if name == "mark_removed":
        assert site.job(job.id) == job and (directory(site, job) / "checkpoints/epoch-1").exists()
        return
    assert listed(site) == []
    site.clock.tick(1e9)
    sweep(site.platform.storage, site.platform.settings)
    assert not [path for path in directory(site, job).parent.iterdir() if job.id in path.name]


def test_array_directory_goes_with_its_last_job(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-1")
    shared = Path(fleet.site.platform.storage.root.array(array).path)
    fleet.deploy()
    first, last = (fleet.site.move(job, JobState.COMPLETED) for job in fleet.elements(array))
    remove(fleet.site, first)
    assert shared.exists() and listed(fleet.site) == [last.id]
    view = get_array(fleet.site.platform.storage, fleet.site.caller, array)
    assert (view.elements, view.states) == (1, {"COMPLETED": 1})
    remove(fleet.site, last)
    assert not shared.exists()


def test_janitor_removes_directory_of_removed_array_that_daemon_left(
    fleet: ArraySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = fleet.accept("array: 0-1")
    fleet.deploy()
    for job in fleet.elements(array):
        fleet.start(job)
        removal.mark_removed(fleet.site.platform.storage, fleet.site.move(job, JobState.COMPLETED))
    fleet.site.clock.tick(1e9)
    assert sweep(fleet.site.platform.storage, fleet.site.platform.settings) >= 3
    assert not Path(fleet.site.platform.storage.root.array(array).path).exists()


def test_directory_with_mounted_file_system_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ended(site)
    mounted = f"{site.attempt(job).data}/1"
    table = site.platform.storage.root.path + "/mountinfo"
    Path(table).write_text(f"36 35 98:0 / {mounted} rw - fuse.rclone bucket: rw\n")
    monkeypatch.setattr("ffdl_batch.host.filesystem._MOUNTINFO", Path(table))
    with pytest.raises(Refused, match="a file system is mounted there"):
        remove(site, job)
    assert (directory(site, job) / "checkpoints/epoch-1").exists()
    Path(table).write_text("")
    remove(site, job)
    assert not directory(site, job).exists()


def test_job_that_was_removed_after_restored_copy_was_made_is_not_executed_again(site: Site) -> None:
    job, other = ended(site), ended(site, "k2")
    halted = ended(site, "k3", JobState.CANCELLED)
    for one in (job, halted):
        remove(site, one)
    store, submissions = site.platform.storage.store, len(site.scheduler.submitted)
    restored = "UPDATE jobs SET removed_at = NULL, state = :state, native_id = '', ended_at = NULL WHERE id = :id"
    with store.engine.begin() as connection:
        connection.execute(text(restored), {"state": "DEPLOYING", "id": job.id})
        connection.execute(text(restored), {"state": "HALTED", "id": halted.id})
    assert end_removed_jobs(store, site.platform.storage.root) == 2
    assert end_removed_jobs(store, site.platform.storage.root) == 0
    site.deploy()
    assert len(site.scheduler.submitted) == submissions
    assert [site.job(one.id).state for one in (job, halted)] == [JobState.CANCELLED, JobState.HALTED]
    assert listed(site) == [other.id]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_removal_frees_space_first_if_disk_is_full(site: Site, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    job = ended(site)

    def write_if_space(descriptor: int, data: bytes) -> None:
        if directory(site, job).exists():
            raise OSError(error, "no space")
        write_all(descriptor, data)

    monkeypatch.setattr("ffdl_batch.services.job_files.removal.write_all", write_if_space)
    remove(site, job)
    assert not directory(site, job).exists()
    assert job.id in Path(site.platform.storage.root.removed_jobs).read_text().splitlines()
