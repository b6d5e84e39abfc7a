"""What the captured listings must be read as, whatever release printed them.

The jobs are those of :mod:`tests.conformance.scenes`. Used on the files here, and on what a real Slurm prints now.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_slurm.observing.parsers import JobRecord, parse_excluded, parse_sacct, parse_squeue, parse_version
from ffdl_slurm.observing.sinfo import parse_sinfo

RELEASES = ("20.11", "22.05", "24.11", "26.05")
FILES = ("answers.json", "sacct-named.txt", "sacct.txt", "sinfo.txt", "squeue-ended.txt", "squeue-excluded.txt",
         "squeue-named.txt", "squeue.txt", "version.txt")  # fmt: skip
"""What is kept of each release."""
PREFIX = "capture"
ENDS = {
    "ok": EndCause.SUCCESS,
    "nine": EndCause.FAILURE,
    "kill": EndCause.FAILURE,
    "memory": EndCause.OUT_OF_MEMORY,
    "cancelled": EndCause.CANCELLED,
    "timeout": EndCause.TIMEOUT,
    "preempted": EndCause.PREEMPTED,
    "preemptor": EndCause.SUCCESS,
    "node-fail": EndCause.NODE_FAIL,
}
"""Jobs that have ended while others still live."""
LIVING = ("|running", "suspended", "requeued", "held-again", "array", "held", "excluding", "later", "successor",
          "never", "wide", "launch-failed")  # fmt: skip
"""Jobs that are cancelled last."""


def directory(release: str) -> Path:
    """Where the files of a release lie."""
    return Path(__file__).parent / f"slurm-{release}"


def label(scene: str) -> str:
    """The name of a scene's job. One of them holds the separator of the listings."""
    return PREFIX + (scene if scene.startswith("|") else f"-{scene}")


def by_name(records: Sequence[JobRecord]) -> dict[str, JobRecord]:
    """By name, the highest job id; arrays by their waiting part."""
    return {record.name: record for record in sorted(records, key=lambda r: (int(r.job), "-" in (r.tasks or "")))}


def scenes(records: Sequence[JobRecord]) -> dict[str, Observation]:
    """By the scene's name, what is seen of its job."""
    return {
        name.removeprefix(PREFIX).removeprefix("-"): record.observation for name, record in by_name(records).items()
    }


def check_squeue(text: str) -> None:
    """All scenes at once, as squeue lists them."""
    records = parse_squeue(text)
    seen = scenes(records)
    _check_ends(seen)
    _check_running(seen)
    _check_waiting(seen)
    _check_array(records)


def _check_ends(seen: dict[str, Observation]) -> None:
    assert {name: seen[name].end for name in ENDS if name in seen} == ENDS
    assert (seen["ok"].exit_code, seen["ok"].exit_signal) == (0, None)
    assert (seen["nine"].exit_code, seen["nine"].exit_signal) == (9, None)
    assert (seen["kill"].exit_code, seen["kill"].exit_signal) == (None, 9)
    for name in ENDS:
        one = seen[name]
        assert one.phase is Phase.ENDED and one.submitted_at and one.started_at and one.ended_at and one.nodes, name
        assert one.submitted_at <= one.started_at <= one.ended_at, name


def _check_running(seen: dict[str, Observation]) -> None:
    running, suspended = seen["|running"], seen["suspended"]
    assert (running.phase, suspended.phase) == (Phase.RUNNING, Phase.SUSPENDED)
    for one in (running, suspended):
        assert one.nodes and one.started_at and one.ended_at is None and one.exit_code is None and one.end is None


def _check_waiting(seen: dict[str, Observation]) -> None:
    waiting = {name: seen[name] for name in LIVING if name not in ("|running", "suspended", "array")}
    for name, one in waiting.items():
        assert (one.phase, one.started_at, one.ended_at, one.end) == (Phase.PENDING, None, None, None), name
    reasons = {name: one.reason for name, one in waiting.items()}
    assert (reasons["held"], reasons["excluding"], reasons["wide"]) == ("JobHeldUser", "JobHeldUser", "Resources")
    assert (reasons["later"], reasons["requeued"]) == ("BeginTime", "BeginTime")
    assert (reasons["successor"], reasons["never"]) == ("Dependency", "DependencyNeverSatisfied")
    assert {name: one.restarts for name, one in waiting.items() if one.restarts} == {
        "requeued": 1,
        "held-again": 1,
        "launch-failed": 1,
    }
    assert [name for name, one in waiting.items() if one.held_for_good] == ["launch-failed"]


def _check_array(records: Sequence[JobRecord]) -> None:
    job = by_name(records)[label("array")].job
    elements = [record for record in records if record.job == job]
    found = {native: record.observation for record in elements for native in record.native_ids(["1", "2", "3", "4"])}
    assert found.keys() == {NativeId(job, str(task)) for task in range(1, 5)}
    phases = [found[NativeId(job, str(task))].phase for task in range(1, 5)]
    assert phases == [Phase.RUNNING, Phase.PENDING, Phase.PENDING, Phase.PENDING]
    assert found[NativeId(job, "2")].reason == "JobArrayTaskLimit"


def check_ended(text: str, command: str) -> None:
    """All jobs after their end, by the controller's word (squeue) or by the accounting's (sacct)."""
    records = parse_sacct(text) if command == "sacct" else parse_squeue(text)
    seen = scenes(records)
    _check_ends(seen)
    assert {name: seen[name].end for name in LIVING if name in seen} == dict.fromkeys(LIVING, EndCause.CANCELLED)
    assert all(seen[name].exit_code is None or seen[name].exit_code == 0 for name in LIVING)


def check_named(text: str, command: str) -> None:
    """A listing that was asked for by name."""
    records = parse_sacct(text) if command == "sacct" else parse_squeue(text)
    assert [record.name for record in records] == [label("nine" if command == "sacct" else "held")]


def check_site(text: str) -> None:
    """sinfo's partitions and nodes of the test cluster."""
    nodes, partitions, unread = parse_sinfo(text)
    assert not unread
    assert [partition.name for partition in partitions if partition.is_default] == ["main"]
    assert {partition.name: partition.max_time_s for partition in partitions}["short"] == 120
    assert {node.name: dict(node.gpus) for node in nodes} == {"n[1-2]": {"v100": 4}, "n3": {"a100": 4}}
    assert all((node.cpus, node.memory_bytes) == (8, 4000 * 1024**2) for node in nodes)
    assert all(node.features == ("ffdl-network", "ffdl-egress") for node in nodes)


def check_excluded(text: str) -> None:
    """The nodes that a job excludes."""
    assert parse_excluded(text) == "n[1,3]"


def check_version(text: str, series: str) -> None:
    """The release that printed the rest."""
    assert parse_version(text).startswith(f"{series}."), text
