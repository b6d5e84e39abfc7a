"""ffdl logs, loglines and show of a job with several attempts, or without any output."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job.views import AttemptView, LogLine, OutputView, Problem
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"
HINT = "for earlier ones: --attempt N, or --attempt all"


def attempt(number: int, *, ran: bool = True) -> AttemptView:
    """One attempt of the job."""
    places = {"results": f"/j/attempt-{number}/results", "logs": f"/j/attempt-{number}/logs"} if ran else {}
    return AttemptView(number, str(number), "slurm", 1_800_000_000.0, **places)  # type: ignore[arg-type]


@pytest.fixture
def job(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that knows a job of which two attempts have an output each."""
    daemon.jobs[JOB] = make_job(JOB, attempt=2, attempts=(attempt(1), attempt(2)))
    daemon.lines = [LogLine(1, 1, "a", 1.5, 1, 0), LogLine(1, 2, "b", None, 1, 2), LogLine(1, 1, "c", None, 2, 0)]
    return daemon


def test_logs_marks_lines_with_attempt_only_if_all_are_requested(job: FakeDaemon) -> None:
    done = run(FFDL, "logs", "--attempt", "1", JOB, daemon=job)
    assert (done.stdout, done.stderr) == ("a\nb\n", "")
    done = run(FFDL, "loglines", "--attempt", "1", JOB, daemon=job)
    assert (done.stdout, done.stderr) == ("1 1500 a\n2 N/A b\n", "")
    done = run(FFDL, "logs", "--attempt", "ALL", JOB, daemon=job)
    assert (done.stdout, done.stderr) == ("[attempt 1] a\n[attempt 1] b\n[attempt 2] c\n", "")
    assert job.requests[-1] == f"GET /api/v1/jobs/{JOB}/logs?attempt=all"
    done = run(FFDL, "loglines", "--attempt", "all", JOB, daemon=job)
    assert (done.stdout, done.stderr) == ("[attempt 1] 1 1500 a\n[attempt 1] 2 N/A b\n[attempt 2] 1 N/A c\n", "")
    documents = json_lines(run(FFDL, "logs", "--attempt", "all", "--json", JOB, daemon=job).stdout)
    assert [(each["line"]["attempt"], each["line"]["line"]) for each in documents] == [(1, "a"), (1, "b"), (2, "c")]


def test_logs_marks_lines_with_attempt_and_learner(job: FakeDaemon) -> None:
    job.jobs[JOB] = make_job(JOB, learners=2, attempt=2, attempts=(attempt(1), attempt(2)))
    job.lines = [LogLine(1, 1, "a", None, 1, 0), LogLine(2, 1, "b", None, 1, 0), LogLine(2, 1, "c", None, 2, 0)]
    assert run(FFDL, "logs", "--attempt", "all", JOB, daemon=job).stdout == "[1.1] a\n[1.2] b\n[2.2] c\n"
    assert run(FFDL, "logs", "--attempt", "1", JOB, daemon=job).stdout == "[1] a\n[2] b\n"
    by_learner = run(FFDL, "logs", "--attempt", "all", "--by-learner", JOB, daemon=job)
    assert by_learner.stdout == "[1.1] a\n[1.2] b\n[2.2] c\n"
    one = run(FFDL, "logs", "--attempt", "all", "--learner", "2", JOB, daemon=job)
    assert one.stdout == "[attempt 1] b\n[attempt 2] c\n"


@pytest.mark.parametrize("verb", ["logs", "loglines"])
@pytest.mark.parametrize("word", ["0", "-1", "two", "1.5", ""])
def test_logs_rejects_invalid_attempt_number(job: FakeDaemon, verb: str, word: str) -> None:
    done = run(FFDL, verb, f"--attempt={word}", JOB, daemon=job)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{word!r} is neither the number of an attempt nor 'all'" in done.stderr
    assert job.requests == []


