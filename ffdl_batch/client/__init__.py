"""The typed Python client: HTTP over the daemon's Unix socket.

::

    from ffdl_batch import Client

    job = Client().submit("manifest.yml", "model/", time="2h", partition="gpu")
    for line in job.logs(follow=True):
        print(line.line)
    print(job.wait().state)

It has no rules about jobs: the daemon checks and decides. The client packs the model, finds or starts the daemon, and
resumes streams when the daemon restarts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffdl_batch.client.api import Client as Client
    from ffdl_batch.client.api import JobFilter as JobFilter
    from ffdl_batch.client.async_client import AsyncArrayHandle as AsyncArrayHandle
    from ffdl_batch.client.async_client import AsyncClient as AsyncClient
    from ffdl_batch.client.async_client import AsyncFunctionHandle as AsyncFunctionHandle
    from ffdl_batch.client.async_client import AsyncJobHandle as AsyncJobHandle
    from ffdl_batch.client.errors import ClientError as ClientError
    from ffdl_batch.client.errors import DaemonUnreachable as DaemonUnreachable
    from ffdl_batch.client.errors import FunctionFailed as FunctionFailed
    from ffdl_batch.client.errors import InputUnusable as InputUnusable
    from ffdl_batch.client.errors import NotAllowed as NotAllowed
    from ffdl_batch.client.errors import OtherSchema as OtherSchema
    from ffdl_batch.client.errors import RequestRefused as RequestRefused
    from ffdl_batch.client.errors import SubmissionWarning as SubmissionWarning
    from ffdl_batch.client.errors import UnknownJob as UnknownJob
    from ffdl_batch.client.errors import WaitTimedOut as WaitTimedOut
    from ffdl_batch.client.functions.function_handle import FunctionHandle as FunctionHandle
    from ffdl_batch.client.functions.function_handle import RemoteTraceback as RemoteTraceback
    from ffdl_batch.client.handles import ArrayHandle as ArrayHandle
    from ffdl_batch.client.handles import JobHandle as JobHandle
    from ffdl_batch.client.submissions.manifest_types import Manifest as Manifest
    from ffdl_batch.client.submissions.submit_options import AllowedReferences as AllowedReferences
    from ffdl_batch.client.submissions.submit_options import SubmitOptions as SubmitOptions
    from ffdl_batch.domain.job.log_text import Grep as Grep

__all__ = [
    "AllowedReferences",
    "ArrayHandle",
    "AsyncArrayHandle",
    "AsyncClient",
    "AsyncFunctionHandle",
    "AsyncJobHandle",
    "Client",
    "ClientError",
    "DaemonUnreachable",
    "FunctionFailed",
    "FunctionHandle",
    "Grep",
    "InputUnusable",
    "JobFilter",
    "JobHandle",
    "Manifest",
    "NotAllowed",
    "OtherSchema",
    "RemoteTraceback",
    "RequestRefused",
    "SubmissionWarning",
    "SubmitOptions",
    "UnknownJob",
    "WaitTimedOut",
]

_HOMES = {
    "AllowedReferences": "client.submissions.submit_options",
    "ArrayHandle": "client.handles",
    "AsyncArrayHandle": "client.async_client",
    "AsyncClient": "client.async_client",
    "AsyncFunctionHandle": "client.async_client",
    "AsyncJobHandle": "client.async_client",
    "Client": "client.api",
    "ClientError": "client.errors",
    "DaemonUnreachable": "client.errors",
    "FunctionFailed": "client.errors",
    "FunctionHandle": "client.functions.function_handle",
    "Grep": "domain.job.log_text",
    "InputUnusable": "client.errors",
    "JobFilter": "client.api",
    "JobHandle": "client.handles",
    "Manifest": "client.submissions.manifest_types",
    "NotAllowed": "client.errors",
    "OtherSchema": "client.errors",
    "RemoteTraceback": "client.functions.function_handle",
    "RequestRefused": "client.errors",
    "SubmissionWarning": "client.errors",
    "SubmitOptions": "client.submissions.submit_options",
    "UnknownJob": "client.errors",
    "WaitTimedOut": "client.errors",
}


def __getattr__(name: str) -> object:
    """Import a name on first use (PEP 562), so that each command imports only what it needs."""
    if name in _HOMES:
        return getattr(import_module(f"ffdl_batch.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
