"""Waiting tasks of native arrays that somebody cancels in the scheduler, which keeps no record of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.domain.events import Event, EventKind, encode_event
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState, Wish
from ffdl_batch.domain.observation import NativeId, Observation, Phase
from ffdl_batch.ports.scheduler import AccountingUnreachable
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.halt import halt_job
from ffdl_batch.services.watch import ACCOUNTING_LAG_S, FORGOTTEN_AFTER, Watcher
from tests.unit.services.array_site import ArraySite, with_arrays
from tests.unit.services.conftest import Site

STEP_S = 2.0
SOON = (FORGOTTEN_AFTER + 1) * STEP_S
assert SOON < ACCOUNTING_LAG_S / 2


@pytest.fixture
def fleet(site: Site) -> ArraySite:
    return with_arrays(site)


def queued(fleet: ArraySite) -> list[Job]:
    """Four elements that the scheduler has."""
    array = fleet.accept("array: '0-3%1'")
    fleet.deploy()
    jobs = fleet.elements(array)
    assert [job.state for job in jobs] == [JobState.QUEUED] * 4
    return jobs


def look(fleet: ArraySite, watcher: Watcher, for_s: float = SOON) -> None:
    """Look for so long."""
    for _ in range(int(for_s / STEP_S)):
        watcher.step(full=True)
        fleet.site.clock.tick(STEP_S)


def scancel(fleet: ArraySite, job: Job) -> None:
    """Take a task out of its array, as Slurm does."""
    native = NativeId.parse(job.native_id)
    del fleet.scheduler.seen[native]
    fleet.scheduler.forgotten.add(native)


def test_watcher_cancels_only_the_dropped_array_task_after_repeated_listings(
    fleet: ArraySite, watcher: Watcher
) -> None:
    jobs = queued(fleet)
    look(fleet, watcher)
    scancel(fleet, jobs[2])
    for _ in range(FORGOTTEN_AFTER - 1):
        watcher.step(full=True)
    assert fleet.site.job(jobs[2].id).state is JobState.QUEUED
    watcher.step(full=True)
    ended = fleet.site.job(jobs[2].id)
    assert (ended.state, ended.error_code, ended.message, ended.pending_reason) == (
        JobState.CANCELLED, "000", "cancelled in the scheduler", "")  # fmt: skip
    assert [fleet.site.job(job.id).state for job in jobs].count(JobState.QUEUED) == 3


def test_watcher_cancels_dropped_tasks_from_its_first_listings_if_others_run(
    fleet: ArraySite, watcher: Watcher
) -> None:
    jobs = queued(fleet)
    scancel(fleet, jobs[1])
    scancel(fleet, jobs[2])
    fleet.scheduler.run(NativeId.parse(jobs[0].native_id))
    fleet.scheduler.run(NativeId.parse(jobs[3].native_id))
    look(fleet, watcher)  # the first looks of this watcher
    assert [fleet.site.job(job.id).state for job in jobs[1:3]] == [JobState.CANCELLED] * 2


def test_watcher_fails_tasks_after_accounting_lag_when_whole_array_is_missing(
    fleet: ArraySite, watcher: Watcher
) -> None:
    jobs = queued(fleet)
    look(fleet, watcher)
    for job in jobs:
        scancel(fleet, job)
    look(fleet, watcher)
    assert [fleet.site.job(job.id).state for job in jobs] == [JobState.QUEUED] * 4
    look(fleet, watcher, ACCOUNTING_LAG_S + SOON)
    assert {(fleet.site.job(job.id).state, fleet.site.job(job.id).error_code) for job in jobs} == {
        (JobState.FAILED, "S106")
    }


@pytest.mark.parametrize("trace", ["claim", "event", "heartbeat"])
def test_watcher_does_not_cancel_dropped_task_that_had_started(fleet: ArraySite, watcher: Watcher, trace: str) -> None:
    jobs = queued(fleet)
    look(fleet, watcher)
    attempt = fleet.site.attempt(jobs[2])
    if trace == "claim":
        Path(attempt.claim).mkdir()
    elif trace == "event":
        claimed = Event(1, fleet.site.clock.now(), "head", EventKind.CLAIMED, {"restart": 0})
        Path(attempt.events, "head.jsonl").write_text(encode_event(claimed))
    else:
        Path(attempt.heartbeat(0)).touch()
        os.utime(attempt.heartbeat(0), (fleet.site.clock.now() - 1e4,) * 2)
    scancel(fleet, jobs[2])
    look(fleet, watcher)
    assert fleet.site.job(jobs[2].id).state is not JobState.CANCELLED
    look(fleet, watcher, ACCOUNTING_LAG_S + SOON)
    assert "forgotten the job" in fleet.site.platform.store.history(jobs[2].id)[-1].message


def test_watcher_keeps_task_queued_when_another_array_reused_its_id(fleet: ArraySite, watcher: Watcher) -> None:
    jobs = queued(fleet)
    look(fleet, watcher)
    scancel(fleet, jobs[2])
    native = NativeId.parse(jobs[2].native_id)
    fleet.scheduler.submitted = [(n, t if n != native else jobs[0].token) for n, t in fleet.scheduler.submitted]
    look(fleet, watcher)
    assert fleet.site.job(jobs[2].id).state is JobState.QUEUED


def test_watcher_keeps_task_queued_when_it_is_listed_again(fleet: ArraySite, watcher: Watcher) -> None:
    jobs = queued(fleet)
    native = NativeId.parse(jobs[2].native_id)
    look(fleet, watcher)
    scancel(fleet, jobs[2])
    for _ in range(FORGOTTEN_AFTER - 1):
        watcher.step(full=True)
    fleet.scheduler.forgotten.clear()
    fleet.scheduler.seen[native] = Observation(Phase.PENDING, "PENDING")
    look(fleet, watcher)
    assert fleet.site.job(jobs[2].id).state is JobState.QUEUED


def test_watcher_waits_for_accounting_before_cancelling_dropped_task(
    fleet: ArraySite, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know that the task ran."""

    def refuse(_: object) -> frozenset[NativeId]:
        raise AccountingUnreachable("connection refused", 2.0)

    jobs = queued(fleet)
    scancel(fleet, jobs[2])
    with monkeypatch.context() as patched:
        patched.setattr(fleet.scheduler, "is_forgotten", refuse)
        look(fleet, watcher, 2 * ACCOUNTING_LAG_S)
        assert fleet.site.job(jobs[2].id).state is JobState.QUEUED
    look(fleet, watcher)
    assert fleet.site.job(jobs[2].id).state is JobState.CANCELLED


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HALT])
def test_watcher_ends_dropped_task_as_its_owner_requested(fleet: ArraySite, watcher: Watcher, wish: Wish) -> None:
    jobs = queued(fleet)
    look(fleet, watcher)
    ask = cancel_job if wish is Wish.CANCEL else halt_job
    ask(fleet.site.platform, fleet.site.caller, jobs[2].id)
    scancel(fleet, jobs[2])
    look(fleet, watcher)
    ended = fleet.site.job(jobs[2].id)
    assert (ended.state, ended.message) == {
        Wish.CANCEL: (JobState.CANCELLED, "cancelled by its owner"),
        Wish.HALT: (JobState.HALTED, "halted before it started"),
    }[wish]
