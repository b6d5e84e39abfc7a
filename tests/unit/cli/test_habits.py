"""What users of sbatch and squeue type: the newest job, names of squeue's states, -h, -V, -f, and a narrow terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch import __version__
from ffdl_batch.cli.render.formatting import format_elapsed
from ffdl_batch.domain.job.views import JobView, LogLine, Problem
from ffdl_batch.domain.pending.explanation import WhyView
from tests.unit.cli.programs import FFDL, FFDL_ADMIN, FFDL_SUBMIT, json_lines, on_terminal, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB, OTHER, ARRAY = "training-000000001", "training-000000002", "array-000000001"


@pytest.fixture
def jobs(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that knows two jobs, the newest first."""
    daemon.jobs = {JOB: make_job(JOB), OTHER: make_job(OTHER)}
    return daemon


def lines_on_terminal(daemon: FakeDaemon, columns: int, *arguments: str) -> list[str]:
    """Return the lines that a command prints on a terminal with this many columns."""
    return on_terminal(FFDL, *arguments, daemon=daemon, COLUMNS=str(columns), NO_COLOR="1").splitlines()


def test_show_logs_and_why_without_id_are_about_newest_job(jobs: FakeDaemon) -> None:
    jobs.lines = [LogLine(1, 1, "hello")]
    jobs.whys[JOB] = WhyView(JOB, "digits", "QUEUED", "slurm", "4711", True, "it waits")
    assert f"ID:                  {JOB}\n" in run(FFDL, "show", daemon=jobs).stdout
    logs = run(FFDL, "logs", daemon=jobs)
    assert (logs.stdout, logs.stderr) == ("hello\n", f"ffdl: {JOB} is the newest job\n")
    assert f"ID:                  {JOB}  [digits]\n" in run(FFDL, "why", daemon=jobs).stdout
    assert jobs.requests.count("GET /api/v1/jobs?limit=1") == 3


def test_show_without_id_shows_array_of_newest_job(jobs: FakeDaemon) -> None:
    jobs.jobs = {JOB: make_job(JOB, array=ARRAY, array_index=0)}
    assert f"Array:               {ARRAY}\n" in run(FFDL, "show", daemon=jobs).stdout


@pytest.mark.parametrize("verb", ["show", "logs", "why"])
def test_command_without_id_fails_if_there_is_no_job(daemon: FakeDaemon, verb: str) -> None:
    done = run(FFDL, verb, daemon=daemon)
    assert (done.returncode, done.stderr) == (1, "ffdl: there are no jobs yet; submit one with ffdl-submit\n")


