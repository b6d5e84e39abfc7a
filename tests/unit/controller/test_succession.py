"""How a head goes on: the next attempt's files and their submission."""

from __future__ import annotations

import fcntl
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.conclusion import Conclusion
from ffdl_batch.attempt.control_cell import Control
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.controller.head import continuation
from ffdl_batch.controller.head import next_attempt as succession
from ffdl_batch.controller.head.continuation import Continuation
from ffdl_batch.controller.head.next_attempt import Measured, Refused, kept_environment, next_lead, submit_next
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand, Succession, decode, encode
from ffdl_batch.domain.launch.limits import Lead, LeadFrom, Limits
from ffdl_batch.domain.outcome.continuation import Budget, Checkpoint, Spent
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn, Outcome

JOB = "training-0a1b2c3d4"
CONFIRMED = Checkpoint(asked=True, confirmed=True, answered=True, took_s=4.0, saved_at=5.0, newest="c")
HALTED = Conclusion(Outcome.HALTED, True, message="x", interruption="timeout", checkpoint=CONFIRMED)
UNCONFIRMED = replace(HALTED, outcome=Outcome.TIMED_OUT, checkpoint=Checkpoint(asked=True), error_code="C203")


def plan(tmp_path: Path, **succession: object) -> LaunchFile:
    """A first attempt with its template on disk."""
    job = JobDir(str(tmp_path / JOB))
    own = Succession(job.template.path, budget=Budget(timeouts=3), gpus=2.0, lead_s=20, timeout_s=120.0)
    own = replace(own, **succession)  # type: ignore[arg-type]
    command = LearnerCommand(("x", "{{literal}}"), {"LOG_DIR": f"{job.template.path}/logs", "SAID": "attempt-next"})
    planned = LaunchFile(
        JOB, 2, f"{JOB}-next", job.path, job.template.path, "/bell", command, limits=Limits(lead_s=20),
        checkpoints=job.checkpoints, succession=own,
    )  # fmt: skip
    template = Path(job.template.path)
    template.mkdir(parents=True)
    (template / "launch.json").write_text(encode(planned))
    (template / "script.sh").write_text(f"#!/bin/sh\n#SBATCH --job-name={JOB}-next\nexec {job.template.path}/x\r\n")
    (template / "script.sh").chmod(0o700)
    (template / "environment.json").write_text('{"A": "zażółć"}')
    (template / "environment.json").chmod(0o600)
    (template / ".script.sh.half").write_text("torn")
    return replace(planned, attempt=1, token=f"{JOB}-1", attempt_dir=job.attempt(1).path)


def noted(launch: LaunchFile, **cell: object) -> LaunchFile:
    """The platform has written into the attempt's control file."""
    Path(launch.attempt_dir).mkdir(parents=True)
    Path(AttemptDir(launch.attempt_dir).control).write_text(json.dumps({"attempt": 1, **cell}))
    return launch


