"""Chains of attempts: who goes on, from what, and when nobody does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.continuation import Checkpoint, Spent
from ffdl_batch.domain.events import EventKind, GoesOn, Outcome
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand, Pod, Succession, encode
from ffdl_batch.domain.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.views import RestartView
from ffdl_batch.ports.scheduler import InvalidRequest, Scheduler
from ffdl_batch.services.backends import Adapters
from ffdl_batch.services.control import read_control
from ffdl_batch.services.deploy import HANDOVER_S, Deployer
from ffdl_batch.services.evidence import read_launch
from ffdl_batch.services.judgement import QUIET_S
from ffdl_batch.services.materialize import begun_at
from ffdl_batch.services.query import get_job
from ffdl_batch.services.watch import SETTLE_S, Watcher
from tests.fakes.head import FakeHead
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.chains import accept, end, head_of, running
from tests.unit.services.conftest import Site


@pytest.mark.parametrize("saved", [False, True])
def test_watcher_explains_wait_for_final_record_until_it_times_out(site: Site, watcher: Watcher, saved: bool) -> None:
    """A head that was killed says nothing; a record of it might still become visible on a shared file system."""
    job = site.deployed()
    head = running(site, watcher, job)
    if saved:
        head.saves()
    site.scheduler.end(NativeId(job.native_id), EndCause.FAILURE, site.clock.now())
    for _ in range(2):
        watcher.step(full=True)
        seen = site.job(job.id)
        assert (seen.state, "last word" in seen.pending_reason) == (JobState.PROCESSING, True), seen.pending_reason
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.PENDING, "")


def test_watcher_completes_job_at_once_if_final_record_exists(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    head.ends(Outcome.COMPLETED)
    site.scheduler.end(NativeId(job.native_id), EndCause.SUCCESS, site.clock.now())
    watcher.step(full=True)
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.COMPLETED, "")


def test_watcher_follows_continuation_of_head_without_scheduler_end(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    asked = site.scheduler.observe_calls
    head.goes_on()
    watcher.step(full=False)
    after = site.job(job.id)
    assert (after.state, after.attempt, after.native_id) == (JobState.DEPLOYING, 2, "")
    assert after.spent == Spent(timeouts=1)
    native = site.scheduler.accept(after.token)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).native_id) == (JobState.QUEUED, str(native))
    assert site.job(job.id).network == "none"
    assert site.scheduler.observe_calls == asked
    assert len(site.scheduler.submitted) == 2
    first, second = site.platform.store.attempts(job.id)
    assert (first.interruption, first.checkpoint.confirmed, first.gpu_seconds) == ("timeout", True, 60.0)
    assert (second.number, second.native_id) == (2, str(native))
    assert read_control(site.platform.root.job(job.id).attempt(1)).attempt == 2
    moved = site.platform.store.history(job.id)[-2]
    assert (moved.cause, moved.attempt) == ("requeued", 2)
    assert "checkpoint confirmed" in moved.message


def test_watcher_records_all_attempts_that_passed_without_daemon(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head_of(site, job).starts()
    head = head_of(site, job)
    head.goes_on()
    for number in (2, 3):
        site.scheduler.accept(f"{job.id}-{number}")  # type: ignore[arg-type]
    watcher.step(full=True)
    Deployer(site.platform).step()
    head_of(site, job).starts()
    head_of(site, job).begins_successor()
    head_of(site, job).goes_on(Spent(timeouts=2))
    watcher.step(full=True)
    Deployer(site.platform).step()
    last = head_of(site, job)
    last.starts()
    last.stores()
    last.ends(Outcome.COMPLETED, exit_code=0)
    site.scheduler.end(NativeId(last.job.native_id), EndCause.SUCCESS, site.clock.now())
    watcher.step(full=True)
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.COMPLETED, 3)
    assert site.job(job.id).spent == Spent(timeouts=2)
    assert [a.interruption for a in site.platform.store.attempts(job.id)] == ["timeout", "timeout", ""]
    assert len(site.scheduler.submitted) == 3


def test_deployer_submits_successor_after_handover_timeout(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job).goes_on()
    watcher.step(full=False)
    site.scheduler.credential_life_s = 0.0
    deployer = Deployer(site.platform)
    begun = begun_at(site.attempt(site.job(job.id)))
    assert begun is not None
    site.clock.at = begun + HANDOVER_S / 2
    deployer.step()
    assert len(site.scheduler.submitted) == 1
    site.clock.at = begun + HANDOVER_S + 1
    deployer.step()
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (JobState.QUEUED, 2)


def test_watcher_continues_preempted_job_from_its_results(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    head.saves()
    site.clock.tick(30)
    end(site, watcher, job, EndCause.PREEMPTED)
    after = site.job(job.id)
    assert (after.state, after.attempt, after.spent.preemptions, after.spent.fruitless) == (JobState.PENDING, 1, 1, 0)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)
    attempt, template = site.scheduler.planned[-2:]
    assert attempt.carry == site.platform.root.job(job.id).attempt(1).results
    assert (attempt.spent.preemptions, attempt.attempt) == (1, 2)
    assert (template.attempt, template.token) == (3, f"{job.id}-next")
    assert Path(site.platform.root.job(job.id).template.launch).is_file()
    assert read_control(site.platform.root.job(job.id).attempt(1)).attempt == 2


def test_watcher_excludes_failed_node_from_next_attempt(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    end(site, watcher, job, EndCause.NODE_FAIL)
    assert site.job(job.id).overrides.exclude == ("n1",)
    Deployer(site.platform).step()
    assert site.scheduler.planned[-1].spec.batch.exclude == "n1"


def test_watcher_excludes_no_node_if_backend_cannot_avoid_nodes(site: Site, watcher: Watcher) -> None:
    class Alone(FakeScheduler):
        avoid = None  # type: ignore[assignment]

    site.scheduler = Alone()
    site.platform.adapters.use("fake", site.scheduler)
    job = site.deployed()
    running(site, watcher, job)
    end(site, watcher, job, EndCause.NODE_FAIL)
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.PENDING, ())


def test_watcher_judges_end_when_backend_is_no_longer_configured(
    site: Site, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: Adapters, name: str) -> Scheduler:
        raise InvalidRequest(f"{name} is no backend")

    job = site.deployed()
    running(site, watcher, job)
    site.scheduler.end(NativeId(job.native_id), EndCause.NODE_FAIL, site.clock.now())
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    monkeypatch.setattr(Adapters, "get", unknown)
    head_of(site, job).says("node-0", EventKind.FAULT, code="")
    watcher.step(full=False)
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.PENDING, ())


def test_watcher_counts_gpu_time_until_last_heartbeat_without_scheduler_times(site: Site, watcher: Watcher) -> None:
    """Where the scheduler does not say when it started or ended it."""
    job = site.deployed()
    head = running(site, watcher, job)
    site.clock.tick(90)
    head = head_of(site, job)
    head.beats()
    site.clock.tick(20)
    site.scheduler.seen[NativeId(head.job.native_id)] = Observation(Phase.ENDED, "X", EndCause.NODE_FAIL, nodes="n1")
    for _ in range(2):
        watcher.step(full=True)
        site.clock.tick(SETTLE_S + 1)
    (attempt,) = site.platform.store.attempts(job.id)
    assert (attempt.ended_at, attempt.gpu_seconds, site.job(job.id).spent.gpu_seconds) == (head.at, 90.0, 90.0)


def test_deployer_removes_node_exclusion_when_scheduler_rejects_it(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    end(site, watcher, job, EndCause.NODE_FAIL)
    site.scheduler.refuse = "Requested node configuration is not available"
    Deployer(site.platform).step()
    assert site.job(job.id).state is JobState.DEPLOYING
    site.scheduler.refuse = ""
    site.clock.tick(5)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.QUEUED, ())


@pytest.mark.parametrize(
    ("saved", "said"), [(False, "the same point again"), (True, "where the manifest gives batch.retry.timeouts")]
)
def test_watcher_fails_job_after_time_limit_without_confirmed_checkpoint(
    site: Site, watcher: Watcher, saved: bool, said: str
) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    if saved:
        head.saves()
    end(site, watcher, job, EndCause.TIMEOUT)
    after = site.job(job.id)
    assert (after.state, after.error_code) == (JobState.FAILED, "C203")
    assert after.message.startswith("the time limit was reached")
    assert said in after.message and after.message.endswith(", so the chain ends here")


def test_watcher_continues_after_time_limit_with_saved_checkpoint_if_manifest_allows(
    site: Site, watcher: Watcher
) -> None:
    job = accept(site, "timeouts: 3")
    running(site, watcher, job).saves()
    end(site, watcher, job, EndCause.TIMEOUT)
    assert site.job(job.id).state is JobState.PENDING


def test_watcher_fails_job_when_retry_budget_is_spent(site: Site, watcher: Watcher) -> None:
    job = accept(site, "preemptions: 0")
    running(site, watcher, job).saves()
    end(site, watcher, job, EndCause.PREEMPTED)
    after = site.job(job.id)
    assert (after.state, after.error_code) == (JobState.FAILED, "S111")
    assert "batch.retry.preemptions allows 0" in after.message


@pytest.mark.parametrize(("retry", "state"), [("failures: 0", JobState.FAILED), ("failures: 1", JobState.PENDING)])
def test_watcher_retries_failed_attempt_only_within_manifest_budget(
    site: Site, watcher: Watcher, retry: str, state: JobState
) -> None:
    job = accept(site, retry)
    head = running(site, watcher, job)
    head.ends(Outcome.FAILED, error_code="C201", message="learner 1 ended with exit code 3", exit_code=3)
    end(site, watcher, job, EndCause.FAILURE)
    assert site.job(job.id).state is state
    assert site.platform.store.attempts(job.id)[0].interruption == "failure"


def test_watcher_accepts_decision_of_head_not_to_continue(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    message = "the time limit was reached; no checkpoint was confirmed; the chain ends here"
    head.ends(Outcome.TIMED_OUT, interruption="timeout", spent=Spent(timeouts=1), error_code="C203", message=message)
    end(site, watcher, job, EndCause.TIMEOUT)
    after = site.job(job.id)
    assert (after.state, after.error_code, after.message) == (JobState.FAILED, "C203", message)
    assert after.spent.timeouts == 1


def test_watcher_continues_job_when_head_could_not_submit_successor(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    confirmed = Checkpoint(asked=True, confirmed=True, answered=True, took_s=2.0)
    head.ends(
        Outcome.HALTED, interruption="timeout", checkpoint=confirmed, goes_on=GoesOn.PLATFORM, spent=Spent(timeouts=1)
    )
    end(site, watcher, job, EndCause.SUCCESS)
    assert (site.job(job.id).state, site.job(job.id).spent.timeouts) == (JobState.PENDING, 1)


def test_watcher_adopts_successor_submitted_by_killed_head(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    head.saves()
    head.begins_successor()
    site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]
    end(site, watcher, job, EndCause.NODE_FAIL)
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.DEPLOYING, 2)
    Deployer(site.platform).step()
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (JobState.QUEUED, 2)


def test_watcher_counts_scheduler_requeue_once(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    native = NativeId(job.native_id)
    site.clock.tick(QUIET_S)
    for reason in ("BeginTime", "Resources", "Priority"):
        site.scheduler.wait(native, reason, restarts=1)
        watcher.step(full=True)
    after = site.job(job.id)
    assert (after.state, after.attempt, after.spent.node_failures) == (JobState.QUEUED, 1, 1)
    assert site.scheduler.avoided == [(native, ("n1",))]
    assert site.states(job)[-2:] == ["PROCESSING", "QUEUED"]
    site.clock.tick(60)
    head_of(site, job).starts(restart=1)
    site.scheduler.run(native, "n2", restarts=1)
    watcher.step(full=True)
    assert site.states(job)[-2:] == ["QUEUED", "PROCESSING"]
    assert len(site.scheduler.submitted) == 1


def test_watcher_records_requeue_that_happened_without_daemon(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job).ends(Outcome.CANCELLED, message="ended from outside")
    site.clock.tick(60)
    head_of(site, job).starts(restart=1)
    site.scheduler.run(NativeId(job.native_id), "n2", restarts=1)
    other = Watcher(site.platform)
    watcher.close()
    other.step(full=True)
    assert site.states(job)[-3:] == ["PROCESSING", "QUEUED", "PROCESSING"]
    assert site.job(job.id).spent.preemptions == 1
    other.close()


def test_watcher_excludes_failed_node_when_requeued_job_runs_elsewhere(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    site.clock.tick(60)
    head_of(site, job).starts(restart=1)
    site.scheduler.run(NativeId(job.native_id), "n2", restarts=1)
    watcher.step(full=True)
    after = site.job(job.id)
    assert (after.spent.node_failures, after.overrides.exclude, after.nodes) == (1, ("n1",), "n2")


def requeued(site: Site, watcher: Watcher) -> FakeHead:
    """The head of a job that the scheduler has put back into its queue a moment ago."""
    job = site.deployed()
    head = running(site, watcher, job)
    head.beats()
    site.scheduler.wait(NativeId(head.job.native_id), restarts=1)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING
    return head


def test_watcher_records_requeue_as_preemption_after_final_record_of_head(site: Site, watcher: Watcher) -> None:
    head = requeued(site, watcher)
    head.ends(Outcome.CANCELLED, message="ended from outside")
    watcher.step(full=True)
    after = site.job(head.job.id)
    assert (after.state, after.spent.preemptions, after.spent.node_failures) == (JobState.QUEUED, 1, 0)
    assert (after.overrides.exclude, site.scheduler.avoided) == ((), [])
    (entry,) = site.platform.store.history(after.id)[-1:]
    assert entry.message.endswith("it was preempted or requeued")
    (attempt,) = get_job(site.platform, site.caller, after.id).attempts
    assert attempt.restarts == (RestartView(entry.at, entry.message),)


def test_watcher_records_requeue_as_node_failure_when_controllers_are_silent(site: Site, watcher: Watcher) -> None:
    head = requeued(site, watcher)
    site.clock.tick(QUIET_S - 1.0)
    watcher.step(full=True)
    assert site.job(head.job.id).state is JobState.PROCESSING
    site.clock.tick(2.0)
    watcher.step(full=True)
    after = site.job(head.job.id)
    assert (after.state, after.spent.node_failures) == (JobState.QUEUED, 1)
    assert (after.overrides.exclude, site.scheduler.avoided) == (("n1",), [(NativeId(head.job.native_id), ("n1",))])


def test_watcher_removes_node_exclusion_if_job_fits_no_other_node(site: Site, watcher: Watcher) -> None:
    head = requeued(site, watcher)
    site.clock.tick(QUIET_S + 1.0)
    watcher.step(full=True)
    native = NativeId(head.job.native_id)
    assert site.job(head.job.id).overrides.exclude == ("n1",)
    site.scheduler.wait(native, "BadConstraints", restarts=1, nowhere=True)
    watcher.step(full=True)
    after = site.job(head.job.id)
    assert (after.overrides.exclude, site.scheduler.excluded) == ((), [(native, "")])
    assert any("n1 again" in warning for warning in after.warnings)
    watcher.step(full=True)
    assert len(site.scheduler.excluded) == 1


def test_watcher_replaces_permanently_held_job_with_new_attempt(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job).saves()
    native = NativeId(job.native_id)
    site.scheduler.wait(native, "JobHoldMaxRequeue", restarts=5, held_for_good=True)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PENDING
    Deployer(site.platform).step()
    assert site.scheduler.cancelled == [native]
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)


def test_watcher_cancels_held_job_that_cannot_continue(site: Site, watcher: Watcher) -> None:
    job = accept(site, "node_failures: 0, preemptions: 0")
    running(site, watcher, job)
    site.scheduler.wait(NativeId(job.native_id), "JobHoldMaxRequeue", restarts=5, held_for_good=True)
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.FAILED
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    assert read_control(site.attempt(job)).wish == "cancel"


def test_watcher_never_retries_job_cancelled_outside_ffdl(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    head.saves()
    head.ends(Outcome.CANCELLED, message="ended from outside")
    end(site, watcher, job, EndCause.CANCELLED)
    assert site.job(job.id).state is JobState.CANCELLED


def test_watcher_completes_job_with_stored_results_after_head_died(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job).stores()
    end(site, watcher, job, EndCause.NODE_FAIL)
    after = site.job(job.id)
    assert after.state is JobState.COMPLETED
    assert "left no final record" in after.warnings[-1]
    assert not site.platform.store.attempts(job.id)[0].owed


def test_watcher_records_pending_upload_when_results_were_not_stored(site: Site, watcher: Watcher) -> None:
    job = accept(site, "node_failures: 0")
    running(site, watcher, job)
    end(site, watcher, job, EndCause.NODE_FAIL)
    (attempt,) = site.platform.store.attempts(job.id)
    assert (attempt.owed, attempt.interruption) == (True, "node_failure")


def test_watcher_shows_suspension_as_pending_reason_and_keeps_state(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(Phase.SUSPENDED, "SUSPENDED", nodes="n1")
    watcher.step(full=True)
    assert site.job(job.id).state is JobState.PROCESSING
    assert site.job(job.id).pending_reason.startswith("SUSPENDED: the scheduler has stopped it; until it lets it run")
    site.scheduler.run(NativeId(job.native_id))
    watcher.step(full=True)
    assert site.job(job.id).pending_reason == ""


def test_watcher_counts_gpu_time_from_scheduler_times(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    native = NativeId(job.native_id)
    site.scheduler.end(native, EndCause.PREEMPTED, site.clock.now(), started=site.clock.now() - 100)
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)
    assert site.job(job.id).spent.gpu_seconds == 100.0


def test_watcher_counts_gpus_given_in_launch_file(site: Site, watcher: Watcher) -> None:
    """Each node is asked for what the fullest one needs, so they may be more than those of all learners."""
    job = site.deployed()
    running(site, watcher, job)
    given = LaunchFile(
        job.id, 1, f"{job.id}-1", "/j", "/j/a", "/d", LearnerCommand(("x",), {}),
        succession=Succession("/j/template", gpus=4.0),
    )  # fmt: skip
    Path(site.attempt(job).launch).write_text(encode(given))
    native = NativeId(job.native_id)
    site.scheduler.end(native, EndCause.PREEMPTED, site.clock.now(), started=site.clock.now() - 100)
    watcher.step(full=True)
    site.clock.tick(SETTLE_S + 1)
    watcher.step(full=True)
    assert site.job(job.id).spent.gpu_seconds == 400.0


@pytest.mark.parametrize(
    ("apart", "said"), [(False, "whether a checkpoint was saved is not known"), (True, "no checkpoint was saved")]
)
def test_watcher_reports_missing_checkpoint_only_if_each_pod_had_its_own_tree(
    site: Site, watcher: Watcher, apart: bool, said: str
) -> None:
    """With a tree of their own they take it along when they go."""
    job = accept(site, "node_failures: 5")
    running(site, watcher, job)
    launch = read_launch(site.attempt(job))
    assert launch is not None
    Path(site.attempt(job).launch).write_text(encode(replace(launch, pod=Pod("/ffdl-pod", apart=apart))))
    end(site, watcher, job, EndCause.NODE_FAIL)
    after = site.job(job.id)
    assert (after.state, after.spent.fruitless) == (JobState.PENDING, int(apart)), after.message
    assert said in site.platform.store.history(job.id)[-1].message


def test_watcher_does_not_repeat_checkpoint_status_of_final_record(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    said = "the time limit of 600 s was reached; no checkpoint was saved"
    head.ends(Outcome.TIMED_OUT, error_code="C203", message=said, interruption="timeout")
    end(site, watcher, job, EndCause.FAILURE)
    assert site.job(job.id).message == f"{said}; it would start from the same point again, so the chain ends here"


def test_watcher_keeps_error_of_halted_job_when_results_were_not_stored(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    words = {"error_code": "S305", "message": "halted on request; no space left", "interruption": "halt"}
    running(site, watcher, job).ends(Outcome.HALTED, stored=False, **words)
    end(site, watcher, job, EndCause.SUCCESS)
    after = site.job(job.id)
    assert (after.state, after.error_code, after.message) == (JobState.HALTED, words["error_code"], words["message"])
