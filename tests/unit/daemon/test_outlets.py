"""The daemon's figures on its socket, and in a file."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.daemon import metrics_port
from ffdl_batch.daemon.prometheus import Outlets
from tests.unit.daemon.conftest import OWN_UID, Desk


def test_metrics_endpoint_returns_figures_only_to_daemon_user(desk: Desk) -> None:
    answer = desk.ask("GET", "/metrics")
    assert answer.status == 200
    assert b"\nffdl_database_up 1\n" in answer.body and b"ffdl_http_requests_total 1\n" in answer.body
    assert desk.ask("GET", "/metrics", uid=OWN_UID + 1).status == 403


def test_metrics_textfile_warns_once_if_it_cannot_be_written(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "there" / "ffdl.prom"
    outlets = Outlets(replace(desk.platform.settings, metrics_textfile=str(file)), desk.context.figures)
    with caplog.at_level(logging.WARNING):
        pauses = {outlets._write(), outlets._write()}
    assert len(caplog.messages) == 1 and "metrics_textfile cannot be written" in caplog.messages[0]
    file.parent.mkdir()
    assert {outlets._write()} == pauses and file.read_text().startswith("# HELP ffdl_jobs ")
    assert [path.name for path in file.parent.iterdir()] == ["ffdl.prom"]
    outlets.stop()
    assert not file.exists()


def test_metrics_textfile_of_killed_daemon_is_replaced_and_removed(desk: Desk, tmp_path: Path) -> None:
    settings = replace(desk.platform.settings, metrics_textfile=str(tmp_path / "ffdl.prom"))
    Outlets(settings, desk.context.figures)._write()
    (tmp_path / "ffdl.prom").chmod(0o600)
    later = Outlets(settings, desk.context.figures)
    later._write()
    assert (tmp_path / "ffdl.prom").stat().st_mode & 0o777 == 0o644
    later.stop()
    assert not (tmp_path / "ffdl.prom").exists()


@pytest.mark.parametrize("other", ["file", "link", "daemon of another state_dir", "put there later"])
def test_metrics_textfile_that_daemon_did_not_write_is_kept(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    file, kept = tmp_path / "notes", tmp_path / "kept"
    settings = replace(desk.platform.settings, metrics_textfile=str(file))
    outlets = Outlets(settings, desk.context.figures)
    kept.write_text("years of work")
    if other == "put there later":
        outlets._write()
    if other == "daemon of another state_dir":
        Outlets(replace(settings, state_dir="/another"), desk.context.figures)._write()
    elif other == "link":
        file.symlink_to(kept)
    else:
        file.write_text("years of work")
    before = file.read_bytes()
    outlets._write()
    outlets.stop()
    assert (file.read_bytes(), kept.read_text(), file.is_symlink()) == (before, "years of work", other == "link")
    assert f"{file} was not written by this daemon" in caplog.text


def test_metrics_port_disconnects_client_that_sends_its_request_slowly(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_port, "CONNECTION_S", 0.1)
    with metrics_port.listen(0, desk.context.figures) as server:
        threading.Thread(target=server.handle_request).start()
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            is_over = False
            for _ in range(10_000):
                with contextlib.suppress(OSError):
                    client.send(b"G")
                if is_over := bool(select.select([client], [], [], 0.01)[0]):
                    break
    assert is_over
