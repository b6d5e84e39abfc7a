"""Readers of logs whose files turn over, of odd lines, and of lines that a pattern is found in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt import rotated_files
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.logs.rotated_log import LogFiles
from ffdl_batch.domain.job.log_text import Grep
from ffdl_batch.domain.job.views import LogLine
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.services.logs import line_search, log_reader, log_stream
from ffdl_batch.services.logs.log_reader import LogReader
from ffdl_batch.services.refusals import Refused
from tests.planted_files import NO_FILES, NO_JSON, replace
from tests.unit.services.conftest import MANIFEST, Site

FOREVER = LogLimits(file_bytes=500, files=1000, bytes_per_s=10**9)


class Printing:
    """A learner's log as its writer writes it, at times of the test's choice."""

    def __init__(self, attempt: AttemptDir, limits: LogLimits, learner: int = 1) -> None:
        Path(attempt.learner_logs(learner)).mkdir(parents=True)
        Path(attempt.events).mkdir(exist_ok=True)
        self.log = LogFiles(attempt.path, learner, limits)
        self.whole = b""

    def print(self, text: bytes) -> None:
        self.log.write(text)
        self.whole += text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    yield now


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return AttemptDir(str(tmp_path))


def shown(reader: LogReader, *, ended: bool = True) -> list[tuple[int, str]]:
    return [(line.index, line.line) for line in reader.lines(ended=ended)]


@pytest.mark.parametrize("seed", range(8))
def test_log_reader_returns_every_line_once_across_file_rotation(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(log_reader, "CHUNK", dice.choice([7, 100, 5000]))
    learner, reader = Printing(attempt, FOREVER), LogReader(attempt, 1, 1)
    pieces: list[LogLine] = []
    for number in range(400):
        learner.print(dice.choice([b"line %d\n" % number, b"part ", b"\r50%", "ä\n".encode() * 40]))
        if dice.random() < 0.2:
            pieces += reader.lines(ended=False, flush=dice.random() < 0.5)
    pieces += reader.lines(ended=True)
    assert len(list(Path(attempt.learner_logs(1)).iterdir())) > 5
    places = [0, *(piece.end for piece in pieces)]
    assert places[:-1] == [piece.offset for piece in pieces] and places[-1] == len(learner.whole)
    assert all(learner.whole[: piece.offset].count(b"\n") + 1 == piece.index for piece in pieces)
    text = "".join(piece.line + ("" if piece.partial else "\n") for piece in pieces)
    assert text.rstrip("\n") == learner.whole.decode().rstrip("\n")


@pytest.mark.parametrize("seed", range(8))
def test_log_reader_skip_matches_full_read_for_tail_since_and_after(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch, clock: list[float], seed: int
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(rotated_files, "BLOCK", dice.choice([5, 64, 4096]))
    monkeypatch.setattr(rotated_files, "_NARROW", 64)
    learner, times = Printing(attempt, LogLimits(500, dice.choice([3, 1000]), 10**9)), []
    for number in range(300):
        clock[0] += 1
        times.append(clock[0])
        learner.print(b"x" * dice.randrange(9) + b"%d\n" % number)
    whole = list(LogReader(attempt, 1, 1).lines(ended=True))
    assert [line.at for line in whole] == times[-len(whole) :]
    for tail in (0, 1, 2, 50, 299, 300, 1000):
        reader = LogReader(attempt, 1, 1)
        reader.skip(tail=tail)
        assert list(reader.lines(ended=True)) == (whole[-tail:] if tail else [])
    for since in (0.0, times[0], times[150], times[280], times[-1] + 5):
        reader = LogReader(attempt, 1, 1)
        reader.skip(since=since)
        found = list(reader.lines(ended=True))
        later = [line for line in whole if line.at is not None and line.at >= since]
        assert found[len(found) - len(later) :] == later and len(found) <= len(later) + 1
    for place in (0, 17, 140):
        reader = LogReader(attempt, 1, 1)
        reader.skip(after=whole[place].end)
        assert list(reader.lines(ended=True)) == whole[place + 1 :]


def test_log_reader_reads_only_end_of_log_for_tail(attempt: AttemptDir, clock: list[float], read: list[int]) -> None:
    learner = Printing(attempt, LogLimits())
    for _ in range(20):
        clock[0] += 1
        learner.print(b"".join(b"%099d\n" % number for number in range(10_000)))
    reader = LogReader(attempt, 1, 1)
    reader.skip(tail=5)
    assert [line.index for line in reader.lines(ended=True)] == list(range(199_996, 200_001))
    assert read[0] < 2.5e6, "of 20 MB"


def test_log_reader_continues_at_oldest_kept_line_when_reader_is_too_slow(attempt: AttemptDir) -> None:
    learner, reader = Printing(attempt, LogLimits(500, 2, 10**9)), LogReader(attempt, 1, 1)
    learner.print(b"first\n")
    assert shown(reader) == [(1, "first")]
    for number in range(2, 1000):
        learner.print(b"line %d\n" % number)
    found = shown(reader)
    assert found[0][0] > 2 and found == [(index, f"line {index}") for index, _ in found] and found[-1][0] == 999


def test_log_reader_detects_new_file_that_reuses_inode(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, reader = Printing(attempt, LogLimits(500, 2, 10**9)), LogReader(attempt, 1, 1)
    learner.print(b"first\n")
    assert shown(reader) == [(1, "first")]
    first = Path(attempt.training_log(1)).stat().st_ino
    for _ in range(200):  # file systems give the numbers of removed files again
        learner.print(b"x" * 600 + b"\n")
        if Path(attempt.training_log(1)).stat().st_ino == first:
            break
    learner.print(b"last\n")
    assert shown(reader)[-1][0] == learner.whole.count(b"\n")


def test_log_reader_keeps_characters_whole_and_replaces_invalid_bytes(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MAX_LINE", 5)
    learner = Printing(attempt, LogLimits())
    text = "a€ä𝄞€€𝄞𝄞äöü" * 3
    learner.print(text.encode() + b"\n\xff\xfe\x80\x80\x80\x80\x80\x80\x80\n\xe2\x82\n")
    pieces = list(LogReader(attempt, 1, 1).lines(ended=True))
    lines = ["".join(piece.line for piece in pieces if piece.index == index) for index in (1, 2, 3)]
    assert lines == [text, "\ufffd" * 9, "\ufffd"]
    assert [piece.partial for piece in pieces if piece.index == 2] == [True, False]


@pytest.mark.parametrize(("length", "pieces"), [(5, ["aaaaa"]), (6, ["aaaaa", "a"])])
def test_log_reader_splits_line_longer_than_limit(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch, length: int, pieces: list[str]
) -> None:
    monkeypatch.setattr(log_reader, "MAX_LINE", 5)
    learner = Printing(attempt, LogLimits())
    learner.print(b"a" * length + b"\nb\n")
    found = [(piece.index, piece.line) for piece in LogReader(attempt, 1, 1).lines(ended=True)]
    assert found == [*((1, piece) for piece in pieces), (2, "b")]


def test_log_reader_splits_ten_megabyte_line_into_pieces(attempt: AttemptDir) -> None:
    learner = Printing(attempt, LogLimits())
    learner.print(b"x" * 10_000_000 + b"\nnext\n")
    pieces = list(LogReader(attempt, 1, 1).lines(ended=False))
    assert max(len(piece.line) for piece in pieces) == log_reader.MAX_LINE
    assert sum(len(piece.line) for piece in pieces if piece.index == 1) == 10_000_000
    assert (pieces[-1].index, pieces[-1].line) == (2, "next")


def test_log_reader_returns_growing_progress_bar_when_flushed(attempt: AttemptDir) -> None:
    learner, reader = Printing(attempt, LogLimits()), LogReader(attempt, 1, 1)
    learner.print(b"\r 10%\r 2")
    assert list(reader.lines(ended=False)) == []
    (first,) = reader.lines(ended=False, flush=True)
    assert (first.line, first.partial) == ("\r 10%\r 2", True)
    learner.print(b"0%\r100%\nplain")
    (rest,) = reader.lines(ended=False, flush=True)
    assert (rest.line, rest.partial, rest.index, rest.offset) == ("0%\r100%", False, 1, first.end)


def search(site: Site, job_id: str, grep: Grep, **query: object) -> list[str]:
    return [line.line for line in site.log_lines(job_id, grep=grep, **query)]


@pytest.fixture
def job_id(site: Site, clock: list[float]) -> str:
    """Two learners, whose lines come in turn."""
    job = site.accept(manifest=MANIFEST + "learners: 2\n")
    learners = [Printing(site.attempt(job), FOREVER, learner) for learner in (1, 2)]
    for number in range(1, 101):
        for learner, log in enumerate(learners, 1):
            clock[0] += 1
            log.print(f"{learner}: step {number} Loss={number / 10:.1f}\n".encode())
    return job.id


def test_read_logs_orders_lines_of_all_learners_by_time(site: Site, job_id: str) -> None:
    lines = site.log_lines(job_id)
    assert [line.at for line in lines] == [1001.0 + n for n in range(200)]
    assert [(line.learner, line.index) for line in lines[:3]] == [(1, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize(
    ("grep", "lines"),
    [
        (
            Grep(r"step (7|8) "),
            ["1: step 7 Loss=0.7", "2: step 7 Loss=0.7", "1: step 8 Loss=0.8", "2: step 8 Loss=0.8"],
        ),
        (Grep("loss=9.9", ignore_case=True), ["1: step 99 Loss=9.9", "2: step 99 Loss=9.9"]),
        (Grep("loss=9.9"), []),
        (Grep("LOSS=10.0", ignore_case=True, fixed=True), ["1: step 100 Loss=10.0", "2: step 100 Loss=10.0"]),
        (Grep("s.ep", fixed=True), []),
        (Grep(r"step \d\d?\b", invert=True), ["1: step 100 Loss=10.0", "2: step 100 Loss=10.0"]),
        (Grep("1: step 50 ", before=1, after=2), [f"1: step {n} Loss={n / 10:.1f}" for n in range(49, 53)]),
        (Grep("1: step (50|52) ", after=1), [f"1: step {n} Loss={n / 10:.1f}" for n in range(50, 54)]),
    ],
)
def test_read_logs_returns_lines_that_match_grep(site: Site, job_id: str, grep: Grep, lines: list[str]) -> None:
    assert search(site, job_id, grep) == lines


def test_read_logs_applies_tail_and_since_to_matching_lines(site: Site, job_id: str) -> None:
    assert search(site, job_id, Grep("step .5 "), tail=2, learner=1) == ["1: step 85 Loss=8.5", "1: step 95 Loss=9.5"]
    assert search(site, job_id, Grep("step 5"), tail=1) == ["1: step 59 Loss=5.9", "2: step 59 Loss=5.9"]
    assert search(site, job_id, Grep("step"), since=1199.0) == ["1: step 100 Loss=10.0", "2: step 100 Loss=10.0"]


@pytest.mark.parametrize("near", [0, 10**6])
def test_read_logs_tail_with_grep_ignores_lines_written_during_search(
    site: Site, clock: list[float], monkeypatch: pytest.MonkeyPatch, near: int
) -> None:
    job = site.accept(manifest=MANIFEST)
    log = Printing(site.attempt(job), FOREVER)
    for number in range(100):
        log.print(f"step {number}\n".encode())

    def found(*words: Any, **more: Any) -> line_search.Found:
        try:
            return line_search.find_tail(*words, **more)
        finally:
            log.print(b"step 100\nstep 101\n")

    monkeypatch.setattr(line_search, "NEAR", near)
    monkeypatch.setattr(log_stream, "find_tail", found)
    assert search(site, job.id, Grep("step"), tail=1) == ["step 99"]
    assert search(site, job.id, Grep("step 99"), tail=1) == ["step 99"]
    assert search(site, job.id, Grep("step", before=1), tail=1) == ["step 100", "step 101"]


def test_read_logs_skips_lines_before_given_position(site: Site, job_id: str) -> None:
    whole = site.log_lines(job_id)
    read = {(1, line.learner): line.end for line in whole[:101]}
    assert site.log_lines(job_id, after=read) == whole[101:]
    first = [line for line in whole[101:] if line.learner == 1]
    assert site.log_lines(job_id, after={(1, 1): read[1, 1]}, learner=1) == first
    assert site.log_lines(job_id, after={(2, 1): 0}) == [], "of attempts before nothing is wanted"


def test_read_logs_rejects_invalid_pattern_as_usage_error(site: Site, job_id: str) -> None:
    for pattern in ("(", "[a", "(?P<", "x{2,1}", "(" * 500, "x" * (line_search.MAX_PATTERN + 1)):
        with pytest.raises(Refused) as caught:
            site.log_lines(job_id, grep=Grep(pattern))
        assert caught.value.problem.exit_code == 2, pattern


def test_log_search_refuses_pattern_that_takes_too_long(
    site: Site, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_search, "LIMIT_S", 0.1)
    Printing(site.attempt(site.job(job_id)), FOREVER, 3).print(b"a" * 60 + b"\n")
    monkeypatch.setattr("ffdl_batch.services.logs.log_stream.own_job", lambda *_: site.job(job_id))
    reader = LogReader(site.attempt(site.job(job_id)), 1, 3)
    with line_search.matching(Grep("(a+)+b")) as match, pytest.raises(Refused, match="takes too long"):
        list(line_search.Search(Grep("(a+)+b"), match).select(reader.texts(ended=True)))


@pytest.mark.parametrize("kind", [*NO_FILES, *NO_JSON, "endless line"])
@pytest.mark.parametrize("place", ["marks", "log_files"])
def test_log_reader_returns_whole_log_with_damaged_times_or_parts(attempt: AttemptDir, place: str, kind: str) -> None:
    learner, reader = Printing(attempt, FOREVER), LogReader(attempt, 1, 1)
    learner.print(b"one\ntwo\n")
    path = Path(getattr(attempt, place)(1))
    replace(path, {**NO_FILES, **NO_JSON, "endless line": lambda path: path.write_bytes(b"1" * 300_000)}[kind])
    assert shown(reader) == [(1, "one"), (2, "two")]
    reader.skip(since=1.0, tail=1)
    assert shown(reader) == [(2, "two")]


@pytest.mark.parametrize(
    "entry",
    [
        "{}",
        "[1]",
        '[{"inode": INODE}]',
        '[{"inode": INODE, "base": "0", "lines": 0}]',
        '[{"inode": INODE, "base": -1, "lines": 0}]',
    ],
)
def test_log_reader_ignores_parts_of_wrong_type(attempt: AttemptDir, entry: str) -> None:
    learner, reader = Printing(attempt, FOREVER), LogReader(attempt, 1, 1)
    learner.print(b"one\n")
    inode = Path(attempt.training_log(1)).stat().st_ino
    Path(attempt.log_files(1)).write_text(f'{{"files": {entry.replace("INODE", str(inode))}}}', encoding="utf-8")
    assert shown(reader) == [(1, "one")]


@pytest.mark.parametrize("mark", ["nan 0 0", "1e400 0 0", f"1 {'9' * 400} 0", "1 -5 0", "1 0 -5", "-1 0 0"])
def test_log_reader_ignores_mark_out_of_range(attempt: AttemptDir, mark: str) -> None:
    learner, reader = Printing(attempt, FOREVER), LogReader(attempt, 1, 1)
    learner.print(b"one\n")
    Path(attempt.marks(1)).write_text(f"{mark}\n", encoding="utf-8")
    assert [(line.line, line.at) for line in reader.lines(ended=True)] == [("one", None)]


@pytest.mark.parametrize("kind", NO_FILES)
def test_log_reader_finds_nothing_if_log_is_not_regular_file(attempt: AttemptDir, kind: str) -> None:
    learner, reader = Printing(attempt, FOREVER), LogReader(attempt, 1, 1)
    learner.print(b"one\n")
    replace(Path(attempt.training_log(1)), NO_FILES[kind])
    assert (shown(reader), reader.end()) == ([], 0)
