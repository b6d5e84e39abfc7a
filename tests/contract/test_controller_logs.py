"""Learners that print without end, in odd ways, or to a writer that dies: real controllers, real learners."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ffdl_batch.controller.learner.orphans import mark
from ffdl_batch.controller.logs.output_pipe import WRITER_MARK
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.host.processes import all_processes
from tests.contract.controller_rig import Rig, job_id, plain_run  # noqa: F401

FLOOD = """\
import sys, time
begun, line, count = time.monotonic(), "x" * 127 + chr(10), 0
while time.monotonic() - begun < 3 or count * 128 < 60e6:
    for _ in range(64):  # 16 MB a second are a GB a minute
        sys.stdout.write(line * 1024)
        count += 1024
    time.sleep(max(0, begun + count * 128 / 64e6 - time.monotonic()))
sys.stdout.write("the last of %d lines" % count + chr(10))
"""


def writers() -> list[int]:
    """The processes that write logs of this test's job."""
    wanted, found = f"{WRITER_MARK}={mark(f'{job_id()}-1', 0)}".encode(), []
    for pid in all_processes():
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def stored(run: Rig) -> dict[str, bytes]:
    """What the store has of the learner's log, the newest file first."""
    return {path.name: path.read_bytes() for path in sorted((run.store / "learner-1").glob("training-log.txt*"))}


def test_log_flood_is_limited_and_keeps_exit_status_and_last_line(run: Rig) -> None:
    limits = LogLimits(file_bytes=1 << 20, files=3, bytes_per_s=1 << 20)
    run.write('python3 "$MODEL_DIR/flood.py"; exit 3', model={"flood.py": FLOOD}, logs=limits)
    run.run()
    final = run.final()
    assert (final.exit_code, final.error_code) == (3, "C201")
    printed = int(final.log_tail[-1].split()[3])
    assert printed * 128 > 50e6, "a GB a minute for three seconds and more"
    files = stored(run)
    assert list(files) == ["training-log.txt", "training-log.txt.1", "training-log.txt.2"]
    assert all(len(text) <= 1.25 * limits.file_bytes for text in files.values())
    text = b"".join(reversed(files.values()))
    assert text.endswith(f"the last of {printed} lines\n".encode())
    assert b" left out here: more than 1048576 bytes/s (log_rate)]\n" in text
    whole = {b"x" * 127, f"the last of {printed} lines".encode(), b""}
    assert all(line in whole or line.startswith(b"[ffdl: ") for line in text.split(b"\n"))
    assert writers() == []


def test_learner_output_is_complete_after_log_writer_is_killed(run: Rig) -> None:
    run.write('echo one; while [ ! -e "$MODEL_DIR/go" ]; do sleep 0.1; done; echo two; seq 100000; exit 4')
    run.start_until("one")
    (victim,) = writers()
    os.kill(victim, signal.SIGKILL)
    run.wait(lambda: writers() not in ([], [victim]), "the next writer")
    Path(run.attempt.model, "go").touch()
    run.await_end()
    assert run.final().exit_code == 4
    assert run.log() == "one\ntwo\n" + "".join(f"{number}\n" for number in range(1, 100_001))


def test_learner_output_is_complete_after_controllers_are_killed(run: Rig) -> None:
    run.write('echo one; while [ ! -e "$MODEL_DIR/go" ]; do sleep 0.1; done; seq 100000; echo two; sleep 600')
    run.start_until("one")
    run.kill_controllers()
    Path(run.attempt.model, "go").touch()
    run.wait(lambda: run.log().endswith("two\n"), "what the learner prints after that")
    assert run.log() == "one\n" + "".join(f"{number}\n" for number in range(1, 100_001)) + "two\n"


def test_detached_process_holding_output_does_not_block_attempt_end(run: Rig) -> None:
    run.write(
        "setsid sh -c 'echo from the stray; touch \"$RESULT_DIR/said\"; sleep 600' & "
        'until [ -e "$RESULT_DIR/said" ]; do sleep 0.1; done; echo done'
    )
    assert run.run() == 0
    assert run.log() == "from the stray\ndone\n"
    assert (run.processes(), writers()) == ([], [])


def test_log_preserves_bytes_of_learner_output(run: Rig) -> None:
    run.write(r"printf '\377\376\0\r 1%%\r 2%%\n\360\237'; head -c 10000000 /dev/zero; printf end")
    assert run.run() == 0
    text = Path(run.attempt.training_log(1)).read_bytes()
    assert text == b"\xff\xfe\0\r 1%\r 2%\n\xf0\x9f" + bytes(10_000_000) + b"end"
