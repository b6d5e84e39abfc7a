"""Log lines over streams that break off, of attempts that come one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ffdl_batch.client import Client, Grep, RequestRefused
from ffdl_batch.client.handles import JobHandle
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.views import LogLine, Problem
from tests.unit.client.fake_daemon import FakeDaemon, make_job

LOGS = "GET /api/v1/jobs/a/logs"


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[Client]:
    with Client(daemon.path, start=False) as opened:
        yield opened


def line(attempt: int, index: int, *, learner: int = 1, offset: int = 0) -> LogLine:
    """A line that says where it is from."""
    return LogLine(learner, index, f"{attempt}.{learner} {index} {offset}", None, attempt, offset)


def test_logs_sends_attempt_to_daemon(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a", attempt=2)
    daemon.lines = [line(1, 1), line(2, 1)]
    assert [found.attempt for found in client.logs("a", attempt=2)] == [2]
    assert [found.attempt for found in client.logs("a", attempt="all", learner=1)] == [1, 2]
    assert [found.attempt for found in JobHandle(client, "a").logs(attempt=1, follow=True)] == [1, 2]
    assert daemon.requests == [f"{LOGS}?attempt=2", f"{LOGS}?learner=1&attempt=all", f"{LOGS}?follow=true&attempt=1"]
    problem = Problem("C101", "a has attempts 1 to 2; there is no attempt 3", 2)
    daemon.refusals["/api/v1/jobs/a/logs"] = (400, problem)
    with pytest.raises(RequestRefused, match="there is no attempt 3"):
        list(client.logs("a", attempt=3))


@pytest.mark.parametrize("broken_after", range(1, 8))
def test_logs_resumes_in_attempt_where_stream_broke(client: Client, daemon: FakeDaemon, broken_after: int) -> None:
    """Lines of different attempts have the same numbers; the newest attempt may be another one by then."""
    daemon.jobs["a"] = make_job("a", learners=2)
    daemon.lines = [line(n, i, learner=who) for n in (1, 2) for i in (1, 2) for who in (1, 2)]
    daemon.break_log_after = broken_after
    assert list(client.logs("a", follow=True, tail=8)) == daemon.lines
    broke_in = 1 if broken_after <= 4 else 2
    assert daemon.requests == [f"{LOGS}?follow=true&tail=8", f"{LOGS}?follow=true&attempt={broke_in}"]


def test_logs_of_all_attempts_resumes_without_earlier_lines(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a", attempt=2)
    daemon.lines = [line(n, i) for n in (1, 2) for i in range(1, 6)]
    daemon.break_log_after = 1
    cut = daemon.lines[6:]
    assert list(client.logs("a", attempt="all", tail=4)) == cut
    assert daemon.requests == [f"{LOGS}?tail=4&attempt=all", f"{LOGS}?attempt=all"]


def test_logs_returns_each_piece_of_long_line_once(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.lines = [line(1, 1, offset=0), line(1, 1, offset=64), line(1, 1, offset=128), line(1, 2, offset=150)]
    daemon.break_log_after = 2
    assert list(client.logs("a", follow=True)) == daemon.lines
    assert list(client.logs("a")) == daemon.lines


def test_logs_resumes_broken_stream_at_read_offsets(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a", learners=2)
    daemon.lines = [
        LogLine(who, n, "x", None, 1, 10 * n, 10 * n + 10, partial=n == 2) for n in (1, 2, 3) for who in (1, 2)
    ]
    daemon.break_log_after = 3
    assert list(client.logs("a", tail=6)) == daemon.lines
    assert daemon.requests == [f"{LOGS}?tail=6", f"{LOGS}?attempt=1&read=1.1%3A30&read=1.2%3A20"]


def test_logs_restarts_search_after_broken_stream(client: Client, daemon: FakeDaemon) -> None:
    """Which neighbours are still to come only a reading from the beginning knows."""
    daemon.jobs["a"] = make_job("a")
    daemon.lines = [LogLine(1, n, "x", None, 1, 10 * n, 10 * n + 10) for n in (1, 2, 3)]
    daemon.break_log_after = 2
    assert list(client.logs("a", grep=Grep("a|b", ignore_case=True, after=2))) == daemon.lines
    asked = "grep=a%7Cb&ignore_case=true&after=2"
    assert daemon.requests == [f"{LOGS}?{asked}", f"{LOGS}?attempt=1&{asked}"]


def test_logs_splits_bulk_texts_into_lines(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.texts = [LogText(1, 1, "a\n\u00e4", 5.0, 1, 0, 5), LogText(1, 3, "b\nc", None, 1, 5, 10, ends=(8, 10))]
    assert list(client.log_texts("a")) == daemon.texts
    assert [(line.index, line.line, line.at, line.offset, line.end) for line in client.logs("a")] == [
        (1, "a", 5.0, 0, 2),
        (2, "\u00e4", 5.0, 2, 5),
        (3, "b", None, 5, 8),
        (4, "c", None, 8, 10),
    ]


@pytest.mark.parametrize("broken_after", [1, 2])
def test_log_texts_returns_each_line_once_if_chunks_differ_after_break(
    client: Client, daemon: FakeDaemon, broken_after: int
) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.texts = [LogText(1, 1, "a\nb", None, 1, 0, 4), LogText(1, 3, "c", None, 1, 4, 6)]
    daemon.texts += [LogText(1, 4, "d", None, 1, 6, 8)]
    daemon.break_log_after = broken_after
    shown = []
    for text in client.log_texts("a", grep=Grep("x", invert=True)):
        shown += text.text.split("\n")
        daemon.texts = [LogText(1, 1, "a\nb\nc\nd", None, 1, 0, 8)]
    assert shown == ["a", "b", "c", "d"]


@pytest.mark.parametrize("ends", [(3,), (3, "4"), 7])
def test_logs_rejects_text_with_inconsistent_line_ends(client: Client, daemon: FakeDaemon, ends: object) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.texts = [LogText(1, 1, "a\nb", None, 1, 0, 4, ends=ends)]  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="answer cannot be read"):
        list(client.logs("a"))
