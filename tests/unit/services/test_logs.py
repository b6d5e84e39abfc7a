"""Which lines of which learner."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.logs.rotated_log import LogFiles
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.log_text import Grep
from ffdl_batch.domain.job.views import LogLine
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.services.logs import line_search, log_reader
from ffdl_batch.services.logs.log_reader import LogReader
from ffdl_batch.services.queries.followed_jobs import FRESH_S, FollowedJobs
from ffdl_batch.services.refusals import Refused
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
        marks = "".join(f"{at + n} {len(''.join(lines[: n - 1]))} {n - 1}\n" for n in range(1, 5))
        Path(attempt.marks(learner)).write_text(marks)

    def shown(**query: object) -> list[str]:
        return [line.line for line in site.log_lines(job.id, **query)]

    assert shown(tail=1) == ["4 of 1", "4 of 2"]
    assert shown(tail=2, learner=2) == ["3 of 2", "4 of 2"]
    assert shown(tail=1, since=150) == ["4 of 2"]
    assert shown(tail=0) == []


@pytest.mark.parametrize(
    "text", ["", "\n", "a\n", "a\nb", "one\n\nthree\nfour", "x" * 50 + "\ny\n", "\n\n\n\n", "ä\nß\n"]
)
def test_read_logs_tail_returns_same_lines_and_numbers_as_full_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    job = site.accept()
    write_log(site, job, text)
    for chunk in (1, 3, 7, 256 * 1024):
        monkeypatch.setattr(log_reader, "CHUNK", chunk)
        whole = site.log_lines(job.id)
        assert [(line.index, line.line) for line in whole] == list(enumerate(text.splitlines(), 1)), chunk
        for tail in range(6):
            assert site.log_lines(job.id, tail=tail) == (whole[-tail:] if tail else []), (chunk, tail)


def write_log(site: Site, job: Job, text: str) -> Path:
    """The log of the job's learner, as a controller leaves it; its path."""
    log = Path(site.attempt(job).training_log(1))
    log.parent.mkdir(parents=True)
    log.write_text(text)
    return log


def test_read_logs_since_starts_at_preceding_mark(site: Site) -> None:
    job = site.accept()
    write_log(site, job, "old\nolder half\nnew\nnewer\n")
    marks = Path(site.attempt(job).marks(1))
    marks.parent.mkdir(exist_ok=True)
    marks.write_text("100 0 0\n110 4 1\n120 14 1\n130 19 3\n")
    found = site.log_lines(job.id, since=111)
    assert [(line.index, line.line) for line in found] == [(2, "older half"), (3, "new"), (4, "newer")]


def test_read_logs_includes_learners_of_larger_attempt_of_elastic_job(site: Site) -> None:
    elastic = "batch: {elastic: {max_learners: 3, batch: {min: 3, max: 9, per_gpu_max: 9}}}\n"
    job = site.accept(manifest=MANIFEST + elastic)
    log = Path(site.attempt(job).training_log(3))
    log.parent.mkdir(parents=True)
    log.write_text("three\n")
    assert [line.line for line in site.log_lines(job.id)] == ["three"]
    with pytest.raises(Refused, match="learners 1 to 3; there is no learner 4"):
        site.log_lines(job.id, learner=4)


def test_read_logs_rejects_unknown_learner_as_usage_error(site: Site) -> None:
    job = site.accept()
    with pytest.raises(Refused, match="no learner 7") as caught:
        site.log_lines(job.id, learner=7)
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
    log = write_log(site, job, "one l\ntwo l\nhel")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        with log.open("a") as file:
            file.write(added)

    monkeypatch.setattr("ffdl_batch.services.logs.log_stream.time.sleep", sleep)
    assert [line.line.removesuffix(" l") for line in site.log_lines(job.id, tail=2, grep=grep)] == shown
    assert len(slept) == 1
    log.write_text("one\ntwo\n")
    assert site.log_lines(job.id, tail=1) and len(slept) == 1


