"""The usage report of a real daemon, over a job that ran on this machine and planted ones."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.job.spec import Resources
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store import open_store
from tests.contract.daemon_rig import PLAIN, Site
from tests.first_start import write_schema
from tests.planted_jobs import PlantedAttempt, PlantedJob, plant

MANIFEST = """\
name: counted
memory: 100MB
cpus: 1
gpus: 0
framework: {name: custom, version: any, command: sleep 1}
batch: {account: physics}
"""
CONFIG = '[rates]\ncurrency = "EUR"\ngpu_hour = 2.0\ncpu_hour = 1.0\n'
HOUR, NOVEMBER = 3600.0, 1_793_491_200.0  # 2026-11-01 by UTC
BEFORE_NOVEMBER = NOVEMBER - HOUR


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "rates.toml").write_text(CONFIG)
    more = {"FFDL_BACKEND": "local", "FFDL_CONFIG": str(tmp_path / "rates.toml"), "HOME": str(tmp_path), "TZ": "UTC"}
    made = Site(tmp_path, more_environment=more)
    yield made
    made.close()


def straddling(number: int) -> PlantedJob:
    """One GPU from an hour before November to an hour after its beginning."""
    began, ended = BEFORE_NOVEMBER, NOVEMBER + HOUR
    rows = ((began, JobState.PENDING, 0), (began, JobState.DEPLOYING, 1), (began, JobState.PROCESSING, 1),
            (ended, JobState.COMPLETED, 1))  # fmt: skip
    attempts = (PlantedAttempt("", ended, "000", gpu_seconds=2 * HOUR),)
    return PlantedJob(rows, attempts, number, uid=os.getuid(), backend="local", resources=Resources(cpus=1.0, gpus=1.0))


def test_report_usage_counts_finished_job_and_jobs_across_months(site: Site, tmp_path: Path) -> None:
    write_schema(site.state / "ffdl.sqlite3")
    store = open_store(f"sqlite:///{site.state}/ffdl.sqlite3")
    plant(store.engine, [straddling(number) for number in range(1, 501)])
    store.close()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README").write_text("nothing\n")
    (tmp_path / "manifest.yml").write_text(MANIFEST)
    site.start(program=PLAIN)
    began = time.time()
    made = site.run("submit", "--parsable", str(tmp_path / "manifest.yml"), str(tmp_path / "model"))
    job_id = made.strip().partition(";")[0]
    site.run("wait", job_id)

    since = ("--since", f"{began - 60:.0f}")
    text = site.run("report", "usage", *since)
    assert "1 job in" in text
    rows = list(csv.DictReader(io.StringIO(site.run("report", "usage", *since, "--format", "csv"))))
    (row,) = (row for row in rows if row["job"] == job_id)
    shown = (row["account"], row["state"], row["attempts"], row["gpu_hours"])
    assert shown == ("physics", "COMPLETED", "1", "0.000000")
    assert 1.0 <= float(row["cpu_hours"]) * HOUR <= time.time() - began
    assert float(row["cost"]) == pytest.approx(float(row["cpu_hours"]), abs=1e-4)

    for month in ("2026-10", "2026-11"):
        found = json.loads(site.run("report", "usage", "--month", month, "--json"))["usage"]
        planted = next(group for group in found["frameworks"] if group["name"] == "pytorch")
        assert (planted["jobs"], planted["gpu_hours"], planted["cost"]) == (500, 500.0, 1500.0)
    out = tmp_path / "november.html"
    site.run("report", "usage", "--month", "2026-11", "--format", "html", "--output", str(out))
    assert out.read_text().startswith("<!doctype html>")
    assert "| pytorch | 500 | 500.0 |" in site.run("report", "usage", "--month", "2026-10", "--format", "markdown")
    said = site.run("report", "usage", *since, "--check", code=69)
    assert "local has no accounting" in said