def test_submit_follow_prints_output_and_exits_with_exit_code_of_job(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    daemon.lines = [LogLine(1, 1, "step 1"), LogLine(1, 2, "step 2")]
    daemon.on_wait = lambda job_id: make_job(job_id, state="FAILED", exit_code=3, error_code="C201", message="it broke")
    done = run(FFDL_SUBMIT, "-f", manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout) == (3, f"Submitted batch job {JOB}\nstep 1\nstep 2\n")
    assert f"ffdl-submit: {JOB}: FAILED: C201 it broke" in done.stderr
    two = run(FFDL_SUBMIT, "-f", manifest, manifest, model, daemon=daemon)
    assert (two.returncode, "--follow needs one manifest" in two.stderr) == (2, True)


def test_submit_follow_prints_output_of_all_jobs_of_array(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.elements = 2
    daemon.lines = [LogLine(1, 1, "step 1")]

    def end(_array: str) -> JobView:
        daemon.jobs = {n: replace(job, state="COMPLETED", ended_at=1.0, exit_code=0) for n, job in daemon.jobs.items()}
        return make_job()

    daemon.on_wait = end
    done = run(FFDL_SUBMIT, "-f", "-a", "0-1", manifest, model, daemon=daemon)
    first, *lines = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"Submitted batch job {ARRAY}")
    assert sorted(lines) == ["[_0] step 1", "[_1] step 1"]


def test_submit_follow_prints_no_output_of_refused_job(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.refuse_names = frozenset({str(manifest)})
    assert run(FFDL_SUBMIT, "-f", manifest, model, daemon=daemon).returncode == 78
    assert not [request for request in daemon.requests if "/logs" in request]


def test_cancel_wait_returns_after_jobs_have_ended(jobs: FakeDaemon) -> None:
    jobs.on_wait = lambda job_id: make_job(job_id, state="CANCELLED", ended_at=1.0)
    done = run(FFDL, "cancel", "--wait", JOB, OTHER, daemon=jobs)
    assert (done.returncode, done.stdout) == (0, f"{JOB} CANCELLED\n{OTHER} CANCELLED\n")
    asked = [request.split("/")[-1].partition("?")[0] for request in jobs.requests]
    assert asked == ["cancel", "cancel", "wait", "wait"]
    (document,) = json_lines(run(FFDL, "cancel", "--wait", "--json", JOB, daemon=jobs).stdout)
    assert document["job"]["state"] == "CANCELLED"


def test_cancel_wait_waits_for_other_jobs_after_refusal(jobs: FakeDaemon) -> None:
    jobs.refusals[f"/api/v1/jobs/{OTHER}/cancel"] = (404, Problem("C101", f"there is no job {OTHER}", 1))
    jobs.on_wait = lambda job_id: make_job(job_id, state="CANCELLED", ended_at=1.0)
    done = run(FFDL, "cancel", "--wait", OTHER, JOB, daemon=jobs)
    assert (done.returncode, done.stdout) == (1, f"{JOB} CANCELLED\n")


@pytest.mark.parametrize(
    ("given", "states"),
    [
        (("-s", "RUNNING"), ("DOWNLOADING", "PROCESSING", "STORING")),
        (("-t", "r,pd"), ("DOWNLOADING", "PROCESSING", "STORING", "PENDING", "DEPLOYING", "QUEUED")),
        (("--states=CD,CA,F",), ("COMPLETED", "CANCELLED", "FAILED")),
    ],
)
def test_list_accepts_states_of_squeue(jobs: FakeDaemon, given: tuple[str, ...], states: tuple[str, ...]) -> None:
    assert run(FFDL, "list", "--me", *given, daemon=jobs).returncode == 0
    assert jobs.requests == [f"GET /api/v1/jobs?{'&'.join(f'state={state}' for state in states)}&limit=101"]


def test_list_rejects_me_with_all_users(jobs: FakeDaemon) -> None:
    assert run(FFDL, "list", "--me", "-a", daemon=jobs).returncode == 2


@pytest.mark.parametrize("verb", ["list", "show", "logs", "cancel", "why"])
def test_h_is_help_of_every_verb(verb: str) -> None:
    done = run(FFDL, verb, "-h")
    assert (done.returncode, done.stdout.startswith(f"Usage: ffdl {verb} ")) == (0, True)


@pytest.mark.parametrize("program", [FFDL, FFDL_SUBMIT, FFDL_ADMIN])
@pytest.mark.parametrize("option", ["-V", "--version"])
def test_programs_print_version(program: tuple[str, ...], option: str) -> None:
    done = run(program, option)
    assert (done.returncode, done.stdout.split()[1:]) == (0, [__version__])


def busy() -> list[JobView]:
    """Jobs with a value in every column."""
    times = {"PROCESSING": 1_800_000_050.0}
    array = {"array": ARRAY, "array_index": 3, "array_values": {"LR": "0.1", "DEPTH": "2"}}
    common = {"total_gpus": 16.0, "partition": "gpu", "timestamps": times, "ended_at": 1_800_090_055.0}
    waits = "Resources: " + "the scheduler waits for resources " * 4
    return [
        make_job(JOB, name="a-long-name-of-a-sweep[3]", state="COMPLETED", **array, **common),
        make_job(OTHER, state="QUEUED", nodes="", pending_reason=waits),
    ]


def test_list_prints_gpus_partition_elapsed_time_and_array_values(daemon: FakeDaemon) -> None:
    daemon.jobs = {job.id: job for job in busy()}
    head, first, second = run(FFDL, "list", daemon=daemon, env={"TZ": "UTC"}).stdout.splitlines()
    columns = ["GPUS", "PARTITION", "TIME", "SUBMITTED", "ENDED", "VALUES", "NODES(REASON)"]
    assert head.split()[4:] == columns
    assert first.split()[4:7] == ["16", "gpu", "1-01:00:05"]
    assert first.split()[-3:] == ["LR=0.1", "DEPTH=2", "n1"]
    assert "0:00" in second.split()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (72, ["ID", "NAME", "STATE", "TIME", "NODES(REASON)"]),
        (80, ["ID", "NAME", "STATE", "GPUS", "TIME", "NODES(REASON)"]),
        (90, ["ID", "NAME", "STATE", "TIME", "VALUES", "NODES(REASON)"]),
        (120, ["ID", "NAME", "STATE", "GPUS", "PARTITION", "TIME", "VALUES", "NODES(REASON)"]),
    ],
)
def test_list_fits_terminal(daemon: FakeDaemon, width: int, columns: list[str]) -> None:
    daemon.jobs = {job.id: job for job in busy()}
    lines = lines_on_terminal(daemon, width, "list")
    assert lines[0].split() == columns
    assert max(len(line) for line in lines) <= width
    assert "[3] " in lines[1], "the index of an element is never cut off"
    wide = lines_on_terminal(daemon, width, "list", "--wide")
    assert max(len(line) for line in wide) > width


@pytest.mark.parametrize(
    ("width", "values", "shown"),
    [
        (80, {"LEARNING_RATE": "0.01", "BATCH": "64"}, "LE+=0.01 BA+=64"),
        (100, {"LEARNING_RATE": "0.01", "BATCH": "64"}, "LEARNING_RATE=0.01 BATCH=64"),
        (80, {"LR": "0.01"}, "LR=0.01"),
        (80, {"A": "1", "B": "2", "C": "3", "D": "4", "E": "5"}, "1 2 3 4 5"),
        (80, {"A": "1", "B": "2", "C": "3", "D": "4", "E": "5", "F": "6", "G": "7"}, "1 2 3 4 5 6 7"),
        (80, {"OPTIMIZER": "a-long-name-of-an-optimizer"}, "a-long-name-of+"),
    ],
)
def test_list_of_array_keeps_values_on_narrow_terminal(
    daemon: FakeDaemon, width: int, values: dict[str, str], shown: str
) -> None:
    daemon.jobs = {
        job_id: replace(job, array=ARRAY, array_index=index, array_values=values, name=f"a-long-sweep[{index}]")
        for index, (job_id, job) in enumerate((job.id, job) for job in busy())
    }
    head, *lines = lines_on_terminal(daemon, width, "list", "--array", ARRAY)
    assert "VALUES" in head.split()
    assert all(shown in line and f"[{index}] " in line for index, line in enumerate(lines)), lines
    assert max(map(len, (head, *lines))) <= width


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (-5, "0:00"), (65.9, "1:05"), (3605, "1:00:05"), (90005, "1-01:00:05")]
)
def test_format_elapsed_prints_time_as_squeue(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text
