"""Which process of a local job gets a signal."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ffdl_batch.domain.events import Event, EventKind, Scalar, encode_event
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_local.processes import node_controller, signal_process
from ffdl_local.records import boot_id, process_stat


def attempt(tmp_path: Path, *started: dict[str, Scalar]) -> AttemptDir:
    directory = AttemptDir(str(tmp_path))
    Path(directory.events).mkdir()
    lines = [encode_event(Event(i, 1.0, "node-0", EventKind.STARTED, body)) for i, body in enumerate(started, 1)]
    Path(directory.event_file("node-0")).write_text("".join(lines))
    return directory


def test_the_node_controller_that_started_last_is_meant(tmp_path: Path) -> None:
    here: dict[str, Scalar] = {"pid": 7, "start_ticks": 70, "boot_id": boot_id()}
    assert node_controller(attempt(tmp_path, here, {**here, "pid": 8, "start_ticks": 80})) == (8, 80)


def test_one_of_an_earlier_boot_and_one_that_never_started_are_nobody(tmp_path: Path) -> None:
    assert node_controller(AttemptDir(str(tmp_path / "nowhere"))) is None
    assert node_controller(attempt(tmp_path, {"pid": 7, "start_ticks": 70, "boot_id": "earlier"})) is None


def test_only_the_recorded_process_is_signalled() -> None:
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
