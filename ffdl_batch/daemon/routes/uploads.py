"""Routes for what users upload before they submit: model archives and secrets.

An archive is identified by its content and sent once. The value of a secret is only in the request that sets it, never
in a reply or the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from anyio import from_thread
from fastapi import Path, Query, Response
from starlette.requests import ClientDisconnect, Request

from ffdl_batch.daemon.error_replies import BodyLimit, problem_of
from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.replies import ArchiveReply, PlainReply, SecretReply, SecretRequest, SecretsReply
from ffdl_batch.daemon.request_context import Asking, Here, check_files, in_thread, with_files
from ffdl_batch.daemon.routes import PREFIX
from ffdl_batch.daemon.routes.parameters import answers
from ffdl_batch.services.data.model_archives import has_archive, receive_archive
from ffdl_batch.services.refusals import try_again
from ffdl_batch.services.secrets.user_secrets import list_secrets, remove_secret, set_secret

log = logging.getLogger(__name__)

router = Routes(prefix=PREFIX)
ARCHIVES = f"{PREFIX}/archives/"
"""The beginning of the paths of archives."""
BODY_LIMIT = BodyLimit(2 * 1000**3, "C102", "the model archive", "put large files into a data store")
Digest = Annotated[str, Path(description="SHA-256 of the archive, hexadecimal, lower case.", pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Path(description="Letters, digits, '.', '_' and '-', at most 64.")]
_ZIP = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.head(
    "/archives/{digest}",
    operation_id="has_archive",
    response_class=Response,
    responses={
        200: {"description": "The archive exists, and stays for at least a day."},
        404: {"description": "The archive does not exist, or cannot be read now; the reply to an upload says why."},
        **{status: {"description": answer["description"]} for status, answer in answers().items()},
    },
)
async def ask_for_archive(digest: Digest, here: Here) -> Response:
    """Return whether an archive exists. If the file system does not answer, the reply is 404; the reply to the upload
    has the reason, which a HEAD reply cannot carry."""
    try:
        found = await with_files(here, here.limits.quick, has_archive, here.platform.storage.root, digest)
    except OSError as error:
        if problem_of(error, here.platform.storage.root.path) is None:
            raise
        found = False
    return Response(status_code=200 if found else 404)


@router.put(
    "/archives/{digest}",
    response_model=ArchiveReply,
    responses=answers(413, 422),
    operation_id="put_archive",
    openapi_extra=_ZIP,
)
async def keep_archive(digest: Digest, request: Request, here: Here) -> PlainReply:
    """Upload an archive, a zip file. The reply comes when it is checked and durable."""
    await check_files(here)
    body = request.stream()
    try:
        new = await in_thread(
            here.limits.uploads, receive_archive, here.platform.storage.root, digest, body_chunks(body)
        )
    except ClientDisconnect as error:
        raise try_again("C102", "the upload of the model archive was interrupted", cure="submit again") from error
    return PlainReply(ArchiveReply(new))


def body_chunks(body: AsyncIterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of the body in a thread. Each is received when it is needed, so a slow disk slows the sender."""

    async def next_piece() -> bytes | None:
        return await anext(body, None)

    while (piece := from_thread.run(next_piece)) is not None:
        if piece:
            yield piece


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
    log.info("%s: set the secret %s", caller, found.name)
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
    log.info("%s: removed the secret %s", caller, found.name)
    return PlainReply(SecretReply(found))
