"""The daemon's figures on its socket, and in a file."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.daemon.outlets import Outlets
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
