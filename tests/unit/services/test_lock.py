"""Who holds a state directory, and who may take it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.config import daemon_location
from ffdl_batch.config.daemon_location import DaemonLock, DirectoryCopied, Machine, read_lock, this_machine
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.services import daemon_lock
from ffdl_batch.services.daemon_lock import AlreadyServed, HeldElsewhere, Hold, TakeOver, acquire
from tests import preloaded

HERE = this_machine()


def record(machine: Machine = HERE, pid: int | None = None, **changes: object) -> DaemonLock:
    own = os.getpid() if pid is None else pid
    made = DaemonLock(machine.host, own, machine.boot_id, machine.start_ticks(own) or 0, "", "0.1", 1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def take(state: Path, take_over: TakeOver | None = None, machine: Machine = HERE) -> Hold:
    return acquire(state, record(machine), machine, take_over, patience_s=0.0)


def leave(state: Path, left: DaemonLock) -> None:
    (state / "daemon.lock").write_text(json.dumps(to_plain(left)))


def test_lock_is_acquired_announced_and_released(tmp_path: Path) -> None:
    hold = take(tmp_path)
    hold.announce(Path("/run/x.sock"))
    found = read_lock(tmp_path)
    assert found is not None
    assert (found.pid, found.socket) == (os.getpid(), "/run/x.sock")
    assert hold.is_ours()
    hold.release()
    assert read_lock(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["daemon.flock"]
    take(tmp_path).release()


def test_acquire_refuses_second_daemon_while_first_holds_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = take(tmp_path)
    with pytest.raises(HeldElsewhere, match=f"process {os.getpid()} holds"):
        take(tmp_path)  # alive, and not yet listening: it waited for nothing
    hold.announce(Path("/run/x.sock"))
    monkeypatch.setattr(daemon_lock, "_listens", lambda path: path == "/run/x.sock")
    with pytest.raises(AlreadyServed, match="already runs here"):
        take(tmp_path)
    hold.release()


@pytest.mark.parametrize(
    "left",
    [record(boot_id="an earlier boot"), record(start_ticks=1), record(pid=2**22 + 1)],
    ids=["rebooted", "pid reused", "gone"],
)
def test_acquire_replaces_dead_holder_on_same_host(tmp_path: Path, left: DaemonLock) -> None:
    leave(tmp_path, left)
    hold = take(tmp_path)
    assert hold.is_ours()
    hold.release()


@pytest.mark.parametrize("daemon", ["serves", "has ended", "was killed by a reboot"])
def test_acquire_refuses_copied_state_directory_until_its_lock_file_is_removed(tmp_path: Path, daemon: str) -> None:
    """Its jobs are those of the original, which may have run since."""
    original, copy = tmp_path / "state", tmp_path / "copy"
    original.mkdir()
    hold = take(original)
    hold.announce(Path("/run/x.sock"))
    preloaded.run(["cp", "-a", original, copy], check=True)
    machine = HERE
    if daemon == "has ended":
        hold.release()
    elif daemon == "was killed by a reboot":
        machine = replace(HERE, boot_id="a later boot")
    with pytest.raises(DirectoryCopied, match=f"{copy} is a copy of a state directory") as told:
        read_lock(copy)
    assert told.value.exit_code == 78 and f"remove {copy}/daemon.lock" in told.value.cure
    for allowed in (TakeOver(proven=True), TakeOver(from_host="elsewhere")):
        with pytest.raises(HeldElsewhere, match=f"is a copy of .*remove {copy}/daemon.lock") as refused:
            take(copy, allowed, machine)
        assert refused.value.exit_code == 78
    (copy / "daemon.lock").unlink()
    other = take(copy, machine=machine)
    assert other.is_ours()
    other.release()


def test_acquire_takes_copied_state_directory_when_its_host_is_named(tmp_path: Path) -> None:
    original, copy = tmp_path / "state", tmp_path / "copy"
    original.mkdir()
    hold = take(original)
    preloaded.run(["cp", "-a", original, copy], check=True)
    other = take(copy, TakeOver(from_host=HERE.host))
    assert other.is_ours() and hold.is_ours()
    other.release()
    hold.release()


def test_acquire_accepts_moved_state_directory(tmp_path: Path) -> None:
    original = tmp_path / "state"
    original.mkdir()
    hold = take(original)
    hold.announce(Path("/run/x.sock"))
    moved = original.rename(tmp_path / "moved")
    found = read_lock(moved)
    assert found is not None and found.socket == "/run/x.sock"
    os.close(hold._descriptor)  # as by SIGKILL
    take(moved, machine=replace(HERE, boot_id="a later boot")).release()
    assert not (moved / "daemon.lock").exists()


def test_read_lock_reports_copy_for_another_inode_number_on_own_host_only(tmp_path: Path) -> None:
    """Each host numbers its devices itself, and a file system that is mounted again gets another number. Elsewhere the
    same directory may have another inode number (sshfs, CIFS), and two daemons destroy a database."""
    inode = tmp_path.stat().st_ino
    for host in (HERE.host, "elsewhere"):
        leave(tmp_path, record(host=host, directory=f"99999:{inode}"))
        assert read_lock(tmp_path) is not None
    leave(tmp_path, record(directory=f"99999:{inode + 1}"))
    with pytest.raises(DirectoryCopied):
        read_lock(tmp_path)
    leave(tmp_path, record(host="elsewhere", directory=f"99999:{inode + 1}"))
    assert read_lock(tmp_path) is not None
    with pytest.raises(HeldElsewhere, match="elsewhere"):
        take(tmp_path)
    leave(tmp_path, record(directory=""))  # a daemon of an earlier release, which still runs
    assert read_lock(tmp_path) is not None


def test_hold_stays_valid_after_state_directory_is_deleted_and_recreated(tmp_path: Path) -> None:
    """The daemon is the last that has the database: it must not give way."""
    state = tmp_path / "state"
    state.mkdir()
    hold = take(state)
    state.rename(tmp_path / "kept")  # so that its inode is not given again
    state.mkdir()
    assert hold.is_ours() and hold.is_ours()
    found = read_lock(state)
    assert found is not None and found.pid == os.getpid()
    hold.release()
    assert read_lock(state) is None


@pytest.mark.parametrize("writer", ["we", "an earlier daemon"])
def test_hold_stays_valid_after_state_directory_is_replaced_by_copy(tmp_path: Path, writer: str) -> None:
    """Nobody else can hold it. Whoever gives it to another host writes that one's name."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    hold = take(state)
    if writer == "an earlier daemon":
        leave(state, replace(hold.record, start_ticks=1))
    preloaded.run(["cp", "-a", state, copy], check=True)
    state.rename(tmp_path / "kept")
    copy.rename(state)
    assert hold.is_ours()
    found = read_lock(state)
    assert found == hold.record
    hold.release()
    assert not (state / "daemon.lock").exists()


