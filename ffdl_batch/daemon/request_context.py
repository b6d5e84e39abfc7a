"""Holds what the routes need besides the platform: limits of concurrent work, notifications of changes, the loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from typing import Annotated, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive

from ffdl_batch.daemon.connections import Peer
from ffdl_batch.daemon.log_pump import SharedTurns
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.hub import Hub
from ffdl_batch.services.job_storage import FRESH_S
from ffdl_batch.services.refusals import try_again
from ffdl_batch.services.reports.prometheus_metrics import Counted, Figures


class Changes:
    """A version that grows with each change. Loops bump it from their threads; requests wait in the event loop.

    Read `version` before the query and wait with it after: a change in between is never missed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        self.waiting = 0
        """The number of requests that wait."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive bumps in `loop` from now on. Waiting in a loop does this, too."""
        self._loop = loop
        self._event = asyncio.Event()

    def bump(self) -> None:
        """Wake all waiting requests because something changed. Safe in every thread; does nothing without a loop."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all waiting, now and in future, because the daemon stops. Call in the loop."""
        self.closed = True
        self._wake()

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Return when the version is no longer `seen`, when the daemon stops, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.attach(loop)
        event = self._event
        if self.version != seen or self.closed or event is None or timeout_s <= 0:
            return
        self.waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await event.wait()
        finally:
            self.waiting -= 1

    def _wake(self) -> None:
        self.version += 1
        if self._event is not None:
            self._event.set()
            self._event = asyncio.Event()


log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

QUICK, SLOW, UPLOADS = 24, 8, 8
"""Threads for reads and writes of the store; for what may ask a scheduler; for uploads, as slow as their senders."""
MAX_STREAMS = 256
"""Maximum number of replies that are sent while they are read from files. Each may have a thread."""
CATCH_UP_S = 3.0
"""Maximum time after the daemon's start that requests about jobs wait for the watcher. Then they are answered with the
known states, so that a hanging scheduler does not block them."""


LOOK_S = 3.0
"""Interval of checks whether the file system still answers, while a request waits for it."""
SOON_S = 1.5
"""How long a reply waits for optional details."""


@dataclass(slots=True)
class Limits:
    """Limits of concurrent work. Each kind of work has its own threads, so that none starves another."""

    quick: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(QUICK))
    slow: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(SLOW))
    uploads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(UPLOADS))


