"""Arrays on the command line, as processes against a fake daemon: one id to submit, look at, wait for and stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.views import LogLine
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, json_lines, run
from tests.unit.cli.test_metrics import metric
from tests.unit.client.fake_daemon import FakeDaemon, make_job

ARRAY = "array-000000001"
IDS = [f"training-000001{n:03d}" for n in range(3)]


@pytest.fixture
def array(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that knows one array: one job has ended, one runs, one waits."""
    for index, (job_id, state) in enumerate(zip(IDS, ("COMPLETED", "PROCESSING", "PENDING"), strict=True)):
        values = {"LR": f"0.{index}", "DEPTH": "2"}
        ended_at = 1_800_000_100.0 if state == "COMPLETED" else None
        job = make_job(job_id, name=f"digits[{index}]", state=state, ended_at=ended_at)
        daemon.jobs[job_id] = replace(job, array=ARRAY, array_index=index, array_values=values)
    return daemon


def end_all(daemon: FakeDaemon, *states: str, exit_code: int | None = None) -> None:
    """End its jobs with these states."""
    for job_id, state in zip(IDS, states, strict=True):
        daemon.jobs[job_id] = replace(daemon.jobs[job_id], state=state, ended_at=1.0, exit_code=exit_code)


def test_submit_prints_one_array_id_per_manifest_like_sbatch(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.elements = 3
    done = run(FFDL_SUBMIT, "--array=0-2%2", manifest, model, daemon=daemon)
    assert (done.returncode, done.stdout) == (0, f"Submitted batch job {ARRAY}\n")
    assert done.stderr == f"ffdl-submit: {ARRAY} is an array of 3 jobs; to list them: ffdl list --array {ARRAY}\n"
    (sent,) = daemon.submissions.values()
    assert (sent.options, sent.expected) == ({"array": "0-2%2"}, "any")
    done = run(FFDL_SUBMIT, "--parsable", "-a", "1,3", manifest, manifest, model, daemon=daemon)
    assert done.stdout == "array-000000002\narray-000000003\n"


def test_submit_prints_element_ids_in_json_and_verbose_output(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.elements = 3
    told = json_lines(run(FFDL_SUBMIT, "--json", manifest, model, daemon=daemon).stdout)[0]["result"]
    assert (told["id"], told["elements"]) == (ARRAY, IDS)
    verbose = run(FFDL_SUBMIT, "-v", manifest, model, daemon=daemon).stderr
    ids = [word for word in verbose.split() if word.startswith("training-")]
    assert ids == [f"training-000002{n:03d}" for n in range(3)]
    assert run(FFDL_SUBMIT, "-Q", manifest, model, daemon=daemon).stderr == ""


def test_submit_wait_exits_with_largest_exit_status_of_array(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.elements = 3

    def end(_array: str) -> None:
        end_all(daemon, "COMPLETED", "FAILED", "COMPLETED")
        daemon.jobs[IDS[1]] = replace(daemon.jobs[IDS[1]], exit_code=7, error_code="C201", message="it failed")

    daemon.on_wait = end  # type: ignore[assignment]
    done = run(FFDL_SUBMIT, "--wait", manifest, model, daemon=daemon)
    assert done.returncode == 7
    assert IDS[1] in done.stderr and IDS[0] not in done.stderr


def test_list_filters_jobs_by_array_and_keeps_index_of_truncated_name(array: FakeDaemon) -> None:
    array.jobs["training-other0000"] = make_job("training-other0000")
    done = run(FFDL, "list", "--noheader", "--array", ARRAY, daemon=array)
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert rows == [[job_id, f"digits[{index}]"] for index, job_id in enumerate(IDS)]
    assert array.requests == [f"GET /api/v1/jobs?limit=10000&array={ARRAY}"]
    array.jobs[IDS[1]] = replace(array.jobs[IDS[1]], name="n" * 40 + "[1]")
    line = run(FFDL, "list", "--noheader", "--array", ARRAY, daemon=array).stdout.splitlines()[1]
    assert line.split()[1] == "n" * 24 + "+[1]"


def test_show_prints_array_summary_and_place_of_job_in_array(array: FakeDaemon) -> None:
    done = run(FFDL, "show", ARRAY, daemon=array)
    assert done.returncode == 0
    assert "Array:               array-000000001" in done.stdout
    for text in ("Jobs:                3", "At once:             2", "Sweep over:          LR", "COMPLETED    1"):
        assert text in done.stdout, done.stdout
    (document,) = json_lines(run(FFDL, "show", "--json", ARRAY, daemon=array).stdout)
    assert document["array"]["states"] == {"COMPLETED": 1, "PROCESSING": 1, "PENDING": 1}
    element = run(FFDL, "show", IDS[1], daemon=array)
    assert f"Array:               {ARRAY}_1  [LR=0.1 DEPTH=2]" in element.stdout, element.stdout
    unknown = run(FFDL, "show", "array-000000009", daemon=array)
    assert (unknown.returncode, "there is no array array-000000009" in unknown.stderr) == (1, True)


def test_wait_prints_array_states_and_exits_with_job_exit_status(array: FakeDaemon) -> None:
    late = run(FFDL, "wait", "--timeout", "0", ARRAY, daemon=array)
    assert (late.returncode, "has jobs that have not ended" in late.stderr) == (124, True)
    end_all(array, "COMPLETED", "COMPLETED", "COMPLETED")
    assert (done := run(FFDL, "wait", ARRAY, daemon=array)).stdout == f"{ARRAY} 3 COMPLETED\n" and done.returncode == 0
    end_all(array, "COMPLETED", "FAILED", "FAILED", exit_code=3)
    assert (done := run(FFDL, "wait", ARRAY, daemon=array)).stdout == f"{ARRAY} 1 COMPLETED, 2 FAILED\n"
    assert done.returncode == 3


@pytest.mark.parametrize("verb", ["cancel", "halt"])
def test_cancel_and_halt_request_every_unfinished_job_of_array(array: FakeDaemon, verb: str) -> None:
    done = run(FFDL, verb, ARRAY, daemon=array)
    assert (done.returncode, done.stdout) == (0, f"{ARRAY} 1 COMPLETED, 1 PROCESSING, 1 PENDING; {verb} requested\n")
    assert [array.jobs[job_id].requested_action for job_id in IDS] == ["none", verb, verb]
    missing = run(FFDL, verb, "array-000000009", IDS[1], daemon=array)
    assert (missing.returncode, missing.stdout) == (1, f"{IDS[1]} PROCESSING, {verb} requested\n")


def test_halt_wait_waits_for_all_jobs_of_array(array: FakeDaemon) -> None:
    array.on_wait = lambda _array: end_all(array, "COMPLETED", "HALTED", "HALTED")  # type: ignore[assignment,return-value]
    done = run(FFDL, "halt", "--wait", ARRAY, daemon=array)
    assert (done.returncode, done.stdout) == (0, f"{ARRAY} 1 COMPLETED, 2 HALTED\n")


def test_resume_continues_only_halted_and_failed_jobs_of_array(array: FakeDaemon) -> None:
    nothing = run(FFDL, "resume", ARRAY, daemon=array)
    assert "no job of array-000000001 is HALTED or FAILED" in nothing.stderr
    end_all(array, "COMPLETED", "HALTED", "FAILED")
    done = run(FFDL, "resume", ARRAY, daemon=array)
    assert [act[:2] for act in array.acts] == [("resume", IDS[1]), ("resume", IDS[2])]
    assert [line.split()[0] for line in done.stdout.splitlines()] == IDS[1:]


def test_logs_prints_lines_of_all_jobs_of_array_with_index(array: FakeDaemon) -> None:
    array.lines = [LogLine(1, 1, "a", None, 1, 0), LogLine(1, 2, "b", None, 1, 2)]
    done = run(FFDL, "logs", ARRAY, daemon=array)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"[_{index}] {line}\n" for index in range(3) for line in "ab")
    documents = json_lines(run(FFDL, "logs", "--json", ARRAY, daemon=array).stdout)
    assert [(one["job"], one["line"]["line"]) for one in documents] == [(job, line) for job in IDS for line in "ab"]
    array.jobs[IDS[1]] = replace(array.jobs[IDS[1]], learners=2)
    assert run(FFDL, "logs", "-n", "1", ARRAY, daemon=array).stdout.splitlines() == [f"[_{n}] [1] b" for n in range(3)]


def test_logs_follows_all_jobs_of_array_and_reports_silent_ones(array: FakeDaemon) -> None:
    array.lines = [LogLine(1, 1, "a", None, 1, 0)]
    done = run(FFDL, "logs", "-f", ARRAY, daemon=array)
    assert sorted(done.stdout.splitlines()) == [f"[_{index}] a" for index in range(3)]
    array.lines = []
    done = run(FFDL, "logs", ARRAY, daemon=array)
    assert done.stderr == f"ffdl: 3 of 3 jobs have no output; for the reason: ffdl logs {ARRAY}_INDEX\n"


def test_logs_of_unknown_array_and_of_one_too_large_to_follow_are_refused(array: FakeDaemon) -> None:
    done = run(FFDL, "logs", "array-000000009", daemon=array)
    assert (done.returncode, "there is no array array-000000009" in done.stderr) == (1, True)
    for index in range(3, 201):
        job_id = f"training-000002{index:03d}"
        array.jobs[job_id] = replace(make_job(job_id), array=ARRAY, array_index=index)
    done = run(FFDL, "logs", "-f", ARRAY, daemon=array)
    assert (done.returncode, f"{ARRAY} has 201; name one, as {ARRAY}_0" in done.stderr) == (2, True)


def test_metrics_shows_all_jobs_of_array(array: FakeDaemon) -> None:
    for job_id in IDS[:2]:
        array.measured[f"{job_id}/metrics"] = [metric(step, 1 / (step + 1)) for step in range(3)]
    done = run(FFDL, "metrics", ARRAY, daemon=array)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ID", *IDS[:2]]
    assert f"{IDS[2]} is left out" in done.stderr


def test_metrics_ranks_jobs_of_sweep_by_best_value(array: FakeDaemon) -> None:
    array.measured[f"{IDS[0]}/metrics"] = [metric(0, 0.75), metric(1, 0.5), metric(2, 0.625)]
    array.measured[f"{IDS[1]}/metrics"] = [metric(0, 3.0), metric(1, 0.25), metric(1, 0.125, learner=2)]
    rows = [line.split() for line in run(FFDL, "metrics", "--least", "loss", ARRAY, daemon=array).stdout.splitlines()]
    assert rows == [
        ["ID", "INDEX", "STATE", "LR", "DEPTH", "train/loss", "AT"],
        [IDS[1], "1", "PROCESSING", "0.1", "2", "0.125", "iteration", "1"],
        [IDS[0], "0", "COMPLETED", "0.0", "2", "0.5", "iteration", "1"],
        [IDS[2], "2", "PENDING", "0.2", "2", "-", "-"],
    ]
    done = run(FFDL, "metrics", "--most", "train/loss", "--json", ARRAY, daemon=array)
    ranked = [line["ranked"] for line in json_lines(done.stdout)]
    assert [(one["job"], one["best"], one["at"]) for one in ranked] == [
        (IDS[1], 3.0, 0.0), (IDS[0], 0.75, 0.0), (IDS[2], None, None),
    ]  # fmt: skip
    assert ranked[0]["sweep"] == {"LR": "0.1", "DEPTH": "2"}


def test_metrics_refuses_to_rank_by_ambiguous_or_missing_metric(array: FakeDaemon) -> None:
    array.measured[f"{IDS[0]}/metrics"] = [metric(0, 0.75), metric(0, 0.5, group="val")]
    done = run(FFDL, "metrics", "--least", "loss", ARRAY, daemon=array)
    assert (done.returncode, "loss matches train/loss, val/loss; name one of them" in done.stderr) == (2, True)
    done = run(FFDL, "metrics", "--most", "accuracy", ARRAY, daemon=array)
    assert (done.returncode, "no values match accuracy; there are train/loss, val/loss" in done.stderr) == (1, True)
    done = run(FFDL, "metrics", "--most", "loss", "--plot", ARRAY, daemon=array)
    assert (done.returncode, "--least and --most print one table" in done.stderr) == (2, True)
