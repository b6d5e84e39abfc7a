"""halt and resume, and what the other verbs say about a job with several attempts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.cli.render.job_list import place_or_reason
from ffdl_batch.cli.render.job_tables import describe_checkpoint
from ffdl_batch.domain.job.views import AttemptView, EventView, Problem, RestartView
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB, OTHER, UNKNOWN = "training-000000001", "training-000000002", "training-zzzzzzzzz"
QUEUED = "training-000000003"
T0 = 1_800_000_000.0
SENTENCE = "halted on request; no checkpoint was confirmed"
HALTED = make_job(JOB, state="HALTED", ended_at=T0 + 100, message=SENTENCE, exit_code=0)
FIRST = AttemptView(
    1, "4711", "slurm", T0, T0 + 1, T0 + 60, interruption="timeout", nodes="n1", upload_pending=True,
    checkpoint_asked=True,
    checkpoint_confirmed=True, checkpoint_answered=True, checkpoint_took_s=3.14, checkpoint_saved_at=T0 + 59,
)  # fmt: skip
SECOND = AttemptView(2, "", "slurm", T0 + 61)


@pytest.fixture
def jobs(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that knows one running job and one that has completed."""
    daemon.jobs = {JOB: make_job(JOB), OTHER: make_job(OTHER, state="COMPLETED", ended_at=T0, exit_code=0)}
    return daemon


@pytest.mark.parametrize("state", ["STORING", "FAILED"])
def test_show_prints_when_daemon_stores_pending_upload(jobs: FakeDaemon, state: str) -> None:
    pending = replace(FIRST, store_by=T0 + 210)
    ended = T0 + 60 if state == "FAILED" else None
    jobs.jobs[JOB] = make_job(JOB, state=state, ended_at=ended, attempts=(pending,), job_dir="/jobs/x")
    shown = run(FFDL, "show", JOB, daemon=jobs, env={"TZ": "UTC"}).stdout
    assert "are stored by the daemon, from 2027-01-15T08:03:30 at the latest" in shown


def test_halt_requests_other_jobs_after_unknown_job_id(jobs: FakeDaemon) -> None:
    done = run(FFDL, "halt", UNKNOWN, JOB, OTHER, daemon=jobs)
    assert (done.returncode, done.stdout) == (66, f"{JOB} PROCESSING, halt requested\n{OTHER} COMPLETED\n")
    assert f"ffdl: there is no job {UNKNOWN}" in done.stderr
    assert jobs.acts == [("halt", JOB, None), ("halt", OTHER, None)]


def test_halt_reports_why_request_is_delayed_or_overruled(jobs: FakeDaemon) -> None:
    suspended = "SUSPENDED: the scheduler has stopped it; until it lets it run again a halt waits, a cancel does not"
    told = {
        JOB: make_job(JOB, requested_action="halt", pending_reason=suspended),
        OTHER: make_job(OTHER, requested_action="cancel"),
        QUEUED: make_job(QUEUED, state="QUEUED", requested_action="halt", pending_reason="Resources"),
    }
    jobs.jobs = {job_id: make_job(job_id) for job_id in told}
    jobs.on_act = lambda _, job_id: jobs.jobs.update({job_id: told[job_id]})
    done = run(FFDL, "halt", *told, daemon=jobs)
    overruled = f"ffdl: {OTHER}: it is being cancelled, and a halt does not take that back\n"
    assert done.stderr == f"ffdl: {JOB}: {suspended}\n{overruled}"
    assert done.stdout.splitlines()[1:] == [f"{OTHER} PROCESSING, cancel requested", f"{QUEUED} QUEUED, halt requested"]


