"""Chains of attempts: who goes on, from what, and when nobody does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.views import RestartView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, Pod, Succession, encode
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.outcome.controller_events import EventKind, GoesOn, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.deployment.deployer import HANDOVER_S
from ffdl_batch.services.job_files.attempt_directory import begun_at
from ffdl_batch.services.job_files.control_cell import read_control
from ffdl_batch.services.monitoring.job_update import QUIET_S
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.services.outcome.attempt_records import read_launch
from tests.fakes.head import FakeHead
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.chains import at_work, end
from tests.unit.services.conftest import Site


def test_watcher_explains_wait_for_final_record_until_it_times_out(site: Site) -> None:
    """A head that was killed says nothing; a record of it might still become visible on a shared file system."""
    job, _ = at_work(site)
    site.scheduler.end(NativeId(job.native_id), EndCause.FAILURE, site.clock.now())
    for _ in range(2):
        site.watch()
        seen = site.job(job.id)
        assert (seen.state, "final record" in seen.pending_reason) == (JobState.PROCESSING, True), seen.pending_reason
    site.clock.tick(SETTLE_S + 1)
    site.watch()
    assert (site.job(job.id).state, site.job(job.id).pending_reason) == (JobState.PENDING, "")


def test_watcher_follows_continuation_of_head_without_scheduler_end(site: Site) -> None:
    job, head = at_work(site)
    asked = site.scheduler.observe_calls
    head.goes_on()
    site.watch(full=False)
    after = site.job(job.id)
    assert (after.state, after.attempt, after.native_id) == (JobState.DEPLOYING, 2, "")
    assert after.spent == Spent(timeouts=1)
    native = site.scheduler.accept(after.token)
    site.deploy()
    after = site.job(job.id)
    assert (after.state, after.native_id, after.network) == (JobState.QUEUED, str(native), "none")
    assert (site.scheduler.observe_calls, len(site.scheduler.submitted)) == (asked, 2)
    first, second = site.platform.storage.store.attempts(job.id)
    assert (first.interruption, first.checkpoint.confirmed, first.gpu_seconds) == ("timeout", True, 60.0)
    assert (second.number, second.native_id) == (2, str(native))
    assert read_control(site.platform.storage.root.job(job.id).attempt(1)).attempt == 2
    moved = site.platform.storage.store.history(job.id)[-2]
    assert (moved.cause, moved.attempt) == ("requeued", 2)
    assert "checkpoint confirmed" in moved.message


def test_deployer_submits_successor_after_handover_timeout(site: Site) -> None:
    job, head = at_work(site)
    head.goes_on()
    site.watch(full=False)
    site.scheduler.credential_life_s = 0.0
    deployer = site.platform.deployer()
    begun = begun_at(site.attempt(site.job(job.id)))
    assert begun is not None
    for at, submitted in ((begun + HANDOVER_S / 2, 1), (begun + HANDOVER_S + 1, 2)):
        site.clock.at = at
        deployer.step()
        assert len(site.scheduler.submitted) == submitted
    assert site.job(job.id).state is JobState.QUEUED


def test_watcher_continues_preempted_job_from_its_results(site: Site) -> None:
    job, head = at_work(site)
    head.saves()
    site.clock.tick(30)
    after = end(site, job, EndCause.PREEMPTED)
    assert (after.state, after.attempt, after.spent.preemptions, after.spent.fruitless) == (JobState.PENDING, 1, 1, 0)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)
    attempt, template = site.scheduler.planned[-2:]
    assert attempt.carry == site.platform.storage.root.job(job.id).attempt(1).results
    assert (attempt.spent.preemptions, attempt.attempt) == (1, 2)
    assert (template.attempt, template.token) == (3, f"{job.id}-next")
    assert Path(site.platform.storage.root.job(job.id).template.launch).is_file()
    assert read_control(site.platform.storage.root.job(job.id).attempt(1)).attempt == 2


def test_watcher_excludes_no_node_if_backend_cannot_avoid_nodes(site: Site) -> None:
    class Alone(FakeScheduler):
        avoid = None  # type: ignore[assignment]

    site.scheduler = Alone()
    site.platform.adapters.use("fake", site.scheduler)
    job, _ = at_work(site)
    after = end(site, job, EndCause.NODE_FAIL)
    assert (after.state, after.overrides.exclude) == (JobState.PENDING, ())


def test_watcher_judges_end_when_backend_is_no_longer_configured(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: Adapters, name: str) -> Scheduler:
        raise InvalidRequest(f"{name} is no backend")

    job, _ = at_work(site)
    site.end(job, EndCause.NODE_FAIL)
    site.clock.tick(SETTLE_S + 1)
    monkeypatch.setattr(Adapters, "get", unknown)
    site.head(job).says("node-0", EventKind.FAULT, code="")
    site.watch(full=False)
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.PENDING, ())


def test_watcher_counts_gpu_time_until_last_heartbeat_without_scheduler_times(site: Site) -> None:
    """Where the scheduler does not say when it started or ended it."""
    job, _ = at_work(site)
    site.clock.tick(90)
    head = site.head(job)
    head.beats()
    site.clock.tick(20)
    site.scheduler.seen[NativeId(head.job.native_id)] = Observation(Phase.ENDED, "X", EndCause.NODE_FAIL, nodes="n1")
    for _ in range(2):
        site.watch()
        site.clock.tick(SETTLE_S + 1)
    (attempt,) = site.platform.storage.store.attempts(job.id)
    assert (attempt.ended_at, attempt.gpu_seconds, site.job(job.id).spent.gpu_seconds) == (head.at, 90.0, 90.0)


def test_deployer_removes_exclusion_of_failed_node_when_scheduler_rejects_it(site: Site) -> None:
    job, _ = at_work(site)
    assert end(site, job, EndCause.NODE_FAIL).overrides.exclude == ("n1",)
    assert site.platform.storage.store.history(job.id)[-1].error_code == "S110"
    site.scheduler.refuse = "Requested node configuration is not available"
    site.deploy()
    assert site.job(job.id).state is JobState.DEPLOYING
    site.scheduler.refuse = ""
    site.clock.tick(5)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).overrides.exclude) == (JobState.QUEUED, ())


OVER = "^the time limit was reached.*{}.*, so the chain ends here$"


@pytest.mark.parametrize(
    ("retry", "cause", "code", "message"),
    [
        ("", EndCause.TIMEOUT, "C203", OVER.format("where the manifest gives batch.retry.timeouts")),
        ("timeouts: 3", EndCause.TIMEOUT, "", ""),
        ("preemptions: 0", EndCause.PREEMPTED, "S111", "batch.retry.preemptions allows 0"),
    ],
)
def test_watcher_continues_job_with_saved_checkpoint_only_within_manifest_budget(
    site: Site, retry: str, cause: EndCause, code: str, message: str
) -> None:
    job, head = at_work(site, retry)
    head.saves()
    after = end(site, job, cause)
    if not code:
        assert after.state is JobState.PENDING
        return
    assert (after.state, after.error_code) == (JobState.FAILED, code)
    assert re.search(message, after.message), after.message
    assert site.platform.storage.store.attempts(job.id)[0].upload_pending, "its results were not stored"


def judged(site: Site, cause: EndCause, outcome: Outcome, retry: str = "", **record: object) -> Job:
    """The job after its head left a final record and the scheduler ended the attempt."""
    job, head = at_work(site, retry)
    head.ends(outcome, **record)
    return end(site, job, cause)


@pytest.mark.parametrize(
    "said",
    [
        "script.sh: 12: exec: /opt/python3.9/bin/python3: not found",
        "slurmstepd: error: execve(): /bin/bash: No such file or directory",
        "/usr/bin/env: 'bash': No such file or directory",
        "script.sh: line 12: /home/alice/venv/bin/python3: cannot execute: required file not found",
        "/home/alice/venv/bin/ffdl-node: /home/alice/venv/bin/python3.9: bad interpreter: No such file or directory",
        "script.sh: line 12: /opt/python3.9/bin/python3: Permission denied",
        "script.sh: line 12: /opt/python3.9/bin/python3: cannot execute binary file: Exec format error",
        "/opt/python3.9/bin/python3: error while loading shared libraries: libpython3.9.so.1.0: cannot open it",
    ],
)
def test_watcher_quotes_batch_log_of_attempt_whose_controller_never_started(site: Site, said: str) -> None:
    job = site.deployed()
    Path(site.platform.storage.root.job(job.id).attempt(1).batch_log).write_text(f"earlier\n{said}\n")
    after = end(site, job, EndCause.FAILURE)
    assert (after.state, after.error_code) == (JobState.FAILED, "S106")
    assert after.message.endswith(f"its batch log ends with: earlier {said}")


@pytest.mark.parametrize(
    "message",
    [
        "no network for this job: no IPv4 address for the destination data.exmaple.org (Name or service not known)",
        "no network for this job: 192.0.2.1 cannot be a destination: it is outside NETWORK_EGRESS_TO of values.env",
    ],
)
def test_watcher_ends_job_with_wrong_egress_host_after_one_attempt_and_names_host(site: Site, message: str) -> None:
    after = judged(site, EndCause.FAILURE, Outcome.FAILED, error_code="C101", message=message)
    assert (after.state, after.attempt, after.error_code) == (JobState.FAILED, 1, "C101")
    site.clock.tick(600)
    site.deploy()
    site.watch()
    view = site.view(site.job(after.id))
    assert (view.state, len(site.scheduler.submitted)) == ("FAILED", 1)
    assert view.message == message


@pytest.mark.parametrize(("cause", "code"), [(EndCause.FAILURE, "C202"), (EndCause.OUT_OF_MEMORY, "S106")])
def test_watcher_ends_job_that_exceeded_memory_after_one_attempt_with_its_request(
    site: Site, cause: EndCause, code: str
) -> None:
    after = judged(site, cause, Outcome.FAILED, error_code=code, message="out of memory")
    assert (after.state, after.attempt, after.error_code) == (JobState.FAILED, 1, "C202")
    assert after.message.endswith("; the job asks for 8GB per learner")


def test_watcher_accepts_decision_of_head_not_to_continue(site: Site) -> None:
    message = "the time limit was reached; no checkpoint was confirmed; the chain ends here"
    record: dict[str, Any] = {
        "interruption": "timeout",
        "spent": Spent(timeouts=1),
        "error_code": "C203",
        "message": message,
    }
    after = judged(site, EndCause.TIMEOUT, Outcome.TIMED_OUT, **record)
    assert (after.state, after.error_code, after.message) == (JobState.FAILED, "C203", message)
    assert after.spent.timeouts == 1


def test_watcher_continues_job_when_head_could_not_submit_successor(site: Site) -> None:
    confirmed = Checkpoint(asked=True, confirmed=True, answered=True, took_s=2.0)
    record: dict[str, Any] = {"interruption": "timeout", "checkpoint": confirmed, "spent": Spent(timeouts=1)}
    after = judged(site, EndCause.SUCCESS, Outcome.HALTED, goes_on=GoesOn.PLATFORM, **record)
    assert (after.state, after.spent.timeouts) == (JobState.PENDING, 1)


def test_watcher_adopts_successor_submitted_by_killed_head(site: Site) -> None:
    job, head = at_work(site)
    head.saves()
    head.begins_successor()
    site.scheduler.accept(f"{job.id}-2")  # type: ignore[arg-type]
    after = end(site, job, EndCause.NODE_FAIL)
    assert (after.state, after.attempt) == (JobState.DEPLOYING, 2)
    site.deploy()
    assert (site.job(job.id).state, len(site.scheduler.submitted)) == (JobState.QUEUED, 2)


def test_watcher_counts_scheduler_requeue_once(site: Site) -> None:
    job, _ = at_work(site)
    native = NativeId(job.native_id)
    site.clock.tick(QUIET_S)
    for reason in ("BeginTime", "Resources", "Priority"):
        site.scheduler.wait(native, reason, restarts=1)
        site.watch()
    after = site.job(job.id)
    assert (after.state, after.attempt, after.spent.node_failures) == (JobState.QUEUED, 1, 1)
    assert site.scheduler.avoided == [(native, ("n1",))]
    assert site.states(job)[-2:] == ["PROCESSING", "QUEUED"]
    run_elsewhere(site, job)
    assert site.states(job)[-2:] == ["QUEUED", "PROCESSING"]
    assert len(site.scheduler.submitted) == 1


def run_elsewhere(site: Site, job: Job) -> None:
    """The scheduler has started the job again, on another node."""
    site.clock.tick(60)
    site.head(job).starts(restart=1)
    site.scheduler.run(NativeId(job.native_id), "n2", restarts=1)
    site.watch()


def test_watcher_records_requeue_that_happened_without_daemon(site: Site) -> None:
    job, head = at_work(site)
    head.ends(Outcome.CANCELLED, message="ended from outside")
    site.watcher.close()
    site.watcher = site.platform.watcher()
    run_elsewhere(site, job)
    assert site.states(job)[-3:] == ["PROCESSING", "QUEUED", "PROCESSING"]
    assert site.job(job.id).spent.preemptions == 1


def test_watcher_excludes_failed_node_when_requeued_job_runs_elsewhere(site: Site) -> None:
    job, _ = at_work(site)
    run_elsewhere(site, job)
    after = site.job(job.id)
    assert (after.spent.node_failures, after.overrides.exclude, after.nodes) == (1, ("n1",), "n2")


def requeued(site: Site) -> FakeHead:
    """The head of a job that the scheduler has put back into its queue a moment ago."""
    job, head = at_work(site)
    head.beats()
    site.scheduler.wait(NativeId(head.job.native_id), restarts=1)
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING
    return head


def test_watcher_records_requeue_as_preemption_after_final_record_of_head(site: Site) -> None:
    head = requeued(site)
    head.ends(Outcome.CANCELLED, message="ended from outside")
    site.watch()
    after = site.job(head.job.id)
    assert (after.state, after.spent.preemptions, after.spent.node_failures) == (JobState.QUEUED, 1, 0)
    assert (after.overrides.exclude, site.scheduler.avoided) == ((), [])
    (entry,) = site.platform.storage.store.history(after.id)[-1:]
    assert entry.message.endswith("it was preempted or requeued")
    (attempt,) = site.view(after).attempts
    assert attempt.restarts == (RestartView(entry.at, entry.message),)


def test_watcher_excludes_node_of_requeued_job_once_controllers_are_silent_until_job_fits_no_other_node(
    site: Site,
) -> None:
    head = requeued(site)
    site.clock.tick(QUIET_S - 1.0)
    site.watch()
    assert site.job(head.job.id).state is JobState.PROCESSING
    site.clock.tick(2.0)
    site.watch()
    after, native = site.job(head.job.id), NativeId(head.job.native_id)
    assert (after.state, after.spent.node_failures) == (JobState.QUEUED, 1)
    assert (after.overrides.exclude, site.scheduler.avoided) == (("n1",), [(native, ("n1",))])
    site.scheduler.wait(native, "BadConstraints", restarts=1, nowhere=True)
    site.watch()
    after = site.job(head.job.id)
    assert (after.overrides.exclude, site.scheduler.excluded) == ((), [(native, "")])
    assert any("n1 again" in warning for warning in after.warnings)
    site.watch()
    assert len(site.scheduler.excluded) == 1


def test_watcher_replaces_permanently_held_job_with_new_attempt(site: Site) -> None:
    job, head = at_work(site)
    head.saves()
    hold_for_good(site, job)
    assert site.job(job.id).state is JobState.PENDING
    site.deploy()
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)


def hold_for_good(site: Site, job: Job) -> None:
    site.scheduler.wait(NativeId(job.native_id), "JobHoldMaxRequeue", restarts=5, held_for_good=True)
    site.watch()


def test_watcher_cancels_held_job_that_cannot_continue(site: Site) -> None:
    job, _ = at_work(site, "node_failures: 0, preemptions: 0")
    hold_for_good(site, job)
    assert site.job(job.id).state is JobState.FAILED
    assert site.scheduler.cancelled == [NativeId(job.native_id)]
    assert read_control(site.attempt(job)).requested_action == "cancel"


def test_watcher_completes_job_with_stored_results_after_head_died(site: Site) -> None:
    job, head = at_work(site)
    head.stores()
    after = end(site, job, EndCause.NODE_FAIL)
    assert (after.state, "left no final record" in after.warnings[-1]) == (JobState.COMPLETED, True)
    assert not site.platform.storage.store.attempts(job.id)[0].upload_pending


def test_watcher_shows_suspension_as_pending_reason_and_keeps_state(site: Site) -> None:
    job, _ = at_work(site)
    site.scheduler.seen[NativeId(job.native_id)] = Observation(Phase.SUSPENDED, "SUSPENDED", nodes="n1")
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING
    assert site.job(job.id).pending_reason.startswith("SUSPENDED: the scheduler has stopped it; until it lets it run")
    site.scheduler.run(NativeId(job.native_id))
    site.watch()
    assert site.job(job.id).pending_reason == ""


def test_watcher_counts_gpu_time_from_scheduler_times_and_gpus_of_launch_file(site: Site) -> None:
    """Each node is asked for what the fullest one needs, so they may be more than those of all learners."""
    job, _ = at_work(site)
    command, succession = LearnerCommand(("x",), {}), Succession("/j/template", gpus=4.0)
    launch = LaunchFile(job.id, 1, f"{job.id}-1", "/j", "/j/a", "/d", command, succession=succession)
    Path(site.attempt(job).launch).write_text(encode(launch))
    site.end(job, EndCause.PREEMPTED, started=site.clock.now() - 100)
    site.clock.tick(SETTLE_S + 1)
    site.watch()
    assert site.job(job.id).spent.gpu_seconds == 400.0


@pytest.mark.parametrize(
    ("apart", "said"), [(False, "whether a checkpoint was saved is not known"), (True, "no checkpoint was saved")]
)
def test_watcher_reports_missing_checkpoint_only_if_each_pod_had_its_own_tree(
    site: Site, apart: bool, said: str
) -> None:
    """With a tree of their own they take it along when they go."""
    job, _ = at_work(site, "node_failures: 5")
    launch = read_launch(site.attempt(job))
    assert launch is not None
    Path(site.attempt(job).launch).write_text(encode(replace(launch, pod=Pod("/ffdl-pod", apart=apart))))
    after = end(site, job, EndCause.NODE_FAIL)
    assert (after.state, after.spent.fruitless) == (JobState.PENDING, int(apart)), after.message
    assert said in site.platform.storage.store.history(job.id)[-1].message


def test_watcher_does_not_repeat_checkpoint_status_of_final_record(site: Site) -> None:
    said = "the time limit of 600 s was reached; no checkpoint was saved"
    record: dict[str, Any] = {"error_code": "C203", "message": said, "interruption": "timeout"}
    after = judged(site, EndCause.FAILURE, Outcome.TIMED_OUT, **record)
    assert after.message == f"{said}; it would start from the same point again, so the chain ends here"


def test_watcher_keeps_error_of_halted_job_when_results_were_not_stored(site: Site) -> None:
    words: dict[str, Any] = {
        "error_code": "S305",
        "message": "halted on request; no space left",
        "interruption": "halt",
    }
    after = judged(site, EndCause.SUCCESS, Outcome.HALTED, stored=False, **words)
    assert (after.state, after.error_code, after.message) == (JobState.HALTED, words["error_code"], words["message"])


def test_watcher_adds_warning_of_observation_to_job_once(site: Site) -> None:
    job, _ = at_work(site)
    seen = Observation(Phase.RUNNING, "RUNNING", nodes="n1", warning="the output cannot be written")
    for nodes in ("n1", "n2", "n1"):
        site.scheduler.seen[NativeId(job.native_id)] = replace(seen, nodes=nodes)
        site.watch()
    assert site.job(job.id).warnings.count("the output cannot be written") == 1