@pytest.mark.parametrize("verb", ["logs", "loglines"])
@pytest.mark.parametrize(
    ("attempts", "shown", "said"),
    [
        ([True], 1, ""),
        ([True, True], 2, f"this is the output of attempt 2; {HINT}"),
        ([False, True], 2, ""),
        ([True, False], 1, "this is the output of attempt 1; attempt 2 has none"),
        ([True, True, False, False], 2, f"this is the output of attempt 2; attempts 3 to 4 have none; {HINT}"),
    ],
)
def test_logs_notes_other_attempts_once_on_stderr(
    job: FakeDaemon, verb: str, attempts: list[bool], shown: int, said: str
) -> None:
    chain = tuple(attempt(number, ran=ran) for number, ran in enumerate(attempts, 1))
    job.jobs[JOB] = make_job(JOB, attempt=len(chain), attempts=chain)
    job.lines = [LogLine(1, n, "x", None, shown, n) for n in (1, 2)]
    done = run(FFDL, verb, JOB, daemon=job)
    assert done.stdout == ("x\nx\n" if verb == "logs" else "1 N/A x\n2 N/A x\n")
    assert done.stderr == (f"ffdl: {said}\n" if said else "")


def test_logs_by_learner_keeps_one_attempt_across_requests(job: FakeDaemon) -> None:
    """The newest attempt may begin to write between two requests."""
    job.jobs[JOB] = make_job(JOB, learners=2, attempt=2, attempts=(attempt(1), attempt(2, ran=False)))
    job.lines = [LogLine(1, 1, "a", None, 1, 0), LogLine(2, 1, "b", None, 1, 0), LogLine(2, 1, "c", None, 2, 0)]
    done = run(FFDL, "logs", "--by-learner", JOB, daemon=job)
    assert (done.stdout, done.stderr.count("\n")) == ("[1] a\n[2] b\n", 1)
    assert job.requests[-1] == f"GET /api/v1/jobs/{JOB}/logs?learner=2&attempt=1"


@pytest.mark.parametrize("verb", ["logs", "loglines"])
def test_logs_follow_announces_next_attempt(job: FakeDaemon, verb: str) -> None:
    job.jobs[JOB] = make_job(JOB, attempts=(attempt(1),))
    done = run(FFDL, verb, "-f", JOB, daemon=job)
    assert [line.rpartition(" ")[2] for line in done.stdout.splitlines()] == ["a", "b", "c"]
    assert done.stderr == "ffdl: attempt 2 has begun\n"
    named = run(FFDL, verb, "-f", "--attempt", "all", JOB, daemon=job)
    assert (named.stderr, named.stdout.splitlines()[-1].startswith("[attempt 2] ")) == ("", True)


def test_show_names_attempt_of_results_and_logs(job: FakeDaemon) -> None:
    places = {"results": "/j/attempt-1/results", "logs": "/j/attempt-1/logs"}
    job.jobs[JOB] = make_job(JOB, attempt=2, attempts=(attempt(1), attempt(2, ran=False)), **places)
    shown = run(FFDL, "show", JOB, daemon=job).stdout
    assert "Results:             /j/attempt-1/results  [attempt 1]\n" in shown
    assert "Logs:                /j/attempt-1/logs  [attempt 1]\n" in shown
    assert "Attempt 1" not in shown, "it would say the same again"


def test_show_prints_results_and_logs_of_each_attempt_that_ran(job: FakeDaemon) -> None:
    chain = (attempt(1), attempt(2, ran=False), attempt(3))
    job.jobs[JOB] = make_job(JOB, attempt=3, attempts=chain, results="/store", logs="/j/attempt-3/logs")
    shown = run(FFDL, "show", JOB, daemon=job).stdout
    of_job = ("Results:             /store\n", "Logs:                /j/attempt-3/logs\n")
    kinds = ("results: ", "logs:    ")
    of_attempts = [f"Attempt {n} {kind}  /j/attempt-{n}/{kind.strip(' :')}\n" for n in (1, 3) for kind in kinds]
    for line in (*of_job, *of_attempts):
        assert line in shown
    assert "Attempt 2" not in shown
    (document,) = json_lines(run(FFDL, "show", "--json", JOB, daemon=job).stdout)
    assert [each["logs"] for each in document["job"]["attempts"]] == ["/j/attempt-1/logs", "", "/j/attempt-3/logs"]


RAN = (AttemptView(1, "4711", "slurm", 0.0, logs="/j/attempt-1/logs"),)
PLACES = {"logs": "/j/attempt-1/logs", "job_dir": "/j", "attempts": RAN}