def test_read_logs_tail_returns_current_state_of_moving_progress_bar(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.deployed()
    log = write_log(site, job, "one\n 1%\r 2%")
    monkeypatch.setattr(
        "ffdl_batch.services.logs.log_stream.time.sleep", lambda _: log.write_text("one\n 1%\r 2%\r 3%")
    )
    assert [line.line for line in site.log_lines(job.id, tail=1)] == ["one", " 1%\r 2%\r 3%"]


LIMITS = LogLimits(bytes_per_s=10**12)
LINE = 100


def log_of(attempt: AttemptDir) -> LogFiles:
    Path(attempt.learner_logs(1)).mkdir(parents=True)
    Path(attempt.events).mkdir(exist_ok=True)
    return LogFiles(attempt.path, 1, LIMITS)


@pytest.fixture
def large(site: Site, monkeypatch: pytest.MonkeyPatch) -> Job:
    """20 MB of lines, a second for each 10,000 of them; every 50,000th is rare."""
    job, now = site.accept(), [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    log = log_of(site.attempt(job))
    for start in range(0, 200_000, 10_000):
        now[0] += 1
        numbers = range(start + 1, start + 10_001)
        log.write(b"".join((b"rare %094d\n" if number % 50_000 == 0 else b"%099d\n") % number for number in numbers))
    return job


Search = Callable[..., list[LogLine]]


@pytest.fixture
def lines(site: Site, large: Job) -> Search:
    return partial(site.log_lines, large.id)


def test_log_reader_groups_lines_of_same_time_into_few_texts(site: Site, large: Job) -> None:
    texts = list(LogReader(site.attempt(large), 1, 1).texts(ended=True))
    assert len(texts) < 500, "of 200,000 lines"
    assert max(len(text.text) for text in texts) <= log_reader.MAX_LINE
    lines = [line for text in texts for line in text.lines()]
    assert [line.index for line in lines] == list(range(1, 200_001))
    assert all(before.end == after.offset for before, after in pairwise(lines))
    assert [lines[10_000 * n].at for n in range(20)] == [1001.0 + n for n in range(20)]


def test_read_logs_searches_backwards_for_last_matching_lines_and_reads_each_gap_once(
    lines: Search, read: list[int]
) -> None:
    found = lines(grep=Grep("9"), tail=5)
    assert [line.index for line in found] == [199_995, 199_996, 199_997, 199_998, 199_999]
    assert read[0] < 4e6, "of 20 MB"
    read[0] = 0
    assert [line.index for line in lines(grep=Grep("rare"), tail=2)] == [150_000, 200_000]
    assert read[0] < 12e6, "of 20 MB"
    read[0] = 0
    assert [line.index for line in lines(grep=Grep("rare"), tail=10)] == [50_000, 100_000, 150_000, 200_000]
    assert read[0] < 20e6 + 4 * 3e6


def test_read_logs_since_does_not_read_earlier_part_of_log(lines: Search, read: list[int]) -> None:
    assert lines(since=1020.0)[0].index == 190_001
    assert read[0] < 4e6, "of 20 MB"
    read[0] = 0
    assert [line.index for line in lines(since=1020.0, grep=Grep("rare"), tail=10)] == [200_000]
    assert read[0] < 8e6, "of 20 MB"


def expected(whole: Sequence[LogLine], grep: Grep, tail: int | None, since: float | None) -> list[LogLine]:
    """The same, line by line."""
    late = [line for line in whole if since is None or (line.at or 0.0) >= since]
    hits = [place for place, line in enumerate(late) if (grep.pattern in line.line) != grep.invert]
    hits = hits if tail is None else hits[max(0, len(hits) - tail) :]
    near = {n for hit in hits for n in range(max(0, hit - grep.before), hit + grep.after + 1)}
    return [line for place, line in enumerate(late) if place in near]


@pytest.mark.parametrize("seed", range(15))
def test_read_logs_grep_matches_line_by_line_search(site: Site, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice, now = random.Random(seed), [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr(line_search, "WINDOW", dice.choice([1, 30, 500]))
    monkeypatch.setattr(line_search, "NEAR", dice.choice([0, 10, 100]))
    monkeypatch.setattr(log_reader, "MAX_LINE", dice.choice([8, 60, 65536]))
    monkeypatch.setattr(log_reader, "CHUNK", dice.choice([5, 64, 4096]))
    job = site.accept()
    log = log_of(site.attempt(job))
    for _ in range(60):
        now[0] += dice.choice([0, 1])
        log.write(dice.choice([b"ab\n", b"abc c\n\n", b"\xffa\r\n", "ä€ab\n".encode(), b"x" * 40 + b"b\n", b"c"]))

    whole = site.log_lines(job.id)
    for _ in range(12):
        pattern, invert = dice.choice(["a", "b", "c", "zz", "€"]), dice.random() < 0.2
        grep = Grep(pattern, fixed=True, invert=invert, before=dice.choice([0, 0, 2]), after=dice.choice([0, 0, 3]))
        tail, since = dice.choice([None, 0, 1, 3, 1000]), dice.choice([None, None, 1015.0, 5000.0])
        assert site.log_lines(job.id, grep=grep, tail=tail, since=since) == expected(whole, grep, tail, since)


def test_read_logs_returns_lines_after_long_runs_of_carriage_returns(site: Site, read: list[int]) -> None:
    job = site.accept()
    log_of(site.attempt(job)).write((b"\r" * 60_000 + b"x\n") * 20)
    assert [line.line.strip("\r") for line in site.log_lines(job.id)] == ["x"] * 20


def test_followed_jobs_are_read_with_one_query(site: Site) -> None:
    jobs = [site.accept(f"k{number}").id for number in range(5)]
    asked: list[list[str]] = []

    class Store:
        def get_many(self, ids: list[str]) -> list[Job]:
            asked.append(ids)
            return site.platform.storage.store.get_many(ids)

    looks = FollowedJobs(Store())  # type: ignore[arg-type]
    with looks.following(jobs[0]), looks.following(jobs[1]), looks.following(jobs[2]):
        for now in (10.0, 10.0 + FRESH_S / 2, 10.0 + FRESH_S):
            seen = [looks.see(job_id, now) for job_id in jobs[:3]]
            assert [job and job.id for job in seen] == jobs[:3]
        assert asked == [jobs[:3]] * 2
    with looks.following(jobs[1]):
        looks.see(jobs[1], 20.0)
    assert asked[2:] == [[jobs[1]]], "nobody follows the others any more"
    assert looks.see("training-none", 30.0) is None
