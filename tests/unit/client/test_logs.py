"""Log lines over streams that break off, of attempts that come one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ffdl_batch.client import Client, RequestRefused
from ffdl_batch.client.handle import JobHandle
from ffdl_batch.domain.views import LogLine, Problem
from tests.unit.client.fake_daemon import FakeDaemon, make_job

LOGS = "GET /api/v1/jobs/a/logs"


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[Client]:
    with Client(daemon.path, start=False) as opened:
        yield opened


def line(attempt: int, index: int, *, learner: int = 1, offset: int = 0) -> LogLine:
    """A line that says where it is from."""
    return LogLine(learner, index, f"{attempt}.{learner} {index} {offset}", None, attempt, offset)


def test_the_attempt_is_asked_for(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a", attempt=2)
    daemon.lines = [line(1, 1), line(2, 1)]
    assert [found.attempt for found in client.logs("a", attempt=2)] == [2]
    assert [found.attempt for found in client.logs("a", attempt="all", learner=1)] == [1, 2]
    assert [found.attempt for found in JobHandle(client, "a").logs(attempt=1, follow=True)] == [1, 2]
    assert daemon.requests == [
        f"{LOGS}?attempt=2",
        f"{LOGS}?learner=1&attempt=all",
        f"{LOGS}?follow=true&attempt=1",
    ]
    problem = Problem("C101", "a has attempts 1 to 2; there is no attempt 3", 2)
    daemon.refusals["/api/v1/jobs/a/logs"] = (400, problem)
    with pytest.raises(RequestRefused, match="there is no attempt 3"):
        list(client.logs("a", attempt=3))


@pytest.mark.parametrize("broken_after", range(1, 8))
def test_a_broken_stream_goes_on_in_the_attempt_where_it_broke(
    client: Client, daemon: FakeDaemon, broken_after: int
) -> None:
    """Lines of different attempts have the same numbers; the newest attempt may be another one by then."""
    daemon.jobs["a"] = make_job("a", learners=2)
    daemon.lines = [line(n, i, learner=who) for n in (1, 2) for i in (1, 2) for who in (1, 2)]
    daemon.break_log_after = broken_after
    assert list(client.logs("a", follow=True, tail=8)) == daemon.lines
    broke_in = 1 if broken_after <= 4 else 2
    assert daemon.requests == [f"{LOGS}?follow=true&tail=8", f"{LOGS}?follow=true&attempt={broke_in}"]


def test_a_broken_stream_of_all_attempts_goes_on_without_the_earlier_ones(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a", attempt=2)
    daemon.lines = [line(n, i) for n in (1, 2) for i in range(1, 6)]
    daemon.break_log_after = 1
    cut = daemon.lines[6:]
    assert list(client.logs("a", attempt="all", tail=4)) == cut
    assert daemon.requests == [f"{LOGS}?tail=4&attempt=all", f"{LOGS}?attempt=all"]


def test_all_pieces_of_a_long_line_arrive_once(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.lines = [line(1, 1, offset=0), line(1, 1, offset=64), line(1, 1, offset=128), line(1, 2, offset=150)]
    daemon.break_log_after = 2
    assert list(client.logs("a", follow=True)) == daemon.lines
    assert list(client.logs("a")) == daemon.lines


def test_a_daemon_that_does_not_name_attempts_is_read_as_before(client: Client, daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    daemon.lines = [LogLine(1, n, str(n)) for n in (1, 2, 3)]
    daemon.break_log_after = 2
    assert list(client.logs("a", follow=True)) == daemon.lines
    assert daemon.requests == [f"{LOGS}?follow=true"] * 2
