"""Nothing is asked of a scheduler's job that is not provably the attempt it is taken for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.deployment.submission_results import adopt, take_back
from ffdl_batch.services.job_control.drill import drill
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.services.monitoring.scheduler_calls import AGAIN_S, keep_off, let_back, take_away
from ffdl_batch.services.refusals import Refused
from tests.fakes.head import FakeHead
from tests.unit.services.conftest import Site

STRANGER = NativeId("10")
ANOTHER_TRAINING, PLAIN = "training-000000000-1", "plain1"
both_names = pytest.mark.parametrize("name", [ANOTHER_TRAINING, PLAIN], ids=["another training", "a plain job"])


def shows(site: Site, native: NativeId, name: str, phase: Phase = Phase.RUNNING, **values: object) -> None:
    """Let the scheduler list a job under a name."""
    seen = Observation(phase, phase.upper(), name=name, nodes="n1", submitted_at=5.0)
    site.scheduler.seen[native] = replace(seen, **values)  # type: ignore[arg-type]


def asked_to_change(site: Site) -> list[object]:
    """Everything that was asked of jobs."""
    fake = site.scheduler
    return [*fake.cancelled, *fake.withdrawn, *fake.signalled, *fake.avoided, *fake.excluded]


def claims(site: Site, job: Job, native: NativeId, at: float = 1e12) -> None:
    claim = Path(site.attempt(job).claim)
    claim.mkdir(exist_ok=True)
    (claim / "owner.json").write_text(json.dumps({"native_id": str(native), "at": at}))


def told(site: Site, native: NativeId, monkeypatch: pytest.MonkeyPatch, *, accepts: bool = True) -> Job:
    """A job of whose submission the scheduler answered with the id of another."""
    submit = type(site.scheduler).submit

    def answer(fake: object, plan: LaunchPlan) -> NativeId:
        if accepts:
            shows(site, submit(site.scheduler, plan), plan.token, Phase.PENDING, submitted_at=site.clock.now())
        return native

    monkeypatch.setattr(type(site.scheduler), "submit", answer)
    job = site.deployed()
    monkeypatch.undo()
    return job


@both_names
def test_watcher_adopts_claimed_job_and_leaves_foreign_job_alone(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shows(site, STRANGER, name)
    job = told(site, STRANGER, monkeypatch)
    ((own, _),) = site.scheduler.submitted
    assert job.native_id == str(STRANGER)
    claims(site, job, own)
    site.watch()
    assert (site.job(job.id).native_id, asked_to_change(site)) == (str(own), [])
    assert caplog.text.count(f"{STRANGER} is listed as {name!r} and is left alone") == 1


def test_watcher_follows_job_with_own_token_when_scheduler_returned_foreign_id(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows(site, STRANGER, PLAIN)
    job = told(site, STRANGER, monkeypatch)
    ((own, _),) = site.scheduler.submitted
    site.watch()
    assert (site.job(job.id).native_id, site.job(job.id).state) == (str(own), JobState.QUEUED)
    site.scheduler.end(STRANGER, EndCause.SUCCESS, site.clock.now())
    site.watch()
    assert (site.job(job.id).state, asked_to_change(site)) == (JobState.QUEUED, [])


@pytest.mark.parametrize("is_claimed", [False, True])
def test_adopt_cancels_only_duplicates_that_have_own_token(site: Site, is_claimed: bool) -> None:
    job = site.deployed()
    first, second = NativeId(job.native_id), site.scheduler.accept(job.token)
    shows(site, STRANGER, PLAIN)
    shows(site, first, job.token)
    shows(site, second, job.token)
    if is_claimed:
        claims(site, job, second)
    keep, other = (second, first) if is_claimed else (first, second)
    change = adopt(
        site.platform.storage,
        site.platform.adapters,
        site.platform.node_exclusion,
        job,
        frozenset({STRANGER, first, second}),
        0.0,
    )
    assert (change.columns["native_id"], asked_to_change(site)) == (str(keep), [other])


def test_take_back_withdraws_late_submission_only_if_it_has_own_token(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    job = site.deployed()
    before = replace(job, native_id="", state=JobState.DEPLOYING)
    late = site.scheduler.accept(job.token)
    shows(site, STRANGER, PLAIN)
    for native, expected in ((STRANGER, []), (late, [late])):
        take_back(
            site.platform.storage,
            site.platform.adapters,
            [
                (
                    before,
                    adopt(
                        site.platform.storage,
                        site.platform.adapters,
                        site.platform.node_exclusion,
                        before,
                        frozenset({native}),
                        0.0,
                    ),
                )
            ],
        )
        assert asked_to_change(site) == expected
    assert caplog.text.count(f"{late} came too late") == 1


@both_names
@pytest.mark.parametrize(
    "ask",
    [
        lambda site, job: take_away(site.platform.storage.root, site.platform.adapters, job, "it is over"),
        lambda site, job: keep_off(site.platform.storage.root, site.platform.adapters, job, ["n1"]),
        lambda site, job: let_back(site.platform.storage.root, site.platform.adapters, job),
    ],
    ids=["cancel", "avoid", "exclude"],
)
def test_cancel_and_node_exclusion_skip_foreign_job_under_same_id(
    site: Site, name: str, ask: Callable[[Site, Job], None]
) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    shows(site, native, name)
    ask(site, job)
    assert asked_to_change(site) == []
    shows(site, native, job.token)
    ask(site, job)
    assert len(asked_to_change(site)) == 1


def test_take_away_logs_cancel_with_reason(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    job = site.deployed()
    take_away(site.platform.storage.root, site.platform.adapters, job, "it is over")
    assert f"job {job.id}: cancelling {job.native_id}: it is over" in caplog.text


def test_drill_is_refused_when_id_belongs_to_foreign_job(site: Site) -> None:
    head, native = begun(site)
    shows(site, native, PLAIN, submitted_at=1e13)
    with pytest.raises(Refused, match="nothing was simulated"):
        drill(site.platform.storage, site.platform.adapters, site.caller, head.job.id, "timeout")
    assert asked_to_change(site) == []


def begun(site: Site) -> tuple[FakeHead, NativeId]:
    """A training that runs, was listed so under its token, and claimed its attempt."""
    job = site.deployed()
    native = NativeId(job.native_id)
    head = site.head(job)
    head.starts()
    claims(site, job, native, at=1e6)
    shows(site, native, job.token, Phase.SUSPENDED)
    site.watch()
    return head, native


@pytest.mark.parametrize(("action", "is_restarted"), [(RequestedAction.HALT, True), (RequestedAction.CANCEL, False)])
def test_watcher_ignores_requeue_of_foreign_job_under_reused_id(
    site: Site, action: RequestedAction, is_restarted: bool
) -> None:
    """slurmctld's state was wiped, and the ids were given out again."""
    head, native = begun(site)
    site.platform.storage.store.set_requested_action(head.job.id, action)
    shows(site, native, PLAIN, Phase.PENDING, submitted_at=2e6, restarts=1, held_for_good=True, reason="held")
    watching = site.platform.watcher() if is_restarted else site.watcher
    if is_restarted:
        site.watcher.close()
    for _ in range(6):
        site.clock.tick(AGAIN_S)
        watching.step(full=True)
    causes = [entry.cause for entry in site.platform.storage.store.history(head.job.id)]
    assert ("requeued" in causes, asked_to_change(site)) == (False, [])
    watching.close()


