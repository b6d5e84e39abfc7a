"""Determines the addresses and roles of callers, and limits their requests."""

from __future__ import annotations

import grp
import ipaddress
import math
import os
import pwd
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus

from ffdl_batch.domain.access import Role
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.settings import HubSettings

_WINDOW_S = 60.0
_ALL_TOKENS = "tokens"
"""Name of the count of all requests of a user that have a token."""
MOST_ACCEPTED = 10_000
"""Maximum number of accepted tokens whose hashes are kept. A dropped one must be accepted again."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An identified caller."""

    uid: int
    digest: str = ""
    """The hash of the request's token, which the user's daemon must check; "" if the kernel named the uid."""

    @property
    def has_token(self) -> bool:
        """Whether the request has a token."""
        return bool(self.digest)


class TrustedProxies:
    """Addresses and networks whose header X-Forwarded-For is trusted."""

    def __init__(self, networks: Sequence[str]) -> None:
        """Raises ValueError for an invalid address or network."""
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def __contains__(self, address: str) -> bool:
        found = _read_address(address)
        return found is not None and any(found in network for network in self._networks)

    def client_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the address of a trusted proxy's client: the last one in the header that is not a trusted proxy's. An
        entry that is not an address ends the search, because no trusted proxy wrote it."""
        client = peer
        for entry in reversed(",".join(forwarded).split(",")):
            found = _read_address(entry.strip())
            if found is None:
                return client
            client = str(found)
            if client not in self:
                return client
        return client


def _read_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def refuse(status: int, message: str, cure: str = "") -> Refused:
    """Return the error for a caller who is not allowed to do something."""
    return Refused(Problem("C101", message, ExitCode.NOT_ALLOWED, cure), status)


def is_listed(uid: int, names: Sequence[str]) -> bool:
    """Return whether `names` contains the account with this uid, or one of its groups as @group."""
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
    """Counts requests, and remembers tokens that a daemon has accepted. Use it in one event loop."""

    def __init__(self, settings: HubSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._running: Counter[tuple[int, str]] = Counter()
        self._sent: Counter[tuple[int, str]] = Counter()
        self._wrong: Counter[str] = Counter()
        self._accepted: OrderedDict[str, None] = OrderedDict()
        self._since = clock()

    @contextmanager
    def counted(self, caller: Caller, address: str) -> Iterator[Callable[[int], None]]:
        """Count a request until it is answered. Raises Refused (429) if there are too many.

        A token may have half of what its user may have, so that a stolen one leaves the other half to its owner.
        Requests without a token, such as logins and registrations, do not count for the tokens.

        Token ids are not secret. A request whose token no daemon has accepted yet therefore counts for its address and
        this user, not for the limits of the user's other requests. Call the yielded function with the status of the
        answer of the caller's own daemon: if the daemon has accepted the token, the request counts for the user.
        """
        self._renew()
        is_proven = not caller.digest or caller.digest in self._accepted
        keys = self._keys_of(caller) if is_proven else {(caller.uid, address): 1.0}
        whose = f"user {caller.uid}" if is_proven else f"{address} for user {caller.uid}"
        self._sent.update(keys.keys())
        for key, share in keys.items():
            most_sent = math.ceil(self._settings.requests_per_minute * share)
            if self._sent[key] > most_sent:
                raise _too_many(f"{whose} has sent {most_sent} requests within a minute" + _of_token(share))
            if self._running[key] >= math.ceil(self._settings.requests_at_once * share):
                raise _too_many(f"{self._running[key]} requests of {whose} are being answered" + _of_token(share))
        self._running.update(keys.keys())

        def note(status: int) -> None:
            nonlocal keys, is_proven
            self._note_answer(caller, address, status)
            if not is_proven and caller.digest in self._accepted:
                is_proven = True
                self._end(keys)
                keys = self._keys_of(caller)
                self._sent.update(keys.keys())
                self._running.update(keys.keys())

        try:
            yield note
        finally:
            self._end(keys)

    @staticmethod
    def _keys_of(caller: Caller) -> Mapping[tuple[int, str], float]:
        """Return what the requests of an identified caller count for, with the share of the limits."""
        if not caller.digest:
            return {(caller.uid, ""): 1.0}
        return {(caller.uid, _ALL_TOKENS): 1.0, (caller.uid, caller.digest): 0.5}

    def _end(self, keys: Iterable[tuple[int, str]]) -> None:
        for key in keys:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _note_answer(self, caller: Caller, address: str, status: int) -> None:
        if status == HTTPStatus.UNAUTHORIZED:
            self._accepted.pop(caller.digest, None)
            self.note_unidentified(address)
        elif caller.digest and status < HTTPStatus.BAD_REQUEST:  # errors may come before the check
            self._accepted[caller.digest] = None
            self._accepted.move_to_end(caller.digest)
            if len(self._accepted) > MOST_ACCEPTED:
                self._accepted.popitem(last=False)

    def note_unidentified(self, address: str) -> None:
        """Count a request that does not prove its sender's identity."""
        self._renew()
        self._wrong[address] += 1

    def refuse_unidentified(self, address: str, refusal: Refused) -> Refused:
        """Count such a request. Return `refusal`, or another one (429) if there were too many from this address.
        Requests with a valid token are not affected."""
        self.note_unidentified(address)
        return self._why_excessive(address) or refusal

    def check_address(self, address: str) -> None:
        """Raise Refused (429) if there were too many such requests from this address. Call it before work is done for a
        caller who is not identified."""
        self._renew()
        if (refusal := self._why_excessive(address)) is not None:
            raise refusal

    def _why_excessive(self, address: str) -> Refused | None:
        if self._wrong[address] <= self._settings.wrong_tokens_per_minute:
            return None
        return _too_many(f"too many requests without a valid token from {address}")

    def _renew(self) -> None:
        if self._clock() - self._since >= _WINDOW_S:
            self._sent, self._wrong, self._since = Counter(), Counter(), self._clock()


def _of_token(share: float) -> str:
    return " with this token" if share < 1 else ""


def _too_many(message: str) -> Refused:
    return Refused(Problem("S210", message, ExitCode.TRY_AGAIN, "wait a minute"), 429)