def test_halt_wait_waits_for_all_jobs_and_reports_how_they_ended(jobs: FakeDaemon) -> None:
    jobs.on_wait = lambda job_id: HALTED if job_id == JOB else jobs.jobs[job_id]
    done = run(FFDL, "halt", "--wait", JOB, OTHER, daemon=jobs)
    assert (done.returncode, done.stdout) == (0, f"{JOB} HALTED\n{OTHER} COMPLETED\n")
    assert done.stderr == f"ffdl: {JOB}: {SENTENCE}\n"
    asked = [request for request in jobs.requests if "/jobs/" in request]
    assert [request.split("/")[-1].partition("?")[0] for request in asked] == ["halt", "halt", "wait", "wait"]
    (first, second) = json_lines(run(FFDL, "halt", "--wait", "--json", JOB, OTHER, daemon=jobs).stdout)
    assert (first["job"]["state"], second["job"]["state"]) == ("HALTED", "COMPLETED")
    jobs.on_wait = lambda job_id: make_job(job_id, state="FAILED", exit_code=3)
    assert run(FFDL, "halt", "--wait", JOB, daemon=jobs).returncode == 3


def test_resume_sends_changed_gpus_and_time(jobs: FakeDaemon) -> None:
    jobs.on_act = lambda _, job_id: jobs.jobs.update({job_id: make_job(job_id, state="PENDING")})
    done = run(FFDL, "resume", JOB, "--gpus", "2", "--time", "1-00:00:00", daemon=jobs)
    assert (done.returncode, done.stdout) == (0, f"{JOB} PENDING, resumed\n")
    (document,) = json_lines(run(FFDL, "resume", "--json", JOB, daemon=jobs).stdout)
    assert document["job"]["state"] == "PENDING"
    same = {"learners": None, "global_batch": None}
    assert [body for _, _, body in jobs.acts] == [
        {"gpus": 2.0, "time": "1-00:00:00", **same}, {"gpus": None, "time": None, **same},
    ]  # fmt: skip
    assert run(FFDL, "resume", "--gpus", "-1", JOB, daemon=jobs).returncode == 2


def test_resume_sends_changed_size(jobs: FakeDaemon) -> None:
    assert run(FFDL, "resume", JOB, "--learners", "4", "--batch", "512", daemon=jobs).returncode == 0
    assert [body for _, _, body in jobs.acts] == [{"gpus": None, "time": None, "learners": 4, "global_batch": 512}]
    assert run(FFDL, "resume", "--learners", "0", JOB, daemon=jobs).returncode == 2


def test_show_prints_size_of_each_attempt_of_elastic_job(jobs: FakeDaemon) -> None:
    attempts = (replace(FIRST, learners=2, global_batch=128), replace(SECOND, learners=4, global_batch=512))
    jobs.jobs[JOB] = make_job(JOB, state="QUEUED", attempt=2, attempts=attempts, job_dir="/jobs/x")
    lines = run(FFDL, "show", JOB, daemon=jobs, env={"TZ": "UTC"}).stdout.splitlines()
    table = [line.split() for line in lines[lines.index("Attempts:") + 1 :][:3]]
    assert table[0][:6] == ["ATTEMPT", "SCHEDULER'S", "ID", "NODES", "LEARNERS", "BATCH"]
    assert [row[:5] for row in table[1:]] == [["1", "4711", "n1", "2", "128"], ["2", "none", "N/A", "4", "512"]]


@pytest.mark.parametrize("option", ["--json", "--wait", None])
def test_resume_prints_warnings_of_job(jobs: FakeDaemon, option: str | None) -> None:
    said = ("gpus: 99 asked for, but this machine has none", "m.yml:3:1: warning: x: not known")
    jobs.jobs[JOB] = make_job(JOB, state="COMPLETED", ended_at=T0, exit_code=0, warnings=said)
    done = run(FFDL, "resume", *([option] if option else []), "--gpus", "99", JOB, daemon=jobs)
    assert (done.returncode, done.stderr) == (0, f"ffdl: warning: {said[0]}\nffdl: {said[1]}\n")


def test_resume_wait_exits_with_job_exit_status(jobs: FakeDaemon) -> None:
    jobs.on_wait = lambda job_id: make_job(job_id, state="FAILED", exit_signal=9)
    done = run(FFDL, "resume", "--wait", JOB, daemon=jobs)
    assert (done.returncode, done.stdout) == (137, f"{JOB} PROCESSING, resumed\n{JOB} FAILED\n")
    (document,) = json_lines(run(FFDL, "resume", "--wait", "--json", JOB, daemon=jobs).stdout)
    assert document["job"]["state"] == "FAILED"


