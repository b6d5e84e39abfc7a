"""How fast it is said to be."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ffdl_batch.domain.data.staging_protocol import Done, Progress, read_line
from ffdl_batch.staging.reporter import Reporter

MB = 10**6


class Watched:
    """A teller whose clock stands still until it is moved."""

    def __init__(self, read: int, write: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("ffdl_batch.staging.reporter.time.monotonic", lambda: self.now)
        self.teller, self._read = Reporter(write, str, 10.0), read

    def rate_after(self, seconds: float, moved: int) -> float:
        """What the line says that is told when so much has moved in the time since the last one."""
        return self.line_after(seconds, moved).rate

    def line_after(self, seconds: float, moved: int) -> Progress:
        """The line itself."""
        self.now += seconds
        self.teller.moved(moved)
        self.teller.progress()
        line = read_line(os.read(self._read, 65536).decode())
        assert isinstance(line, Progress)
        return line

    def moved_in_all(self) -> int:
        """What the last line says."""
        self.teller.done()
        line = read_line(os.read(self._read, 65536).decode().splitlines()[-1])
        assert isinstance(line, Done)
        return line.bytes


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """One."""
    read, write = os.pipe()
    yield Watched(read, write, monkeypatch)
    os.close(read)
    os.close(write)


def test_progress_rate_is_steady_when_parts_arrive_in_bursts(watched: Watched) -> None:
    """A bar is drawn four times in a second, and a part of 8 MB comes each two."""
    rates = [watched.rate_after(0.25, 8 * MB if n % 8 == 7 else 0) for n in range(160)]
    assert min(rates[40:]) >= 3.0 * MB
    assert max(rates[40:]) <= 5.0 * MB


def test_progress_rate_covers_bytes_since_previous_line(watched: Watched) -> None:
    assert [watched.rate_after(10.0, moved) for moved in (50 * MB, 0, 20 * MB)] == [5.0 * MB, 0.0, 2.0 * MB]


def test_progress_rate_falls_to_zero_when_transfer_stalls(watched: Watched) -> None:
    watched.rate_after(1.0, MB)
    assert watched.rate_after(9.0, 0) == 0.1 * MB
    assert watched.rate_after(11.0, 0) == 0.0


def test_progress_total_counts_bytes_copied_from_filled_cache_once(watched: Watched) -> None:
    """The rate is of all that moves; the end has each byte once, those of other transfers among them."""
    before = watched.teller.counted()
    assert watched.rate_after(10.0, 80 * MB) == 8.0 * MB
    watched.teller.restore(before)
    watched.teller.expect_again(80 * MB)
    assert [watched.rate_after(10.0, moved) for moved in (50 * MB, 30 * MB, 5 * MB)] == [5.0 * MB, 3.0 * MB, 0.5 * MB]
    assert watched.moved_in_all() == 85 * MB


def test_progress_total_counts_bytes_of_earlier_run_when_copied(watched: Watched) -> None:
    watched.rate_after(1.0, 30 * MB)
    watched.teller.expect_again(30 * MB)
    watched.rate_after(1.0, 80 * MB)
    assert watched.moved_in_all() == 80 * MB


def test_progress_rate_follows_transfer_of_other_process(watched: Watched) -> None:
    def rate_when(bytes_there: int) -> float:
        watched.teller.follow(Progress(0, 4, bytes_there, 500 * MB, 0.0))
        return watched.rate_after(10.0, 0)

    assert [rate_when(size * MB) for size in (100, 150, 150)] == [0.0, 5.0 * MB, 0.0]
    watched.teller.follow(None)
    assert rate_when(400 * MB) == 0.0


@pytest.mark.parametrize(("total", "enough"), [(40 * MB, 2 * MB), (150_000 * MB, 8 << 20), (100, 5)])
def test_progress_estimates_remaining_time_only_after_enough_bytes(watched: Watched, total: int, enough: int) -> None:
    """What was there before says nothing of it, either."""
    watched.teller.expect(4, total)
    watched.teller.had(total // 2)
    assert watched.line_after(10.0, 4).left_s is None
    line = watched.line_after(10.0, enough - 4)
    assert line.left_s == pytest.approx((total - total // 2 - enough) / line.rate, rel=0.1)


def test_progress_has_no_remaining_time_if_total_is_unknown(watched: Watched) -> None:
    assert watched.line_after(1.0, MB).left_s is None


def test_progress_estimates_remaining_time_by_file_rate_for_many_files(watched: Watched) -> None:
    watched.teller.expect(1000, 1000)
    watched.teller.keep_all(500, 500)
    for _ in range(20):
        watched.teller.finished()
    line = watched.line_after(2.0, 400)
    assert (line.files_rate, line.files) == (10.0, 520)
    assert line.left_s == 48.0, "by its files, not by its bytes"


def test_last_line_follows_all_lines_of_progress() -> None:
    for _ in range(100):
        read, write = os.pipe()
        with os.fdopen(read, "rb") as lines_of, os.fdopen(write, "wb") as output:
            reporter = Reporter(output.fileno(), str, 1e-6)
            reporter.begin()
            first = lines_of.readline()
            reporter.done()
            output.close()
            lines = [first, *lines_of.readlines()]
        assert [b'"done"' in line for line in lines] == [False] * (len(lines) - 1) + [True]
