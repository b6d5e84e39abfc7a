"""One row of Slurm's that cannot be read hides no other job, and proves of none that it is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.observation import Phase
from ffdl_batch.ports.capabilities import ForgetsJobs
from ffdl_batch.ports.scheduler import NotNow
from tests.contract.scheduler_harness import FakeSlurmHarness


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    harness = FakeSlurmHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


def spoil(slurm: FakeSlurmHarness, command: str) -> None:
    (slurm.state / "faults.json").write_text(json.dumps({command: ["odd:always"]}))


def test_squeue_parser_observes_readable_rows_and_refuses_to_forget_jobs(slurm: FakeSlurmHarness) -> None:
    (slurm.state / "hold").touch()
    (first, _), (second, _) = slurm.submit("true"), slurm.submit("true")
    spoil(slurm, "squeue")
    seen = slurm.scheduler.observe([first, second])
    assert {native: one.phase for native, one in seen.items()} == {second: Phase.PENDING}
    assert not slurm.calls("sacct")  # the one that is not listed may be what cannot be read
    assert isinstance(slurm.scheduler, ForgetsJobs)
    with pytest.raises(NotNow, match="1 row among 2 cannot be read"):
        slurm.scheduler.is_forgotten([first, second])
