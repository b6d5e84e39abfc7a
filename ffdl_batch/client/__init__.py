"""The typed Python client: HTTP over the daemon's Unix socket, on the standard library alone.

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

from ffdl_batch.client.api import Client, JobFilter
from ffdl_batch.client.errors import (
    ClientError,
    DaemonUnreachable,
    FunctionFailed,
    InputUnusable,
    NotAllowed,
    OtherSchema,
    RequestRefused,
    SubmissionWarning,
    UnknownJob,
    WaitTimedOut,
)
from ffdl_batch.client.handles import ArrayHandle, JobHandle
from ffdl_batch.client.submissions.manifest_source import AllowedReferences
from ffdl_batch.client.submissions.manifest_types import Manifest
from ffdl_batch.client.submissions.submit_options import SubmitOptions
from ffdl_batch.domain.job.log_text import Grep

if TYPE_CHECKING:
    from ffdl_batch.client.async_client import AsyncArrayHandle as AsyncArrayHandle
    from ffdl_batch.client.async_client import AsyncClient as AsyncClient
    from ffdl_batch.client.async_client import AsyncFunctionHandle as AsyncFunctionHandle
    from ffdl_batch.client.async_client import AsyncJobHandle as AsyncJobHandle
    from ffdl_batch.client.functions.function_handle import FunctionHandle as FunctionHandle
    from ffdl_batch.client.functions.function_handle import RemoteTraceback as RemoteTraceback

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
    "AsyncArrayHandle": "async_client",
    "AsyncClient": "async_client",
    "AsyncFunctionHandle": "async_client",
    "AsyncJobHandle": "async_client",
    "FunctionHandle": "functions.function_handle",
    "RemoteTraceback": "functions.function_handle",
}


def __getattr__(name: str) -> object:
    """Import a name that few programs need on first use (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
