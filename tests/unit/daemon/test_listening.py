"""The daemon's socket file: where it cannot be made, and whose it is. No socket is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.config.daemon_location import PlaceRefused
from ffdl_batch.daemon.socket_file import Listener


def test_listener_reports_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceRefused, match="cannot be created"):
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
