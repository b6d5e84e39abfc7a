"""Iterators over events and log lines, which continue after a restart of the daemon."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import field, replace
from urllib.parse import urlencode

from ffdl_batch.client.api_calls.requests import (
    StreamCalls,
    pause_after_break,
    read_answer,
    read_line,
    segment,
    time_left,
    unreadable,
)
from ffdl_batch.client.connection.http_client import STREAM_SILENCE_S, Request, Wire
from ffdl_batch.client.errors import WaitTimedOut
from ffdl_batch.domain.codec import CodecError
from ffdl_batch.domain.job.log_text import Grep, LogText, decode_text
from ffdl_batch.domain.job.views import AttemptChoice, EventView, LogLine
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Selects lines."""

    job_id: str
    follow: bool = False
    learner: int | None = None
    since: float | None = None
    """Seconds since the epoch."""
    tail: int | None = None
    """The number of last lines of each learner and attempt."""
    attempt: AttemptChoice = None
    grep: Grep | None = None
    read: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The position up to which lines were read, by (attempt, learner)."""

    def path(self) -> str:
        """Return the request's path."""
        asked: list[tuple[str, str]] = []
        if self.follow:
            asked.append(("follow", "true"))
        if self.learner is not None:
            asked.append(("learner", str(self.learner)))
        if self.since is not None:
            asked.append(("since", f"{self.since:.6f}"))
        if self.tail is not None:
            asked.append(("tail", str(self.tail)))
        if self.attempt is not None:
            asked.append(("attempt", str(self.attempt)))
        if self.grep is not None:
            asked.append(("grep", self.grep.pattern))
            asked += [(name, "true") for name in ("ignore_case", "invert", "fixed") if getattr(self.grep, name)]
            asked += [(name, str(getattr(self.grep, name))) for name in ("before", "after") if getattr(self.grep, name)]
        asked += [("read", f"{attempt}.{learner}:{end}") for (attempt, learner), end in sorted(self.read.items())]
        return f"/api/v1/jobs/{segment(self.job_id)}/logs" + (f"?{urlencode(asked)}" if asked else "")

    def again(self, attempt: int, ends: Mapping[tuple[int, int], int]) -> LogQuery:
        """Return the query that resumes a stream which broke off in that attempt (0 = unknown) at those positions.

        It has no `tail`, because new lines may be before it. It names the attempt, because the newest one may be
        another now. With `grep` it starts at the beginning, because neighbours of a line that was seen may still be
        missing.
        """
        chosen = self.attempt if self.attempt == "all" else attempt or self.attempt
        read = {whose: end for whose, end in ends.items() if whose[0] == attempt and end} if self.grep is None else {}
        return replace(self, tail=None, attempt=chosen, read=read)


def iterate_texts(wire: Wire, query: LogQuery, sleep: Callable[[float], None] = time.sleep) -> Iterator[LogText]:
    """Yield the lines in the daemon's order, each once. Raises ClientError.

    A stream that breaks off is requested again from where it was. Lines that were seen are skipped by their position.
    """
    latest: dict[tuple[int, int], LogText] = {}
    failures = attempt = 0
    while True:
        asked = query.again(attempt, {whose: text.end for whose, text in latest.items()}) if latest else query
        request = Request("GET", asked.path(), job_id=query.job_id, timeout_s=STREAM_SILENCE_S)
        try:
            for raw in wire.stream(request):
                found = _decode(raw)
                whose = (found.attempt, found.learner)
                text = found.after(latest[whose].place()) if whose in latest else found
                if text is not None and text.attempt >= attempt:
                    attempt, latest[whose] = text.attempt, text
                    failures = 0
                    yield text
        except ConnectionError as error:
            failures += 1
            pause_after_break(failures, error, f"the log of {query.job_id}", sleep)
            continue
        return


def iterate_events(
    wire: Wire, job_id: str, *, follow: bool, after: int = 0, timeout_s: float | None = None
) -> Iterator[EventView]:
    """Yield changes of state after number `after`, in order; with `follow` until the job has ended.

    Raises WaitTimedOut if nothing is new after `timeout_s` seconds and the job has not ended.
    """
    terminal = False
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = time_left(deadline)
        # After the end, ask once more without waiting: the last event may be newer than the answer.
        wait_s = math.ceil(left) if follow and not terminal else 0
        path = f"/api/v1/jobs/{segment(job_id)}/events?after={after}&wait_s={wait_s}"
        reply = wire.ask(Request("GET", path, job_id=job_id, held_s=wait_s))
        events = [read_answer(EventView, plain) for plain in reply.get("events", ())]
        for event in events:
            after = max(after, event.seq)
            yield event
        terminal = bool(reply.get("terminal"))
        if not follow or (terminal and (not events or wait_s == 0)):
            return
        if not (events or terminal) and deadline is not None and time.monotonic() >= deadline:
            raise WaitTimedOut(f"{job_id} has not ended, and nothing has happened to it in time")


def _decode(raw: bytes) -> LogText:
    try:
        return decode_text(read_line(raw))
    except (ValueError, CodecError) as error:
        raise unreadable(error) from error


class LogCalls(StreamCalls):
    """Calls for learners' logs."""

    def logs(  # noqa: PLR0913 - one parameter per choice
        self,
        job_id: str,
        *,
        follow: bool = False,
        learner: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        attempt: AttemptChoice = None,
        grep: Grep | None = None,
    ) -> Iterator[LogLine]:
        """Yield the learners' lines, merged by time; with `follow` until the end. Raises UnknownJob at the first line.

        `attempt` is a number, "all" (one after the other), or None: the newest attempt with a log. With `follow`, later
        attempts follow. `tail` counts the lines of each learner and attempt, with `grep` the matching ones.
        """
        texts = self.log_texts(
            job_id, follow=follow, learner=learner, since=since, tail=tail, attempt=attempt, grep=grep
        )
        with closing(texts):
            for text in texts:
                yield from text.lines()

    def log_texts(  # noqa: PLR0913 - one parameter per choice
        self,
        job_id: str,
        *,
        follow: bool = False,
        learner: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        attempt: AttemptChoice = None,
        grep: Grep | None = None,
        read: Mapping[tuple[int, int], int] | None = None,
    ) -> Generator[LogText]:
        """Yield the same lines as :meth:`logs` in bulk, for large logs: neighbouring lines with one time are one
        value. `read` are the positions up to which lines were read before, by (attempt, learner)."""
        query = LogQuery(segment(job_id), follow, learner, since, tail, attempt, grep, read or {})
        with closing(self._open_wire()) as wire:
            yield from iterate_texts(wire, query)
