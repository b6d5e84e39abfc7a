"""Which lines of which learner."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.services import log_file
from ffdl_batch.services.log_search import Grep
from ffdl_batch.services.logs import LogQuery, read_logs
from ffdl_batch.services.problems import Refused
from tests.unit.services.conftest import MANIFEST, Site


def test_read_logs_limits_tail_per_learner_after_since(site: Site) -> None:
    job = site.accept(manifest=MANIFEST + "learners: 2\n")
    attempt = site.attempt(job)
    for learner, at in ((1, 100), (2, 200)):
        log = Path(attempt.training_log(learner))
        log.parent.mkdir(parents=True)
        Path(attempt.events).mkdir(exist_ok=True)
        lines = [f"{n} of {learner}\n" for n in range(1, 5)]
        log.write_text("".join(lines))
        marks = "".join(f"{at + n} {len(''.join(lines[:n]))}\n" for n in range(1, 5))
        Path(attempt.marks(learner)).write_text(marks)

    def shown(query: LogQuery) -> list[str]:
        return [line.line for line in read_logs(site.platform, site.caller, job.id, query) if line is not None]

    assert shown(LogQuery(tail=1)) == ["4 of 1", "4 of 2"]
    assert shown(LogQuery(tail=2, learner=2)) == ["3 of 2", "4 of 2"]
    assert shown(LogQuery(tail=1, since=150)) == ["4 of 2"]
    assert shown(LogQuery(tail=0)) == []


@pytest.mark.parametrize("chunk", [1, 3, 7, 256 * 1024])
@pytest.mark.parametrize(
    "text", ["", "\n", "a\n", "a\nb", "one\n\nthree\nfour", "x" * 50 + "\ny\n", "\n\n\n\n", "ä\nß\n"]
)
def test_read_logs_tail_returns_same_lines_and_numbers_as_full_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, text: str, chunk: int
) -> None:
    monkeypatch.setattr(log_file, "CHUNK", chunk)
    job = site.accept()
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text(text)

    def lines(query: LogQuery) -> list[tuple[int, str]]:
        found = read_logs(site.platform, site.caller, job.id, query)
        return [(line.index, line.line) for line in found if line is not None]

    whole = lines(LogQuery())
    assert [line for _, line in whole] == text.splitlines()
    for tail in range(6):
        assert lines(LogQuery(tail=tail)) == (whole[-tail:] if tail else [])


def test_read_logs_since_starts_at_preceding_mark(site: Site) -> None:
    job = site.accept()
    attempt = site.attempt(job)
    log = Path(attempt.training_log(1))
    log.parent.mkdir(parents=True)
    Path(attempt.events).mkdir(exist_ok=True)
    log.write_text("old\nolder half" + "\nnew\nnewer\n")
    Path(attempt.marks(1)).write_text("100 4\n110 14\n120 19\n130 25\n")
    found = list(read_logs(site.platform, site.caller, job.id, LogQuery(since=111)))
    assert [(line.index, line.line) for line in found if line] == [(2, "older half"), (3, "new"), (4, "newer")]


def test_read_logs_numbers_all_pieces_of_long_line_alike(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "MAX_LINE", 4)
    job = site.accept()
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text("abcdefghij\nk\n")
    found = list(read_logs(site.platform, site.caller, job.id, LogQuery()))
    assert [(line.index, line.line) for line in found if line] == [(1, "abcd"), (1, "efgh"), (1, "ij"), (2, "k")]


def test_read_logs_rejects_unknown_learner_as_usage_error(site: Site) -> None:
    job = site.accept()
    with pytest.raises(Refused, match="no learner 7") as caught:
        read_logs(site.platform, site.caller, job.id, LogQuery(learner=7))
    assert caught.value.problem.exit_code == 2


@pytest.mark.parametrize("grep", [None, Grep("l")])
@pytest.mark.parametrize(
    ("added", "shown"),
    [
        ("", ["two", "hel"]),  # a prompt, or the last words of one that hangs
        ("lo", ["one", "two"]),
        ("lo\nwor", ["two", "hello"]),
    ],
)
def test_read_logs_tail_waits_once_for_incomplete_last_line(
    site: Site, monkeypatch: pytest.MonkeyPatch, added: str, shown: list[str], grep: Grep | None
) -> None:
    job = site.deployed()
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text("one l\ntwo l\nhel")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        with log.open("a") as file:
            file.write(added)

    monkeypatch.setattr("ffdl_batch.services.logs.time.sleep", sleep)
    query = LogQuery(tail=2, grep=grep)
    lines = [line.line for line in read_logs(site.platform, site.caller, job.id, query) if line is not None]
    assert [line.removesuffix(" l") for line in lines] == shown
    assert len(slept) == 1
    log.write_text("one\ntwo\n")
    assert list(read_logs(site.platform, site.caller, job.id, LogQuery(tail=1))) and len(slept) == 1


def test_read_logs_tail_returns_current_state_of_moving_progress_bar(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.deployed()
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text("one\n 1%\r 2%")
    monkeypatch.setattr("ffdl_batch.services.logs.time.sleep", lambda _: log.write_text("one\n 1%\r 2%\r 3%"))
    lines = [line.line for line in read_logs(site.platform, site.caller, job.id, LogQuery(tail=1)) if line is not None]
    assert lines == ["one", " 1%\r 2%\r 3%"]
