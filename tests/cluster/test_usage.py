"""The usage report of real jobs, held against slurmdbd's accounting."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.people import Person

CLOSE = "12s"
"""What a run may differ by here: a loaded machine takes seconds to start a head after Slurm has counted the start. Half
of the GPUs of the longest job are more than that."""


@pytest.fixture(scope="module")
def jobs(alice: Person) -> Iterator[dict[str, str]]:
    """Jobs that ended in each of the ways in which they hold something, and one that never ran."""
    ids = {
        "two": alice.start("usage-two", "sleep 25", learners=2, gpus=1),
        "failed": alice.start("usage-failed", "sleep 3; exit 3", gpus=1),
        "requeued": alice.start("usage-requeued", "sleep 8", "--requeue", gpus=1),
        "never": alice.start("usage-never", "true", "--hold", gpus=1),
    }
    running = alice.until(ids["requeued"], {"PROCESSING"})
    alice.cluster.run("ctl", ["scontrol", "requeue", running["native_id"]])
    alice.run("ffdl", "cancel", ids["never"])
    alice.finish_all(list(ids.values()))
    yield ids


def agreement(alice: Person, *options: str) -> tuple[int, dict[str, Any]]:
    """Over all that she ran, also in tests before, which take the power from nodes and records from the controller."""
    done = alice.run("ffdl", "report", "usage", "--since", "1h", "--check", "--json", *options, check=False)
    assert done.returncode in (0, 1), done
    return done.returncode, json.loads(done.stdout)["agreement"]


def told_of(jobs: dict[str, str], found: dict[str, Any]) -> list[dict[str, Any]]:
    """What differs of these jobs, or is not in the accounting."""
    return [row for row in found["rows"] if row["job"] in jobs.values()]


def test_usage_report_agrees_with_slurm_accounting_within_tolerance(alice: Person, jobs: dict[str, str]) -> None:
    for native_id in (alice.show(jobs[name])["native_id"] for name in ("two", "failed", "requeued")):
        alice.accounted(native_id)  # all of it has come there
    code, found = agreement(alice, "--tolerance", CLOSE)
    assert told_of(jobs, found) == [], found
    assert code == (1 if found["differing"] + found["unknown"] else 0)
    assert found["backends"] == ["slurm"]
    assert found["compared"] >= 3
    assert found["theirs_gpu_hours"] > 0


def test_usage_check_reports_both_values_of_differing_job(alice: Person, jobs: dict[str, str]) -> None:
    """Slurm counts whole seconds."""
    code, found = agreement(alice, "--tolerance", "0s")
    assert code == 1
    rows = {row["job"]: row for row in found["rows"]}
    two = rows[jobs["two"]]
    assert two["theirs_s"] >= 25
    assert two["theirs_gpu_s"] == 2 * two["theirs_s"]
    assert two["ours_gpu_s"] == pytest.approx(2 * two["ours_s"], abs=16)


_READ_USES = """
import sys
from ffdl_batch.plugins import AdapterContext, create_adapter
scheduler = create_adapter("slurm", {}, AdapterContext(root="/nonexistent", user="alice", uid=0))
for one in scheduler.accounted_uses(float(sys.argv[1]), float(sys.argv[2])):
    print(one.user, one.jobs, one.gpu_s)
"""


def test_gpu_seconds_of_user_are_those_of_all_jobs_within_the_period(alice: Person, jobs: dict[str, str]) -> None:
    end = time.time()
    begin = end - 60
    argv = ("sacct", "-n", "-X", "-D", "-P", "-u", "alice", "-S", "now-1hour", "-o", "Start,End,AllocTRES")
    wanted = 0.0
    for line in alice.run(*argv).stdout.split():
        *moments, tres = line.split("|")
        if "gres/gpu" in tres:
            began, ended = (
                end if moment == "Unknown" else time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))
                for moment in moments
            )
            gpus = int(tres.partition("gres/gpu=")[2].partition(",")[0])
            wanted += gpus * max(0.0, min(ended, int(end)) - max(began, int(begin)))
    done = alice.run("/opt/ffdl/venv/bin/python", "-c", _READ_USES, str(begin), str(end))
    uses = {user: float(gpu_s) for user, _, gpu_s in map(str.split, done.stdout.splitlines())}
    assert uses["alice"] == wanted > 0


@pytest.mark.full
def test_usage_report_counts_both_starts_of_requeued_job(alice: Person, jobs: dict[str, str]) -> None:
    native_id = alice.show(jobs["requeued"])["native_id"]
    argv = ("sacct", "-n", "-X", "-D", "-P", "-j", native_id, "-o", "ElapsedRaw")
    starts = [int(line) for line in alice.run(*argv).stdout.split()]
    assert len(starts) == 2, starts
    assert told_of(jobs, agreement(alice, "--tolerance", CLOSE)[1]) == []
    text = alice.run("ffdl", "report", "usage", "--since", "1h", "--format", "csv").stdout
    rows = {row["job"]: row for row in csv.DictReader(io.StringIO(text))}
    hours = float(rows[jobs["requeued"]]["gpu_hours"])
    assert hours * 3600 == pytest.approx(sum(starts), abs=24)
    assert hours * 3600 > starts[1]
    assert float(rows[jobs["never"]]["gpu_hours"]) == 0.0
    assert rows[jobs["never"]]["started"] == ""
    assert float(rows[jobs["failed"]]["lost_gpu_hours"]) > 0.0
