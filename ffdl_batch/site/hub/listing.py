"""Asks the scheduler once per interval for the jobs of all users, and gives each daemon those of its own user.

The scheduler is asked only if a daemon asks the hub. Rows are separated by the uid that the scheduler prints.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import user_name
from ffdl_batch.plugins import AdapterContext, adapter_names, create_adapter
from ffdl_batch.ports.capabilities import SharesListing
from ffdl_batch.services.hub import MAX_LISTING_BYTES
from ffdl_batch.services.refusals import Refused

log = logging.getLogger(__name__)

BACKEND = "slurm"
GENTLE = 20.0
"""A query that took d seconds is followed by a pause of 20 d: at most 5 % of slurmctld's time."""
PATIENCE_S = 2.0
"""How long a daemon waits for a running query. Then it gets the previous listing."""
OLDEST_S = 60.0
"""Maximum age of a listing that daemons get."""
LONGEST_PAUSE_S = 60.0
EXAMINED_S = 600.0
"""How often the hub checks that its account sees the jobs of all users."""


@dataclass(frozen=True, slots=True)
class UserRows:
    """The jobs of one user."""

    body: bytes
    """One row in each line."""
    digest: str
    age_s: float


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer of the scheduler."""

    asked_at: float
    rows: Mapping[int, Sequence[str]]
    encoded: dict[int, tuple[bytes, str]]
    """Rows and digests of the users who have asked."""


class JobListing:
    """The listing. Use it in one event loop."""

    def __init__(
        self, source: SharesListing | None, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`source` lists the jobs; None if this hub asks no scheduler."""
        self._source, self._interval_s, self._clock = source, interval_s, clock
        self._thread = ThreadPoolExecutor(1, "listing")
        self._asking: asyncio.Task[None] | None = None
        self._answer: _Answer | None = None
        self._due_at = self._examine_at = clock()
        self._failures = 0
        self._why = "the scheduler has not answered yet"

    async def read(self, uid: int) -> UserRows:
        """Return the rows of a user. Raises Refused (503) if there is no listing, and (413) if it is too large."""
        if self._source is None:
            raise _no_listing("this hub does not list jobs")
        if self._asking is None and self._clock() >= self._due_at:
            self._asking = asyncio.ensure_future(self._ask(self._source))
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=PATIENCE_S)
        answer = self._answer
        if answer is None or self._clock() - answer.asked_at > OLDEST_S:
            raise _no_listing(self._why)
        if uid not in answer.encoded:
            body = "\n".join(answer.rows.get(uid, ())).encode("utf-8")
            answer.encoded[uid] = body, hashlib.sha256(body).hexdigest()[:32]
        body, digest = answer.encoded[uid]
        if len(body) > MAX_LISTING_BYTES:
            problem = Problem("C101", "you have too many jobs for the hub's listing", ExitCode.NOT_ALLOWED)
            raise Refused(problem, 413)
        return UserRows(body, digest, self._clock() - answer.asked_at)

    async def _ask(self, source: SharesListing) -> None:
        began = self._clock()
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.run_in_executor(self._thread, self._list, source)
        except (SchedulerUnreachable, InvalidRequest) as error:
            self._note_failure(str(error))
        except Exception as error:
            log.exception("the jobs of all users cannot be listed")
            self._note_failure(f"{type(error).__name__}: {error}")
        else:
            if self._failures:
                log.info("the scheduler lists the jobs of all users again")
            took_s = self._clock() - began
            self._answer, self._failures = _Answer(began, rows, {}), 0
            self._due_at = began + max(self._interval_s, took_s + GENTLE * took_s)
        finally:
            self._asking = None

    def _list(self, source: SharesListing) -> Mapping[int, Sequence[str]]:
        """Ask the scheduler. Raises SchedulerUnreachable, also if this account does not see all jobs."""
        if self._clock() >= self._examine_at:
            if blind := source.explain_blindness():
                raise SchedulerUnreachable(blind)
            self._examine_at = self._clock() + EXAMINED_S
        return source.list_all_users()

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        self._due_at = self._clock() + growing_pause(self._failures, self._interval_s, LONGEST_PAUSE_S)
        if self._failures == 1 or why != self._why:
            log.error("the jobs of all users cannot be listed, and daemons ask the scheduler themselves: %s", why)
        self._why = why


def open_source() -> SharesListing | None:
    """Return the backend that lists the jobs; None if it is not installed."""
    if BACKEND not in adapter_names():
        return None
    uid = os.getuid()
    found = create_adapter(BACKEND, {}, AdapterContext(root="/nonexistent", user=user_name(uid), uid=uid))
    return found if isinstance(found, SharesListing) else None


def _no_listing(why: str) -> Refused:
    return Refused(Problem("S210", why, ExitCode.TRY_AGAIN, "the daemon asks the scheduler itself"), 503)
