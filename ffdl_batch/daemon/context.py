"""What the routes need beside the platform: limits on what runs at once, the wish to be told of changes, the loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI
from starlette.requests import Request

from ffdl_batch.daemon.changes import Changes
from ffdl_batch.services.platform import Caller, Platform

P = ParamSpec("P")
T = TypeVar("T")

QUICK, SLOW, UPLOADS = 24, 8, 8
"""Threads for reads and writes of the store; for what may ask a scheduler; for uploads, as slow as their senders."""


@dataclass(slots=True)
class Limits:
    """Each kind of work has threads of its own, so that none starves another."""

    quick: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(QUICK))
    slow: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(SLOW))
    uploads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(UPLOADS))


@dataclass(slots=True)
class Context:
    """The daemon as its routes see it. `poke` wakes the loops. `requests` counts those that were let in."""

    platform: Platform
    started_at: float
    log_name: str = "the daemon's log"
    changes: Changes = field(default_factory=Changes)
    poke: Callable[[], None] = lambda: None
    limits: Limits = field(default_factory=Limits)
    requests: int = 0
    streams: int = 0

    def note_request(self) -> None:
        """One more request was let in."""
        self.requests += 1


async def in_thread(limiter: CapacityLimiter, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call in one of the threads that `limiter` counts."""
    return await to_thread.run_sync(partial(call, *args, **kwargs), limiter=limiter)


def context_of(app: FastAPI) -> Context:
    """The context that the application was made with."""
    found = app.state.context
    assert isinstance(found, Context)
    return found


def _context(request: Request) -> Context:
    return context_of(request.app)


def _caller(request: Request) -> Caller:
    """Whom the gate let in. Set from the kernel's word alone (see :mod:`ffdl_batch.daemon.peer`)."""
    found = request.scope["state"]["caller"]
    assert isinstance(found, Caller)
    return found


Here = Annotated[Context, Depends(_context)]
Asking = Annotated[Caller, Depends(_caller)]
