"""Where the socket is looked for, and which directories are never used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.client.connection.daemon_location import locate_socket, locate_state_dir
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config import daemon_location
from ffdl_batch.config.daemon_location import (
    LockUnreadable,
    PlaceRefused,
    check_directory,
    make_own_directory,
    read_lock,
)
from tests.planted_files import NO_FILES, NO_JSON, Plant

UNUSABLE = ("/dev/null/none", "/no/such/directory", "relative", "")


def test_locate_socket_prefers_named_socket_to_runtime_directory(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    place = locate_socket({"FFDL_SOCKET": "/run/site/ffdl.sock", **environ})
    assert (place.path, place.named) == (Path("/run/site/ffdl.sock"), True)
    place = locate_socket(environ)
    assert (place.path, place.named) == (tmp_path / "ffdl" / "ffdl.sock", False)


@pytest.mark.parametrize("environ", [{}, *({"XDG_RUNTIME_DIR": path} for path in UNUSABLE)])
def test_locate_socket_uses_tmp_without_usable_runtime_directory(tmp_path: Path, environ: dict[str, str]) -> None:
    assert locate_socket(environ, tmp=tmp_path).path == tmp_path / f"ffdl-{os.getuid()}" / "ffdl.sock"


def refusal(tmp: Path) -> DaemonUnreachable:
    with pytest.raises(DaemonUnreachable, match="not looked for there") as caught:
        locate_socket({}, tmp=tmp)
    assert caught.value.problem.exit_code == 77
    return caught.value


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
def test_locate_socket_rejects_directory_open_to_others_and_uses_private_one(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / f"ffdl-{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    assert f"has mode {mode:04o}, which lets others in" in str(refusal(tmp_path))
    directory.chmod(0o700)
    assert locate_socket({}, tmp=tmp_path).path == directory / "ffdl.sock"


def test_locate_socket_rejects_link_or_file_in_place_of_directory(tmp_path: Path) -> None:
    place = tmp_path / f"ffdl-{os.getuid()}"
    (tmp_path / "mine").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "mine")
    assert "is a symbolic link" in str(refusal(tmp_path))
    place.unlink()
    place.write_text("")
    assert "is not a directory" in str(refusal(tmp_path))


def test_locate_socket_skips_runtime_directory_of_other_user_and_rejects_their_directory_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert locate_socket({"XDG_RUNTIME_DIR": str(tmp_path)}, tmp=tmp_path).path.parent.name == f"ffdl-{uid + 1}"
    (tmp_path / f"ffdl-{uid + 1}").mkdir(mode=0o700)
    assert f"belongs to user {uid}" in str(refusal(tmp_path))


def test_check_directory_rejects_only_writers_in_runtime_directory(tmp_path: Path) -> None:
    directory = tmp_path / "ffdl"
    directory.mkdir()
    directory.chmod(0o755)
    check_directory(directory, closed=False)
    directory.chmod(0o775)
    with pytest.raises(PlaceRefused):
        check_directory(directory, closed=False)


def test_locate_socket_rejects_path_too_long_for_socket() -> None:
    with pytest.raises(DaemonUnreachable, match="more than 107 bytes"):
        locate_socket({"FFDL_SOCKET": "/" + "x" * 200})


def test_locate_state_dir_prefers_ffdl_then_xdg_variable(tmp_path: Path) -> None:
    base = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert locate_state_dir(base) == tmp_path / ".local" / "state" / "ffdl"
    assert locate_state_dir({**base, "XDG_STATE_HOME": str(tmp_path / "s")}) == tmp_path / "s" / "ffdl"
    assert locate_state_dir({**base, "FFDL_STATE_DIR": str(tmp_path / "f")}) == tmp_path / "f"


def test_locate_state_dir_reports_unusable_configuration(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="the configuration cannot be used") as caught:
        locate_state_dir({"HOME": str(tmp_path), "FFDL_CONFIG": str(tmp_path / "gone.toml")})
    assert caught.value.problem.exit_code == 78


def test_locate_socket_returns_own_path_per_state_directory(tmp_path: Path) -> None:
    places = {locate_socket({"FFDL_STATE_DIR": text}, tmp=tmp_path).path for text in ("/a", "/b", "/b/../b")}
    assert len(places) == 2
    assert locate_socket({}, tmp=tmp_path).path not in places
    default = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / ".local/state/ffdl")}
    assert locate_socket(default, tmp=tmp_path).path == locate_socket({}, tmp=tmp_path).path


@pytest.mark.parametrize("mode", [0o775, 0o770, 0o702, 0o1777])
def test_state_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """With an ACL, the group bits are its mask."""
    state, link = tmp_path / "a state", tmp_path / "link"
    make_own_directory(state)
    link.symlink_to(state)
    assert (state.stat().st_mode & 0o777, read_lock(link)) == (0o700, None)
    state.chmod(mode)
    for use in (read_lock, make_own_directory):
        with pytest.raises(LockUnreadable, match=f"has mode {mode:04o}, which lets others write") as caught:
            use(link)
        assert (caught.value.cure, caught.value.exit_code) == (f"chmod go-w {link}", 77)


def test_read_lock_explains_unusable_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LockUnreadable, match="is not a directory") as caught:
        read_lock(tmp_path / "file")
    assert caught.value.exit_code == 66

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(daemon_location, "read_whole", refuse)
    with pytest.raises(LockUnreadable, match="closed to you") as caught:
        read_lock(tmp_path)
    assert (caught.value.cure, caught.value.exit_code) == ("chmod u+rwx it", 77)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(LockUnreadable, match=f"belongs to user {tmp_path.stat().st_uid}") as caught:
        read_lock(tmp_path)
    assert "FFDL_STATE_DIR" in caught.value.cure


@pytest.mark.parametrize("plant", [*NO_FILES.values(), *NO_JSON.values()], ids=[*NO_FILES, *NO_JSON])
def test_read_lock_rejects_what_is_not_a_lock_file(tmp_path: Path, plant: Plant) -> None:
    plant(tmp_path / "daemon.lock")
    if (tmp_path / "daemon.lock").is_file() and not (tmp_path / "daemon.lock").stat().st_size:
        assert read_lock(tmp_path) is None
        return
    with pytest.raises(LockUnreadable, match=r"daemon.lock is not a daemon's lock file: ") as caught:
        read_lock(tmp_path)
    assert caught.value.cure.startswith("remove it if no ffdl-submitd of yours runs")
