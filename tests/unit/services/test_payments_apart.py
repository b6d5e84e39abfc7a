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
from ffdl_batch.ports.capabilities import Storing
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerError, SubmissionUncertain, TooMany
from ffdl_batch.services.debts import LONGEST_INTERRUPTED_S, LONGEST_PAUSE_S, PATIENT_TRIES, DebtPayer
from ffdl_batch.services.evidence import read_final
from ffdl_batch.services.owed import OWED
from ffdl_batch.services.payments_apart import unstored
from tests.unit.services.conftest import Site

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
    change = Change(steps, columns={"pending_reason": OWED}, attempt_end=AttemptEnd(owed=True))
    assert site.platform.store.apply(job, change) is not None
    return site.job(job.id)


def test_pending_uploads_start_concurrently_and_only_once(site: Site, cluster: Cluster) -> None:
    jobs = [storing(site, key) for key in ("k1", "k2", "k3")]
    payer = DebtPayer(site.platform)
    payer.step()
    payer.step()
    assert sorted(cluster.begun) == sorted(job.token for job in jobs)
    paid = site.attempt(jobs[0])
    Path(paid.paid).write_text("{}")
    assert payer.step() == 1
    assert not site.platform.store.attempts(jobs[0].id)[0].owed


def test_pending_upload_starts_again_under_same_token_after_daemon_restart(site: Site, cluster: Cluster) -> None:
    job = storing(site)
    first = DebtPayer(site.platform)
    first.step()
    first.close()
    DebtPayer(site.platform).step()
    assert cluster.begun == [job.token, job.token]


@pytest.mark.parametrize("is_refused", [False, True])
def test_pending_upload_records_failure_after_too_many_errors_and_is_retried(
    site: Site, cluster: Cluster, is_refused: bool
) -> None:
    job = storing(site)
    cluster.refusal = InvalidRequest("a rule forbids it") if is_refused else None
    cluster.goes[job.token] = Storing("the store is away", ended=True)
    payer = DebtPayer(site.platform)
    for _ in range(2 * PATIENT_TRIES):
        payer.step()
        site.clock.tick(LONGEST_PAUSE_S)
    final = read_final(site.attempt(job))
    assert final is not None
    assert (final.outcome, final.error_code, final.stores_later) == (Outcome.FAILED, "S303", False)
    assert ("a rule forbids it" if is_refused else "the store is away") in final.message
    assert site.platform.store.attempts(job.id)[0].owed


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
    payer = DebtPayer(site.platform)
    for _ in range(4 * PATIENT_TRIES):
        payer.step()
        payer.step()
        site.clock.tick(LONGEST_INTERRUPTED_S)
    shown = site.job(job.id)
    why = str(refusal) if refusal is not None else "pod x: Evicted"
    assert (shown.state, shown.pending_reason) == (JobState.STORING, f"{OWED}: {why}; it is tried again")
    final = read_final(site.attempt(job))
    assert final is not None and final.stores_later and payer.is_busy()
    assert (len(cluster.begun) > PATIENT_TRIES) is (refusal is None)


def test_pending_upload_shows_pending_reason_of_pod_while_pod_waits(site: Site, cluster: Cluster) -> None:
    job = storing(site)
    payer = DebtPayer(site.platform)
    cluster.goes[job.token] = Storing("no node has room now")
    payer.step()
    payer.step()
    assert site.job(job.id).pending_reason == f"{OWED}: no node has room now"
    revision = site.job(job.id).revision
    payer.step()
    assert site.job(job.id).revision == revision, "nothing is written anew"
    cluster.goes[job.token] = Storing()
    DebtPayer(site.platform).step()  # the next daemon, which knows nothing of what was said
    payer.step()
    assert site.job(job.id).pending_reason == OWED


def test_unstored_adds_upload_error_to_halt_and_keeps_failure() -> None:
    halted = replace(DONE, outcome=Outcome.HALTED, message="halted", interruption="halt")
    found = unstored(halted, "no store")
    assert (found.outcome, found.error_code) == (Outcome.HALTED, "S305")
    assert found.message == "halted; results and logs cannot be stored: no store"
    failed = replace(DONE, outcome=Outcome.FAILED, error_code="C201", message="it ended with 3")
    assert unstored(failed, "no store") == replace(failed, stores_later=False)
