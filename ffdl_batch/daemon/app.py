"""Creates the HTTP application: routes, error replies, the gate, and the OpenAPI document."""

from __future__ import annotations

from fastapi import FastAPI

from ffdl_batch import __version__
from ffdl_batch.daemon import error_replies, prometheus
from ffdl_batch.daemon.connections import PeerGate
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.daemon.request_context import Context
from ffdl_batch.daemon.routes import job_output, jobs, logs, pending, reports, uploads

_DESCRIPTION = """HTTP/1.1 over a Unix socket. The caller is the peer of the socket as the kernel reports it; no header
and no field of a request can change it. Every JSON reply has `schema` at its top; times are seconds since the epoch,
UTC. Errors are `ErrorReply`; `problem.exit_code` is the exit status for a command."""

ROUTES = (uploads, reports, jobs, job_output, logs, pending)
"""Modules with the routes of the API."""


def create_app(platform: Platform, context: Context | None = None) -> FastAPI:
    """Return the application over `platform`. Opens and starts nothing."""
    context = context or Context(platform, platform.storage.clock.now())
    app = FastAPI(
        title="ffdl-submitd",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.context = context
    error_replies.install(app)
    for routes in (*ROUTES, prometheus):
        # include_router would build each of them a second time.
        app.router.routes.extend(routes.router.routes)
    app.add_middleware(error_replies.BodyLimits, own={uploads.ARCHIVES: uploads.BODY_LIMIT})
    # Added last, so it runs first: it refuses callers before anything else.
    app.add_middleware(PeerGate, own_uid=platform.storage.uid, admitted=context.note_request)
    return app
