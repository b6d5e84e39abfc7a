"""The files of a log: where each begins, when what was printed, and what is left after whatever happened to them."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.controller.logs import output_pipe as outputs
from ffdl_batch.controller.logs import rotated_log
from ffdl_batch.controller.logs.log_writer import KEPT_BYTES, LINE_COST, RateLimit, Writer
from ffdl_batch.controller.logs.output_pipe import LogPlace, Output
from ffdl_batch.controller.logs.rotated_log import LogFiles
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.launch.limits import LogLimits
from tests.unit.controller.rig import LIMIT_S, until

SMALL = LogLimits(file_bytes=1000, files=3, bytes_per_s=10**9)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(str(tmp_path / "attempt-1"))
    Path(found.learner_logs(1)).mkdir(parents=True)
    Path(found.events).mkdir()
    return found


def cell(attempt: AttemptDir) -> list[dict[str, int]]:
    found: list[dict[str, int]] = json.loads(Path(attempt.log_files(1)).read_text())["files"]
    return found


def names(attempt: AttemptDir) -> list[str]:
    return sorted(path.name for path in Path(attempt.learner_logs(1)).iterdir())


def lines(first: int, last: int) -> bytes:
    return b"".join(b"%05d\n" % number for number in range(first, last))


def test_log_writer_imports_no_heavy_modules() -> None:
    """It runs once for each learner."""
    look = "import sys; print(*sorted({'dataclasses', 'inspect', 'ctypes'} & set(sys.modules)))"
    argv = [*module_argv("ffdl_batch.controller.logs.log_writer")]
    code = argv.index("-c") + 1
    argv[code] = argv[code].partition("; sys.exit")[0] + f"; {look}"
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "\n"


def test_log_files_rotate_and_record_where_each_begins(attempt: AttemptDir) -> None:
    log = LogFiles(attempt.path, 1, SMALL)
    for number in range(1000):
        log.write(lines(number, number + 1))
    assert names(attempt) == ["training-log.txt", "training-log.txt.1", "training-log.txt.2"]
    whole = lines(0, 1000)
    for name, entry in zip(reversed(names(attempt)), cell(attempt), strict=True):
        path = Path(attempt.learner_logs(1), name)
        text = path.read_bytes()
        assert path.stat().st_ino == entry["inode"]
        assert whole[entry["base"] :].startswith(text) and len(text) <= SMALL.file_bytes + 6
        assert entry["lines"] == entry["base"] // 6
    assert log.position == 6000 and text.endswith(b"00999\n")


def test_log_files_split_large_write_over_several_files(attempt: AttemptDir) -> None:
    log = LogFiles(attempt.path, 1, SMALL)
    log.write(lines(0, 1000))
    held = b"".join(Path(attempt.learner_logs(1), name).read_bytes() for name in reversed(names(attempt)))
    assert lines(0, 1000).endswith(held) and len(held) > 2 * 900


def test_log_files_split_line_without_newline(attempt: AttemptDir) -> None:
    log = LogFiles(attempt.path, 1, SMALL)
    for _ in range(100):
        log.write(b"x" * 100)
    sizes = [Path(attempt.learner_logs(1), name).stat().st_size for name in names(attempt)]
    assert len(sizes) == 3 and max(sizes) <= 1.25 * SMALL.file_bytes


def test_log_files_restart_single_file_when_full(attempt: AttemptDir) -> None:
    log = LogFiles(attempt.path, 1, LogLimits(1000, 1, 10**9))
    log.write(lines(0, 1000))
    assert names(attempt) == ["training-log.txt"]
    assert lines(0, 1000).endswith(Path(attempt.training_log(1)).read_bytes())


@pytest.mark.parametrize("seed", range(6))
def test_log_files_continue_position_after_writer_is_killed(attempt: AttemptDir, seed: int) -> None:
    dice = random.Random(seed)
    log, whole = LogFiles(attempt.path, 1, SMALL), b""
    for number in range(300):
        text = dice.choice([b"%d\n" % number, b"part", b"x" * 200 + b"\n"])
        log.write(text)
        whole += text
        if dice.random() < 0.1:
            log = LogFiles(attempt.path, 1, SMALL)
    assert (log.position, log.lines) == (len(whole), whole.count(b"\n"))
    newest = cell(attempt)[-1]
    assert whole[newest["base"] :] == Path(attempt.training_log(1)).read_bytes()
    assert whole[: newest["base"]].count(b"\n") == newest["lines"]


def test_log_files_continue_log_of_earlier_release(attempt: AttemptDir) -> None:
    Path(attempt.training_log(1)).write_text("one\ntwo\nth")
    Path(attempt.marks(1)).write_text("100.000 4\n101.0")
    log = LogFiles(attempt.path, 1, SMALL)
    log.write(b"ree\n")
    assert Path(attempt.training_log(1)).read_text() == "one\ntwo\nthree\n"
    assert (log.position, log.lines) == (14, 3)
    marks = Path(attempt.marks(1)).read_text().splitlines()
    assert marks[0] == "100.000 4" and marks[1].split()[1:] == ["10", "2"]


def test_log_files_write_marks_before_output_at_minimum_interval(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    log = LogFiles(attempt.path, 1, LogLimits())
    for at in (1000.0, 1000.01, 1000.02, 1002.0, 1001.0, 1003.0):  # a clock that is set back does not go back here
        now = at
        log.write(b"12345\n")
    marks = [line.split() for line in Path(attempt.marks(1)).read_text().splitlines()]
    assert marks == [["1000.000", "0", "0"], ["1002.000", "18", "3"], ["1003.000", "30", "5"]]
    log.write(b"x" * 3 * 1024**2)
    log.write(b"y")
    assert Path(attempt.marks(1)).read_text().splitlines()[-1].split()[1] == str(36 + 3 * 1024**2)


def test_log_files_limit_marks_and_drop_them_on_rotation(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(rotated_log, "MARKS_BYTES", 1000)
    log = LogFiles(attempt.path, 1, LogLimits(file_bytes=10**6, files=2))
    for _ in range(20_000):
        now += 0.05
        log.write(b".")
    assert Path(attempt.marks(1)).stat().st_size < 10_000
    log.write(b"\n" + b"x" * 10**6 + b"\n")
    log.write(b"\n" + b"x" * 10**6 + b"\n")
    assert Path(attempt.marks(1)).read_bytes().count(b"\n") < 10


def test_log_files_recreate_removed_or_truncated_log(attempt: AttemptDir) -> None:
    log = LogFiles(attempt.path, 1, SMALL)
    log.write(b"one\n")
    Path(attempt.training_log(1)).unlink()
    log.look()
    log.write(b"two\n")
    assert Path(attempt.training_log(1)).read_text() == "two\n"
    assert [(entry["base"], entry["lines"]) for entry in cell(attempt)] == [(0, 0), (4, 1)]
    os.truncate(attempt.training_log(1), 0)
    log.look()
    log.write(b"three\n")
    assert (cell(attempt)[-1]["base"], cell(attempt)[-1]["lines"]) == (8, 2)


def test_log_tail_includes_lines_from_previous_file(attempt: AttemptDir) -> None:
    log = LogFiles(attempt.path, 1, LogLimits(1000, 3, 10**9))
    log.write(b"".join(b"line %d\n" % number for number in range(200)))
    assert Path(attempt.training_log(1)).stat().st_size < 1000
    log.write(b"x" * 970 + b"\nlast\n")
    assert tail(attempt.training_log(1))[-3:][0] == "line 199"
    assert len(tail(attempt.training_log(1))) == 20


def write_through(attempt: AttemptDir, pieces: list[bytes], limits: LogLimits = SMALL) -> None:
    """As a learner that prints these."""
    source, sink = os.pipe()
    thread = threading.Thread(target=Writer(attempt.path, 1, limits).run, args=(source,))
    thread.start()
    for piece in pieces:
        os.write(sink, piece)
    os.close(sink)
    thread.join(120)
    assert not thread.is_alive()
    os.close(source)


def test_log_writer_continues_and_counts_lost_lines_when_disk_is_full(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = LogFiles.write, [b"two\n", b"three\n"]

    def write(log: LogFiles, data: bytes) -> None:
        if data.endswith(tuple(refused)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(log, data)

    monkeypatch.setattr(LogFiles, "write", write)
    writer = Writer(attempt.path, 1, SMALL)
    for text in (b"one\n", b"two\n", b"three\n", b"four\n"):
        writer._take(text)
    said = Path(attempt.training_log(1)).read_text()
    assert said == "one\n\n[ffdl: 2 lines (0.0 MB) left out here: No space left on device]\nfour\n"


def test_log_writer_limits_total_size_of_endless_output(attempt: AttemptDir) -> None:
    pieces = [lines(0, 10_000)] * 100 + [b"the last word\n"]
    write_through(attempt, pieces, LogLimits(file_bytes=100_000, files=3, bytes_per_s=50_000))
    room = sum(path.stat().st_size for path in Path(attempt.learner_logs(1)).iterdir())
    assert room <= 1.25 * 300_000
    assert Path(attempt.training_log(1)).read_text().endswith("the last word\n")


def test_output_writes_pending_data_after_writer_is_killed(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "WAIT_S", LIMIT_S)  # else who reads on is killed where it starts slowly
    output = Output(LogPlace(attempt.path, 1, LogLimits(), "mark"))
    writer = output._writer
    assert writer is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    os.write(output.write_end, b"growing\n")
    output.release()
    until(output.has_ended)
    assert Path(attempt.training_log(1)).read_text() == "growing\n"


# ----------------------------------------------------------------------------- how much of the output goes into a log


RATE, BURST = 1000, 5000
LINE = b"x" * 199 + b"\n"
NOTE = re.compile(rb"\[ffdl: (\d+) lines \(\d+\.\d MB\) left out here: more than 1000 bytes/s \(log_rate\)\]\n")


def notes(written: bytes) -> int:
    """How many lines are told to be left out."""
    return sum(int(number) for number in NOTE.findall(written))


def test_log_bound_passes_burst_and_counts_dropped_lines() -> None:
    bound = RateLimit(RATE, BURST, 0.0)
    written = b"".join(b"".join(bound.feed(LINE, 0.0)) for _ in range(100))
    assert written == LINE * (BURST // len(LINE))
    more = b"".join(bound.feed(LINE, 1.5))
    assert more.endswith(LINE) and notes(more) == 100 - BURST // len(LINE)
    assert not bound.is_shut and bound.finish() == []


def test_log_bound_limits_rate_and_accounts_for_every_line() -> None:
    bound = RateLimit(RATE, BURST, 0.0)
    written, fed = b"", 0
    for tick in range(1000):  # 100 s of 20 kB/s
        written += b"".join(bound.feed(LINE * 10, tick / 10))
        fed += 10
    written += b"".join(bound.finish())
    assert len(written) <= BURST + 100 * RATE + KEPT_BYTES + 20_000
    assert written.count(LINE) + notes(written) == fed
    assert len(NOTE.findall(written)) <= 101, "not more than one a second"


def test_log_bound_charges_minimum_cost_per_line() -> None:
    bound = RateLimit(RATE, BURST, 0.0)
    written = b"".join(b"".join(bound.feed(b"\n", 0.0)) for _ in range(1000))
    assert len(written) == BURST // LINE_COST


def test_log_bound_keeps_last_lines_after_flood() -> None:
    bound = RateLimit(RATE, BURST, 0.0)
    lines = [f"{number:05d}\n".encode() for number in range(50_000)]
    written = b"".join(b"".join(bound.feed(line, 0.0)) for line in lines)
    written += b"".join(bound.finish())
    assert written.endswith(b"".join(lines[-KEPT_BYTES // 6 + 1 :]))
    assert written.splitlines().count(b"00049") == 1
    assert written.count(b"\n") - len(NOTE.findall(written)) + notes(written) == len(lines)


def test_log_bound_writes_no_note_if_nothing_was_dropped() -> None:
    bound = RateLimit(RATE, BURST, 0.0)
    assert bound.feed(b"x" * 6000, 0.0) == [b"x" * 6000]
    assert bound.feed(b"y\nz", 0.0) == []
    assert bound.finish() == [b"y\nz"]


@pytest.mark.parametrize(
    ("flood", "dropped", "later", "lines", "kept"),
    [(b"x" * 6000, b"rest\nhalf", b" a line\nwhole\n", 2, b"whole\n"), (b"\r" * 6000, b"\r1", b"\r2", 0, b"\r2")],
)
def test_log_bound_writes_note_on_own_line_and_resumes(
    flood: bytes, dropped: bytes, later: bytes, lines: int, kept: bytes
) -> None:
    bound = RateLimit(RATE, BURST, 0.0)
    bound.feed(flood, 0.0)
    assert bound.feed(dropped, 0.0) == []
    note, rest = bound.feed(later, 10.0)
    assert note.startswith(b"\n[ffdl: %d lines " % lines) and rest == kept
