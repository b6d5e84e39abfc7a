"""Events and log lines as iterators that survive a restart of the daemon."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from ffdl_batch.client.errors import DaemonUnreachable, RequestRefused, WaitTimedOut
from ffdl_batch.client.wire import STREAM_SILENCE_S, Request, Wire
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.views import AttemptChoice, EventView, LogLine, Problem

LONG_POLL_S = 30
_RESUMES = 5
"""Broken streams in a row without one new line, before giving up."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines. `since` is seconds since the epoch, `tail` the number of last lines of each learner and attempt."""

    job_id: str
    follow: bool = False
    learner: int | None = None
    since: float | None = None
    tail: int | None = None
    attempt: AttemptChoice = None

    def path(self) -> str:
        """The request's path."""
        asked: dict[str, str] = {}
        if self.follow:
            asked["follow"] = "true"
        if self.learner is not None:
            asked["learner"] = str(self.learner)
        if self.since is not None:
            asked["since"] = f"{self.since:.6f}"
        if self.tail is not None:
            asked["tail"] = str(self.tail)
        if self.attempt is not None:
            asked["attempt"] = str(self.attempt)
        return f"/api/v1/jobs/{self.job_id}/logs" + (f"?{urlencode(asked)}" if asked else "")

    def again(self, attempt: int) -> LogQuery:
        """What to ask for when the stream broke off in that attempt (0 = unknown).

        Not its `tail`: lines that came meanwhile may lie before that. Not the newest attempt: it may be another by now.
        """
        return replace(self, tail=None, attempt=self.attempt if self.attempt == "all" else attempt or self.attempt)


def iterate_logs(wire: Wire, query: LogQuery, sleep: Callable[[float], None] = time.sleep) -> Iterator[LogLine]:
    """The lines in the daemon's order, each once; raises :class:`ClientError`.

    A stream that breaks off is asked for again; what was seen is left out by its place.
    """
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    failures = attempt = 0
    while True:
        asked = query.again(attempt) if seen else query
        request = Request("GET", asked.path(), job_id=query.job_id, timeout_s=STREAM_SILENCE_S)
        try:
            for raw in wire.stream(request):
                line = _decode(raw)
                whose, place = (line.attempt, line.learner), (line.index, line.offset)
                if line.attempt >= attempt and place > seen.get(whose, (0, 0)):
                    attempt, seen[whose] = line.attempt, place
                    failures = 0
                    yield line
        except ConnectionError as error:
            failures += 1
            if failures > _RESUMES:
                raise DaemonUnreachable(f"the log of {query.job_id} broke off again and again: {error}") from error
            sleep(min(0.1 * 2**failures, 2.0))
            continue
        return


def iterate_events(
    wire: Wire, job_id: str, *, follow: bool, after: int = 0, timeout_s: float | None = None
) -> Iterator[EventView]:
    """Changes of state after number `after`, in order; with `follow` until the job has ended.

    Raises :class:`WaitTimedOut` where `timeout_s` seconds are over, nothing is new and the job goes on.
    """
    terminal = False
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
        # One more look, without waiting, after the end: its last event may have come after the answer was put together.
        wait_s = math.ceil(left) if follow and not terminal else 0
        path = f"/api/v1/jobs/{job_id}/events?after={after}&wait_s={wait_s}"
        reply = wire.ask(Request("GET", path, job_id=job_id, held_s=wait_s))
        events = [_event(plain) for plain in reply.get("events", ())]
        for event in events:
            after = max(after, event.seq)
            yield event
        terminal = bool(reply.get("terminal"))
        if not follow or (terminal and (not events or wait_s == 0)):
            return
        if not (events or terminal) and deadline is not None and time.monotonic() >= deadline:
            message = f"nothing happened to {job_id} in time; it goes on"
            raise WaitTimedOut(Problem("000", message, int(ExitCode.TIMEOUT)))


def _decode(raw: bytes) -> LogLine:
    try:
        plain = json.loads(raw)
        if isinstance(plain, dict) and "problem" in plain:  # an error after the stream had begun
            raise RequestRefused(from_plain(Problem, plain["problem"]))
        return from_plain(LogLine, plain)
    except (ValueError, CodecError) as error:
        raise RequestRefused(Problem("S106", f"the daemon sent a log line that is none: {error}", 1)) from error


def _event(plain: object) -> EventView:
    try:
        return from_plain(EventView, plain)
    except CodecError as error:
        raise RequestRefused(Problem("S106", f"the daemon sent an event that is none: {error}", 1)) from error
