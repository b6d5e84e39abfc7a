"""Let users without munge log in by the site's OpenID provider (docs/decisions/0019-oidc.md)."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pwd
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from ffdl_batch.domain.access import read_login, rename_login
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.callers import refuse
from ffdl_batch.site.hub.daemons import unavailable
from ffdl_batch.site.hub.settings import HubSettings
from ffdl_batch.site.hub.tokens.oidc import DeviceLogin, LoginDenied, Provider, ProviderFailed
from ffdl_batch.site.spawner import NO_UIDS, is_subordinate

log = logging.getLogger(__name__)

MOST_OPEN, MOST_OPEN_OF_PEER = 1000, 10
"""Maximum number of logins that have begun and not ended, in total and from one address."""
LONGEST_LOGIN_S = 900.0
"""Maximum time from the beginning of a login to its end."""
_EMAIL = "email"


@dataclass(slots=True)
class _Open:
    """A login that has begun."""

    peer: str
    login: str
    """The token that the caller has made, as :func:`ffdl_batch.domain.access.write_login` writes it."""
    until: float
    device: DeviceLogin | None = None
    """None while the provider is asked for it."""
    next_at: float = math.inf
    """When the provider may be asked again; infinite while it is asked."""


class DeviceLogins:
    """Logins by OpenID Connect. Use it in one event loop."""

    def __init__(
        self,
        settings: HubSettings,
        daemon_of_guest: Callable[[str], int | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`daemon_of_guest` returns the uid of the daemon of the tenant that has this member without an account. Raises
        SettingsRefused."""
        self._settings, self._daemon_of_guest, self._clock = settings, daemon_of_guest, clock
        # Without trust_hub_sessions, daemons of accounts refuse these logins, and those of tenants do not.
        is_trusted = settings.trust_hub_sessions or bool(settings.tenants)
        self._provider = Provider(settings) if settings.oidc_issuer and is_trusted else None
        self._open: dict[str, _Open] = {}

    @property
    def are_offered(self) -> bool:
        """Whether this hub offers them."""
        return self._provider is not None

    async def begin(self, peer: str, login: str) -> Mapping[str, object]:
        """Begin a login for a token that the caller has made; return what the user has to do. Raises Refused."""
        provider = self._offered()
        try:
            read_login(login.encode("ascii"))
        except ValueError as error:
            raise Refused(Problem("C101", f"login is not valid: {error}", ExitCode.USAGE), 422) from error
        now = self._clock()
        self._open = {key: one for key, one in self._open.items() if one.until > now}
        of_peer = sum(one.peer == peer for one in self._open.values())
        if len(self._open) >= MOST_OPEN or of_peer >= MOST_OPEN_OF_PEER:
            raise Refused(Problem("S210", "too many logins have begun", ExitCode.TRY_AGAIN, "wait some minutes"), 429)
        key = secrets.token_urlsafe(24)
        begun = self._open[key] = _Open(peer, login, now + LONGEST_LOGIN_S)
        try:
            begun.device = device = await provider.begin()
        except ProviderFailed as error:
            log.warning("no login by OpenID Connect: %s", error)
            raise unavailable(f"the site's OpenID provider cannot be used: {error}") from error
        finally:
            if begun.device is None:
                del self._open[key]
        seconds = min(device.seconds, LONGEST_LOGIN_S)
        begun.until, begun.next_at = self._clock() + seconds, self._clock() + device.interval_s
        return {
            "login": key,
            "user_code": device.user_code,
            "verification_uri": device.verification_uri,
            "verification_uri_complete": device.complete_uri,
            "interval_s": device.interval_s,
            "seconds": seconds,
        }

    async def poll(self, key: str) -> tuple[int, str] | float:
        """Return the uid of the user who has confirmed the login, and the login's token. If no user has yet, return
        after how many seconds to ask again. Raises Refused; then the login has ended, unless the status is 503."""
        provider, begun = self._offered(), self._open.get(key)
        if begun is None or begun.device is None or begun.until <= self._clock():
            raise refuse(401, "the login has expired, or was completed before", "ffdl login")
        if begun.next_at > self._clock():
            return begun.device.interval_s
        begun.next_at = math.inf
        has_ended = True
        try:
            claims = await provider.poll(begun.device)
            has_ended = claims is not None
            if claims is None:
                return begun.device.interval_s
            uid, guest = await asyncio.to_thread(find_user, claims, self._settings, self._daemon_of_guest)
            subject = quoted(str(claims["sub"]), most=120)
            log.info("the OpenID provider's user %s logs in as user %d", subject, uid)
            return uid, rename_login(begun.login, guest) if guest else begun.login
        except ProviderFailed as error:
            has_ended = False
            log.warning("a login by OpenID Connect is delayed: %s", error)
            raise unavailable(f"the site's OpenID provider cannot be used: {error}") from error
        except LoginDenied as error:
            raise refuse(401, f"the login has failed: {error}", "ffdl login") from error
        finally:
            begun.next_at = self._clock() + begun.device.interval_s
            if has_ended:
                self._open.pop(key, None)

    def _offered(self) -> Provider:
        if self._provider is not None:
            return self._provider
        missing = "trust_hub_sessions" if self._settings.oidc_issuer else "oidc_issuer"
        problem = Problem(
            "C101",
            f"this hub offers no login by OpenID Connect: {missing} is not set in the site file",
            ExitCode.UNAVAILABLE,
            "on a login node: ffdl login; elsewhere, with a token of `ffdl token create`: ffdl login --token",
        )
        raise Refused(problem, 409)


def find_user(
    claims: Mapping[str, Any], settings: HubSettings, daemon_of_guest: Callable[[str], int | None] = lambda _: None
) -> tuple[int, str]:
    """Return the uid of the account that a claim names, and "". For a member of a tenant without an account, return the
    uid of the tenant's daemon, and the member's name. Raises Refused if there is none, or if it is no user's. It asks
    name services: call it in a thread."""
    name = claims.get(settings.oidc_claim)
    if not isinstance(name, str) or (settings.oidc_claim == _EMAIL and claims.get("email_verified") is not True):
        verified = " that the provider has verified" if settings.oidc_claim == _EMAIL else ""
        raise refuse(403, f"the ID token has no claim {settings.oidc_claim}{verified}", "ask the administrators")
    if (daemon := daemon_of_guest(name)) is not None:
        return daemon, name
    try:
        account = pwd.getpwnam(name)
    except (KeyError, ValueError):  # ValueError: a name that no account can have
        account = None
    if account is None or account.pw_name != name:  # some name services ignore case
        raise refuse(403, f"{quoted(name)} has no account on the hub's host", "ask the administrators")
    uid = account.pw_uid
    if not settings.min_uid <= uid < NO_UIDS[-1] or uid in (*NO_UIDS, os.geteuid()) or is_subordinate(uid):
        raise refuse(403, f"{quoted(name)} is not the account of a user", "ask the administrators")
    return uid, ""
