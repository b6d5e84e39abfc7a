"""Debts that a backend pays where the files are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ffdl_batch.controller.machine.files import write_cell
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.events import FinalRecord, Outcome
from ffdl_batch.domain.job import AttemptEnd, Change, Job, Token
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand, Pod, encode
from ffdl_batch.ports.scheduler import TooMany
from ffdl_batch.services.debts import LONGEST_PAUSE_S, PATIENT_TRIES, DebtPayer
from ffdl_batch.services.evidence import read_final
from ffdl_batch.services.payments_apart import unstored
from tests.unit.services.conftest import Site

DONE = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=False, exit_code=0, stores_later=True)


@dataclass
class Cluster:
    """What the backend of the tests is told, and says."""

    begun: list[str] = field(default_factory=list)
    why: dict[str, str | None] = field(default_factory=dict)
    is_full: bool = False

    def begin_storing(self, token: Token, _: AttemptDir) -> None:
        if self.is_full:
            raise TooMany("quota pods is used up")
        self.begun.append(token)

    def how_storing_ended(self, token: Token) -> str | None:
        return self.why.get(token)


@pytest.fixture
def cluster(site: Site) -> Cluster:
    """The backend can do it."""
    found = Cluster()
    site.scheduler.begin_storing = found.begin_storing  # type: ignore[attr-defined]
    site.scheduler.how_storing_ended = found.how_storing_ended  # type: ignore[attr-defined]
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
    assert site.platform.store.apply(job, Change(steps, attempt_end=AttemptEnd(owed=True))) is not None
    return site.job(job.id)


def test_several_are_paid_at_once_and_none_twice(site: Site, cluster: Cluster) -> None:
    jobs = [storing(site, key) for key in ("k1", "k2", "k3")]
    payer = DebtPayer(site.platform)
    payer.step()
    payer.step()
    assert sorted(cluster.begun) == sorted(job.token for job in jobs)
    paid = site.attempt(jobs[0])
    Path(paid.paid).write_text("{}")
    assert payer.step() == 1
    assert not site.platform.store.attempts(jobs[0].id)[0].owed


def test_the_next_daemon_begins_it_again_and_the_backend_finds_it(site: Site, cluster: Cluster) -> None:
    job = storing(site)
    first = DebtPayer(site.platform)
    first.step()
    first.close()
    DebtPayer(site.platform).step()
    assert cluster.begun == [job.token, job.token]


@pytest.mark.parametrize("is_full", [False, True])
def test_too_many_failures_are_its_end_and_it_is_tried_on(site: Site, cluster: Cluster, is_full: bool) -> None:
    job = storing(site)
    cluster.is_full = is_full
    cluster.why[job.token] = "the store is away"
    payer = DebtPayer(site.platform)
    for _ in range(2 * PATIENT_TRIES):
        payer.step()
        site.clock.tick(LONGEST_PAUSE_S)
    final = read_final(site.attempt(job))
    assert final is not None
    assert (final.outcome, final.error_code, final.stores_later) == (Outcome.FAILED, "S303", False)
    assert ("quota pods" if is_full else "the store is away") in final.message
    assert site.platform.store.attempts(job.id)[0].owed


def test_what_a_halt_left_is_told_beside_the_halt() -> None:
    halted = replace(DONE, outcome=Outcome.HALTED, message="halted", interruption="halt")
    found = unstored(halted, "no store")
    assert (found.outcome, found.error_code) == (Outcome.HALTED, "S305")
    assert found.message == "halted; results and logs cannot be stored: no store"
    failed = replace(DONE, outcome=Outcome.FAILED, error_code="C201", message="it ended with 3")
    assert unstored(failed, "no store") == replace(failed, stores_later=False)
