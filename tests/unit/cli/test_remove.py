"""``ffdl rm`` and the disk space in ``ffdl list``, as processes against a fake daemon."""

from __future__ import annotations

import json

import pytest

from ffdl_batch.domain.job.views import Problem
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

ONE, TWO = "training-000000001", "training-000000002"
ARRAY = "array-000000001"


@pytest.fixture
def jobs(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon with two jobs that have ended, elements of an array."""
    for number, job_id in enumerate((ONE, TWO)):
        daemon.jobs[job_id] = make_job(
            job_id, state="COMPLETED", ended_at=1_800_000_100.0, array=ARRAY, array_index=number
        )
    return daemon


def test_rm_removes_jobs_and_prints_their_disk_space(jobs: FakeDaemon) -> None:
    done = run(FFDL, "rm", ONE, TWO, daemon=jobs)
    assert (done.returncode, done.stdout) == (0, f"{ONE} removed, 3 MiB\n{TWO} removed, 3 MiB\n")
    assert done.stderr == "ffdl: 2 jobs removed, 6 MiB\n"
    assert jobs.jobs == {}


def test_rm_removes_jobs_of_array(jobs: FakeDaemon) -> None:
    assert run(FFDL, "rm", ARRAY, daemon=jobs).returncode == 0
    assert jobs.jobs == {}
    assert "there is no array array-000000009" in run(FFDL, "rm", "array-000000009", daemon=jobs).stderr


def test_rm_dry_run_removes_nothing(jobs: FakeDaemon) -> None:
    done = run(FFDL, "rm", "--older-than", "2027-02-01", "--dry-run", "--json", daemon=jobs)
    assert [line["job"]["disk_bytes"] for line in json_lines(done.stdout)] == [3 * 1024**2] * 2
    assert "2 jobs would be removed, 6 MiB" in done.stderr
    assert len(jobs.jobs) == 2
    assert jobs.requests[0].startswith(
        "GET /api/v1/jobs?state=COMPLETED&state=FAILED&state=CANCELLED&limit=10000&ended_before="
    )


def test_rm_removes_others_if_one_is_refused(jobs: FakeDaemon) -> None:
    problem = Problem("C101", f"{ONE} is HALTED and can be resumed, so it is not removed", 1)
    jobs.refusals[f"/api/v1/jobs/{ONE}"] = (409, problem)
    done = run(FFDL, "rm", ONE, TWO, daemon=jobs)
    assert (done.returncode, done.stdout, list(jobs.jobs)) == (1, f"{TWO} removed, 3 MiB\n", [ONE])
    assert "is HALTED and can be resumed" in done.stderr


@pytest.mark.parametrize("arguments", [(), (ONE, "--older-than", "30d")])
def test_rm_needs_jobs_or_age(jobs: FakeDaemon, arguments: tuple[str, ...]) -> None:
    done = run(FFDL, "rm", *arguments, daemon=jobs)
    assert (done.returncode, len(jobs.jobs)) == (2, 2)


def test_list_prints_disk_space_on_demand(jobs: FakeDaemon) -> None:
    jobs.jobs[ONE] = make_job(ONE, disk_bytes=5 * 1024**3)
    lines = run(FFDL, "list", "--disk", daemon=jobs).stdout.splitlines()
    assert lines[0].split()[-2:] == ["DISK", "NODES(REASON)"]
    assert lines[1].split()[-3:] == ["5", "GiB", "n1"]
    assert lines[2].split()[-2:] == ["?", "n1"]
    assert "disk=true" in jobs.requests[-1]
    assert json.loads(run(FFDL, "list", "--disk", "--json", daemon=jobs).stdout)["jobs"][0]["disk_bytes"] == 5 * 1024**3
