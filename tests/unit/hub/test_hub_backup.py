"""Copies of the hub's database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ffdl_batch.site.hub.backup import BackupRefused, back_up
from tests.unit.hub.conftest import serving_hub


def test_copy_of_database_in_use_is_complete_and_private(tmp_path: Path) -> None:
    with serving_hub(tmp_path) as site:
        site.store.tenants.put("vision", None, [])
        target = tmp_path / "copy"
        target.write_text("an older copy")
        back_up(site.settings.database_url, target)
        site.store.tenants.put("speech", None, [])
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT name FROM tenants").fetchall() == [("vision",)]
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert target.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".copy*"))


def test_database_itself_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    with serving_hub(tmp_path) as site:
        url = site.settings.database_url
        (tmp_path / "link").hardlink_to(tmp_path / "hub.db")
        for name in ("hub.db", "hub.db-wal", "link"):
            with pytest.raises(BackupRefused, match="is the database itself"):
                back_up(url, tmp_path / name)
        with pytest.raises(BackupRefused, match="is not a file"):
            back_up(url, tmp_path)
        with pytest.raises(BackupRefused, match="no copy could be written"):
            back_up(url, tmp_path / "none/copy")
        site.store.tenants.put("vision", None, [])
    with pytest.raises(BackupRefused, match="copy it with pg_dump"):
        back_up("postgresql://localhost/ffdl", tmp_path / "copy")
    with pytest.raises(BackupRefused, match="does not exist"):
        back_up(f"sqlite:///{tmp_path}/none.db", tmp_path / "copy")
