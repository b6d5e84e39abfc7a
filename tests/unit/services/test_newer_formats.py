"""Files of a newer release: nothing is concluded from them, the owner is told, and no other job is kept waiting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.formats import FORMAT
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.control import read_control
from ffdl_batch.services.debts import DebtPayer
from ffdl_batch.services.watch import SETTLE_S, Watcher
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site

NEWER = FORMAT + 1
SENTENCE = f"in format {NEWER}, and this release reads format {FORMAT} and older"


def ended_job(site: Site, watcher: Watcher) -> tuple[Job, FakeHead]:
    """A job whose head has said its last word, and whose end the scheduler knows; nobody has looked yet."""
    job = site.deployed()
    head = FakeHead(site.platform.root, job, site.clock.now())
    head.starts()
    site.scheduler.run(NativeId(job.native_id))
    watcher.step(full=True)
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
def test_watcher_keeps_job_state_and_warns_when_file_has_newer_format(site: Site, watcher: Watcher, name: str) -> None:
    job, _ = ended_job(site, watcher)
    file = Path(site.attempt(job).path, name)
    if not file.exists():
        file.parent.mkdir()
        file.write_text(json.dumps({"native_id": job.native_id}))
    before = make_newer(file)
    for _ in range(3):
        watcher.step(full=True)
        site.clock.tick(60)
    seen = site.job(job.id)
    assert seen.state is JobState.PROCESSING
    (warning,) = [text for text in seen.warnings if SENTENCE in text]
    assert "use a release at least as new as its writer" in warning
    file.write_text(before)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.COMPLETED


def test_watcher_follows_other_jobs_when_one_has_file_of_newer_format(site: Site, watcher: Watcher) -> None:
    job, _ = ended_job(site, watcher)
    make_newer(Path(site.attempt(job).final))
    other = site.deployed("other")
    FakeHead(site.platform.root, other, site.clock.now()).starts()
    site.scheduler.run(NativeId(other.native_id))
    watcher.step(full=True)
    assert site.job(other.id).state is JobState.PROCESSING


def test_cancel_reaches_scheduler_without_overwriting_newer_control_file(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    FakeHead(site.platform.root, job, site.clock.now()).starts()
    site.scheduler.run(NativeId(job.native_id))
    watcher.step(full=True)
    cell = Path(site.attempt(job).control)
    cell.write_text(
        json.dumps({"attempt": 1, "wish": "", "drill": "", "run": 0, "format": NEWER, "more": "than known"})
    )
    before = cell.read_text()
    with pytest.raises(OSError, match=SENTENCE):
        read_control(site.attempt(job))
    cancel_job(site.platform, site.caller, job.id)
    watcher.step(full=True)
    assert (site.job(job.id).wish, cell.read_text()) == (Wish.CANCEL, before)
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_pending_upload_is_not_started_when_events_have_newer_format(site: Site, watcher: Watcher) -> None:
    job, head = ended_job(site, watcher)
    Path(site.attempt(job).final).unlink()
    head.ends(Outcome.FAILED, exit_code=1, stored=False)
    watcher.step(full=True)
    (debt,) = site.platform.store.owed_attempts()
    head.says("node-0", EventKind.STARTED, host="n1")
    make_newer(Path(site.attempt(job).event_file("node-0")))
    payer = DebtPayer(site.platform, start=lambda attempt, _: pytest.fail(f"{attempt.path} may still be stored into"))
    assert (payer.step(), payer.is_paying, debt.job_id) == (0, False, job.id)
