"""The journal: what is done stays known, also on a full disk, and what may be lost is not believed."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from ffdl_batch.domain.data import staging_protocol
from ffdl_batch.domain.data.staging_protocol import Direction, Failed, FaultClass, StageTask, Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host import processes
from ffdl_batch.staging import journal as module
from ffdl_batch.staging.faults import Fault
from ffdl_batch.staging.journal import Journal, Planned, Settled, Started, place_of
from ffdl_batch.staging.program import run_program
from ffdl_batch.staging.stores.store import UNKNOWN, Item
from ffdl_batch.staging.transfer.planning import require_free


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(str(tmp_path / "state"), Direction.IN)
    yield made
    made.close()


def _digests(number: int) -> dict[str, str]:
    return {"md5": "00"} if number % 2 else {}


def test_journal_returns_planned_items_in_order_across_pages(journal: Journal) -> None:
    items = [Planned(f"{n:05}", Item(f"k{n}", n, "e", 1.5, n % 2 == 0, n % 3 == 0, _digests(n))) for n in range(1201)]
    journal.plan("p", items[::-1])
    journal.plan("other", [Planned("x", Item("x", UNKNOWN, ""))])
    assert list(journal.planned("p")) == items
    assert journal.totals() == (1202, sum(range(1201)))


def test_journal_finds_planned_names_that_are_also_directories(journal: Journal) -> None:
    journal.plan("p", [Planned(name, Item(name, 1, "e")) for name in ("a", "a-b", "a/b", "c", "c.d", "c0")])
    assert journal.directories("p") == {"a"}
    assert journal.directories("q") == frozenset()


def test_journal_counts_remaining_bytes_of_plan(journal: Journal) -> None:
    journal.plan("p", [Planned(name, Item(name, 100, "e")) for name in ("there", "other", "half")])
    journal.settle("p", "there", Settled("v", "e"))
    journal.settle("p", "other", Settled("v", "before"))
    journal.start("p", "half", Started("v", "", 30))
    journal.part("p", "half", 0, "d")
    assert journal.to_come("p") == 170


def test_journal_forgets_parts_when_transfer_restarts_or_settles(journal: Journal) -> None:
    journal.start("p", "n", Started("1", "up", 5))
    journal.part("p", "n", 3, "d")
    assert (journal.started("p", "n"), journal.parts("p", "n")) == (Started("1", "up", 5), {3: "d"})
    assert journal.unfinished("p") == [("n", "up")]
    journal.start("p", "n", Started("2", "", 5))
    assert (journal.parts("p", "n"), journal.unfinished("p")) == ({}, [])
    journal.settle("p", "n", Settled("v", "e"))
    assert (journal.started("p", "n"), journal.settled("p", "n")) == (None, Settled("v", "e"))


@pytest.mark.parametrize(("direction", "known"), [(Direction.IN, None), (Direction.OUT, Settled("v", "e"))])
def test_journal_forgets_downloads_but_not_uploads_after_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: Direction, known: Settled | None
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(processes, "_BOOT_ID", str(boot))
    first = Journal(str(tmp_path), direction)
    first.settle("p", "n", Settled("v", "e"))
    first.close()
    again = Journal(str(tmp_path), direction)
    assert again.settled("p", "n") == Settled("v", "e")
    again.close()
    boot.write_text("two\n")
    later = Journal(str(tmp_path), direction)
    assert later.settled("p", "n") == known
    later.close()


def test_journal_replaces_corrupt_database_file(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"is no database" * 100)
    made = Journal(str(tmp_path), Direction.IN)
    made.settle("p", "n", Settled("v", "e"))
    assert made.settled("p", "n") == Settled("v", "e")
    made.close()


def test_place_of_distinguishes_transfers_by_store_prefix_and_directory() -> None:
    store = StoreAddress(StoreKind.S3, "http://s", container="b")
    transfers = [Transfer(store, "p", "/a"), Transfer(store, "q", "/a"), Transfer(store, "p", "/b")]
    assert len({place_of(transfer) for transfer in transfers}) == 3
    assert place_of(Transfer(store, "p/", "/a")) == place_of(transfers[0])


# ---------------------------------------------------------------------------------------------------- no room is left


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
        with pytest.raises(OSError, match="No space left on device") as caught:
            Journal(str(tmp_path), Direction.OUT)
        assert caught.value.filename == str(tmp_path)
    again = Journal(str(tmp_path), Direction.OUT)
    assert again.settled("p", "a") == Settled("v", "e")
    again.close()


def _refused(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "refusal", "found"),
    [
        (sqlite3.SQLITE_IOERR | 3 << 8, errno.EDQUOT, errno.EDQUOT),
        (sqlite3.SQLITE_IOERR, errno.EROFS, errno.EROFS),
        (sqlite3.SQLITE_IOERR, None, errno.EIO),
        (sqlite3.SQLITE_FULL, errno.EDQUOT, errno.EDQUOT),
        (sqlite3.SQLITE_FULL, None, errno.ENOSPC),
        (sqlite3.SQLITE_READONLY, errno.EROFS, errno.EROFS),
        (sqlite3.SQLITE_CANTOPEN, errno.ENOSPC, errno.ENOSPC),
        (sqlite3.SQLITE_CANTOPEN, errno.EACCES, None),
        (sqlite3.SQLITE_ERROR, None, None),
    ],
)
def test_journal_reports_cause_and_directory_if_disk_refuses_transaction(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, code: int, refusal: int | None, found: int | None
) -> None:
    why = None if refusal is None else OSError(refusal, os.strerror(refusal))
    monkeypatch.setattr(module, "why_unwritable", lambda _path: why)
    data, journal._data = journal._data, MagicMock()
    journal._data.execute.side_effect = _refused(code)
    with pytest.raises(sqlite3.OperationalError if found is None else OSError) as caught:
        journal.part("p", "n", 1, "d")
    journal._data = data
    if isinstance(caught.value, OSError):
        assert (caught.value.errno, caught.value.filename) == (found, str(journal._path.parent))


def test_staging_program_reports_s302_when_journal_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "from").mkdir()
    store = StoreAddress(StoreKind.FILE, container=str(tmp_path / "from"))
    state = tmp_path / "state"
    task = StageTask(Direction.IN, (Transfer(store, "", str(tmp_path / "to")),), str(state))
    (tmp_path / "task.json").write_text(staging_protocol.encode_task(task))
    monkeypatch.setattr(module, "_opened", _full)
    read, write = os.pipe()
    status = run_program(str(tmp_path / "task.json"), check=False, output=write)
    os.close(write)
    with os.fdopen(read) as said:
        last = staging_protocol.read_line(said.read().splitlines()[-1])
    assert isinstance(last, Failed)
    assert (last.class_, last.code) == (FaultClass.FULL, "S302")
    cure = f"free some space in {state}, or request more there"
    assert last.message == f"{state} on this machine: No space left on device; {cure}"
    assert status != 0


def test_require_free_reports_needed_and_free_size_in_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs_result((1000, 1000, 200_000, 100_000, 100_000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: room)
    with pytest.raises(Fault) as raised:
        require_free(str(tmp_path), 1_500_000_000)
    assert raised.value.cause == f"1.4 GiB are to come, and 95.4 MiB are free in {tmp_path} on this machine"
