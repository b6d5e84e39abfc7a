"""A site's wrapper around sbatch answers with the id of another job. A real daemon, over the fake executables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.slurm_office import STAYS, Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.close()


def test_daemon_follows_submitted_job_when_sbatch_prints_id_of_other_training(office: Office) -> None:
    native = str(office.until(office.accept(STAYS), "PROCESSING")["native_id"])
    office.wrap("sbatch", f'told=$("$FAKE" "$@") && echo {native}')
    job = office.accept()
    done = office.until(job, "COMPLETED", "FAILED", "CANCELLED")
    assert (done["state"], done["native_id"] != native) == ("COMPLETED", True)
    assert (office.base / "runs").read_text().split().count(job) == 1
    assert [record["state"] for record in office.accepted() if record["id"] == native] == ["RUNNING"]
    assert not [call for call in office.calls("scancel") if native in call]
    log = (office.state / "daemon.log").read_text()
    assert f"not {native}; following it" in log or f"and {native} has not; following it" in log, log
