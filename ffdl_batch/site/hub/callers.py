"""Who sends a request, and how many the caller may send."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ffdl_batch.domain.access import Role
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.settings import HubSettings

_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """An identified caller."""

    uid: int
    has_token: bool
    """Whether the request has a token, which the user's daemon must check. Else the kernel named the uid."""


def refuse(status: int, message: str, cure: str = "") -> Refused:
    """Return the error for a caller who is not allowed to do something."""
    return Refused(Problem("C101", message, ExitCode.NOT_ALLOWED, cure), status)


def is_listed(uid: int, names: Sequence[str]) -> bool:
    """Return whether the account with this uid is one of `names`, or in one of the groups that are written @group."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return False
    groups = {name[1:] for name in names if name.startswith("@")}
    if account.pw_name in names or not groups:
        return account.pw_name in names
    own = set()
    for gid in os.getgrouplist(account.pw_name, account.pw_gid):
        try:
            own.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return bool(own & groups)


def find_role(settings: HubSettings, uid: int) -> Role | None:
    """Return the caller's role for other users' daemons; None if there is none. It asks name services: call it in a
    thread."""
    if is_listed(uid, settings.operators):
        return Role.OPERATOR
    return Role.AUDITOR if is_listed(uid, settings.auditors) else None


class Limits:
    """Counts requests. Use it in one event loop."""

    def __init__(self, settings: HubSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._running: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()
        self._wrong: Counter[str] = Counter()
        self._since = clock()

    @contextmanager
    def counted(self, uid: int) -> Iterator[None]:
        """Count a request of a user until it is answered. Raises Refused (429) if there are too many."""
        self._renew()
        self._sent[uid] += 1
        if self._sent[uid] > self._settings.requests_per_minute:
            raise _too_many(f"user {uid} has sent {self._settings.requests_per_minute} requests within a minute")
        if self._running[uid] >= self._settings.requests_at_once:
            raise _too_many(f"{self._running[uid]} requests of user {uid} are being answered")
        self._running[uid] += 1
        try:
            yield
        finally:
            self._running[uid] -= 1
            if not self._running[uid]:
                del self._running[uid]

    def note_unidentified(self, address: str) -> None:
        """Count a request that does not prove who has sent it."""
        self._renew()
        self._wrong[address] += 1

    def refuse_unidentified(self, address: str, refusal: Refused) -> Refused:
        """Count such a request. Return `refusal`, or another one (429) if there were too many from this address.
        Requests with a valid token are not affected."""
        self.note_unidentified(address)
        if self._wrong[address] > self._settings.wrong_tokens_per_minute:
            return _too_many(f"too many requests without valid token came from {address}")
        return refusal

    def _renew(self) -> None:
        if self._clock() - self._since >= _WINDOW_S:
            self._sent, self._wrong, self._since = Counter(), Counter(), self._clock()


def _too_many(message: str) -> Refused:
    return Refused(Problem("S210", message, ExitCode.TRY_AGAIN, "wait a minute"), 429)
