"""Jobs whose scheduler does not answer, or has no room for them, wait, say why, and are not asked for one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.job import Job, Token
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_batch.services.backends.adapters import LONGEST_PAUSE_S
from ffdl_batch.services.backends.submit_limits import FIRST_PAUSE_S, REFUSALS, REFUSED_S
from ffdl_batch.services.backends.submit_limits import LONGEST_PAUSE_S as LONGEST_FULL_PAUSE_S
from ffdl_batch.services.deployment.deployer import BATCH, Deployer
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.services.submission.submit import submit
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import MANIFEST, ArraySite, Site, write_final

FULL = "Slurm does not take the job now (QOSMaxSubmitJobPerUserLimit); it is tried again"
S = JobState
MANY = BATCH + 6
"""More jobs than a step of a deployer takes."""


def states(site: Site, jobs: list[Job]) -> list[JobState]:
    return [site.job(job.id).state for job in jobs]


def reasons(site: Site, jobs: list[Job]) -> set[str]:
    return {site.view(job).pending_reason for job in jobs}


@pytest.mark.parametrize("cause", ["full", "fails"])
def test_deployer_keeps_job_pending_and_retries_first_attempt_with_pauses_after_submission_failure(
    site: Site, cause: str
) -> None:
    """A failure may be the login node's trouble: nothing refused the job, and nothing else is held up."""
    fork = "sbatch exited with status 1 (fork: Cannot allocate memory); nothing was submitted, and it is tried again"
    said = FULL if cause == "full" else fork
    setattr(site.scheduler, cause, said)
    job = site.deployed()
    assert (job.state, job.attempt, job.native_id) == (S.PENDING, 0, "")
    assert reasons(site, [job]) == {said}
    assert (site.states(job), site.view(job).attempts) == (["PENDING", "DEPLOYING", "PENDING"], ())
    assert begun_at(site.platform.storage.root.job(job.id).attempt(1)) is None
    assert site.platform.adapters.outages() == ()
    deployer = site.platform.deployer()
    for _ in range(20):
        site.clock.tick(FIRST_PAUSE_S / 4)
        deployer.step()
    assert 2 <= len(site.scheduler.turned_away) <= 4
    setattr(site.scheduler, cause, "")
    site.clock.tick(1.25 * LONGEST_FULL_PAUSE_S)
    deployer.step()
    job = site.job(job.id)
    assert (job.state, job.attempt, job.pending_reason) == (S.QUEUED, 1, "")
    assert [str(token) for _, token in site.scheduler.submitted] == [f"{job.id}-1"]
    assert [attempt.number for attempt in site.platform.storage.store.attempts(job.id)] == [1]


def test_deployer_probes_full_scheduler_with_one_of_many_jobs_and_submits_rest_after_success(site: Site) -> None:
    site.scheduler.full = FULL
    jobs = site.accept_all(MANY)
    deployer = site.platform.deployer()
    while deployer.step():
        pass
    deployer.step()
    assert set(states(site, jobs)) == {S.PENDING}
    assert reasons(site, jobs) == {FULL}
    assert len(site.scheduler.turned_away) <= BATCH  # those of the first step
    site.scheduler.turned_away.clear()
    for _ in range(10):
        site.clock.tick(0.1)
        deployer.step()
    assert site.scheduler.turned_away == []
    site.clock.tick(1.25 * FIRST_PAUSE_S)
    for _ in range(5):
        deployer.step()
    assert len(site.scheduler.turned_away) == 1
    site.scheduler.full = ""
    site.clock.tick(1.25 * LONGEST_FULL_PAUSE_S)
    assert deployer.step() == 1
    site.clock.tick(5)
    while deployer.step():
        pass
    assert set(states(site, jobs)) == {S.QUEUED}


def test_deployer_retries_immediately_after_own_job_ends(site: Site) -> None:
    running = site.deployed("runs")
    site.scheduler.full = FULL
    waiting = site.deployed("waits")
    assert waiting.state is S.PENDING
    site.scheduler.full = ""
    write_final(site, running)
    site.end(running, EndCause.SUCCESS)
    assert site.job(running.id).state is S.COMPLETED
    site.deploy()
    assert site.job(waiting.id).state is S.QUEUED


def test_deployer_submits_to_other_qos_when_one_qos_is_full(site: Site) -> None:
    site.scheduler.full = FULL
    held = site.accept("held", MANIFEST + "batch: {qos: small}\n")
    site.deploy()
    site.scheduler.full = ""
    free = site.accept("free", MANIFEST + "batch: {qos: large}\n")
    site.deploy()
    assert states(site, [held, free]) == [S.PENDING, S.QUEUED]


UNKNOWN = "Slurm does not take the job now (sbatch: error: the moon is full); it is tried again"