@pytest.mark.parametrize("state", ["PENDING", "DEPLOYING", "QUEUED", "DOWNLOADING"])
def test_logs_reports_no_output_before_job_starts(daemon: FakeDaemon, state: str) -> None:
    daemon.jobs[JOB] = make_job(JOB, state=state, attempts=(AttemptView(1, "4711", "slurm", 0.0),))
    done = run(FFDL, "logs", JOB, daemon=daemon)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"ffdl: {JOB} is {state} and has no output yet; -f waits\n"
    daemon.lines = [LogLine(1, 1, "a", None, 1)]
    followed = run(FFDL, "logs", "-f", JOB, daemon=daemon)
    assert (followed.returncode, followed.stdout) == (0, "a\n")
    assert followed.stderr == f"ffdl: {JOB} is {state} and has no output yet; waiting for it\n"


GONE = f"{JOB} has no logs any more: /j/attempt-1/logs does not exist"


@pytest.mark.parametrize("follow", [(), ("-f",)])
@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "HALTED", "CANCELLED"])
def test_logs_reports_that_ended_job_printed_nothing(daemon: FakeDaemon, state: str, follow: tuple[str, ...]) -> None:
    daemon.jobs[JOB] = make_job(JOB, state=state)
    done = run(FFDL, "logs", *follow, JOB, daemon=daemon)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"ffdl: {JOB} is {state}, and none of its learners started\n"
    daemon.jobs[JOB] = make_job(JOB, state=state, stored_in="s3://bucket", **PLACES)
    daemon.output = OutputView(JOB, "logs", state, attempt=1, directory="/j/attempt-1/logs")
    done = run(FFDL, "logs", *follow, JOB, daemon=daemon)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"ffdl: {JOB} is {state} and has printed nothing\n")


@pytest.mark.parametrize(
    ("state", "said"), [("DOWNLOADING", "nothing yet"), ("PROCESSING", "nothing yet"), ("STORING", "nothing")]
)
def test_logs_reports_that_live_job_printed_nothing(daemon: FakeDaemon, state: str, said: str) -> None:
    daemon.jobs[JOB] = make_job(JOB, state=state, **PLACES)
    assert run(FFDL, "logs", JOB, daemon=daemon).stderr == f"ffdl: {JOB} is {state} and has printed {said}\n"


def test_logs_reports_that_one_attempt_printed_nothing(daemon: FakeDaemon) -> None:
    chain = (*RAN, AttemptView(2, "4712", "slurm", 0.0), AttemptView(3, "4713", "slurm", 0.0, logs="/j/attempt-3/logs"))
    daemon.jobs[JOB] = make_job(JOB, state="PROCESSING", attempt=3, attempts=chain)
    daemon.output = OutputView(JOB, "logs", "PROCESSING", attempt=1, directory="/j/attempt-1/logs")
    shown = [run(FFDL, "logs", "--attempt", which, JOB, daemon=daemon).stderr for which in ("1", "2", "3", "all")]
    assert shown == [
        f"ffdl: attempt 1 of {JOB} has ended and has printed nothing\n",
        f"ffdl: attempt 2 of {JOB} has ended, and none of its learners started\n",
        *[f"ffdl: {JOB} is PROCESSING and has printed nothing yet\n"] * 2,
    ]


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"results": "/j/attempt-1/results"}, ""),
        ({"stored_in": f"s3://bucket/{JOB}"}, f"; the stored log is s3://bucket/{JOB}/learner-1/training-log.txt"),
        ({"results": f"/store/{JOB}"}, f"; the stored log is /store/{JOB}/learner-1/training-log.txt"),
        ({"state": "FAILED", "results": f"/store/{JOB}"}, f"; look for /store/{JOB}/learner-1/training-log.txt"),
    ],
)
def test_logs_reports_removed_log_and_names_stored_log(
    daemon: FakeDaemon, changes: dict[str, object], said: str, is_noted: bool
) -> None:
    daemon.jobs[JOB] = make_job(JOB, **{"state": "COMPLETED", "results": "/j/attempt-1/results", **PLACES, **changes})
    if is_noted:
        daemon.output = OutputView(JOB, "logs", "COMPLETED", attempt=1, directory="/j/attempt-1/logs", note=GONE)
    else:
        daemon.refusals[f"/api/v1/jobs/{JOB}/output/logs"] = (409, Problem("C101", GONE, 1))
    done = run(FFDL, "logs", JOB, daemon=daemon)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"ffdl: {GONE}{said}\n")
    assert run(FFDL, "logs", "-g", "x", JOB, daemon=daemon).stderr == "", "others may be there"
