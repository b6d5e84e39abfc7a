"""The route of the log stream: lines of JSON until the log ends or the reader disconnects.

Reading blocks, so it is done in other threads than the event loop's (:mod:`ffdl_batch.daemon.log_pump`): fifty waiting
followers delay no other request. A slow reader delays only its own stream, by a bounded buffer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ffdl_batch.daemon.connections import peer_of
from ffdl_batch.daemon.error_replies import problem_of
from ffdl_batch.daemon.log_pump import Lines, LogPump, SharedTurns
from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import ErrorReply, PlainReply
from ffdl_batch.daemon.request_context import Asking, CaughtUp, Context, check_files, in_thread, until_gone
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.parameters import AttemptChoice, Count, Number, Time, Word, answers
from ffdl_batch.domain.job.log_text import Grep, LogText, encode_text
from ffdl_batch.services.job_storage import FRESH_S
from ffdl_batch.services.logs.line_search import MAX_CONTEXT, MAX_PATTERN
from ffdl_batch.services.logs.log_stream import LogQuery, read_texts
from ffdl_batch.services.queries.followed_jobs import Pause
from ffdl_batch.services.refusals import Refused, wrong_usage

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 5.0
"""Interval of blank lines while there are no others, so that reader and daemon notice if the other one has ended."""
_PIECE_BYTES = 1 << 16
LINES = "application/x-ndjson"
_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9}):([0-9]{1,18})", re.ASCII)

router = Routes(prefix=PREFIX)


class StreamReply(StreamingResponse):
    """A stream that calls `end` when it was sent or its reader has disconnected, also before its first piece."""

    def __init__(self, content: AsyncIterator[bytes], media_type: str, end: Callable[[], None]) -> None:
        super().__init__(content, media_type=media_type)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()

    async def listen_for_disconnect(self, receive: Receive) -> None:
        """Wait until the reader has disconnected."""
        await until_gone(receive)


@router.get(
    "/jobs/{job_id}/logs",
    response_class=StreamingResponse,
    operation_id="logs",
    responses={
        200: {
            "description": "One JSON object (`LogText`) per line: neighbouring lines of a learner with the same time. "
            "While there are no new lines, blank lines are sent. "
            "If a stream ends without its last chunk, the daemon broke it off: ask again.",
            "content": {LINES: {"schema": {"type": "string"}}},
        },
        **answers(404, 422),
    },
)
async def read_log(  # noqa: PLR0913, PLR0917 - one parameter per field of the query string
    job_id: str,
    request: Request,
    here: CaughtUp,
    caller: Asking,
    learner: Annotated[
        Number | None, Query(description="Only this learner's lines; default: the merged lines of all learners.")
    ] = None,
    follow: Annotated[bool, Query(description="Follow all attempts until the job ends.")] = False,
    since: Annotated[Time | None, Query(description="Only lines written at or after this time.")] = None,
    tail: Annotated[
        Count | None,
        Query(description="Number of last lines of each learner and attempt to send before new lines."),
    ] = None,
    attempt: Annotated[
        AttemptChoice,
        Query(
            description="Only this attempt's lines, or `all`: every attempt's, in order. By default those of the "
            "newest attempt with a log. With `follow`, later attempts follow."
        ),
    ] = None,
    grep: Annotated[
        Word | None,
        Query(
            max_length=MAX_PATTERN,
            description="Only lines that match this Python regular expression; `tail` counts these.",
        ),
    ] = None,
    ignore_case: Annotated[bool, Query(description="With `grep`: ignore case.")] = False,
    invert: Annotated[bool, Query(description="With `grep`: only lines that do not match.")] = False,
    fixed: Annotated[bool, Query(description="With `grep`: treat it as a fixed string.")] = False,
    before: Annotated[int, Query(ge=0, le=MAX_CONTEXT, description="With `grep`: lines before each match.")] = 0,
    after: Annotated[int, Query(ge=0, le=MAX_CONTEXT, description="With `grep`: lines after each match.")] = 0,
    read: Annotated[
        list[str] | None,
        Query(
            description="`ATTEMPT.LEARNER:END`, once for each learner of one attempt: skip the lines before that `end` "
            "and all earlier attempts."
        ),
    ] = None,
) -> StreamingResponse:
    """Stream the logs of learners."""
    search = None if grep is None else Grep(grep, ignore_case, invert, fixed, before, after)
    query = LogQuery(learner, follow, since, tail, attempt, search, _read_places(read or ()))

    def read_encoded(stopped: threading.Event) -> Lines:
        return _encoded(
            read_texts(here.platform.storage, here.platform.followed_jobs, caller, job_id, query, stopped.is_set)
        )

    # The search for a pattern may take long, and must not delay other streams.
    return await stream_reply(here, request, read_encoded, LINES, here.log_turns if search is None else None)


async def stream_reply(
    here: Context,
    request: Request,
    read: Callable[[threading.Event], Lines],
    media_type: str,
    turns: SharedTurns | None = None,
) -> StreamReply:
    """Send the result of `read`, with blank lines while there is nothing new. `turns` as for :class:`LogPump`. Raises
    Refused and OSError."""
    pump = await start_pump(here, read, turns)
    return StreamReply(stream_lines(pump, here, request), media_type, pump.stop)


async def start_pump(
    here: Context,
    read: Callable[[threading.Event], Lines],
    turns: SharedTurns | None,
    *,
    reports_failures: bool = True,
) -> LogPump:
    """Start to read in a thread. It counts as a stream until its end, even if its reader has disconnected. `turns` as
    for :class:`LogPump`. Failures of the file system become a line with the problem, unless `reports_failures` is
    false.

    Raises Refused and OSError.
    """
    with here.open_stream() as end:
        await check_files(here)
        stopped = threading.Event()
        lines = await in_thread(here.limits.quick, read, stopped)
        place = here.platform.storage.root.path
        pump = LogPump(lines, stopped, lambda error: _refusal_line(error, place) if reports_failures else b"", turns)
        pump.start(end)
    return pump


def _encoded(texts: Iterator[LogText | Pause]) -> Iterator[bytes | Pause]:
    """Yield the lines before a pause as one piece, because each piece is sent separately."""
    held = b""
    try:
        for text in texts:
            if isinstance(text, LogText):
                held += encode_text(text)
            if held and (isinstance(text, Pause) or len(held) >= _PIECE_BYTES):
                yield held
                held = b""
            if isinstance(text, Pause):
                yield text
    except Exception:
        if held:
            yield held
        raise
    if held:
        yield held


def _read_places(places: Sequence[str]) -> dict[tuple[int, int], int]:
    """Return the positions by attempt and learner. Raises Refused."""
    found = [_PLACE.fullmatch(place) for place in places]
    if not all(found):
        raise wrong_usage("read must be ATTEMPT.LEARNER:END")
    return {(int(match[1]), int(match[2])): int(match[3]) for match in found if match is not None}


async def stream_lines(pump: LogPump, here: Context, request: Request) -> AsyncIterator[bytes]:
    """Yield the output of the pump until it ends or the daemon stops. Yield blank lines while there is no output."""
    stopping = asyncio.ensure_future(_wake_at_stop(here, pump))
    is_empty = True
    try:
        while not here.changes.closed:
            lines = await pump.take(KEEP_ALIVE_S)
            is_empty = is_empty and not lines
            if lines or not pump.ended:
                silence = b"" if lines else await _silence(here)
                yield lines or silence or b"\n"
                if silence:
                    return
            elif not pump.failed:
                if is_empty and (silence := await _silence(here, fresh_s=0.0)):  # is the file system missing?
                    yield silence
                return
            else:
                break
        _break_off(request)
    finally:
        stopping.cancel()


async def stream_text(pump: LogPump, here: Context, request: Request) -> AsyncIterator[bytes]:
    """Yield the output of the pump until it ends, and nothing else. Break the stream off if the daemon stops or the
    output cannot be read."""
    stopping = asyncio.ensure_future(_wake_at_stop(here, pump))
    try:
        while not (here.changes.closed or pump.failed):
            text = await pump.take(KEEP_ALIVE_S)
            if text:
                yield text
            elif pump.ended and not pump.failed:
                return
        _break_off(request)
    finally:
        stopping.cancel()


async def _silence(here: Context, fresh_s: float = FRESH_S) -> bytes:
    """Return a line with the reason if the file system does not answer, else a blank line."""
    try:
        await check_files(here, fresh_s)
    except OSError as error:
        return _refusal_line(error, here.platform.storage.root.path)
    return b""


def _refusal_line(error: Exception, place: str) -> bytes:
    """Return the problem of a file system error below `place` as a line; nothing for other errors."""
    problem = error.problem if isinstance(error, Refused) else problem_of(error, place)
    return b"" if problem is None else bytes(PlainReply(ErrorReply(problem)).body) + b"\n"


async def _wake_at_stop(here: Context, pump: LogPump) -> None:
    """Wake the stream when the daemon stops, but not at other changes."""
    while not here.changes.closed:
        await here.changes.wait(here.changes.version, 3600.0)
    pump.notify()


def _break_off(request: Request) -> None:
    """Close the stream without the last chunk, so that the reader continues with the next daemon."""
    peer = peer_of(request.scope)
    if peer is not None:
        peer.abort()
