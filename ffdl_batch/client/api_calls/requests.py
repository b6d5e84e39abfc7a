"""Write ids and filters into the paths of requests, send long polls, and read answers."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from ffdl_batch.client.connection.http_client import Request, Wire
from ffdl_batch.client.errors import DaemonUnreachable, RequestRefused, UnknownJob
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass

V = TypeVar("V")
LONG_POLL_S = 30
"""Maximum time that the daemon holds back the answer to one request."""
MAX_BREAKS = 5
"""Maximum breaks of a stream in a row without one new line."""


def segment(job_id: str) -> str:
    """Return the id as one segment of a path. Raises UnknownJob for an empty id, such as of a variable that is not set,
    and for one with a slash, because the path would be another one."""
    if not job_id or "/" in job_id or job_id in (".", ".."):
        what = f"there is no job {quoted(job_id)}" if job_id else "the id is empty"
        raise UnknownJob(Problem("C101", what, int(ExitCode.FAILED), "ffdl list shows your jobs"))
    return quote(job_id, safe="")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects the jobs of a listing."""

    states: tuple[str, ...] = ()
    """Names of states, as in JobState."""
    name: str = ""
    since: float | None = None
    """Earliest time of submission, in seconds since the epoch."""
    limit: int | None = None
    all_users: bool = False
    array: str = ""
    """The id of an array, to list its elements."""
    ended_before: float | None = None
    """Latest end, in seconds since the epoch."""
    disk: bool = False
    """Whether to measure the disk space of each job's directory."""
    after: str = ""
    """The id of the last job of the previous page."""
    text: str = ""
    """Part of a name, or the beginning of an id."""
    is_collapsed: bool = False
    """Whether an array has only its first element that matches, with `array_states`."""

    def query(self) -> str:
        """Return the query part of the URL, with its question mark."""
        pairs = [("state", state) for state in self.states]
        if self.name:
            pairs.append(("name", self.name))
        if self.since is not None:
            pairs.append(("since", f"{self.since:.6f}"))
        if self.limit is not None:
            pairs.append(("limit", str(self.limit)))
        if self.all_users:
            pairs.append(("all_users", "true"))
        if self.array:
            pairs.append(("array", self.array))
        if self.ended_before is not None:
            pairs.append(("ended_before", f"{self.ended_before:.6f}"))
        if self.disk:
            pairs.append(("disk", "true"))
        if self.after:
            pairs.append(("after", self.after))
        if self.text:
            pairs.append(("text", self.text))
        if self.is_collapsed:
            pairs.append(("collapsed", "true"))
        return f"?{urlencode(pairs)}" if pairs else ""


class StreamCalls(ABC):
    """Calls that read streams. Each has a connection of its own, so that other calls can be made meanwhile."""

    @abstractmethod
    def _open_wire(self) -> Wire:
        """Return a new connection, which the caller closes."""


def read_answer(kind: type[V], plain: object) -> V:
    """Return the value in a reply; raises RequestRefused if it cannot be read."""
    try:
        return from_plain(kind, plain)
    except CodecError as error:
        raise unreadable(error) from error


def read_line(raw: bytes) -> dict[str, Any]:
    """Return the object in a line of a stream; raises RequestRefused for a problem that came after the stream began."""
    try:
        plain = json.loads(raw)
    except ValueError as error:
        raise unreadable(error) from error
    if not isinstance(plain, dict):
        raise unreadable("a line is not a JSON object")
    if "problem" in plain:
        raise RequestRefused(read_answer(Problem, plain["problem"]))
    return plain


def pause_after_break(failures: int, error: ConnectionError, what: str, sleep: Callable[[float], None]) -> None:
    """Pause before a stream is requested again, after so many breaks in a row without a new line. Raises
    DaemonUnreachable if there were too many."""
    if failures > MAX_BREAKS:
        raise DaemonUnreachable(f"{what} broke off again and again: {error}") from error
    sleep(growing_pause(failures + 1, 0.1, 2.0))


def time_left(deadline: float | None) -> float:
    """Return how long a long poll may take; `deadline` is by the monotonic clock, None for no limit."""
    return LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))


def long_poll(wire: Wire, request: Request, timeout_s: float | None) -> Iterator[Mapping[str, Any]]:
    """Yield the answers to a request that the daemon holds back until there is news, until `timeout_s` is over.

    Keeps asking while the daemon does not answer, and raises DaemonUnreachable if a later try cannot help.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = time_left(deadline)
        path = f"{request.path}?wait_s={math.ceil(left_s)}"
        yield wire.ask_until(replace(request, path=path, held_s=left_s), deadline)
        if deadline is not None and time.monotonic() >= deadline:
            return


def unreadable(what: object) -> RequestRefused:
    """Return the error for an answer that this client cannot read."""
    return RequestRefused(Problem("S106", f"the daemon's answer cannot be read: {what}", int(ExitCode.FAILED)))