def test_watcher_sends_cancel_to_job_renamed_by_its_owner(site: Site) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    shows(site, native, job.token)
    site.watch()
    shows(site, native, "my favourite")
    site.platform.storage.store.set_requested_action(job.id, RequestedAction.CANCEL)
    site.watch()
    assert site.scheduler.cancelled == [native]


def test_watcher_identifies_renamed_job_by_its_claim_without_earlier_observation(site: Site) -> None:
    job = site.deployed()
    native = NativeId(job.native_id)
    shows(site, native, "my favourite", submitted_at=2e6)
    site.platform.storage.store.set_requested_action(job.id, RequestedAction.CANCEL)
    site.watch()
    assert site.scheduler.cancelled == []
    claims(site, job, native, at=2e6 + 1)
    site.watch()
    assert site.scheduler.cancelled == [native]


NOWHERE = NativeId("7654321")


def swallowed(site: Site, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of whose submission the scheduler answered with an id that it does not list."""
    site.watch()
    job = told(site, NOWHERE, monkeypatch, accepts=False)
    site.scheduler.forgotten.add(NOWHERE)
    return job


def look_until_late(site: Site) -> None:
    """Until the scheduler has answered often enough that it does not know a job."""
    for _ in range(10):
        site.clock.tick(10)
        site.watch()


def test_watcher_returns_never_listed_attempt_to_deployer_and_it_is_resubmitted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch answered with an id that no job has, and nothing was submitted."""
    job = swallowed(site, monkeypatch)
    assert job.native_id == str(NOWHERE)
    look_until_late(site)
    after = site.job(job.id)
    assert (after.state, after.native_id, after.attempt, after.error_code) == (JobState.DEPLOYING, "", 1, "000")
    assert "the id that it returned for the job" in site.platform.storage.store.history(job.id)[-1].message
    deployer = site.platform.deployer()
    deployer.step()
    assert site.scheduler.submitted == []
    site.clock.at = max(site.clock.at, (begun_at(site.attempt(after)) or 0.0)) + 301
    deployer.step()
    after = site.job(job.id)
    assert [(str(native), token) for native, token in site.scheduler.submitted] == [(after.native_id, f"{job.id}-1")]
    assert (after.state, after.spent.node_failures) == (JobState.QUEUED, 0)


def test_watcher_charges_node_failure_when_only_accounting_knows_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler took it, and lost it before any listing showed it; its accounting has it waiting, for ever."""
    job = swallowed(site, monkeypatch)
    site.scheduler.submitted.append((NOWHERE, job.token))
    site.scheduler.lost.add(NOWHERE)
    look_until_late(site)
    site.deploy()
    after = site.job(job.id)
    assert (after.state, after.attempt, after.spent.node_failures) == (JobState.QUEUED, 2, 1), after
    assert "S112" in [entry.error_code for entry in site.platform.storage.store.history(job.id)]


@pytest.mark.parametrize("error", [SchedulerUnreachable("down"), InvalidRequest("no such user")])
def test_watcher_keeps_never_listed_attempt_queued_while_search_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    job = swallowed(site, monkeypatch)

    def fail(token: str, attempt_dir: object) -> frozenset[NativeId]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(site.scheduler, "find", fail)
        look_until_late(site)
        assert site.job(job.id).state is JobState.QUEUED
    look_until_late(site)
    assert site.job(job.id).state is JobState.DEPLOYING


def test_deployer_finds_own_attempt_when_recorded_id_belongs_to_another_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.watch()
    shows(site, STRANGER, ANOTHER_TRAINING)
    job = told(site, STRANGER, monkeypatch)
    look_until_late(site)
    assert site.job(job.id).state is JobState.DEPLOYING
    site.deploy()
    after, ((own, _),) = site.job(job.id), site.scheduler.submitted
    assert (after.state, after.native_id, after.attempt, asked_to_change(site)) == (JobState.QUEUED, str(own), 1, [])


@pytest.mark.parametrize("action", [RequestedAction.HALT, RequestedAction.CANCEL])
def test_deployer_ends_never_listed_attempt_as_halt_or_cancel_requests(
    site: Site, monkeypatch: pytest.MonkeyPatch, action: RequestedAction
) -> None:
    job = swallowed(site, monkeypatch)
    site.platform.storage.store.set_requested_action(job.id, action)
    look_until_late(site)
    site.clock.at = max(site.clock.at, (begun_at(site.attempt(job)) or 0.0)) + 301
    site.deploy()
    assert site.job(job.id).state is (JobState.HALTED if action is RequestedAction.HALT else JobState.CANCELLED)
    assert (site.scheduler.submitted, asked_to_change(site)) == ([], [])


def test_watcher_fails_vanished_attempt_without_resubmitting_if_it_may_have_run(site: Site) -> None:
    inherited = site.deployed("one")
    site.scheduler.seen.clear()
    site.scheduler.forgotten.add(NativeId(inherited.native_id))
    site.watch()
    seen = site.deployed("two")
    site.watch()
    site.scheduler.seen.clear()
    site.scheduler.forgotten.add(NativeId(seen.native_id))
    look_until_late(site)
    assert [site.job(job.id).error_code for job in (inherited, seen)] == ["S106", "S106"]
