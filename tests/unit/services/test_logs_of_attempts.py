"""Whose log is read, and how a reader that follows goes over from one attempt to the next."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.views import LogLine, Resume
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.logs import log_reader, log_stream
from ffdl_batch.services.logs.log_stream import GROWS_S, LogQuery, read_texts
from ffdl_batch.services.queries.followed_jobs import Pause
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import MANIFEST, Site

Act = Callable[[], None]


def at_once(*acts: Act) -> Act:
    """All of them between two looks of the reader."""

    def act() -> None:
        for one in acts:
            one()

    return act


@dataclass
class Chain:
    """A job that is deployed, and what becomes of it while somebody reads. Time passes only when the reader sleeps.

    Each time it sleeps, the next of `acts` happens.
    """

    site: Site
    job_id: str
    acts: list[Act] = field(default_factory=list)
    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        if seconds == GROWS_S:  # whether the log grows: it does not
            return
        assert self.acts, "the reader waits for something that never comes"
        self.now += seconds
        self.acts.pop(0)()

    def rest(self) -> list[Act]:
        """Long enough for the job's row to be looked at."""
        return [lambda: None] * 3

    def write(self, number: int, text: str, learner: int = 1) -> None:
        path = Path(self.site.platform.storage.root.job(self.job_id).attempt(number).training_log(learner))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def move(self, state: JobState, **fields: Any) -> None:
        self.site.move(self.site.job(self.job_id), state, **fields)

    def go_on(self) -> None:
        """The head begins the next attempt."""
        self.move(JobState.DEPLOYING, cause=Cause.REQUEUED, succeeded=True)

    def halt(self) -> None:
        self.move(JobState.HALTED)

    def resume(self) -> None:
        resume_job(
            self.site.platform.storage,
            self.site.platform.adapters,
            self.site.platform.store_checks,
            self.site.caller,
            self.job_id,
            Resume(),
        )

    def deploy(self) -> None:
        self.site.platform.deployer().step()

    def read(self, query: LogQuery) -> Iterator[LogLine]:
        texts = read_texts(
            self.site.platform.storage, self.site.platform.followed_jobs, self.site.caller, self.job_id, query
        )
        return self._lines(texts)

    def _lines(self, texts: Iterator[LogText | Pause]) -> Iterator[LogLine]:
        for text in texts:
            if isinstance(text, Pause):
                self.sleep(text)
            else:
                yield from text.lines()

    def shown(self, **query: object) -> list[tuple[int, str]]:
        """Attempt and text of each line."""
        return [(line.attempt, line.line) for line in self.read(LogQuery(**query))]  # type: ignore[arg-type]


@pytest.fixture
def chain(site: Site, monkeypatch: pytest.MonkeyPatch) -> Chain:
    made = Chain(site, site.deployed().id)
    monkeypatch.setattr(log_stream, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep))
    return made


def test_read_logs_reads_newest_attempt_that_has_output(chain: Chain) -> None:
    assert chain.shown() == []
    chain.write(1, "one\n")
    assert chain.shown() == [(1, "one")]
    chain.go_on()
    assert chain.shown() == [(1, "one")]
    chain.write(2, "")
    assert chain.shown() == [(1, "one")], "a file that a controller made is no output"
    chain.write(2, "two")
    assert chain.shown() == [(2, "two")]


def test_read_logs_counts_output_of_any_learner_when_choosing_newest_attempt(site: Site) -> None:
    job = site.accept(manifest=MANIFEST + "learners: 2\n")
    site.deploy()
    chain = Chain(site, job.id)
    chain.write(1, "old\n", learner=1)
    chain.go_on()
    chain.write(2, "new\n", learner=2)
    assert chain.shown() == [(2, "new")]
    assert chain.shown(learner=1) == []
    assert chain.shown(learner=1, attempt="all") == [(1, "old")]


def test_read_logs_returns_one_attempt_or_all_in_order(chain: Chain) -> None:
    chain.write(1, "first\nlast of one\n")
    chain.go_on()
    chain.go_on()
    chain.write(3, "first of three\nlast")
    assert chain.shown(attempt=1) == [(1, "first"), (1, "last of one")]
    assert chain.shown(attempt=2) == []
    assert chain.shown(attempt=3) == chain.shown() == [(3, "first of three"), (3, "last")]
    assert chain.shown(attempt="all") == chain.shown(attempt=1) + chain.shown(attempt=3)
    assert chain.shown(attempt="all", tail=1) == [(1, "last of one"), (3, "last")]
    places = [(line.index, line.offset) for line in chain.read(LogQuery(attempt="all"))]
    assert places == [(1, 0), (2, 6), (1, 0), (2, 15)]