@dataclass(slots=True)
class Context:
    """The daemon as its routes see it. `poke` wakes the loops. `requests` counts admitted requests.

    `is_caught_up` says whether the watcher has seen what happened while no daemon ran; then `changes` are bumped.
    """

    platform: Platform
    started_at: float
    log_name: str = "the daemon's log"
    admits_root: bool = True
    """Whether root may use the daemon as its user does; not in site mode."""
    hub: Hub | None = None
    """The site's hub; only in site mode."""
    changes: Changes = field(default_factory=Changes)
    poke: Callable[[], None] = lambda: None
    is_caught_up: Callable[[], bool] = lambda: True
    settings_problem: Callable[[], str] = lambda: ""
    """Returns why changed configuration files are not in use."""
    catch_up_until: float = field(default_factory=lambda: time.monotonic() + CATCH_UP_S)
    limits: Limits = field(default_factory=Limits)
    log_turns: SharedTurns = field(default_factory=SharedTurns)
    requests: int = 0
    streams: int = 0
    figures: Figures = field(init=False)
    revoked: set[str] = field(default_factory=set)
    """Ids of the tokens that this daemon has revoked."""
    _peers_of_tokens: dict[str, list[Peer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figures = Figures(
            self.platform.storage, self.platform.adapters, lambda: Counted(self.started_at, self.requests, self.streams)
        )

    @property
    def admitted_uids(self) -> tuple[int, ...]:
        """The users who have all rights to the daemon."""
        own = self.platform.storage.uid
        return (own, 0) if self.admits_root else (own,)

    @contextmanager
    def open_stream(self) -> Iterator[Callable[[], None]]:
        """Count one more stream until the yielded function is called or the block raises.

        Raises Refused if MAX_STREAMS are counted. Call this only in the event loop.
        """
        if self.streams >= MAX_STREAMS:
            raise try_again("S210", f"{MAX_STREAMS} streams are open", cure="end some of their readers")
        self.streams += 1
        try:
            yield self._end_stream
        except BaseException:
            self._end_stream()
            raise

    def _end_stream(self) -> None:
        self.streams -= 1

    @contextmanager
    def in_use(self, caller: Caller, peer: Peer | None) -> Iterator[None]:
        """Drop the connection of a request if its token expires or is revoked before the block ends."""
        if caller.expires_at is None or peer is None:
            yield
            return
        left = caller.expires_at - self.platform.storage.clock.now()
        timer = asyncio.get_running_loop().call_later(left, peer.abort)
        peers = self._peers_of_tokens.setdefault(caller.token_id, [])
        peers.append(peer)
        try:
            yield
        finally:
            timer.cancel()
            peers.remove(peer)
            if not peers:
                self._peers_of_tokens.pop(caller.token_id, None)

    def note_revoked(self, token_id: str, by: Peer | None) -> None:
        """Drop all connections that use a token, except that of the peer who has revoked it."""
        self.revoked.add(token_id)
        for peer in self._peers_of_tokens.get(token_id, ()):
            if peer is not by:
                peer.abort()

    def note_request(self) -> None:
        """Count one more admitted request."""
        self.requests += 1

    async def catch_up(self) -> None:
        """Return when the watcher has caught up, when the daemon stops, or at `catch_up_until`."""
        while True:
            version = self.changes.version
            left = self.catch_up_until - time.monotonic()
            if self.is_caught_up() or self.changes.closed or left <= 0:
                return
            await self.changes.wait(version, left)


async def in_thread(limiter: CapacityLimiter, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in one of the threads that `limiter` counts."""
    return await to_thread.run_sync(partial(call, *args, **kwargs), limiter=limiter)


class Gate:
    """Passed once, or shut once, whichever comes first: an abandoned request changes nothing later."""

    def __init__(self) -> None:
        self._deciding = threading.Lock()
        self._decided = ""

    def go_through(self) -> bool:
        """Return whether the work may be committed."""
        return self._decide("passed")

    def shut(self) -> bool:
        """Return whether the request may be abandoned."""
        return self._decide("shut")

    def _decide(self, wanted: str) -> bool:
        with self._deciding:
            self._decided = self._decided or wanted
            return self._decided == wanted


async def check_files(here: Context, fresh_s: float = FRESH_S) -> None:
    """Raise OSError within seconds if the file system of the job directories does not answer. For `fresh_s` see
    :meth:`ffdl_batch.services.job_storage.Tree.check`."""
    await in_thread(here.limits.quick, here.platform.storage.tree.check, fresh_s=fresh_s)


async def with_files(
    here: Context, limiter: CapacityLimiter, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a call that reads job directories like :func:`in_thread`. Raise OSError within seconds if their file system
    does not answer or stops answering; the call continues in its thread then."""
    return await with_files_through(Gate(), here, limiter, call, *args, **kwargs)


async def with_files_through(
    gate: Gate, here: Context, limiter: CapacityLimiter, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a call like :func:`with_files`, but abandon it only if it has not passed the gate."""
    await check_files(here)
    work = asyncio.ensure_future(in_thread(limiter, call, *args, **kwargs))
    while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
        try:
            await check_files(here)
        except OSError:
            if gate.shut():
                work.add_done_callback(_forget)
                raise
    return work.result()


async def if_soon(work: Awaitable[T]) -> T | None:
    """Return the result of `work` if it is ready within SOON_S; None if it takes longer or a file system fails."""
    task = asyncio.ensure_future(work)
    if not (await asyncio.wait({task}, timeout=SOON_S))[0]:
        task.add_done_callback(_forget)
        return None
    try:
        return task.result()
    except OSError:
        return None


async def until_gone(receive: Receive) -> None:
    """Return when the client of a request has disconnected, or sends a body that is too large."""
    with suppress(HTTPException):
        while (await receive())["type"] != "http.disconnect":
            pass


def _forget(work: asyncio.Future[T]) -> None:
    """Log the error of a call for which no request waits any longer."""
    if not work.cancelled() and (error := work.exception()) is not None:
        log.warning("an abandoned request failed: %s", error)


def context_of(app: FastAPI) -> Context:
    """Return the context that the application was created with."""
    found = app.state.context
    assert isinstance(found, Context)
    return found


def _context(request: Request) -> Context:
    return context_of(request.app)


async def _caught_up(request: Request) -> Context:
    here = context_of(request.app)
    await here.catch_up()
    return here


def _caller(request: Request) -> Caller:
    """Return the caller that the gate admitted, as the kernel reports it (see :mod:`ffdl_batch.daemon.connections`)."""
    found = request.scope["state"]["caller"]
    assert isinstance(found, Caller)
    return found


Here = Annotated[Context, Depends(_context)]
CaughtUp = Annotated[Context, Depends(_caught_up)]
"""The context for routes that report states of jobs: it waits until the watcher has caught up."""
Asking = Annotated[Caller, Depends(_caller)]
