"""Tests that damaged files of one job do not affect other jobs, and that its owner gets a warning that names them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.services.monitoring.watcher import LONG_AGO_S
from ffdl_batch.services.queries.measurement_stream import MeasuredQuery, read_metrics, read_usage
from ffdl_batch.store import StoreUnavailable
from tests.planted_files import NO_FILES, NO_JSON, replace
from tests.unit.services.conftest import Site, write_events, write_final

FILES: dict[str, Callable[[AttemptDir], str]] = {
    "events of the head": lambda attempt: attempt.event_file("head"),
    "events of a node": lambda attempt: attempt.event_file("node-0"),
    "all events": lambda attempt: attempt.events,
    "heartbeat": lambda attempt: attempt.heartbeat(0),
    "final record": lambda attempt: attempt.final,
    "control": lambda attempt: attempt.control,
    "claim": lambda attempt: attempt.claim_owner,
    "run of the claim": lambda attempt: f"{attempt.run_claim(2)}/owner.json",
    "launch file": lambda attempt: attempt.launch,
    "upload record": lambda attempt: attempt.uploaded,
    "learner's first sign": lambda attempt: f"{attempt.state}/.began-1",
    "learner's exit status": lambda attempt: f"{attempt.state}/.exit-1",
}


def test_watcher_ends_attempts_with_damaged_files_and_completes_healthy_job(site: Site) -> None:
    damages = [*product(FILES.values(), [*NO_FILES.values(), *NO_JSON.values()])]
    accepted = site.accept_all(len(damages))
    while site.deploy():
        pass
    damaged = [site.job(job.id) for job in accepted]
    for job, (file, plant) in zip(damaged, damages, strict=True):
        write_events(site, job, [("learner", site.clock.now())])
        replace(Path(file(site.attempt(job))), plant)
    healthy = site.deployed("healthy")
    write_events(site, healthy, [("learner", site.clock.now())])
    site.watch(full=False)
    assert site.job(healthy.id).state is JobState.PROCESSING
    write_final(site, healthy)
    site.end(healthy, EndCause.SUCCESS)
    assert site.job(healthy.id).state is JobState.COMPLETED
    for job in damaged:
        site.scheduler.end(NativeId.parse(job.native_id), EndCause.FAILURE, site.clock.now())
    for _ in range(3):
        site.clock.tick(LONG_AGO_S)
        site.watch()
    for job in damaged:
        view = site.view(job)
        assert view.attempts[0].ended_at is not None, view.warnings


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("final record", "it is a named pipe, not a regular file"),
        ("events of a node", "it is a named pipe, not a regular file"),
        ("all events", "'events' is a named pipe"),
    ],
)
def test_watcher_warns_once_about_damaged_file(site: Site, kind: str, why: str) -> None:
    job = site.deployed()
    path = Path(FILES[kind](site.attempt(job)))
    replace(path, NO_FILES["named pipe"])
    for _ in range(2):
        Path(site.platform.storage.root.doorbell, job.id).touch()
        site.watch()
    assert site.view(job).warnings[1:] == (f"{path} is damaged: {why}",)


def test_watcher_continues_after_defect_in_judging_one_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, healthy = site.deployed("broken"), site.deployed("healthy")
    read = site_reader(broken, site, ZeroDivisionError("by zero"))
    monkeypatch.setattr("ffdl_batch.services.monitoring.job_update.add_files", read)
    for job in (broken, healthy):
        write_events(site, job, [("learner", site.clock.now())])
    for _ in range(2):
        site.watch(full=False)
        Path(site.platform.storage.root.doorbell, broken.id).touch()
    assert site.job(healthy.id).state is JobState.PROCESSING
    assert site.view(broken).warnings[1:] == ("its state cannot be updated: ZeroDivisionError in the daemon: by zero",)


def test_watcher_does_not_blame_a_job_for_an_unavailable_database(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.deployed()
    monkeypatch.setattr(
        "ffdl_batch.services.monitoring.job_update.add_files", site_reader(job, site, StoreUnavailable("away"))
    )
    write_events(site, job, [("learner", site.clock.now())])
    with pytest.raises(StoreUnavailable):
        site.watch()
    assert len(site.view(job).warnings) == 1


def test_metrics_end_at_limit_of_sparse_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.services.queries.measurement_stream.MOST_BYTES", 4 * 1024**2)
    job = site.deployed()
    replace(Path(site.attempt(job).usage(0)), NO_JSON["sparse"])
    replace(Path(site.attempt(job).learner_metrics(1)), NO_JSON["sparse"])
    for read in (read_usage, read_metrics):
        assert set(read(site.platform.storage, site.caller, job.id, MeasuredQuery())) == {None}


def site_reader(job: Job, site: Site, error: Exception) -> Callable[[AttemptDir, AttemptFacts], AttemptFacts]:
    from ffdl_batch.services.outcome.attempt_records import add_files

    broken = site.attempt(job)

    def read(attempt: AttemptDir, facts: AttemptFacts) -> AttemptFacts:
        if attempt == broken:
            raise error
        return add_files(attempt, facts)

    return read
