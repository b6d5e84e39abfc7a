"""A journal for which no room is left: it is kept, and the task says what is to be done."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from ffdl_batch.domain.staging import (
    Direction,
    Failed,
    FaultClass,
    StageTask,
    StoreAddress,
    StoreKind,
    Transfer,
    encode_task,
    read_line,
)
from ffdl_batch.staging import journal as module
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.journal import Journal, Settled
from ffdl_batch.staging.planning import require_free
from ffdl_batch.staging.program import run_program


def _full(_path: Path) -> sqlite3.Connection:
    """As on a full disk: SQLite's own word for it."""
    data = sqlite3.connect(":memory:")
    data.execute("PRAGMA max_page_count = 1")
    data.execute("CREATE TABLE t (a)")
    return data


def test_journal_keeps_entries_when_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal(str(tmp_path), Direction.OUT)
    first.settle("p", "a", Settled("v", "e"))
    first.close()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_opened", _full)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            Journal(str(tmp_path), Direction.OUT)
    again = Journal(str(tmp_path), Direction.OUT)
    assert again.settled("p", "a") == Settled("v", "e")
    again.close()


def test_staging_program_reports_s302_when_journal_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "from").mkdir()
    store = StoreAddress(StoreKind.FILE, container=str(tmp_path / "from"))
    state = tmp_path / "state"
    task = StageTask(Direction.IN, (Transfer(store, "", str(tmp_path / "to")),), str(state))
    (tmp_path / "task.json").write_text(encode_task(task))
    monkeypatch.setattr(module, "_opened", _full)
    read, write = os.pipe()
    status = run_program(str(tmp_path / "task.json"), check=False, output=write)
    os.close(write)
    with os.fdopen(read) as said:
        last = read_line(said.read().splitlines()[-1])
    assert isinstance(last, Failed)
    assert (last.class_, last.code) == (FaultClass.FULL, "S302")
    assert last.message == f"{state} on this machine: No space left on device; make room, or ask for a larger scratch"
    assert status != 0


def test_require_free_reports_needed_and_free_size_in_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs_result((1000, 1000, 200_000, 100_000, 100_000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: room)
    with pytest.raises(Fault) as raised:
        require_free(str(tmp_path), 1_500_000_000)
    assert raised.value.cause == f"1.4 GiB are to come, and 95.4 MiB are free in {tmp_path} on this machine"
