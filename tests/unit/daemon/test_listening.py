"""Where the socket is put. The directory rules are the client's, too; socket files are made here, none is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.config.locations import PlaceRefused, socket_place
from ffdl_batch.daemon.listening import Listener


def test_socket_place_prefers_setting_then_runtime_directory_then_tmp(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    named = {"FFDL_SOCKET": "/x/y.sock", "XDG_RUNTIME_DIR": str(runtime)}
    assert socket_place(named).path == Path("/x/y.sock")
    assert socket_place({"XDG_RUNTIME_DIR": str(runtime)}).path == runtime / "ffdl" / "ffdl.sock"
    for unusable in ({}, {"XDG_RUNTIME_DIR": str(tmp_path / "gone")}, {"XDG_RUNTIME_DIR": "relative"}):
        place = socket_place(unusable, tmp=tmp_path)
        assert place.path == tmp_path / f"ffdl-{os.getuid()}" / "ffdl.sock"


@pytest.mark.parametrize("fault", ["link", "file", "open"])
def test_socket_place_rejects_unsafe_directory_in_tmp(tmp_path: Path, fault: str) -> None:
    directory = tmp_path / f"ffdl-{os.getuid()}"
    if fault == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(tmp_path / "elsewhere")
    elif fault == "file":
        directory.touch()
    else:
        directory.mkdir()
        directory.chmod(0o755)
    with pytest.raises(PlaceRefused, match="not looked for there") as refusal:
        socket_place({}, tmp=tmp_path)
    assert refusal.value.exit_code == 77


def test_listener_reports_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceRefused, match="cannot be made"):
        Listener({"FFDL_SOCKET": str(tmp_path / "file" / "x.sock")}).open()


def test_listener_removes_only_its_own_socket_file(tmp_path: Path) -> None:
    listener = Listener({"FFDL_SOCKET": str(tmp_path / "s")})
    listener.open().close()
    assert listener.is_in_place()
    listener.path.unlink()
    listener.path.touch()
    assert not listener.is_in_place()
    listener.remove()
    assert listener.path.exists()
