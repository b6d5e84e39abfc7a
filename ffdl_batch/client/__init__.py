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

from ffdl_batch.client.api import Client, OptionValue
from ffdl_batch.client.errors import (
    ClientError,
    DaemonUnreachable,
    InputUnusable,
    NotAllowed,
    OtherSchema,
    RequestRefused,
    UnknownJob,
    WaitTimedOut,
)
from ffdl_batch.client.handles import ArrayHandle, JobHandle
from ffdl_batch.client.submissions.manifest_source import AllowedReferences
from ffdl_batch.domain.job.log_text import Grep

__all__ = [
    "AllowedReferences",
    "ArrayHandle",
    "Client",
    "ClientError",
    "DaemonUnreachable",
    "Grep",
    "InputUnusable",
    "JobHandle",
    "NotAllowed",
    "OptionValue",
    "OtherSchema",
    "RequestRefused",
    "UnknownJob",
    "WaitTimedOut",
]