def wait(site: Site, seconds: float, deployer: Deployer | None = None) -> Deployer:
    """Run a deployer for this long."""
    deployer = deployer or site.platform.deployer()
    for _ in range(round(seconds / 60)):
        site.clock.tick(60)
        deployer.step()
    return deployer


@pytest.mark.parametrize("others", [False, True])
def test_deployer_ends_job_refused_unchanged_for_fifteen_minutes_and_submits_others(site: Site, others: bool) -> None:
    odd = site.accept("odd")
    site.scheduler.odd[odd.id] = UNKNOWN
    deployer = wait(site, 60)
    assert site.view(odd).pending_reason == UNKNOWN
    if others:
        healthy = site.accept("healthy")
        deployer.step()
        assert site.job(healthy.id).state is S.QUEUED
    wait(site, REFUSED_S - 120, deployer)
    assert site.job(odd.id).state is S.PENDING
    wait(site, 2 * LONGEST_FULL_PAUSE_S, deployer)
    job = site.job(odd.id)
    assert (job.state, job.error_code) == (S.FAILED, "S101")
    assert len(site.scheduler.turned_away) >= REFUSALS
    assert "the words" in job.message and "tried again" not in job.message


def test_deployer_keeps_job_pending_while_message_of_refusal_changes(site: Site) -> None:
    odd, deployer = (
        site.accept("odd"),
        site.platform.deployer(),
    )
    for number in range(2 * REFUSALS):
        site.scheduler.odd[odd.id] = f"{UNKNOWN} {number}"
        wait(site, 1.25 * LONGEST_FULL_PAUSE_S, deployer)
    assert site.job(odd.id).state is S.PENDING


