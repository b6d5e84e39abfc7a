"""Routes for the user's secrets. A value is only in the request that sets it, never in a reply or the log."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Path, Query

from ffdl_batch.daemon.replies import PlainReply, SecretReply, SecretRequest, SecretsReply
from ffdl_batch.daemon.request_context import Asking, Here, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.jobs import answers
from ffdl_batch.services.secrets.user_secrets import list_secrets, remove_secret, set_secret

log = logging.getLogger(__name__)

router = APIRouter(prefix=PREFIX)
Name = Annotated[str, Path(description="Letters, digits, '.', '_' and '-', at most 64.")]


@router.get("/secrets", response_model=SecretsReply, responses=answers(), operation_id="list_secrets")
async def read_secrets(here: Here) -> PlainReply:
    """List the secrets by name: when each was set, and how many live jobs or pending uploads need it."""
    return PlainReply(
        SecretsReply(tuple(await with_files(here, here.limits.quick, list_secrets, here.platform.storage)))
    )


@router.put("/secrets/{name}", response_model=SecretReply, responses=answers(413), operation_id="set_secret")
async def put_secret(name: Name, body: SecretRequest, here: Here, caller: Asking) -> PlainReply:
    """Set a secret, or replace its value. The reply comes when it is durable."""
    found = await with_files(here, here.limits.quick, set_secret, here.platform.storage, name, body.value)
    log.info("user %d: set the secret %s", caller.uid, found.name)
    return PlainReply(SecretReply(found))


@router.delete("/secrets/{name}", response_model=SecretReply, responses=answers(404, 409), operation_id="remove_secret")
async def delete_secret(
    name: Name,
    here: Here,
    caller: Asking,
    force: Annotated[bool, Query(description="Remove it even if jobs need it.")] = False,
) -> PlainReply:
    """Remove a secret; reply with its former description."""
    found = await with_files(here, here.limits.quick, remove_secret, here.platform.storage, name, force=force)
    log.info("user %d: removed the secret %s", caller.uid, found.name)
    return PlainReply(SecretReply(found))
