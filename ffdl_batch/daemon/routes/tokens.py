"""Routes for tokens, logins and the caller's rights. The secret of a token is only in the reply that creates it."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import Path, Request

from ffdl_batch.daemon.connections import peer_of
from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import (
    LoginReply,
    LoginRequest,
    PlainReply,
    RevokedReply,
    TokenReply,
    TokenRequest,
    TokensReply,
    TrustedLoginRequest,
    WhoReply,
)
from ffdl_batch.daemon.request_context import Asking, Here, in_thread
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.parameters import Word, answers
from ffdl_batch.host.users import user_name
from ffdl_batch.services.tokens import (
    admit_login,
    admit_trusted_login,
    create_token,
    inform_hub,
    list_tokens,
    revoke_token,
)

log = logging.getLogger(__name__)

router = Routes(prefix=PREFIX)


@router.get("/whoami", response_model=WhoReply, responses=answers(), operation_id="whoami")
async def read_caller(here: Here, caller: Asking) -> PlainReply:
    """Return the caller's user, role and scopes. Every admitted caller may call this."""
    storage = here.platform.storage
    account = storage.user if caller.uid == storage.uid else await in_thread(here.limits.quick, user_name, caller.uid)
    return PlainReply(WhoReply(caller.uid, account, caller.role, tuple(sorted(caller.scopes)), caller.expires_at))


@router.post("/tokens", response_model=TokenReply, responses=answers(409, 422), operation_id="create_token")
async def make_token(body: TokenRequest, here: Here, caller: Asking) -> PlainReply:
    """Create a token for requests through the site's hub. It is registered there first. Only this reply contains it."""
    made = await in_thread(
        here.limits.slow, create_token, here.platform.storage, here.hub, body.name, body.scopes, body.lifetime_s
    )
    log.info("%s: created token %s with the scopes %s", caller, made.token.id, ", ".join(made.token.scopes))
    return PlainReply(TokenReply(made.token, made.secret))


@router.post("/logins", response_model=LoginReply, responses=answers(409, 422), operation_id="login")
async def admit(body: LoginRequest, here: Here) -> PlainReply:
    """Store the token that a munge credential of the daemon's user names. Only the hub may call this."""
    token = await in_thread(here.limits.slow, admit_login, here.platform.storage, here.hub, body.credential)
    log.info("login by munge: token %s", token.id)
    return PlainReply(LoginReply(token))


@router.post("/trusted-logins", response_model=LoginReply, responses=answers(409, 422), operation_id="trusted_login")
async def admit_trusted(body: TrustedLoginRequest, here: Here) -> PlainReply:
    """Store the token of a login that the hub alone has checked; 403 unless the site sets trust_hub_sessions, or this
    is the daemon of a tenant without an account. The hub alone may ask."""
    is_trusted = here.platform.settings.trust_hub_sessions or here.platform.storage.is_tenant
    token = await in_thread(
        here.limits.slow, admit_trusted_login, here.platform.storage, here.hub, body.login, is_trusted=is_trusted
    )
    log.info("login that the hub has checked: token %s", token.id)
    return PlainReply(LoginReply(token))


@router.get("/tokens", response_model=TokensReply, responses=answers(), operation_id="list_tokens")
async def read_tokens(here: Here) -> PlainReply:
    """List the valid tokens, newest first, without their secrets."""
    return PlainReply(TokensReply(tuple(await in_thread(here.limits.quick, list_tokens, here.platform.storage))))


@router.delete("/tokens/{token_id}", response_model=RevokedReply, responses=answers(404), operation_id="revoke_token")
async def delete_token(token_id: Annotated[Word, Path()], here: Here, caller: Asking, request: Request) -> PlainReply:
    """Revoke a token, and end the requests that use it. Idempotent. The daemon refuses it from now on, even if the hub
    could not be informed."""
    token = await in_thread(here.limits.quick, revoke_token, here.platform.storage, token_id)
    here.note_revoked(token.id, by=peer_of(request.scope))
    log.info("%s: revoked token %s", caller, token.id)
    return PlainReply(RevokedReply(token, await in_thread(here.limits.slow, inform_hub, here.hub, token.id)))
