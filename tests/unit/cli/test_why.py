"""`ffdl why` and `ffdl plan`: what is printed, as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.pending.explanation import (
    Ahead,
    Alternative,
    Capacity,
    Explanation,
    Foretold,
    Outlook,
    Reason,
    WaitKind,
    WhyView,
)
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB, OTHER, UNKNOWN = "training-000000001", "training-000000002", "training-zzzzzzzzz"
ARRAY = "array-000000007"
T0 = 1_500_000_000.0
"""Long ago: a start at that time is now."""
WAITS = WhyView(
    JOB, "digits", "QUEUED", "slurm", "4711", waits=True,
    sentence="it is the next one, and waits until what it asks for is free (Resources)",
    actions=("wait, or ask for less",),
    evidence=("by the scheduler's own plan it starts at 03:40, where the daemon is",),
    explanation=Explanation(
        T0, Reason(WaitKind.RESOURCES, "Resources"), expected_start=T0,
        capacity=(Capacity("main", "", 8, 0, 2, 0, 1, 2),), ahead=(Ahead("main", 0, 0, 0, 0, 2),),
    ),
    trial=Foretold("starts", T0), alternatives=(Alternative("partition quick", "--partition=quick", T0, 600.0, 1),),
)  # fmt: skip
RUNS = WhyView(
    OTHER, "digits", "PROCESSING", "slurm", "4712", waits=False, sentence="it is not waiting: it is running on n1"
)
SHOWN = f"""\
ID:                  {JOB}  [digits]
State:               QUEUED
Why:                 it is the next one, and waits until what it asks for is free (Resources)
What to do:          wait, or ask for less
May start:           now  [the scheduler's plan]
Because:
  0 of 8 GPUs in main are free; 0 of 2 nodes have room for 2 GPUs each, and it needs 1 node
  in main no jobs are ahead of it, and 2 run
  by the scheduler's own plan it starts now
  submitted now, behind what waits, by the scheduler's estimate it would start now
Would start sooner:
  partition quick (--partition=quick): starts now, 10 min sooner, and would preempt 1 running job

ID:                  {OTHER}  [digits]
State:               PROCESSING
Now:                 it is not waiting: it is running on n1
"""


@pytest.fixture
def jobs(daemon: FakeDaemon) -> FakeDaemon:
    daemon.jobs = {job_id: make_job(job_id) for job_id in (JOB, OTHER)}
    daemon.whys = {JOB: WAITS, OTHER: RUNS}
    return daemon


def test_why_prints_reason_evidence_and_alternatives_unless_none_are_wanted(jobs: FakeDaemon) -> None:
    done = run(FFDL, "why", JOB, OTHER, daemon=jobs)
    assert (done.stdout, done.stderr, done.returncode) == (SHOWN, "", 0)
    assert f"GET /api/v1/jobs/{JOB}/why?alternatives=true" in jobs.requests
    run(FFDL, "why", "--no-alternatives", JOB, daemon=jobs)
    assert f"GET /api/v1/jobs/{JOB}/why?alternatives=false" in jobs.requests


def test_why_json_contains_explanation_and_alternatives(jobs: FakeDaemon) -> None:
    first, second = json_lines(run(FFDL, "why", "--json", JOB, OTHER, daemon=jobs).stdout)
    reason = {"kind": "resources", "code": "Resources", "detail": "", "limit": None}
    assert first["why"]["explanation"]["reason"] == reason
    assert first["why"]["alternatives"][0]["options"] == "--partition=quick"
    assert not second["why"]["waits"]


def test_why_continues_after_unknown_job_id(jobs: FakeDaemon) -> None:
    done = run(FFDL, "why", UNKNOWN, OTHER, daemon=jobs)
    assert done.returncode == 66 and f"there is no job {UNKNOWN}" in done.stderr and OTHER in done.stdout


def test_why_of_array_explains_first_waiting_element(jobs: FakeDaemon) -> None:
    jobs.jobs[OTHER] = make_job(OTHER, array=ARRAY, array_index=0)
    jobs.jobs[JOB] = make_job(JOB, array=ARRAY, array_index=1, state="QUEUED")
    done = run(FFDL, "why", ARRAY, daemon=jobs)
    assert JOB in done.stdout and "1 of 2 elements wait" in done.stderr


def test_plan_prints_outlook_of_one_manifest_or_with_why(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.outlook = Outlook("slurm", ("0 of 8 GPUs in main are free",), alternatives=WAITS.alternatives)
    plain = run(FFDL, "plan", "--no-why", manifest, model, daemon=daemon).stdout
    assert "awaits" not in plain and "POST /api/v1/outlook" not in daemon.requests
    shown = run(FFDL, "plan", manifest, model, daemon=daemon).stdout
    sooner = "partition quick (--partition=quick): starts now, 10 min sooner, and would preempt 1 running job"
    assert shown == f"{plain}### when it may start\n# 0 of 8 GPUs in main are free\n# sooner: {sooner}\n"
    (document,) = json_lines(run(FFDL, "plan", "--json", manifest, model, daemon=daemon).stdout)
    assert document["outlook"]["evidence"] == ["0 of 8 GPUs in main are free"]
    daemon.outlook = Outlook("slurm", ("0 of 8 GPUs in main are free",))
    assert "awaits" not in run(FFDL, "plan", manifest, manifest, model, daemon=daemon).stdout
    shown = run(FFDL, "plan", "--why", manifest, manifest, model, daemon=daemon).stdout
    assert shown.count("### when it may start\n# 0 of 8 GPUs in main are free\n") == 2


def test_plan_only_why_prints_outlook_without_plan(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    daemon.outlook = Outlook("slurm", ("0 of 8 GPUs in main are free",))
    alone = run(FFDL, "plan", "--only-why", manifest, model, daemon=daemon)
    assert (alone.returncode, alone.stdout) == (0, "0 of 8 GPUs in main are free\n")
    assert "POST /api/v1/plan" not in daemon.requests
    (document,) = json_lines(run(FFDL, "plan", "--only-why", "--json", manifest, model, daemon=daemon).stdout)
    assert set(document) == {"schema", "manifest", "outlook"}
    several = run(FFDL, "plan", "--only-why", manifest, manifest, model, daemon=daemon).stdout
    assert several == 2 * f"### when {manifest} may start\n0 of 8 GPUs in main are free\n"


@pytest.mark.parametrize("option", ["--test-only", "--no-why"])
def test_plan_only_why_rejects_options_of_plan(daemon: FakeDaemon, manifest: Path, model: Path, option: str) -> None:
    done = run(FFDL, "plan", "--only-why", option, manifest, model, daemon=daemon)
    assert done.returncode == 2 and "leave out " in done.stderr and option in done.stderr.partition("leave out ")[2]