def test_resume_reports_refusal_and_continues_with_other_jobs(jobs: FakeDaemon) -> None:
    problem = Problem("C101", f"{OTHER} has completed", 1, "submit it again")
    jobs.refusals[f"/api/v1/jobs/{OTHER}/resume"] = (409, problem)
    done = run(FFDL, "resume", OTHER, JOB, daemon=jobs)
    assert (done.returncode, done.stdout) == (1, f"{JOB} PROCESSING, resumed\n")
    assert done.stderr == f"ffdl: {OTHER} has completed (submit it again)\n"


def test_submit_wait_follows_job_through_all_attempts(jobs: FakeDaemon, manifest: Path, model: Path) -> None:
    states = [("PROCESSING", 1), ("DEPLOYING", 2), ("PENDING", 2), ("PROCESSING", 3)]
    running = [make_job(JOB, state=state, attempt=attempt) for state, attempt in states]
    course = iter([*running, replace(HALTED, attempt=3)])
    jobs.on_wait = lambda _: next(course)
    done = run(FFDL_SUBMIT, "--wait", "--json", manifest, model, daemon=jobs)
    submitted, ended = json_lines(done.stdout)
    assert submitted["result"]["id"] == ended["job"]["id"] == JOB
    assert (ended["job"]["state"], ended["job"]["attempt"]) == ("HALTED", 3)
    assert (done.returncode, done.stderr) == (1, f"ffdl-submit: {JOB}: HALTED: {SENTENCE}\n")


def test_show_prints_table_of_attempts_and_restart_by_scheduler(jobs: FakeDaemon) -> None:
    overrides = {"gpus": "2", "batch.exclude": "n3"}
    again = RestartView(T0 + 30, "the scheduler restarted the job: a node or controller failed")
    attempts = (replace(FIRST, restarts=(again,)), SECOND)
    jobs.jobs[JOB] = make_job(JOB, state="QUEUED", attempt=2, attempts=attempts, job_dir="/jobs/x", overrides=overrides)
    lines = run(FFDL, "show", JOB, daemon=jobs, env={"TZ": "UTC"}).stdout.splitlines()
    table = lines[lines.index("Attempts:") + 1 :][:3]
    assert " ".join(table[0].split()) == "ATTEMPT SCHEDULER'S ID NODES FROM TO ENDED BECAUSE CHECKPOINT"
    first = "1        4711            n1     2027-01-15T08:00:01  2027-01-15T08:01:00  the time limit"
    assert table[1].startswith(first)
    assert table[1].endswith("the time limit was reached  confirmed after 3.1 s")
    assert table[2].split() == ["2", "none", "N/A", "2027-01-15T08:01:01", "N/A"]
    text = "\n".join(lines)
    assert "Pending upload:      of attempt 1: results and logs are in /jobs/x/attempt-1" in text
    assert "/jobs/x/attempt-1, and are stored by the next attempt, or by the daemon" in text
    assert "Altered:             batch.exclude is n3; gpus is 2" in text
    assert "Network planned:     none" in text
    assert f"Attempt 1 again:     2027-01-15T08:00:30 {again.message}" in lines


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"state": "PENDING"}, "planned"),
        ({"state": "DOWNLOADING"}, "planned"),
        ({"state": "CANCELLED", "ended_at": T0}, "planned"),
        ({"state": "PROCESSING"}, "achieved"),
        ({"state": "FAILED", "timestamps": {"PROCESSING": T0}}, "achieved"),
        ({"state": "FAILED", "exit_code": 3}, "achieved"),
        ({"state": "COMPLETED"}, "achieved"),
    ],
)
def test_show_labels_network_level_planned_until_learners_run(
    jobs: FakeDaemon, changes: dict[str, object], label: str
) -> None:
    jobs.jobs[JOB] = make_job(JOB, **changes)
    assert f"\nNetwork {label}: " in run(FFDL, "show", JOB, daemon=jobs).stdout


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"state": "PROCESSING"}, "To be stored in"),
        ({"state": "STORING"}, "To be stored in"),
        ({"state": "COMPLETED", "ended_at": T0}, "Stored in"),
        ({"state": "COMPLETED", "ended_at": T0, "attempts": (replace(FIRST, upload_pending=True),)}, "To be stored in"),
        ({"state": "FAILED", "ended_at": T0, "error_code": "C201", "exit_code": 3}, "Stored in"),
        ({"state": "FAILED", "ended_at": T0, "error_code": "S303", "exit_code": 0}, "Store"),
        ({"state": "FAILED", "ended_at": T0, "error_code": "S303", "settled_at": T0}, "Stored in"),
        ({"state": "FAILED", "ended_at": T0, "error_code": "S105"}, "Store"),
        ({"state": "CANCELLED", "ended_at": T0, "timestamps": {"PROCESSING": T0}}, "Store"),
    ],
)
def test_show_labels_result_store_by_state_of_job(jobs: FakeDaemon, changes: dict[str, object], label: str) -> None:
    shown = run(FFDL, "show", JOB, daemon=jobs).stdout
    assert "\nStore" not in shown and "\nTo be stored" not in shown, "it has no store"
    jobs.jobs[JOB] = make_job(JOB, stored_in=f"s3://kept/out/{JOB}", stored_at="https://s3.example.org", **changes)
    shown = run(FFDL, "show", JOB, daemon=jobs).stdout
    assert f"\n{label + ':':<20} s3://kept/out/{JOB}  [https://s3.example.org]\n" in shown


