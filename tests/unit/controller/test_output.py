"""A learner's output whose reader was killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ffdl_batch.controller.learner import output as outputs
from ffdl_batch.controller.learner.output import LogPlace, Output
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.limits import LogLimits

LIMIT_S = 120.0


def ended(output: Output) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not output.has_ended():
        assert time.monotonic() < deadline, "the output does not end"
        time.sleep(0.01)
    return True


def test_output_writes_pending_data_after_writer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "WAIT_S", LIMIT_S)  # else who reads on is killed where it starts slowly
    attempt = AttemptDir(str(tmp_path))
    for directory in (attempt.events, attempt.learner_logs(1)):
        Path(directory).mkdir(parents=True)
    output = Output(LogPlace(attempt.path, 1, LogLimits(), "mark"))
    writer = output._writer
    assert writer is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    os.write(output.write_end, b"growing\n")
    output.release()
    assert ended(output)
    assert Path(attempt.training_log(1)).read_text() == "growing\n"
