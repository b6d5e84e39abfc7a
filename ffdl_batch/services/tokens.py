"""Creates, lists, revokes and verifies the tokens of the daemon's user. Only the reply to the creation of a token
contains its secret."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from ffdl_batch.domain.access import Login, Role, Scope, TokenView, new_token, parse_token, read_login
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host import munge
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.hub import Hub, HubRefused, HubUnavailable
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.refusals import Refused, not_allowed, try_again, unavailable, wrong_state
from ffdl_batch.store import StoredToken

MOST_OF_MEMBER = 3
"""Maximum number of valid tokens of one member of a tenant without accounts. With more, the oldest is revoked."""
MOST_LIVE = 100
SHORTEST_S, USUAL_S, LONGEST_S = 60, 30 * 86400, 365 * 86400
"""Lifetimes of tokens."""
LOGIN_S = 8 * 3600
"""Lifetime of a token of `ffdl login` without a token."""
GRANTED = frozenset({Scope.READ, Scope.WRITE})
"""Scopes that a created token may have, and that a login grants which only the hub has checked. Only a login by munge
grants `tokens`."""


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token with the text that its owner uses."""

    token: TokenView
    secret: str


def create_token(
    storage: JobStorage, hub: Hub | None, name: str, scopes: Collection[Scope], lifetime_s: float
) -> CreatedToken:
    """Create a token, and register it at the hub before it is stored and returned. Raises :class:`Refused`,
    StoreError."""
    hub = _hub_of_site(hub)
    if refused := set(scopes) - GRANTED:
        raise not_allowed(f"only `ffdl login` on a login node grants the scope {', '.join(sorted(refused))}")
    now, token = storage.clock.now(), new_token()
    wanted = [scope for scope in Scope if scope in scopes]
    stored = StoredToken(token.id, name, token.digest, tuple(wanted), now, now + lifetime_s)
    if len(storage.store.tokens.live(now)) >= MOST_LIVE:
        raise _too_many()
    _register(hub, stored)
    if not storage.store.tokens.add(stored, MOST_LIVE):
        raise _too_many()
    return CreatedToken(_view(stored), token.text)


def admit_login(storage: JobStorage, hub: Hub | None, credential: str) -> TokenView:
    """Store the token that a munge credential of the daemon's user names. `ffdl login` created the token, so the hub
    sees neither its secret nor a way to make one (docs/decisions/0017-hub.md). Raises :class:`Refused`, StoreError."""
    hub = _hub_of_site(hub)
    try:
        found = munge.decode(credential)
        login = read_login(found.payload)
    except (munge.MungeFailed, ValueError) as error:
        raise _wrong_login(str(error)) from error
    if (found.uid, found.reader) != (storage.uid, storage.uid) or found.ttl_s > munge.TTL_S:
        raise _wrong_login("it is not from this user for this daemon")
    return _store_login(storage, hub, login, frozenset(Scope))


def admit_trusted_login(storage: JobStorage, hub: Hub | None, text: str, *, is_trusted: bool) -> TokenView:
    """Store the token of a login that only the hub has checked, if the site trusts the hub with that (`is_trusted`,
    docs/decisions/0019-oidc.md). The hub has not seen the token's secret. Raises :class:`Refused`, StoreError."""
    hub = _hub_of_site(hub)
    if not is_trusted:
        raise not_allowed(
            "the site permits no login that only the hub has checked: trust_hub_sessions is not set in the site file"
        )
    try:
        login = read_login(text.encode("ascii"))
    except ValueError as error:
        raise _wrong_login(str(error)) from error
    return _store_login(storage, hub, login, GRANTED)


def _store_login(storage: JobStorage, hub: Hub, login: Login, scopes: Collection[Scope]) -> TokenView:
    if storage.store.tokens.get(login.id) is not None:
        raise _wrong_login("its token already exists")
    now = storage.clock.now()
    wanted = tuple(scope for scope in Scope if scope in scopes)
    stored = StoredToken(login.id, login.name, login.digest, wanted, now, now + LOGIN_S)
    if storage.is_tenant:  # `logout` revokes nothing, and members share the limit
        earlier = [token for token in storage.store.tokens.live(now) if token.name == login.name]  # newest first
        for token in earlier[MOST_OF_MEMBER - 1 :]:
            storage.store.tokens.revoke(token.id, now)
            inform_hub(hub, token.id)
    _register(hub, stored)
    if not storage.store.tokens.add(stored, MOST_LIVE):
        raise _too_many()
    return _view(stored)


def _hub_of_site(hub: Hub | None) -> Hub:
    if hub is None:
        raise unavailable("tokens need a site's hub, but this daemon was not started by a site's spawner")
    return hub


def _wrong_login(why: str) -> Refused:
    problem = Problem("C101", f"the login that the hub passes on is not valid: {why}", ExitCode.NOT_ALLOWED)
    return Refused(problem, 401)


def _register(hub: Hub, token: StoredToken) -> None:
    try:
        hub.register(token.id, token.expires_at)
    except HubUnavailable as error:
        raise try_again("S210", f"no token was created: {error}", cure="try again") from error
    except HubRefused as error:
        raise wrong_state(f"no token was created, because the hub refuses it: {error}") from error


def list_tokens(storage: JobStorage) -> list[TokenView]:
    """Return the valid tokens, newest first. Raises StoreError."""
    return [_view(token) for token in storage.store.tokens.live(storage.clock.now())]


def revoke_token(storage: JobStorage, token_id: str) -> TokenView:
    """Revoke a token. Idempotent. Raises :class:`Refused` if it does not exist, and StoreError."""
    token = storage.store.tokens.revoke(token_id, storage.clock.now())
    if token is None:
        cure = "`ffdl token list` shows the existing ones"
        raise Refused(Problem("C101", f"there is no token {token_id[:80]!r}", ExitCode.FAILED, cure), 404)
    return _view(token)


def inform_hub(hub: Hub | None, token_id: str) -> bool:
    """Return whether the hub refuses a revoked token, too. The daemon refuses it in any case."""
    try:
        if hub is not None:
            hub.forget(token_id)
    except (HubUnavailable, HubRefused):
        return False
    return True


def verify_token(storage: JobStorage, text: str, request_id: str = "") -> Caller:
    """Return the caller who has this token. Raises :class:`Refused` (401), StoreError."""
    token = parse_token(text)
    stored = storage.store.tokens.get(token.id) if token is not None else None
    if token is None or stored is None or not hmac.compare_digest(stored.digest, token.digest):
        raise unauthenticated("this daemon does not know the token")
    if stored.revoked_at is not None:
        raise unauthenticated(f"token {token.id} was revoked")
    if stored.expires_at <= storage.clock.now():
        raise unauthenticated(f"token {token.id} has expired")
    return Caller(
        storage.uid,
        role=Role.TOKEN,
        scopes=frozenset(stored.scopes),
        token_id=token.id,
        expires_at=stored.expires_at,
        request_id=request_id,
        name=stored.name,
    )


def unauthenticated(message: str) -> Refused:
    """Return the error for a request of the hub that does not prove its sender's identity."""
    cure = "create a token on a login node: ffdl token create"
    return Refused(Problem("C101", message, ExitCode.NOT_ALLOWED, cure), 401)


def _too_many() -> Refused:
    return wrong_state(f"you have {MOST_LIVE} valid tokens, which is the maximum", "revoke one: ffdl token revoke ID")


def _view(token: StoredToken) -> TokenView:
    return TokenView(token.id, token.name, token.scopes, token.created_at, token.expires_at)
