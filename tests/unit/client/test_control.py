"""Ending the daemon: only what the lock proves to be it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ffdl_batch.client import DaemonUnreachable
from ffdl_batch.client.connection.daemon_process import find_holder, stop_daemon
from ffdl_batch.client.connection.daemon_settings import own_settings
from ffdl_batch.config.daemon_location import DaemonLock, Holder, this_machine


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be ended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def write_lock(state_dir: Path, pid: int, **changes: object) -> None:
    machine = this_machine()
    lock = DaemonLock(machine.host, pid, machine.boot_id, machine.start_ticks(pid) or 0, "/s", "1", 1_800_000_000.0)
    (state_dir / "daemon.lock").write_text(json.dumps({**asdict(lock), **changes}))


def refuse(pid: int, number: int) -> None:
    pytest.fail(f"process {pid} was sent {number}")


class Ended(Exception):
    """The process would have been ended."""


def note(_pid: int, _number: int) -> None:
    raise Ended


def test_stop_daemon_terminates_lock_holder_and_waits(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_lock(tmp_path, sleeper.pid)
    found = find_holder(tmp_path)
    assert found is not None and found[1] is Holder.ALIVE_HERE
    ended = stop_daemon(tmp_path)
    assert ended is not None and ended.pid == sleeper.pid
    assert sleeper.wait(10) == -signal.SIGTERM
    assert stop_daemon(tmp_path, end=refuse) is None


def test_stop_daemon_does_nothing_without_lock_or_proof_of_daemon(tmp_path: Path) -> None:
    assert stop_daemon(tmp_path, end=refuse) is None
    write_lock(tmp_path, os.getpid(), start_ticks=1)
    assert stop_daemon(tmp_path, end=refuse) is None


def test_stop_daemon_names_host_of_remote_daemon(tmp_path: Path) -> None:
    write_lock(tmp_path, os.getpid(), host="login2")
    with pytest.raises(DaemonUnreachable, match=r"runs on login2 .*ssh login2 ffdl daemon stop"):
        stop_daemon(tmp_path, end=refuse)


def test_stop_daemon_spares_process_of_other_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lock(tmp_path, os.getpid())
    uid = os.getuid()
    monkeypatch.setattr("ffdl_batch.client.connection.daemon_process.os.getuid", lambda: uid + 1)
    with pytest.raises(DaemonUnreachable, match="belongs to another user, so it is not stopped"):
        stop_daemon(tmp_path, end=refuse)


def test_stop_daemon_fails_if_daemon_does_not_end_but_not_if_it_has_ended(tmp_path: Path) -> None:
    def gone(_pid: int, _number: int) -> None:
        raise ProcessLookupError

    write_lock(tmp_path, os.getpid())
    with pytest.raises(DaemonUnreachable, match=r"has not ended 0 s after SIGTERM"):
        stop_daemon(tmp_path, 0.0, end=lambda _pid, _number: None)
    assert stop_daemon(tmp_path, end=gone) is not None


def test_stop_daemon_is_refused_if_next_daemon_cannot_write_state_dir(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(tmp_path, sleeper.pid)

    def fill(_descriptor: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(DaemonUnreachable, match=rf"{tmp_path} cannot be written to: .*raise the quota"):
        stop_daemon(tmp_path, end=refuse, next_writes_in=[tmp_path])
    assert sleeper.poll() is None
    assert [path.name for path in tmp_path.iterdir()] == ["daemon.lock"]
    with pytest.raises(Ended):
        stop_daemon(tmp_path, end=note)


def test_stop_daemon_checks_every_directory_written_at_start(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_lock(tmp_path, sleeper.pid)
    settings = {"FFDL_DATABASE_URL": f"sqlite:///{tmp_path}/gone/jobs.db"}
    places = own_settings(settings, tmp_path).written_at_start
    assert places == (tmp_path, tmp_path / "gone")
    on_server = {"FFDL_DATABASE_URL": "postgresql+psycopg://ada@db/ffdl"}
    assert own_settings(on_server, tmp_path).written_at_start == (tmp_path,)
    with pytest.raises(DaemonUnreachable, match=rf"{tmp_path}/gone cannot be written to: No such file"):
        stop_daemon(tmp_path, end=refuse, next_writes_in=places)
    (tmp_path / "gone").mkdir()
    with pytest.raises(Ended):
        stop_daemon(tmp_path, end=note, next_writes_in=places)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["daemon.lock", "gone"]
    assert list((tmp_path / "gone").iterdir()) == []
