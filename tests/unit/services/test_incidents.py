"""Ends of attempts on both databases: which of them leave an incident, which one, and that none comes twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from ffdl_batch.domain.incidents.incident import Incident, Origin
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.outcome.continuation import Checkpoint
from ffdl_batch.domain.outcome.controller_events import EventKind, GoesOn, Outcome
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, NoResources
from ffdl_batch.services.incidents.incident_recorder import TAIL_BYTES, TAIL_LINES, read_tail
from ffdl_batch.services.job_control.stop import cancel_job
from ffdl_batch.services.monitoring.watcher import SETTLE_S
from ffdl_batch.services.outcome.upload_pending_reason import UPLOAD_PENDING
from tests.unit.services.chains import at_work, end, running
from tests.unit.services.conftest import MANIFEST, Site

BOOM = b'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: boom\n'
SPEC = {"exit_code": 1, "error_code": "C201", "message": "learner 1 ended with exit code 1"}


def incidents(site: Site, job: Job) -> list[Incident]:
    found = site.platform.storage.store.incidents_of([job.id]).get(job.id, [])
    return [one.incident for one in found]


def kinds(site: Site, job: Job) -> list[str]:
    return [one.kind for one in incidents(site, job)]


def prints(site: Site, job: Job, text: bytes, learner: int = 1) -> None:
    log = Path(site.attempt(job).training_log(learner))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(text)


def fails(site: Site, job: Job, text: bytes = BOOM, **values: object) -> Job:
    """Its learner ends with 1 after `text`; its head says so, and the scheduler."""
    prints(site, job, text)
    site.head(job).says("node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=1, ended_by="", asked="")
    site.head(job).ends(Outcome.FAILED, **{**SPEC, **values})
    return site.end(site.job(job.id), EndCause.FAILURE)


def only(site: Site, job: Job) -> Incident:
    (found,) = incidents(site, job)
    return found


def test_incident_records_failure_with_evidence_and_lost_gpu_time(site: Site) -> None:
    job, _ = at_work(site)
    site.clock.tick(90)
    job = fails(site, job)
    assert job.state is JobState.FAILED
    found = only(site, job)
    assert (found.kind, found.code, found.attempt, found.episode) == ("user.traceback", "C201", 1, "end-0")
    assert (found.message, found.nodes, found.learner) == ("learner 1: ValueError: boom", ("n1",), 1)
    assert [one.text for one in found.evidence][2] == "ValueError: boom"
    assert {one.source for one in found.evidence} == {"learner-1", "controller", "scheduler"}
    assert (found.at, found.lost_gpu_s) == (job.ended_at, 90.0)  # one GPU, from the learner's start


def test_incident_counts_lost_gpu_time_from_last_checkpoint(site: Site) -> None:
    job, _ = at_work(site)
    site.clock.tick(60)
    saved = site.clock.now()
    site.clock.tick(30)
    job = fails(site, job, checkpoint=Checkpoint(saved_at=saved, newest="model.pt"))
    assert only(site, job).lost_gpu_s == 30.0


def test_incident_is_not_recorded_for_success_or_owner_cancel(site: Site) -> None:
    done, stopped = site.deployed("k1"), site.deployed("k2")
    running(site, done).ends(Outcome.COMPLETED)
    running(site, stopped)
    cancel_job(site.platform.storage, site.platform.adapters, site.caller, stopped.id)
    site.head(stopped).ends(Outcome.CANCELLED, message="ended from outside")
    site.scheduler.end(NativeId(done.native_id), EndCause.SUCCESS, site.clock.now())
    site.end(stopped, EndCause.CANCELLED)
    assert [site.job(job.id).state for job in (done, stopped)] == [JobState.COMPLETED, JobState.CANCELLED]
    assert site.job(done.id).pending_reason == ""
    assert incidents(site, done) + incidents(site, stopped) == []


def test_incident_is_recorded_when_another_user_cancels_scheduler_job(site: Site) -> None:
    job, _ = at_work(site)
    end(site, job, EndCause.CANCELLED)
    assert (site.job(job.id).state, kinds(site, job)) == (JobState.CANCELLED, ["scheduler.cancelled_by_others"])


def test_incident_is_not_recorded_when_owner_cancels_in_scheduler(site: Site) -> None:
    job, _ = at_work(site)
    native = NativeId(job.native_id)
    site.scheduler.end(native, EndCause.CANCELLED, site.clock.now())
    site.scheduler.seen[native] = replace(site.scheduler.seen[native], native_state=f"CANCELLED by {job.uid}")
    site.watch()
    site.clock.tick(SETTLE_S + 1)
    site.watch()
    assert (site.job(job.id).state, kinds(site, job)) == (JobState.CANCELLED, [])


def test_incident_is_recorded_once_per_attempt_that_is_followed_by_another(site: Site) -> None:
    job, _ = at_work(site)
    assert end(site, job, EndCause.NODE_FAIL).state is JobState.PENDING
    found = only(site, job)
    assert (found.kind, found.nodes, found.attempt) == ("node.failed", ("n1",), 1)
    site.deploy()
    running(site, site.job(job.id))
    end(site, job, EndCause.PREEMPTED)
    found_of_both = [(one.kind, one.attempt) for one in incidents(site, job)]
    assert found_of_both == [("node.failed", 1), ("scheduler.preempted", 2)]


def test_incident_is_recorded_for_time_limit_when_head_controller_continues(site: Site) -> None:
    job, _ = at_work(site)
    site.clock.tick(600)
    site.head(job).goes_on()
    site.watch(full=False)
    found = only(site, job)
    assert (found.kind, found.code, found.attempt, found.lost_gpu_s) == ("scheduler.time_limit", "C203", 1, 0.0)


def test_incident_is_recorded_for_each_scheduler_requeue(site: Site) -> None:
    job = site.deployed()
    for restart in range(2):
        head = site.head(job)
        head.starts(restart)
        site.scheduler.run(NativeId(job.native_id), restarts=restart)
        site.watch()
        head.ends(Outcome.CANCELLED, message="ended from outside", restart=restart)
        site.clock.tick(60)
        site.scheduler.run(NativeId(job.native_id), restarts=restart + 1)
        site.head(job).starts(restart + 1)
        site.watch()
        site.watch()
    found = [(one.kind, one.episode) for one in incidents(site, job)]
    assert found == [("scheduler.requeued", "end-0"), ("scheduler.requeued", "end-1")]


def test_incident_records_time_limit_when_run_requeues_itself_at_its_limit(site: Site) -> None:
    job, head = at_work(site)
    head.ends(Outcome.TIMED_OUT, interruption="timeout", goes_on=GoesOn.REQUEUE, error_code="C203", message="its limit")
    site.clock.tick(60)
    site.scheduler.run(NativeId(job.native_id), restarts=1)
    site.head(job).starts(1)
    site.watch()
    assert [(one.kind, one.code) for one in incidents(site, job)] == [("scheduler.time_limit", "C203")]


def test_incident_is_not_recorded_for_drill(site: Site) -> None:
    job, head = at_work(site)
    head.ends(
        Outcome.HALTED, interruption="timeout", simulated=True, goes_on=GoesOn.PLATFORM, message="a drill simulated it"
    )
    after = site.end(job, EndCause.SUCCESS)
    assert (after.state, after.spent.timeouts, kinds(site, job)) == (JobState.PENDING, 0, [])


def test_incident_is_recorded_once_when_controllers_die_while_storing(site: Site) -> None:
    job, head = at_work(site)
    head.is_killed_storing()
    assert end(site, job, EndCause.NODE_FAIL).pending_reason == UPLOAD_PENDING
    for _ in range(3):
        site.watch()
    found = only(site, job)
    assert (found.kind, found.code, found.lost_gpu_s) == ("node.failed", "000", 0.0)
    head = site.head(job)
    head.stores()
    Path(site.attempt(job).uploaded).write_text(json.dumps({"at": site.clock.now()}))
    head.ends(Outcome.COMPLETED)
    site.watch()
    assert (site.job(job.id).state, len(incidents(site, job))) == (JobState.COMPLETED, 1)


def test_incident_is_recorded_separately_when_pending_upload_fails_for_good(site: Site) -> None:
    job, head = at_work(site)
    head.is_killed_storing()
    end(site, job, EndCause.FAILURE)
    words = "results cannot be stored: disk quota exceeded"
    site.head(job).ends(Outcome.FAILED, stored=False, error_code="S303", message=words)
    site.watch()
    found = [(one.kind, one.episode) for one in incidents(site, job)]
    assert found == [("platform.controller_died", "end-0"), ("data.disk_full", "stored-0")]


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (NoResources("no such GPU"), "user.resources", "S100"),
        (InvalidRequest("Invalid account"), "user.request", "S101"),
    ],
)
def test_job_fails_and_incident_is_recorded_when_scheduler_refuses_accepted_job(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: InvalidRequest, kind: str, code: str
) -> None:
    job = site.accept()
    monkeypatch.setattr(site.scheduler, "submit", Mock(side_effect=error))
    site.deploy()
    job = site.job(job.id)
    assert (job.state, job.error_code, job.message) == (JobState.FAILED, code, str(error))
    found = only(site, job)
    assert (found.kind, found.code, found.message) == (kind, code, str(error))
    assert found.origin is Origin.USER  # monitoring wakes nobody for it


def test_incident_is_recorded_when_dependency_can_never_be_satisfied(site: Site) -> None:
    first, _ = at_work(site)
    second = site.accept("k2", MANIFEST + f"batch: {{dependency: 'afterok:{first.id}'}}\n")
    fails(site, first)
    site.deploy()
    assert (site.job(second.id).state, kinds(site, second)) == (JobState.FAILED, ["user.dependency"])


def test_incident_uses_node_health_event_as_evidence(site: Site) -> None:
    job, head = at_work(site)
    line = json.dumps({"at": site.clock.now(), "kind": "node.gpu", "device": "0000:3b:00", "text": "Xid 79"})
    head.says("node-0", EventKind.HEALTH, lines=f"{line}\nrubbish\n[]\n{{}}")
    found = only(site, fails(site, job))
    assert (found.kind, found.nodes, found.message) == ("node.gpu", ("n1",), "n1 0000:3b:00: Xid 79")


def test_incident_uses_lasting_node_health_fault_from_previous_day(site: Site) -> None:
    job, head = at_work(site)
    line = {"at": site.clock.now() - 86400.0, "kind": "gpu", "text": "Xid 79", "lasts": True, "drains": True}
    odd = ['{"at": 1e400}', '{"at": NaN}', f'{{"at": 1{"0" * 400}}}', '{"at": -1}']
    head.says("node-0", EventKind.HEALTH, lines="\n".join([json.dumps(line), *odd]))
    text = BOOM.replace(b"ValueError: boom", b"RuntimeError: No CUDA GPUs are available")
    found = only(site, fails(site, job, text))
    assert (found.kind, found.nodes) == ("node.gpu", ("n1",))


def test_incident_kind_follows_fault_class_when_data_transfer_fails(site: Site) -> None:
    job, head = at_work(site)
    head.says("node-0", EventKind.FAULT, code="S302", message="nothing came", **{"class": "network"})
    head.ends(Outcome.FAILED, error_code="S302", message="nothing came", stored=False)
    site.end(job, EndCause.FAILURE)
    assert kinds(site, job) == ["data.network"]


def test_incident_is_recorded_for_each_failure_of_retried_job(site: Site) -> None:
    job, _ = at_work(site, "failures: 1")
    fails(site, job)
    site.deploy()
    running(site, site.job(job.id))
    assert fails(site, site.job(job.id)).state is JobState.FAILED
    assert [(one.kind, one.attempt) for one in incidents(site, job)] == [("user.traceback", 1), ("user.traceback", 2)]
    assert [attempt.interruption for attempt in site.platform.storage.store.attempts(job.id)] == ["failure"] * 2


def test_watcher_reads_no_log_and_observes_once_per_step_for_idle_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work(site)
    monkeypatch.setattr("ffdl_batch.services.incidents.incident_recorder.read_tail", None)
    asked = site.scheduler.observe_calls
    for _ in range(5):
        site.watch()
    assert site.scheduler.observe_calls == asked + 5


def test_read_tail_limits_lines_and_removes_control_sequences(site: Site) -> None:
    job = site.deployed()
    prints(site, job, b"".join(b"%d \x1b[31m%s\n" % (n, b"x" * 700) for n in range(2000)))
    lines = read_tail(site.attempt(job), 1, 1)
    assert 0 < len(lines) <= min(TAIL_LINES, TAIL_BYTES // 700 + 2)
    assert lines[-1].text.startswith("1999 xxx")
    assert all("\x1b" not in line.text and len(line.text) <= 400 for line in lines)


def learner_fails(site: Site, job: Job) -> Job:
    """Its learner ends with 1, and what it printed is as it is."""
    site.head(job).says("node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=1)
    site.head(job).ends(Outcome.FAILED, **SPEC)
    return site.end(job, EndCause.FAILURE)


def test_incident_is_recorded_when_log_cannot_be_read(site: Site) -> None:
    job, _ = at_work(site)
    Path(site.attempt(job).training_log(1)).mkdir(parents=True)
    assert learner_fails(site, job).state is JobState.FAILED
    assert only(site, job).kind == "user.exit"


@pytest.mark.parametrize(
    ("fields", "node"),
    [
        ({"host": "training-x-1-0", "machine": "ip-10-0-0-1.internal"}, "ip-10-0-0-1.internal"),
        ({"host": "n2.example.org"}, "n2"),
    ],
)
def test_incident_names_node_as_scheduler_does(site: Site, fields: dict[str, str], node: str) -> None:
    """A pod's host has the pod's name."""
    job, head = at_work(site)
    head.says("node-0", EventKind.STARTED, **fields)
    learner_fails(site, job)
    assert only(site, job).nodes == (node,)


def test_incident_blames_failing_learner_and_not_the_one_that_lost_its_peer(site: Site) -> None:
    job, head = at_work(site)
    head.says("node-1", EventKind.STARTED, host="n2")
    prints(site, job, BOOM.replace(b"ValueError: boom", b"RuntimeError: Connection closed by peer [::1]:4711"))
    prints(site, job, BOOM, learner=2)
    head.says("node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=1)
    site.clock.tick(1)
    replace(head, at=site.clock.now()).says("node-1", EventKind.LEARNER_ENDED, learner_id=2, exit_code=1)
    head.ends(Outcome.FAILED, **SPEC)
    site.end(job, EndCause.FAILURE)
    found = only(site, job)
    assert (found.learner, found.nodes, found.message) == (2, ("n2",), "learner 2: ValueError: boom")