def test_acquire_refuses_to_replace_live_holder_without_flock(tmp_path: Path) -> None:
    leave(tmp_path, record(pid=os.getppid()))
    with pytest.raises(HeldElsewhere, match="which lives"):
        take(tmp_path, TakeOver(proven=True))


def test_acquire_refuses_holder_on_another_host_until_that_host_is_named(tmp_path: Path) -> None:
    leave(tmp_path, record(host="login2"))
    for allowed in (None, TakeOver(proven=True), TakeOver(from_host="login3")):
        with pytest.raises(HeldElsewhere, match="login2"):
            take(tmp_path, allowed)
    hold = take(tmp_path, TakeOver(from_host="login2"))
    assert hold.is_ours()
    hold.release()


def test_hold_rewrites_removed_lock_file_and_leaves_that_of_another_host_in_place(tmp_path: Path) -> None:
    hold = take(tmp_path)
    (tmp_path / "daemon.lock").unlink()
    assert hold.is_ours()
    assert read_lock(tmp_path) == hold.record
    leave(tmp_path, record(host="login2"))
    assert not hold.is_ours()
    hold.release()
    found = read_lock(tmp_path)
    assert found is not None and found.host == "login2"


@pytest.mark.parametrize("text", ["", "\n"])
def test_acquire_ignores_empty_lock_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "daemon.lock").write_text(text)
    take(tmp_path).release()


@pytest.mark.parametrize("text", ["{", "[]", '{"host": "x"}', '{"host": "-oProxyCommand=x", "pid": 1}'])
def test_acquire_refuses_damaged_lock_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "daemon.lock").write_text(text)
    with pytest.raises(HeldElsewhere, match="remove it"):
        take(tmp_path)


def test_acquire_uses_flock_in_tmp_when_file_system_lacks_flock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def refusing(descriptor: int, operation: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().parent == tmp_path:
            raise OSError(38, "Function not implemented")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refusing)
    hold = take(tmp_path)
    with pytest.raises(HeldElsewhere):
        take(tmp_path)
    used = Path(f"/proc/self/fd/{hold._descriptor}").readlink()
    hold.release()
    used.unlink()
    assert used.parent == Path(f"/tmp/ffdl-{os.getuid()}")


def test_acquire_works_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refusing)
    hold = take(tmp_path)
    assert hold.is_ours()
    hold.release()


def test_hold_raises_instead_of_giving_way_when_lock_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without descriptors, or with a home directory that is gone for a moment, a daemon must not give way."""
    hold = take(tmp_path)

    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(daemon_location, "read_whole", fail)
        with pytest.raises(OSError, match="Too many"):
            hold.is_ours()
    assert hold.is_ours()
    (tmp_path / "daemon.lock").write_text("{")
    assert not hold.is_ours()
    hold.release()