def test_show_prints_when_pending_upload_was_completed(jobs: FakeDaemon) -> None:
    where = f"s3://kept/out/{JOB}"
    failed = make_job(JOB, state="FAILED", ended_at=T0, error_code="S303", stored_in=where, cure="nothing")
    jobs.jobs[JOB] = replace(failed, settled_at=T0 + 90, attempts=(replace(FIRST, uploaded_at=T0 + 90),))
    shown = run(FFDL, "show", JOB, daemon=jobs, env={"TZ": "UTC"}).stdout
    assert f"\nSettled:             at 2027-01-15T08:01:30: all is stored in {where}\nWhat to do:" in shown
    assert "\nAttempt 1 upload:    finished later, at 2027-01-15T08:01:30\n" in shown


@pytest.mark.parametrize(
    ("level", "by", "shown"),
    [
        ("job", "vxlan", "job (vxlan)"),
        ("host", "none", "host"),
        ("host", "none; not looked at", "host (not looked at)"),
    ],
)
def test_show_prints_network_mechanism_after_level_if_there_is_one(
    jobs: FakeDaemon, level: str, by: str, shown: str
) -> None:
    jobs.jobs[JOB] = make_job(JOB, state="FAILED", network=level, network_by=by)
    assert f"\nNetwork achieved:    {shown}\n" in run(FFDL, "show", JOB, daemon=jobs).stdout
    found = json.loads(run(FFDL, "show", "--json", JOB, daemon=jobs).stdout)["job"]
    assert (found["network"], found["network_by"]) == (level, by)


@pytest.mark.parametrize(
    ("state", "attempt", "heading"), [("QUEUED", 2, 2), ("PENDING", 1, 2), ("QUEUED", 1, None), ("PENDING", 0, None)]
)
def test_show_names_attempt_of_timestamps_if_job_had_others(
    jobs: FakeDaemon, state: str, attempt: int, heading: int | None
) -> None:
    jobs.jobs[JOB] = make_job(JOB, state=state, attempt=attempt, timestamps={state: T0})
    lines = run(FFDL, "show", JOB, daemon=jobs, env={"TZ": "UTC"}).stdout.splitlines()
    (submitted,) = [number for number, line in enumerate(lines) if line.startswith("Submitted: ")]
    at = lines.index(f"  {state + ':':<18} 2027-01-15T08:00:00")
    assert lines[submitted + 1 : at] == ([] if heading is None else [f"Times of attempt {heading}:"])
    waits = "; attempt 2 is next" if (state, attempt) == ("PENDING", 1) else ""
    assert f"Attempt:             {attempt}{waits}" in lines


