"""The parsers read what real Slurm printed; the files are under tests/captured/."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_slurm.parsers import JobRecord, parse_excluded, parse_sacct, parse_sinfo, parse_squeue

CAPTURED = Path(__file__).parents[2] / "captured"
RELEASES = sorted(path.name for path in CAPTURED.glob("slurm-*"))


def read(release: str, name: str) -> str:
    return (CAPTURED / release / name).read_text()


def newest(records: list[JobRecord]) -> dict[str, JobRecord]:
    """By name, the highest job id; arrays by their waiting part."""
    return {record.name: record for record in sorted(records, key=lambda r: (int(r.job), "-" in (r.tasks or "")))}


def test_there_are_captures() -> None:
    assert RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_waiting_and_running(release: str) -> None:
    jobs = newest(parse_squeue(read(release, "squeue-waiting.txt")))
    held, wide, running = (jobs[name].observation for name in ("capture-held", "capture-wide", "capture|running"))
    assert (held.phase, held.reason, held.started_at) == (Phase.PENDING, "JobHeldUser", None)
    assert wide.phase is Phase.PENDING and wide.reason
    assert running.phase is Phase.RUNNING and running.nodes and running.started_at and running.ended_at is None
    array = jobs["capture-array"]
    assert array.native_ids(["1", "2", "4"]) == [NativeId(array.job, "2"), NativeId(array.job, "4")]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("command", ["squeue-ended", "sacct"])
def test_ended(release: str, command: str) -> None:
    parse = parse_sacct if command == "sacct" else parse_squeue
    jobs = newest(parse(read(release, f"{command}.txt")))
    fine, nine, killed = (jobs[name].observation for name in ("capture-ok", "capture-nine", "capture-kill"))
    assert (fine.end, fine.exit_code) == (EndCause.SUCCESS, 0)
    assert (nine.end, nine.exit_code, nine.exit_signal) == (EndCause.FAILURE, 9, None)
    assert (killed.end, killed.exit_code, killed.exit_signal) == (EndCause.FAILURE, None, 9)
    assert jobs["capture-cancelled"].observation.end is EndCause.CANCELLED
    assert fine.submitted_at and fine.started_at and fine.ended_at and fine.nodes


@pytest.mark.parametrize("release", RELEASES)
def test_the_site(release: str) -> None:
    nodes, partitions = parse_sinfo(read(release, "sinfo.txt"))
    assert [partition.name for partition in partitions if partition.is_default] == ["main"]
    assert sum(sum(node.gpus.values()) for node in nodes) > 0
    assert all(node.cpus and node.memory_bytes for node in nodes)


@pytest.mark.parametrize("release", RELEASES)
def test_requeued_preempted_and_waiting_for_another(release: str) -> None:
    jobs = {
        name: record.observation for name, record in newest(parse_squeue(read(release, "squeue-requeued.txt"))).items()
    }
    requeued, person = jobs["capture-requeued"], jobs["capture-requeued-held"]
    assert (requeued.phase, requeued.reason, requeued.restarts) == (Phase.PENDING, "BeginTime", 1)
    assert requeued.started_at is None and not requeued.held_for_good
    assert (person.phase, person.restarts, person.held_for_good) == (Phase.PENDING, 1, False)
    assert jobs["capture-successor"].reason == "Dependency"
    preempted = jobs["capture-preempted"]
    assert (preempted.end, preempted.exit_signal, preempted.restarts) == (EndCause.PREEMPTED, 15, 0)


@pytest.mark.parametrize("release", RELEASES)
def test_a_launch_that_failed_leaves_a_job_that_never_starts(release: str) -> None:
    (record,) = parse_squeue(read(release, "squeue-launch-failed.txt"))
    seen = record.observation
    assert (seen.phase, seen.restarts, seen.exit_signal) == (Phase.PENDING, 1, None)
    assert seen.held_for_good and seen.reason == "launch failed requeued held"


@pytest.mark.parametrize("release", RELEASES)
def test_excluded_nodes(release: str) -> None:
    assert parse_excluded(read(release, "squeue-excluded.txt")) == "n[1,3]"
