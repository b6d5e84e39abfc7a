"""Ends that Slurm decides, as incidents: a real daemon and real controllers over the fake Slurm's executables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.world import WorldOptions
from tests.faults.slurm_office import STAYS, Office

NONE, OTHERS = 0, 2


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path, WorldOptions())
    try:
        made.start()
        yield made
    finally:
        made.close()


def incidents(office: Office, job_id: str) -> list[dict[str, Any]]:
    """Those of a job, once it has one."""
    office.wait(lambda: bool(office.show(job_id)["incidents"]), "an incident")
    found: list[dict[str, Any]] = office.show(job_id)["incidents"]
    return found


def test_daemon_records_incident_with_kind_and_slurm_state_when_slurm_ends_job(office: Office) -> None:
    kinds = {
        "NODE_FAIL": "node.failed",
        "PREEMPTED": "scheduler.preempted",
        "TIMEOUT": "scheduler.time_limit",
        "OUT_OF_MEMORY": "user.memory",
        "CANCELLED": "scheduler.cancelled_by_others",
    }
    jobs = {state: office.accept(STAYS) for state in kinds}
    natives = {state: str(office.until(job_id, "PROCESSING")["native_id"]) for state, job_id in jobs.items()}
    office.wait(lambda: len(office.runs()) == len(jobs), "the learners")
    assert office.run("report", "faults").returncode == NONE
    for state, native in natives.items():
        office.end(native, state)
    for state, job_id in jobs.items():
        found = incidents(office, job_id)[0]
        assert (found["kind"], found["attempt"], found["episode"]) == (kinds[state], 1, "end-0")
        assert any(line["source"] == "scheduler" and state in line["text"] for line in found["evidence"])
    report = office.run("report", "faults", "--json")
    assert report.returncode == OTHERS
    rows = json.loads(report.stdout)["faults"]["rows"]
    assert {(row["job"], row["kind"]) for row in rows} >= {(job_id, kinds[state]) for state, job_id in jobs.items()}