def test_show_prints_how_last_attempt_ended_and_time_of_saved_checkpoint(jobs: FakeDaemon) -> None:
    last = replace(SECOND, ended_at=T0 + 90, error_code="000")
    jobs.jobs[JOB] = make_job(JOB, state="COMPLETED", ended_at=T0 + 90, attempts=(FIRST, last))
    assert "  completed\n" in run(FFDL, "show", JOB, daemon=jobs).stdout
    failed = replace(last, error_code="C201", interruption="failure")
    jobs.jobs[JOB] = make_job(JOB, state="FAILED", ended_at=T0 + 90, attempts=(FIRST, failed))
    assert "  the learner failed (C201)\n" in run(FFDL, "show", JOB, daemon=jobs).stdout
    lost = replace(
        FIRST, interruption="node_failure", checkpoint_asked=False, checkpoint_confirmed=False, upload_pending=False
    )
    jobs.jobs[JOB] = make_job(JOB, state="PENDING", attempts=(lost,))
    shown = run(FFDL, "show", JOB, daemon=jobs, env={"TZ": "UTC"}).stdout
    assert "  a node or controller failed  saved 2027-01-15T08:00:59\n" in shown
    assert "Pending upload" not in shown


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (SECOND, ""),
        (replace(SECOND, checkpoint_asked=True), "none confirmed"),
        (replace(SECOND, checkpoint_asked=True, checkpoint_answered=True), "answered without one"),
        (replace(FIRST, checkpoint_took_s=None), "confirmed"),
    ],
)
def test_describe_checkpoint_summarises_checkpoint_of_attempt(attempt: AttemptView, said: str) -> None:
    assert describe_checkpoint(attempt) == said


def test_list_prints_halt_message_and_requested_action(jobs: FakeDaemon) -> None:
    jobs.jobs = {JOB: HALTED}
    line = run(FFDL, "list", "--noheader", "-t", "halted", daemon=jobs).stdout
    assert " HALTED " in line
    assert line.endswith(f"({SENTENCE})\n")
    assert place_or_reason(make_job(requested_action="halt", pending_reason="Priority")) == "(halt requested)"
    uncertain = make_job(requested_action="cancel", uncertain_since=1.0)
    assert place_or_reason(uncertain) == "(cancel requested; waiting for the scheduler's answer)"
    told = replace(uncertain, pending_reason="it may still arrive")
    assert place_or_reason(told) == "(cancel requested; it may still arrive)"
    assert place_or_reason(replace(told, requested_action="none")) == "(it may still arrive)"
    assert place_or_reason(replace(HALTED, error_code="S305", message="no space")) == "(S305 no space)"


def test_events_prints_attempt_cause_of_requeue_and_error(jobs: FakeDaemon) -> None:
    jobs.jobs[JOB] = HALTED
    jobs.events = [
        EventView(JOB, 1, T0, "PROCESSING", 1, "progress"),
        EventView(JOB, 2, T0 + 1, "DEPLOYING", 2, "requeued", "the time limit was reached; checkpoint confirmed"),
        EventView(JOB, 3, T0 + 2, "PENDING", 2, "resumed", "resumed by its owner"),
        EventView(JOB, 4, T0 + 3, "QUEUED", 2, "requeued"),
        EventView(JOB, 5, T0 + 4, "FAILED", 2, "progress", "it broke", "C201"),
    ]
    done = run(FFDL, "events", "-f", JOB, daemon=jobs, env={"TZ": "UTC"})
    assert done.stdout.splitlines() == [
        "2027-01-15T08:00:00  PROCESSING   1",
        "2027-01-15T08:00:01  DEPLOYING    2  requeued: the time limit was reached; checkpoint confirmed",
        "2027-01-15T08:00:02  PENDING      2  resumed by its owner",
        "2027-01-15T08:00:03  QUEUED       2  requeued",
        "2027-01-15T08:00:04  FAILED       2  C201 it broke",
    ]
    assert json_lines(run(FFDL, "events", "--json", JOB, daemon=jobs).stdout)[4]["event"]["error_code"] == "C201"