def submitter(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "submit.py"
    path.write_text("import fcntl, json, os, sys, time\n" + body)
    return (sys.executable, str(path), "--after={native_id}", "--lead={lead_s}", "{token}", "{script}")


def go(launch: LaunchFile, spent: Spent | None = None, **measured: Any) -> AttemptDir:
    assert launch.succession is not None
    submit_next(launch, launch.succession, "77", Measured(spent or Spent(timeouts=1), **measured))
    return JobDir(launch.job_dir).attempt(launch.attempt + 1)


def test_submit_next_creates_next_attempt_from_template(tmp_path: Path) -> None:
    launch = plan(tmp_path)
    attempt = go(launch, Spent(timeouts=1, gpu_seconds=9.0), took_s=40.0)
    written = decode(Path(attempt.launch).read_text())
    assert (written.attempt, written.token, written.attempt_dir) == (2, f"{JOB}-2", attempt.path)
    assert written.carry == AttemptDir(launch.attempt_dir).results
    assert written.succession is not None and launch.succession is not None
    assert written.succession.template == launch.succession.template
    assert written.succession.spent == Spent(timeouts=1, gpu_seconds=9.0)
    assert written.limits.lead_s == written.succession.lead_s == 70
    assert written.limits.lead_from is LeadFrom.MEASURED
    assert written.learner.env == {"LOG_DIR": f"{attempt.path}/logs", "SAID": "attempt-next"}
    script = Path(attempt.script)
    assert script.read_bytes().decode() == f"#!/bin/sh\n#SBATCH --job-name={JOB}-2\nexec {attempt.path}/x\r\n"
    assert [Path(p).stat().st_mode & 0o777 for p in (attempt.path, attempt.submit, attempt.script)] == [0o700] * 3
    assert json.loads(Path(attempt.environment).read_text()) == {"A": "zażółć"}
    assert json.loads(Path(attempt.control).read_text())["attempt"] == 2
    assert Path(attempt.submit_begun).read_text() == "begun\n"
    assert not (Path(attempt.path) / ".script.sh.half").exists()


def test_submit_next_reuses_template_for_later_attempts(tmp_path: Path) -> None:
    first = plan(tmp_path)
    second = decode(Path(go(first).launch).read_text())
    third = decode(Path(go(second).launch).read_text())
    assert (third.attempt, third.token) == (3, f"{JOB}-3")
    assert third.carry == AttemptDir(second.attempt_dir).results


def test_submit_next_names_checkpoint_that_was_confirmed_last(tmp_path: Path) -> None:
    first = plan(tmp_path)
    second = decode(Path(go(first, confirmed="rank-0/step-4").launch).read_text())
    third = decode(Path(go(second).launch).read_text())
    fourth = decode(Path(go(third, confirmed="rank-1/step-9").launch).read_text())
    assert [one.confirmed for one in (first, second, third, fourth)] == ["", *["rank-0/step-4"] * 2, "rank-1/step-9"]


def test_submit_next_filters_environment_and_keeps_command_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("X_ONE", "1")
    argv = submitter(tmp_path, "print(101); print(json.dumps([sys.argv[1:], dict(os.environ)]), file=sys.stderr)\n")
    attempt = go(plan(tmp_path, submit=argv, keep_env=("PATH", "SLURM_CONF", "X_*")))
    assert (Path(attempt.submit) / "reply").read_text() == "101\n"
    arguments, environ = json.loads((Path(attempt.submit) / "complaint").read_text())
    assert arguments == ["--after=77", "--lead=20", f"{JOB}-2", attempt.script]
    assert "SECRET" not in environ and (environ["SLURM_CONF"], environ["X_ONE"]) == ("/etc/slurm.conf", "1")


def test_submit_next_runs_command_under_lock_with_begun_mark(tmp_path: Path) -> None:
    check = (
        "d = os.path.dirname(sys.argv[4]) + '/submit/'\n"
        "fd = os.open(d + 'lock', os.O_RDWR)\n"
        "try:\n    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
        "except BlockingIOError:\n    print('held', open(d + 'begun').read())\n"
    )
    attempt = go(plan(tmp_path, submit=submitter(tmp_path, check)))
    assert (Path(attempt.submit) / "reply").read_text().split() == ["held", "begun"]


@pytest.mark.parametrize(
    ("body", "timeout_s", "message", "begun"),
    [
        ("print('Invalid qos', file=sys.stderr); sys.exit(1)\n", 120.0, "exited with status 1: Invalid qos", True),
        ("time.sleep(600)\n", 0.2, r"did not answer in 0\.2 s", True),
        ("", 120.0, "cannot be submitted", False),
    ],
)
def test_submit_next_reports_failure_and_keeps_begun_mark_if_command_ran(
    tmp_path: Path, body: str, timeout_s: float, message: str, begun: bool
) -> None:
    submit = submitter(tmp_path, body) if body else ("/nowhere/sbatch", "{script}")
    launch = plan(tmp_path, submit=submit, timeout_s=timeout_s)
    with pytest.raises(Refused, match=message):
        go(launch)
    assert Path(JobDir(launch.job_dir).attempt(2).submit_begun).exists() is begun


@pytest.mark.parametrize("begun", [True, False])
def test_submit_next_does_not_submit_if_submission_is_begun_or_locked(tmp_path: Path, begun: bool) -> None:
    launch = plan(tmp_path, submit=submitter(tmp_path, "print(1)\n"))
    attempt = JobDir(launch.job_dir).attempt(2)
    Path(attempt.submit).mkdir(parents=True)
    with (Path(attempt.submit) / "lock").open("w") as lock:
        if begun:
            Path(attempt.submit_begun).write_text("begun\n")
        else:
            fcntl.flock(lock, fcntl.LOCK_EX)
        go(launch)
    assert not (Path(attempt.submit) / "reply").exists()
    assert (Path(attempt.submit_begun).exists(), Path(attempt.launch).exists()) == (begun, not begun)


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign"])
def test_submit_next_rejects_missing_damaged_or_foreign_template(tmp_path: Path, damage: str) -> None:
    launch = plan(tmp_path)
    path = tmp_path / JOB / "attempt-next" / "launch.json"
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(path.read_text().replace(JOB, "training-zzzzzzzzz") if damage == "foreign" else "{")
    with pytest.raises(Refused, match="attempt 2 cannot be written"):
        go(launch)
    assert not Path(JobDir(launch.job_dir).attempt(2).submit_begun).exists()


@pytest.mark.parametrize(
    ("lead_s", "origin", "took_s", "limit_s", "expected"),
    [
        (20, "default", None, None, (20, "default")),
        (20, "default", 4.0, None, (20, "default")),
        (20, "default", 20.0, None, (40, "measured")),
        (20, "measured", 4.0, None, (20, "measured")),
        (20, "default", 20.0, 60.0, (30, "time limit")),
        (20, "time limit", 20.0, 30.0, (20, "time limit")),
        (20, "manifest", 20.0, None, (20, "manifest")),
        (None, "", 20.0, None, (None, "")),
    ],
)
def test_next_lead_grows_with_checkpoint_time_unless_set_in_manifest(
    tmp_path: Path, lead_s: int | None, origin: str, took_s: float | None, limit_s: float | None,
    expected: tuple[int | None, str],
) -> None:  # fmt: skip
    launch = plan(tmp_path, lead_s=lead_s)
    launch = replace(launch, limits=replace(launch.limits, lead_s=lead_s, lead_from=LeadFrom(origin)))
    assert launch.succession is not None
    found = next_lead(launch, launch.succession, Measured(Spent(), took_s, limit_s))
    assert found == Lead(expected[0], LeadFrom(expected[1]))


def test_kept_environment_matches_names_and_prefixes() -> None:
    environ = {"A": "1", "AA": "2", "B_": "3", "B_X": "4"}
    assert kept_environment(("A", "B_*"), environ) == {"A": "1", "B_": "3", "B_X": "4"}
    assert kept_environment((), {"A": "1"}) == {}


# -------------------------------------------------------------------------------------------------- the chain


def test_continuation_submits_successor_after_confirmed_checkpoint(tmp_path: Path) -> None:
    found = Continuation(plan(tmp_path), "77").arrange(HALTED, 100.0, None)
    spent = Spent(timeouts=1, gpu_seconds=100.0)
    assert (found.goes_on, found.attempt, found.spent) == (GoesOn.SUCCESSOR, 2, spent)
    assert "checkpoint confirmed" in found.message and found.error_code == ""


@pytest.mark.parametrize(
    ("settings", "end", "message"),
    [
        ({}, UNCONFIRMED, r"no checkpoint was confirmed.*the chain ends here"),
        ({"spent": Spent(timeouts=3)}, HALTED, "batch.retry.timeouts allows 3"),
        ({"budget": Budget(gpu_seconds=7200.0), "spent": Spent(gpu_seconds=7000.0)}, HALTED,
         "batch.retry.gpu_hours is 2"),
    ],
)  # fmt: skip
def test_continuation_stops_without_confirmed_checkpoint_or_retry_budget(
    tmp_path: Path, settings: dict[str, object], end: Conclusion, message: str
) -> None:
    found = Continuation(plan(tmp_path, **settings), "77").arrange(end, 200.0, None)
    assert (found.goes_on, found.error_code) == (GoesOn.NO, "C203")
    assert re.search(message, found.message), found.message


@pytest.mark.parametrize(("action", "interruption"), [("halt", "halt"), ("cancel", "timeout")])
def test_continuation_stops_after_halt_or_cancel_request(tmp_path: Path, action: str, interruption: str) -> None:
    launch = noted(plan(tmp_path), requested_action=action)
    found = Continuation(launch, "77").arrange(HALTED, 0.0, None)
    assert (found.goes_on, found.interruption) == (GoesOn.NO, interruption)
    assert not Path(JobDir(launch.job_dir).attempt(2).path).exists()


@pytest.mark.parametrize("why", ["", "halt"])
def test_continuation_ignores_halt_and_uninterrupted_end(tmp_path: Path, why: str) -> None:
    found = Continuation(plan(tmp_path), "77").arrange(replace(HALTED, interruption=why), 0.0, None)
    assert (found.goes_on, found.interruption, found.spent) == (GoesOn.NO, why, None)


def test_continuation_is_left_to_platform_if_launch_file_has_no_settings(tmp_path: Path) -> None:
    found = Continuation(replace(plan(tmp_path), succession=None), "77").arrange(HALTED, 0.0, None)
    assert (found.goes_on, found.interruption, found.message) == (GoesOn.NO, "timeout", "")


def test_continuation_is_left_to_platform_if_submission_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Continuation(plan(tmp_path, submit=("false",)), "77").arrange(HALTED, 0.0, None)
    assert (found.goes_on, found.attempt) == (GoesOn.PLATFORM, 2)
    assert "false exited with status 1" in found.message and "false exited with status 1" in capsys.readouterr().err


def unreadable(_attempt: AttemptDir) -> Control:
    raise OSError("stale file handle")


@pytest.mark.parametrize("is_readable", [True, False])
def test_continuation_of_job_that_was_asked_to_shrink_is_left_to_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    """Even if no event shows that a learner has left. Only the platform knows the size and the GPU time."""
    launch = noted(replace(plan(tmp_path), shrinks=True), learners=1)
    if not is_readable:
        monkeypatch.setattr(continuation, "read_control", unreadable)
    found = Continuation(launch, "77").arrange(HALTED, 100.0, None)
    assert (found.goes_on, found.attempt, found.interruption, found.spent) == (GoesOn.PLATFORM, 2, "timeout", None)
    assert not Path(JobDir(launch.job_dir).attempt(2).path).exists()


def test_continuation_submits_successor_of_job_that_may_shrink_but_was_not_asked(tmp_path: Path) -> None:
    launch = noted(replace(plan(tmp_path), shrinks=True))
    assert Continuation(launch, "77").arrange(HALTED, 100.0, None).goes_on is GoesOn.SUCCESSOR


def test_continuation_requeues_same_attempt_if_site_requeues(tmp_path: Path) -> None:
    path = tmp_path / "asked"
    launch = plan(tmp_path, requeue=(sys.executable, "-c", f"open({str(path)!r}, 'w').write('{{native_id}}')"))
    chain = Continuation(launch, "77")
    found = chain.arrange(HALTED, 0.0, None)
    assert (found.goes_on, found.attempt) == (GoesOn.REQUEUE, 1)
    assert not path.exists()
    assert (chain.requeue(), path.read_text()) == ("", "77")
    refused = Continuation(replace(launch, succession=replace(launch.succession, requeue=("false",))), "77")  # type: ignore[type-var]
    assert refused.requeue() == "false exited with status 1"


def test_continuation_adds_to_budget_spent_by_earlier_run(tmp_path: Path) -> None:
    before = FinalRecord("77", Outcome.HALTED, 0.0, True, goes_on=GoesOn.REQUEUE, spent=Spent(timeouts=2))
    assert Continuation(plan(tmp_path), "77", before).arrange(HALTED, 1.0, None).spent == Spent(
        timeouts=3, gpu_seconds=1.0
    )
    cut = FinalRecord("77", Outcome.CANCELLED, 0.0, True, gpu_seconds=50.0)
    found = Continuation(plan(tmp_path / "b"), "77", cut).arrange(HALTED, 1.0, None)
    assert found.spent == Spent(timeouts=1, gpu_seconds=51.0)


def drilled(launch: LaunchFile, **cell: object) -> LaunchFile:
    """The platform has noted a drill with the attempt."""
    return noted(launch, **{"drill": "timeout", **cell})


def test_drilled_timeout_continues_without_using_retry_budget(tmp_path: Path) -> None:
    launch = drilled(plan(tmp_path, spent=Spent(timeouts=3)), run=1)
    found = Continuation(launch, "77").arrange(HALTED, 100.0, None)
    assert (found.goes_on, found.interruption, found.simulated) == (GoesOn.SUCCESSOR, "timeout", True)
    assert found.spent == Spent(timeouts=3, gpu_seconds=100.0)
    assert found.message.startswith(
        "a drill simulated a time limit; checkpoint confirmed after 4.0 s (newest file: c); in earnest"
    )
    deaf = Continuation(drilled(plan(tmp_path / "b"), run=1), "77").arrange(UNCONFIRMED, 0.0, None)
    assert (deaf.goes_on, deaf.error_code, deaf.spent) == (GoesOn.SUCCESSOR, "", Spent())


@pytest.mark.parametrize(
    ("cell", "run", "interruption"),
    [({"run": 1}, 2, "timeout"), ({"run": 1}, 1, "preemption"), ({"run": 1, "drill": "preempt"}, 1, "timeout")],
    ids=["another run's", "another event's", "another event's too"],
)
def test_drill_of_other_run_or_event_uses_retry_budget(
    tmp_path: Path, cell: dict[str, object], run: int, interruption: str
) -> None:
    launch = drilled(plan(tmp_path), **cell)
    found = Continuation(launch, "77", run=run).arrange(replace(HALTED, interruption=interruption), 0.0, None)
    assert not found.simulated and found.spent in (Spent(timeouts=1), Spent(preemptions=1))


def test_drilled_timeout_is_reported_unless_owner_halts(tmp_path: Path) -> None:
    found = Continuation(replace(drilled(plan(tmp_path), run=1), succession=None), "77").arrange(HALTED, 0.0, None)
    assert (found.simulated, found.message) == (
        True,
        "a drill simulated a time limit; checkpoint confirmed after 4.0 s (newest file: c)",
    )
    halted = Continuation(drilled(plan(tmp_path / "b"), run=1, requested_action="halt"), "77").arrange(
        HALTED, 0.0, None
    )
    assert (halted.interruption, halted.simulated, halted.message) == ("halt", False, "")


@pytest.mark.parametrize("message", ["halted on request; no checkpoint was confirmed", "halted before it started"])
def test_drilled_halt_is_reported_as_drill(tmp_path: Path, message: str) -> None:
    halted = replace(HALTED, interruption="halt", message=message)
    found = Continuation(drilled(plan(tmp_path), run=1, drill="halt", requested_action="halt"), "77").arrange(
        halted, 0.0, None
    )
    assert (found.interruption, found.simulated, found.goes_on) == ("halt", True, GoesOn.NO)
    assert found.message == message.replace("halted on request", "a drill simulated a halt")
    earnest = Continuation(drilled(plan(tmp_path / "b"), run=1, drill="", requested_action="halt"), "77").arrange(
        halted, 0.0, None
    )
    assert (earnest.interruption, earnest.simulated, earnest.message) == ("halt", False, "")
    failed = replace(halted, interruption="", outcome=Outcome.FAILED, error_code="C201")
    assert (
        not Continuation(drilled(plan(tmp_path / "c"), run=1, drill="halt"), "77").arrange(failed, 0.0, None).simulated
    )


def test_submit_next_copies_secrets_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value may hold anything, also what stands for the next attempt in other files."""
    undumped: list[bool] = []
    monkeypatch.setattr(succession, "hide_memory", lambda: undumped.append(True))
    launch = plan(tmp_path)
    template = JobDir(launch.job_dir).template
    text = json.dumps({"token": f"{JOB}-next in {template.path}", "key": "a\r\nb"})
    Path(template.secrets).write_text(text)
    Path(template.secrets).chmod(0o600)
    attempt = go(launch)
    assert Path(attempt.secrets).read_bytes().decode() == text
    assert Path(attempt.secrets).stat().st_mode & 0o777 == 0o600
    assert undumped == [True]


def test_submit_next_rejects_template_without_needed_secrets(tmp_path: Path) -> None:
    launch = plan(tmp_path)
    own = Path(AttemptDir(launch.attempt_dir).secrets)
    own.parent.mkdir(parents=True)
    own.write_text("{}")
    with pytest.raises(Refused, match="holds none of the secrets"):
        go(launch)
