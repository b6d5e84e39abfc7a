"""Which process of a local job gets a signal."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar, encode_event
from ffdl_batch.host.processes import boot_id
from ffdl_local.processes import node_controller, signal_process
from ffdl_local.records import process_stat


def attempt(tmp_path: Path, *started: dict[str, Scalar]) -> AttemptDir:
    directory = AttemptDir(str(tmp_path))
    Path(directory.events).mkdir()
    lines = [encode_event(Event(i, 1.0, "node-0", EventKind.STARTED, body)) for i, body in enumerate(started, 1)]
    Path(directory.event_file("node-0")).write_text("".join(lines))
    return directory


def test_node_controller_returns_last_started_process(tmp_path: Path) -> None:
    here: dict[str, Scalar] = {"pid": 7, "start_ticks": 70, "boot_id": boot_id()}
    assert node_controller(attempt(tmp_path, here, {**here, "pid": 8, "start_ticks": 80})) == (8, 80)


def test_node_controller_returns_none_if_not_started_or_from_earlier_boot(tmp_path: Path) -> None:
    assert node_controller(AttemptDir(str(tmp_path / "nowhere"))) is None
    assert node_controller(attempt(tmp_path, {"pid": 7, "start_ticks": 70, "boot_id": "earlier"})) is None


def test_signal_process_signals_only_process_with_recorded_start_time() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        stat = process_stat(process.pid)
        assert stat is not None
        assert not signal_process(process.pid, stat[2] + 1, 9) and process.poll() is None
        assert signal_process(process.pid, stat[2], 9)
        assert process.wait(timeout=30) == -9
    finally:
        process.kill()
        process.wait()
    assert not signal_process(process.pid, stat[2], 9)