def test_deployer_keeps_all_jobs_pending_while_scheduler_refuses_all_and_ends_them_once_it_accepts_others(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = site.accept_all(3)
    site.scheduler.odd = dict.fromkeys((job.id for job in jobs), UNKNOWN)
    deployer = wait(site, 2 * REFUSED_S)
    assert set(states(site, jobs)) == {S.PENDING}
    assert all("all of them wait" in reason for reason in reasons(site, jobs))
    assert "all of them wait" in caplog.text
    (health,) = site.platform.adapters.health()
    assert health.unreachable_since is None and UNKNOWN in health.detail
    site.accept("healthy")
    wait(site, 2 * LONGEST_FULL_PAUSE_S, deployer)
    assert set(states(site, jobs)) == {S.PENDING}  # refusals while all jobs were refused do not count
    wait(site, 2 * REFUSED_S, deployer)
    assert set(states(site, jobs)) == {S.FAILED}
    (health,) = site.platform.adapters.health()
    assert health.detail == ""


@pytest.mark.parametrize("count", [3, MANY])
def test_deployer_submits_all_jobs_soon_after_scheduler_accepts_again(site: Site, count: int) -> None:
    jobs = site.accept_all(count)
    site.scheduler.odd = dict.fromkeys((job.id for job in jobs), UNKNOWN)
    deployer = wait(site, REFUSED_S)
    site.scheduler.odd.clear()
    wait(site, 2 * LONGEST_FULL_PAUSE_S, deployer)
    assert set(states(site, jobs)) == {S.QUEUED}


def test_deployer_ends_array_that_is_refused_unchanged(fleet: ArraySite) -> None:
    array = fleet.accept("array: 0-99")
    fleet.scheduler.odd = dict.fromkeys((job.id for job in fleet.elements(array)), UNKNOWN)
    deployer = wait(fleet.site, REFUSED_S - 90)
    assert set(fleet.states(array)) == {S.PENDING}
    assert len(fleet.scheduler.turned_away) < 20
    wait(fleet.site, 2 * LONGEST_FULL_PAUSE_S, deployer)
    assert set(fleet.states(array)) == {S.FAILED}


WORDS = "the site refuses the job: name a project with --account"


def test_deployer_ends_job_refused_with_message_of_site_and_submits_others(site: Site) -> None:
    site.scheduler.site_refuses = WORDS
    job = site.deployed()
    assert (job.state, job.error_code, job.message) == (S.FAILED, "S101", WORDS)
    assert site.platform.adapters.outages() == ()
    site.scheduler.site_refuses = ""
    assert site.deployed("other").state is S.QUEUED


@pytest.mark.parametrize("accepted", [False, True])
def test_deployer_looks_for_refused_job_until_scheduler_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """A failed sbatch proves nothing while squeue and sacct do not answer."""
    find = site.scheduler.find

    def fail(token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        raise NotNow("the accounting gave no answer")

    site.scheduler.site_refuses = WORDS
    monkeypatch.setattr(site.scheduler, "find", fail)
    job = site.deployed()
    assert (job.state, job.pending_reason) == (S.DEPLOYING, WORDS)
    assert site.platform.adapters.outages() == ()
    if accepted:
        site.scheduler.accept(job.token)
    monkeypatch.setattr(site.scheduler, "find", find)
    wait(site, 2 * site.scheduler.credential_life_s)
    assert site.job(job.id).state is (S.QUEUED if accepted else S.FAILED)
    assert len(site.scheduler.submitted) == accepted


def test_cancel_ends_job_that_waits_for_capacity(site: Site) -> None:
    site.scheduler.full = FULL
    job = site.deployed()
    assert cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id).state == "CANCELLED"


def test_deployer_asks_scheduler_once_during_outage_and_submits_each_job_once_afterwards(site: Site) -> None:
    site.accept("first")
    site.scheduler.down = True
    site.deploy()
    asked = site.scheduler.asked
    jobs = site.accept_all(MANY)
    deployer = site.platform.deployer()
    for _ in range(5):
        deployer.step()
    assert site.scheduler.asked == asked
    assert set(states(site, jobs)) == {S.PENDING}
    assert reasons(site, jobs) == {"fake does not answer; it is asked again"}
    for _ in range(4):
        site.clock.tick(1.25 * LONGEST_PAUSE_S)
        asked = site.scheduler.asked
        deployer.step()
        deployer.step()
        assert site.scheduler.asked - asked == 1
    assert S.QUEUED not in states(site, jobs)
    site.scheduler.down = False
    site.clock.tick(1.25 * LONGEST_PAUSE_S)
    deployer.step()
    for _ in range(4):
        site.clock.tick(5)
        deployer.step()
    assert set(states(site, jobs)) == {S.QUEUED}
    assert len({token for _, token in site.scheduler.submitted}) == len(site.scheduler.submitted) == MANY + 1


def test_deployer_tries_job_less_often_while_scheduler_answers_other_requests(site: Site) -> None:
    """The words of a refusal can look like those of an outage."""
    odd = site.accept("odd")
    site.scheduler.unanswered.add(odd.id)
    deployer = site.platform.deployer()
    for number in range(20):
        other = site.accept(f"k{number}")
        for _ in range(3):
            site.clock.tick(10)
            deployer.step()
        assert site.job(other.id).state is S.QUEUED
    assert len(site.scheduler.turned_away) < 12
    assert "no answer, sbatch said" in site.view(odd).pending_reason
    site.scheduler.unanswered.clear()
    wait(site, 2 * LONGEST_FULL_PAUSE_S, deployer)
    assert site.job(odd.id).state is S.QUEUED


def test_deployer_submits_to_other_backend_during_outage(site: Site) -> None:
    site.platform.adapters.use("other", FakeScheduler("other"))
    site.accept("first")
    site.scheduler.down = True
    site.deploy()
    site.accept_all(MANY)
    (result,) = submit(
        site.platform.storage,
        site.platform.adapters,
        site.platform.store_checks,
        site.caller,
        [site.submission("other", backend="other")],
    )
    site.deploy()
    assert site.job(result.id).state is S.QUEUED


@pytest.mark.parametrize("state", ["pending", "deploying"])
def test_deployer_cancels_never_submitted_job_during_outage(site: Site, state: str) -> None:
    site.accept("first")
    site.scheduler.down = True
    deployer = site.platform.deployer()
    deployer.step()
    (job,) = site.platform.storage.store.list_jobs(uid=None) if state == "deploying" else [site.accept("later")]
    assert job.state is (S.DEPLOYING if state == "deploying" else S.PENDING)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    site.clock.tick(5)
    deployer.step()
    assert site.job(job.id).state is S.CANCELLED


def test_cancel_reaches_controllers_during_outage_and_scheduler_afterwards(site: Site) -> None:
    job = site.deployed()
    site.watch()
    site.scheduler.down = True
    site.watch()
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    assert '"cancel"' in Path(site.attempt(job).control).read_text()
    site.watch()
    assert site.scheduler.cancelled == []
    site.scheduler.down = False
    site.clock.tick(60)
    site.watch()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]


def test_deployer_finds_submission_with_lost_reply_after_outage_without_resubmitting(site: Site) -> None:
    site.scheduler.lose_reply = True
    job = site.deployed()
    assert job.uncertain_since is not None
    site.scheduler.lose_reply, site.scheduler.down = False, True
    deployer = site.platform.deployer()
    for _ in range(5):
        site.clock.tick(100)
        deployer.step()
    assert begun_at(site.attempt(job)) is not None
    site.scheduler.down = False
    site.clock.tick(100)
    deployer.step()
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (S.QUEUED, 1)
