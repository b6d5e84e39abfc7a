"""Rows of squeue that are what they were: none is read again, and what they say is the very object of the last time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.array import ArrayId, chunk_name
from ffdl_batch.domain.job.job import JobId
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.plugins import AdapterContext
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateways.gateway import SlurmGateway
from ffdl_slurm.observing import parsers
from ffdl_slurm.observing.parsers import JobRecord, JobRow, parse_squeue
from ffdl_slurm.settings import SlurmSettings

HEADER = "JOBID|STATE|EXIT_CODE|RESTARTCNT|SUBMIT_TIME|START_TIME|END_TIME|NODELIST|REASON|NAME\n"
ARRAY, JOB, ELEMENT = ArrayId("array-9z8y7x6w5"), JobId("training-9z8y7x6w5"), JobId("training-9z8y7x6w6")
CHUNK = chunk_name(ARRAY, 1)
SINGLE, TASK = NativeId("81001"), NativeId("81002", "4")


def row(number: str, name: str, state: str = "PENDING", reason: str = "Resources") -> str:
    """As squeue prints it."""
    return f"{number}|{state}|0:0|0|1700000000|N/A|N/A||{reason}|{name}\n"


class Squeue:
    """A gateway that has one answer, `text`."""

    def __init__(self) -> None:
        self.text = HEADER + row("81001", f"{JOB}-1") + row("81002_4", CHUNK)

    def list_own_jobs(self) -> Sequence[JobRecord]:
        return parse_squeue(self.text)

    def account_for(self, _ids: Collection[str]) -> None:
        """No accounts are kept."""


@pytest.fixture
def squeue() -> Squeue:
    return Squeue()


@pytest.fixture
def scheduler(squeue: Squeue, tmp_path: Path) -> SlurmScheduler:
    return SlurmScheduler(SlurmSettings(), AdapterContext(str(tmp_path), "alice", 1000), cast(SlurmGateway, squeue))


def test_squeue_parser_parses_only_changed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[JobRow] = []
    parse_row = parsers.parse_row

    def reading(fields: JobRow) -> JobRecord:
        read.append(fields)
        return parse_row(fields)

    monkeypatch.setattr(parsers, "parse_row", reading)
    rows = [row(str(number), f"job-{number}") for number in range(82000, 82100)]
    first = parse_squeue(HEADER + "".join(rows))
    assert len(read) == len(first) == 100
    again = parse_squeue("a banner\n" + HEADER + "".join(reversed(rows)))
    assert len(read) == 100
    assert all(one is other for one, other in zip(first, reversed(again), strict=True))
    changed = parse_squeue(HEADER + "".join([*rows[:50], row("82050", "job-82050", reason="Priority"), *rows[51:]]))
    assert len(read) == 101
    assert changed[50].observation.reason == "Priority"


def test_observe_returns_same_object_for_unchanged_row_and_names_array_task_once_its_table_is_readable(
    scheduler: SlurmScheduler, squeue: Squeue, tmp_path: Path
) -> None:
    assert scheduler.observe([TASK])[TASK].name == CHUNK
    root = Root(str(tmp_path))
    chunk = root.array(ARRAY).chunk(1)
    Path(chunk.path).mkdir(parents=True)
    Path(chunk.tasks).write_text(f"4 {root.job(ELEMENT).attempt(1).path}\n")
    first = scheduler.observe([SINGLE, TASK])
    assert {native: seen.name for native, seen in first.items()} == {SINGLE: f"{JOB}-1", TASK: f"{ELEMENT}-1"}
    again = scheduler.observe([NativeId.parse("81002_4"), NativeId.parse("81001")])
    assert again[SINGLE] is first[SINGLE] and again[TASK] is first[TASK]
    squeue.text = HEADER + row("81001", f"{JOB}-1") + row("81002_4", CHUNK, "RUNNING")
    then = scheduler.observe([SINGLE, TASK])
    assert then[SINGLE] is first[SINGLE]
    assert (then[TASK].phase, then[TASK].name) == (Phase.RUNNING, f"{ELEMENT}-1")


def test_observe_omits_missing_row_and_returns_it_when_listed_again(scheduler: SlurmScheduler, squeue: Squeue) -> None:
    full = squeue.text
    for text, seen in ((full, {SINGLE}), (HEADER, set()), (full, {SINGLE})):
        squeue.text = text
        assert set(scheduler.observe([SINGLE])) == seen
