"""A site's wrapper around sbatch answers with the id of another job. A real daemon, over the fake executables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.crash.world import FAKES, LIMIT_S
from tests.faults.slurm_office import STAYS, Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.close()


def plain_job(office: Office) -> str:
    """The id of a running job of the same user that is none of the platform's."""
    script = office.base / "plain.sh"
    options = (f"--output={office.base}/plain.log", f"--chdir={office.base}", "--nodes=1", "--job-name=plain1")
    script.write_text("\n".join(["#!/bin/sh", *(f"#SBATCH {option}" for option in options), "sleep 600", ""]))
    argv = [str(FAKES / "sbatch"), "--parsable", str(script)]
    done = preloaded.run(
        argv, env=office.environment(), cwd=office.base, capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    job = done.stdout.strip()
    office.wait(lambda: state_of(office, job) == "RUNNING", "a plain job that runs")
    return job


def state_of(office: Office, native: str) -> str:
    return str(json.loads((office.slurm / "jobs" / f"{native}.json").read_text())["state"])


def running_training(office: Office) -> str:
    job = office.accept(STAYS)
    return str(office.until(job, "PROCESSING")["native_id"])


@pytest.mark.parametrize("stranger", ["another training", "a plain job"])
def test_daemon_follows_submitted_job_when_sbatch_prints_id_of_other_job(office: Office, stranger: str) -> None:
    native = running_training(office) if stranger == "another training" else plain_job(office)
    office.wrap("sbatch", f'told=$("$FAKE" "$@") && echo {native}')
    job = office.accept()
    done = office.until(job, "COMPLETED", "FAILED", "CANCELLED")
    assert (done["state"], done["native_id"] != native) == ("COMPLETED", True)
    assert (office.base / "runs").read_text().split().count(job) == 1
    assert state_of(office, native) == "RUNNING"
    assert not [call for call in office.calls("scancel") if native in call]
    log = (office.state / "daemon.log").read_text()
    assert f"not {native}; following it" in log or f"and {native} has not; following it" in log, log
