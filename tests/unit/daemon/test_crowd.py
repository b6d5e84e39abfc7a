"""Too many at once, requests that are abandoned, and a log that cannot be written."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from ffdl_batch.daemon.connections import KEPT, ConnectionLimits, most_connections
from ffdl_batch.daemon.log_file import log_to
from ffdl_batch.daemon.request_context import Gate


@pytest.mark.parametrize("descriptors", [8, 64, 256, 1024, 1 << 20])
def test_most_connections_reserves_file_descriptors(descriptors: int) -> None:
    most = most_connections(descriptors)
    assert 0 < most < descriptors
    assert descriptors - most == min(KEPT, descriptors // 2)


def test_crowd_logs_repeated_accept_failures_once(caplog: pytest.LogCaptureFixture) -> None:
    crowd, loop = ConnectionLimits(), asyncio.new_event_loop()
    try:
        for _ in range(500):
            error = OSError(errno.EMFILE, "Too many open files")
            crowd.on_exception(loop, {"message": "socket.accept() out of system resource", "exception": error})
        crowd.on_exception(loop, {"message": "what else", "exception": ValueError("other")})
    finally:
        loop.close()
    assert caplog.text.count("ulimit -n") == 1
    assert "ValueError: other" in caplog.text


def test_gate_cannot_be_both_passed_and_shut() -> None:
    passed, shut = Gate(), Gate()
    assert passed.go_through() and passed.go_through() and not passed.shut()
    assert shut.shut() and not shut.go_through()


def _refuse(_: str) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_log_file_reports_lost_lines_after_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    log = logging.getLogger("ffdl_batch.test")
    try:
        log_to(tmp_path / "daemon.log")
        (handler,) = root.handlers
        assert isinstance(handler, logging.StreamHandler)
        with monkeypatch.context() as patch:
            patch.setattr(handler.stream, "write", _refuse, raising=True)
            log.info("one")
            log.info("two")
        log.info("three")
        lines = (tmp_path / "daemon.log").read_text().splitlines()
    finally:
        for one in root.handlers:
            one.close()
        root.handlers[:] = before
        root.setLevel(level)
    assert "ffdl_batch.test: three" in lines[0]
    assert "2 lines before this one could not be written at once" in lines[1] and "No space left" in lines[1]
    assert capsys.readouterr().err == ""
