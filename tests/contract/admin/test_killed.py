"""ffdl-admin is killed while one of PostgreSQL's programs works for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from tests import preloaded
from tests.contract.admin.conftest import Desk
from tests.contract.admin.test_db import jobs_of
from tests.contract.admin.test_refusals import on_postgres
from tests.unit.store.jobs import add_job

LIMIT_S = 120.0


def children_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and fields_of(int(entry.name))[1:2] == [str(parent)]:
            found.append(int(entry.name))
    return found


def fields_of(pid: int) -> list[str]:
    """State, parent, ... of a process; none where there is no such one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_gone(pid: int) -> bool:
    return fields_of(pid)[:1] in ([], ["Z"])


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def start(command: str, file: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "ffdl_batch.admin.main", "db", command, str(file), "--force"]
    return preloaded.Popen(argv, env=dict(os.environ))


def kill(admin: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """It is killed, and what it had started is gone."""
    (program,) = children_of(admin.pid)
    admin.send_signal(how)
    assert admin.wait(LIMIT_S) == -how
    try:
        wait_for(lambda: is_gone(program), "the end of what it had started")
    finally:
        if not is_gone(program):
            os.kill(program, signal.SIGKILL)


@on_postgres
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_db_restore_changes_nothing_when_ffdl_admin_is_killed(desk: Desk, tmp_path: Path, how: signal.Signals) -> None:
    with desk.store() as store:
        kept = str(add_job(store).id)
    desk.done("db", "backup", tmp_path / "copy")
    with desk.store() as store:
        later = str(add_job(store, "later").id)
    with desk.changing() as connection:
        connection.execute(text("LOCK TABLE jobs IN ACCESS SHARE MODE"))  # it can be read, and not be dropped
        admin = start("restore", tmp_path / "copy")
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        wait_for(lambda: connection.execute(waiting).scalar_one(), "psql, which waits for its lock")
        kill(admin, how)
    assert jobs_of(desk) == {kept, later}


@on_postgres
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_db_backup_ends_pg_dump_when_ffdl_admin_is_killed(desk: Desk, tmp_path: Path, how: signal.Signals) -> None:
    with desk.store() as store:
        add_job(store)
    started = tmp_path / "started"
    slow = tmp_path / "programs" / "pg_dump"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\n: > {started}\nexec sleep 600\n")
    slow.chmod(0o755)
    desk.monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)
    admin = start("backup", tmp_path / "copy")
    wait_for(started.exists, "pg_dump")
    kill(admin, how)