def test_read_logs_orders_attempts_by_number_despite_clock_differences(chain: Chain) -> None:
    chain.write(1, "one\n")
    chain.go_on()
    chain.write(2, "two\n")
    for number, at in ((1, 200), (2, 100)):
        marks = Path(chain.site.platform.storage.root.job(chain.job_id).attempt(number).marks(1))
        marks.parent.mkdir(exist_ok=True)
        marks.write_text(f"{at} 0 0\n")
    assert chain.shown(attempt="all") == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("follow", [False, True])
def test_read_logs_rejects_nonexistent_attempt_as_usage_error(chain: Chain, follow: bool) -> None:
    def sentence(number: int) -> str:
        with pytest.raises(Refused) as caught:
            chain.read(LogQuery(attempt=number, follow=follow))
        assert (caught.value.problem.exit_code, caught.value.status) == (2, 400)
        return caught.value.problem.message

    assert sentence(2) == f"{chain.job_id} has attempt 1 alone; there is no attempt 2"
    chain.go_on()
    assert sentence(3) == f"{chain.job_id} has attempts 1 to 2; there is no attempt 3"
    assert sentence(0).endswith("there is no attempt 0")
    assert sentence(-1).endswith("there is no attempt -1")
    waiting = Chain(chain.site, chain.site.accept("k2").id)
    with pytest.raises(Refused, match=r"has no attempt yet \(it is PENDING\); there is no attempt 1"):
        waiting.read(LogQuery(attempt=1, follow=follow))
    assert list(waiting.read(LogQuery(attempt="all"))) == []


def test_read_logs_follow_continues_with_later_attempts(chain: Chain) -> None:
    chain.write(1, "a\n")
    chain.acts = [
        lambda: chain.write(1, "b\n"),
        chain.go_on,
        *chain.rest(),
        lambda: chain.write(1, "from a node that was cut off\n"),
        chain.go_on,  # its second attempt never wrote
        at_once(lambda: chain.write(1, "unfinished"), lambda: chain.write(3, "c\n")),
        *chain.rest(),
        lambda: chain.write(3, "d\n"),
        chain.halt,
        *chain.rest(),
    ]
    first = [(1, "a"), (1, "b"), (1, "from a node that was cut off"), (1, "unfinished")]
    assert chain.shown(follow=True) == [*first, (3, "c"), (3, "d")]


def test_read_logs_follow_ends_at_halt_and_continues_after_resume(chain: Chain) -> None:
    chain.write(1, "a\n")
    chain.halt()
    assert chain.shown(follow=True) == [(1, "a")]
    chain.resume()
    chain.acts = [
        *chain.rest(),
        chain.deploy,
        lambda: chain.write(2, "b\n"),
        at_once(chain.halt, chain.resume, chain.deploy, lambda: chain.write(3, "c\n")),
        *chain.rest(),
        *chain.rest(),
        lambda: chain.move(JobState.COMPLETED),
        *chain.rest(),
    ]
    assert chain.shown(follow=True) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize(("others", "pause_s"), [(0, 0.25), (49, 0.25), (99, 0.5), (255, 1.0)])
