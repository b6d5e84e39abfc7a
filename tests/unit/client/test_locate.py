"""Where the socket is looked for, and which directories are never used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.client.locate import locate_socket, locate_state_dir
from ffdl_batch.config.locations import LockUnreadable, PlaceRefused, check_directory, read_lock


def test_a_named_socket_comes_first(tmp_path: Path) -> None:
    place = locate_socket({"FFDL_SOCKET": "/run/site/ffdl.sock", "XDG_RUNTIME_DIR": str(tmp_path)})
    assert (place.path, place.named) == (Path("/run/site/ffdl.sock"), True)


def test_the_runtime_directory_of_the_user_comes_next(tmp_path: Path) -> None:
    place = locate_socket({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert (place.path, place.named) == (tmp_path / "ffdl" / "ffdl.sock", False)


@pytest.mark.parametrize("runtime", ["/dev/null/none", "relative", ""])
def test_without_a_runtime_directory_it_is_in_tmp(tmp_path: Path, runtime: str) -> None:
    place = locate_socket({"XDG_RUNTIME_DIR": runtime}, tmp=tmp_path)
    assert place.path == tmp_path / f"ffdl-{os.getuid()}" / "ffdl.sock"


def test_cron_has_nothing_but_still_finds_a_place(tmp_path: Path) -> None:
    assert locate_socket({}, tmp=tmp_path).path.parent.name == f"ffdl-{os.getuid()}"


def test_a_runtime_directory_of_another_user_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert locate_socket({"XDG_RUNTIME_DIR": str(tmp_path)}, tmp=tmp_path).path.parent.name == f"ffdl-{uid + 1}"


def own_tmp_dir(tmp: Path, mode: int = 0o700) -> Path:
    directory = tmp / f"ffdl-{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    return directory


def test_a_closed_directory_of_ours_is_used(tmp_path: Path) -> None:
    directory = own_tmp_dir(tmp_path)
    assert locate_socket({}, tmp=tmp_path).path == directory / "ffdl.sock"


def refusal(tmp: Path) -> DaemonUnreachable:
    with pytest.raises(DaemonUnreachable) as caught:
        locate_socket({}, tmp=tmp)
    assert caught.value.problem.exit_code == 77
    return caught.value


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o770])
def test_a_directory_that_lets_others_in_is_refused(tmp_path: Path, mode: int) -> None:
    own_tmp_dir(tmp_path, mode)
    assert f"has mode {mode:04o}" in str(refusal(tmp_path))


def test_a_symbolic_link_is_refused_even_to_our_own_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / f"ffdl-{os.getuid()}").symlink_to(tmp_path / "mine")
    assert "is a symbolic link" in str(refusal(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"ffdl-{os.getuid()}").write_text("")
    assert "is not a directory" in str(refusal(tmp_path))


def test_the_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    (tmp_path / f"ffdl-{uid + 1}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert f"belongs to user {uid}" in str(refusal(tmp_path))


def test_inside_the_runtime_directory_only_writers_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "ffdl"
    directory.mkdir()
    directory.chmod(0o755)
    check_directory(directory, closed=False)
    directory.chmod(0o775)
    with pytest.raises(PlaceRefused):
        check_directory(directory, closed=False)


def test_a_path_that_is_too_long_for_a_socket_is_named() -> None:
    with pytest.raises(DaemonUnreachable, match="more than 107 bytes"):
        locate_socket({"FFDL_SOCKET": "/" + "x" * 200})


def test_the_state_directory(tmp_path: Path) -> None:
    base = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert locate_state_dir(base) == tmp_path / ".local" / "state" / "ffdl"
    assert locate_state_dir({**base, "XDG_STATE_HOME": str(tmp_path / "s")}) == tmp_path / "s" / "ffdl"
    assert locate_state_dir({**base, "FFDL_STATE_DIR": str(tmp_path / "f")}) == tmp_path / "f"


def test_a_configuration_in_error_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="the configuration cannot be used") as caught:
        locate_state_dir({"HOME": str(tmp_path), "FFDL_CONFIG": str(tmp_path / "gone.toml")})
    assert caught.value.problem.exit_code == 78


def test_each_state_directory_has_a_socket_of_its_own(tmp_path: Path) -> None:
    places = {locate_socket({"FFDL_STATE_DIR": text}, tmp=tmp_path).path for text in ("/a", "/b", "/b/../b")}
    assert len(places) == 2
    assert locate_socket({}, tmp=tmp_path).path not in places
    default = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / ".local/state/ffdl")}
    assert locate_socket(default, tmp=tmp_path).path == locate_socket({}, tmp=tmp_path).path


def test_a_state_directory_that_cannot_be_used_says_why_and_never_to_remove_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LockUnreadable, match="is not a directory") as caught:
        read_lock(tmp_path / "file")
    assert caught.value.exit_code == 66

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(LockUnreadable, match="closed to you") as caught:
        read_lock(tmp_path)
    assert (caught.value.cure, caught.value.exit_code) == ("chmod u+rwx it", 77)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(LockUnreadable, match=f"belongs to user {tmp_path.stat().st_uid}") as caught:
        read_lock(tmp_path)
    assert "FFDL_STATE_DIR" in caught.value.cure
