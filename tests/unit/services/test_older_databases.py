"""A database that is older than the jobs' directories, as after a restore: nothing is executed again or lost."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.job_files.control_cell import read_control
from ffdl_batch.services.job_files.orphan_cleanup import ORPHAN_AGE_S, sweep
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.store import Store, open_store
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site

# A restore of PostgreSQL leaves the services nothing else to deal with.
pytestmark = pytest.mark.parametrize("site", ["sqlite"], indirect=True)


class Backup:
    """A copy of the site's database, and the way back to it."""

    def __init__(self, site: Site) -> None:
        self._site, self._file = site, Path(site.platform.storage.store.place)
        self._copy = self._file.with_name("copy")
        with sqlite3.connect(self._file) as source, sqlite3.connect(self._copy) as target:
            source.backup(target)
        self._opened: list[Store] = [site.platform.storage.store]

    def restore(self) -> None:
        """As `ffdl-admin db restore` while no daemon runs; the next daemon begins."""
        self.close()
        for beside in ("-wal", "-shm"):  # a connection that is closed late leaves them
            Path(f"{self._file}{beside}").unlink(missing_ok=True)
        self._copy.rename(self._file)
        store = open_store(f"sqlite:///{self._file}", network_fs=False, clock=self._site.clock)
        platform = self._site.platform
        self._site.platform = replace(platform, storage=replace(platform.storage, store=store))
        self._opened.append(store)

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture
def backups() -> Iterator[list[Backup]]:
    made: list[Backup] = []
    yield made
    for backup in made:
        backup.close()


def run_to_the_end(site: Site, job: Job) -> None:
    """What controllers and scheduler do with a deployed job."""
    head = site.head(job)
    head.starts()
    head.stores()
    head.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now() + 1)


def look(site: Site) -> None:
    """A daemon's first minutes."""
    watcher = site.platform.watcher()
    for _ in range(4):
        site.deploy()
        watcher.step(full=True)
        site.clock.tick(SETTLE_S + 5)
    watcher.close()


def test_daemon_does_not_resubmit_job_that_is_pending_in_restored_database(site: Site, backups: list[Backup]) -> None:
    job = site.accept()
    backups.append(Backup(site))
    site.deploy()
    run_to_the_end(site, site.job(job.id))
    look(site)
    assert site.job(job.id).state is JobState.COMPLETED
    backups[0].restore()
    assert site.job(job.id).state is JobState.PENDING
    look(site)
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (JobState.COMPLETED, 1)


def test_daemon_follows_running_job_of_restored_database_through_later_attempts(
    site: Site, backups: list[Backup]
) -> None:
    job = site.deployed()
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(job.native_id))
    site.platform.watcher().step(full=True)
    backups.append(Backup(site))
    head.saves()
    head.goes_on()
    site.scheduler.end(NativeId(job.native_id), EndCause.TIMEOUT, site.clock.now())
    site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]  # a token
    look(site)
    second = site.job(job.id)
    assert second.attempt == 2
    run_to_the_end(site, second)
    backups[0].restore()
    assert site.job(job.id).attempt == 1
    look(site)
    done = site.job(job.id)
    assert (done.state, done.attempt, len(site.scheduler.submitted)) == (JobState.COMPLETED, 2, 2)


def test_janitor_keeps_directory_of_job_missing_from_restored_database(
    site: Site, backups: list[Backup], caplog: pytest.LogCaptureFixture
) -> None:
    backups.append(Backup(site))
    late = site.deployed()
    never = site.platform.storage.root.job("training-00000000a")
    Path(never.path).mkdir()
    backups[0].restore()
    long_ago = site.clock.now() - ORPHAN_AGE_S - 10
    for directory in (never.path, site.platform.storage.root.job(late.id).path):
        os.utime(directory, (long_ago, long_ago))
    assert site.platform.storage.store.get(late.id) is None
    sweep(site.platform.storage, site.platform.settings)
    assert Path(site.attempt(late).launch).exists()
    assert not Path(never.path).exists()
    assert "was an older copy restored" in caplog.text
    caplog.clear()
    site.platform.storage.store.leave_out([late.id])  # as the restore notes it
    sweep(site.platform.storage, site.platform.settings)
    assert Path(site.attempt(late).launch).exists()
    assert caplog.text == ""


NEWER = FORMAT + 1
SENTENCE = f"in format {NEWER}, and this release reads format {FORMAT} and older"


def ended_job(site: Site) -> tuple[Job, FakeHead]:
    """A job whose head wrote its final record, and whose end the scheduler reports; no daemon has looked yet."""
    job = site.deployed()
    head = site.head(job)
    head.starts()
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    head.stores()
    head.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now() + 1)
    site.clock.tick(SETTLE_S + 5)
    return job, head


def make_newer(file: Path) -> str:
    """Raise the number of a cell, or of the last line of an event file; the text of before."""
    before = file.read_text()
    *lines, last = before.splitlines()
    file.write_text("\n".join([*lines, json.dumps({**json.loads(last), "format": NEWER})]) + "\n")
    return before


@pytest.mark.parametrize("name", ["final.json", "events/node-0.jsonl", "events/head.jsonl", "claim/owner.json"])
def test_watcher_keeps_job_state_warns_and_follows_other_jobs_when_file_has_newer_format(site: Site, name: str) -> None:
    job, _ = ended_job(site)
    file = Path(site.attempt(job).path, name)
    if not file.exists():
        file.parent.mkdir()
        file.write_text(json.dumps({"native_id": job.native_id}))
    before = make_newer(file)
    other = site.deployed("other")
    site.head(other).starts()
    site.scheduler.run(NativeId(other.native_id))
    for _ in range(3):
        site.watch()
        site.clock.tick(60)
    assert site.job(other.id).state is JobState.PROCESSING
    seen = site.job(job.id)
    assert seen.state is JobState.PROCESSING
    (warning,) = [text for text in seen.warnings if SENTENCE in text]
    assert "use a release at least as new as its writer" in warning
    file.write_text(before)
    site.watch()
    assert site.job(job.id).state is JobState.COMPLETED


def test_cancel_reaches_scheduler_without_overwriting_newer_control_file(site: Site) -> None:
    job = site.deployed()
    site.head(job).starts()
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    cell = Path(site.attempt(job).control)
    cell.write_text(
        json.dumps({"attempt": 1, "requested_action": "", "drill": "", "run": 0, "format": NEWER, "more": "than known"})
    )
    before = cell.read_text()
    with pytest.raises(OSError, match=SENTENCE):
        read_control(site.attempt(job))
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.watch()
    assert (site.job(job.id).requested_action, cell.read_text()) == (RequestedAction.CANCEL, before)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_pending_upload_is_not_started_when_events_have_newer_format(site: Site) -> None:
    job, head = ended_job(site)
    Path(site.attempt(job).final).unlink()
    head.ends(Outcome.FAILED, exit_code=1, stored=False)
    site.watch()
    (pending,) = site.platform.storage.store.pending_uploads()
    head.says("node-0", EventKind.STARTED, host="n1")
    make_newer(Path(site.attempt(job).event_file("node-0")))
    uploads = site.platform.pending_uploads(
        start=lambda attempt, _: pytest.fail(f"{attempt.path} may still be stored into"),
    )
    assert (uploads.step(), uploads.is_uploading, pending.job_id) == (0, False, job.id)