def test_read_logs_follow_polls_less_often_when_many_readers_follow(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, others: int, pause_s: float
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(chain.site.platform.followed_jobs.following(chain.job_id))
        chain.acts = [*[lambda: None] * 10, chain.halt, *chain.rest()]
        before = len(chain.acts)
        assert chain.shown(follow=True) == []
        assert chain.now == pause_s * (before - len(chain.acts))
    assert chain.site.platform.followed_jobs.followers == 0


def test_read_logs_follow_waits_for_first_attempt(site: Site, chain: Chain) -> None:
    chain.job_id = site.accept("k2").id
    chain.acts = [
        lambda: None,
        chain.deploy,
        lambda: chain.write(1, "a\n"),
        *chain.rest(),
        chain.halt,
        *chain.rest(),
    ]
    assert chain.shown(follow=True, attempt="all") == [(1, "a")]


def test_read_logs_follow_applies_tail_to_existing_lines_only(chain: Chain) -> None:
    chain.write(1, "a\nb\n")
    chain.go_on()
    chain.write(2, "c\nd\n")
    chain.acts = [
        lambda: chain.write(2, "e\nf\n"),
        chain.go_on,
        *chain.rest(),
        lambda: chain.write(3, "g\nh\n"),
        *chain.rest(),
        chain.halt,
        *chain.rest(),
    ]
    came = [(2, "e"), (2, "f"), (3, "g"), (3, "h")]
    acts = list(chain.acts)
    assert chain.shown(follow=True, attempt=1, tail=1) == [(1, "b"), (2, "d"), *came]
    chain.acts = acts[-4:]
    assert chain.shown(follow=True, attempt=2) == [(2, "c"), (2, "d"), *came], "and nothing of the first"


@pytest.mark.parametrize("seed", range(12))
def test_read_logs_follow_returns_all_output_exactly_once(
    site: Site, chain: Chain, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever is written when, a follower gets every byte of every attempt that wrote, once and in order."""
    dice = random.Random(seed)
    monkeypatch.setattr(log_reader, "MAX_LINE", 4)
    monkeypatch.setattr(log_reader, "CHUNK", dice.choice([3, 7, 64]))
    written: dict[int, str] = {}
    newest = 1

    def write(number: int) -> None:
        text = "".join(dice.choice("abc\n") for _ in range(dice.randrange(12)))
        written[number] = written.get(number, "") + text
        chain.write(number, text)

    def act() -> None:
        nonlocal newest
        what = dice.random()
        if what < 0.15:
            chain.go_on()
            newest += 1
        elif what < 0.75:
            loud = [number for number, text in written.items() if text]
            # an attempt that was cut off may write until a later one does
            write(dice.choice([number for number in range(1, newest + 1) if not loud or number >= max(loud)]))

    chain.acts = [act] * 60 + [chain.halt, *chain.rest()]
    lines = list(chain.read(LogQuery(follow=True, attempt="all")))
    numbers = [line.attempt for line in lines]
    assert numbers == sorted(numbers)
    for number, text in written.items():
        pieces = [line for line in lines if line.attempt == number]
        assert {line.index for line in pieces} == set(range(1, len(text.splitlines()) + 1))
        assert all(text[line.offset :].startswith(line.line) for line in pieces)
        ends = [line.offset + len(line.line) for line in pieces]
        between = [text[end : start.offset] for end, start in zip([0, *ends], pieces, strict=False)]
        assert set(between) <= {"", "\n"}, "lines lie side by side, each once"
        assert text[ends[-1] if ends else 0 :] in ("", "\n")


def test_log_reader_continues_incomplete_last_line_under_same_number(chain: Chain) -> None:
    reader = log_reader.LogReader(chain.site.platform.storage.root.job(chain.job_id).attempt(1), 1, 1)

    def lines(*, ended: bool) -> list[tuple[int, int, str]]:
        return [(line.index, line.offset, line.line) for line in reader.lines(ended=ended)]

    chain.write(1, "a\nb")
    assert lines(ended=True) == [(1, 0, "a"), (2, 2, "b")]
    assert lines(ended=True) == []
    chain.write(1, "c\nd\n")
    assert lines(ended=False) == [(2, 3, "c"), (3, 5, "d")]
    chain.write(1, "e")
    assert lines(ended=True) == [(4, 7, "e")]
    chain.write(1, "\nf\n")
    assert lines(ended=False) == [(5, 9, "f")]


def test_read_logs_follow_continues_after_requeue_within_attempt(chain: Chain) -> None:
    """The scheduler's own requeue keeps the attempt, and its learners append to the log."""
    chain.write(1, "run 1\n")
    chain.acts = [
        lambda: chain.move(JobState.PROCESSING),
        lambda: chain.move(JobState.QUEUED, cause=Cause.REQUEUED),
        *chain.rest(),
        lambda: chain.write(1, "run 2\n"),
        chain.halt,
        *chain.rest(),
    ]
    assert chain.shown(follow=True) == [(1, "run 1"), (1, "run 2")]
