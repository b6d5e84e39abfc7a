"""``python -m ffdl_kubernetes.attach``: starts a program beside the controller of a pod, with this process's streams.

Where commands in pods are not permitted, tables and stacks come by the controller itself.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffdl_batch.domain.launch.attach_protocol import AGAIN, RUN, FrameError
from ffdl_batch.domain.scheduler_errors import SchedulerError, SchedulerMissing, SchedulerUnreachable
from ffdl_kubernetes.attach.annotation_views import AnnotationView
from ffdl_kubernetes.attach.owner_streams import EXIT_REFUSED, Own, OwnerGone
from ffdl_kubernetes.attach.pod_exec import BUSY, NotStarted, execute
from ffdl_kubernetes.client import Refused
from ffdl_kubernetes.connection import load_config, require_library
from ffdl_kubernetes.settings import KubernetesSettings, read_settings

if TYPE_CHECKING:
    import httpx2

EXIT_GONE = 0
FORBIDDEN = 403


def main(arguments: Sequence[str]) -> int:
    """Return the exit status of the program there; 69 if it was not started, and 75 if the API server was away."""
    parser = argparse.ArgumentParser(prog="ffdl_kubernetes.attach")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--context", default="")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--pod", required=True)
    parser.add_argument("--timeout", type=int, required=True, metavar="SECONDS", help="of a request")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args(arguments)
    where = {name: getattr(options, name) for name in ("kubeconfig", "context", "namespace")}
    settings = read_settings({**where, "request_timeout_s": options.timeout})
    return asyncio.run(_attach(settings, options.pod, options.program))


async def _attach(settings: KubernetesSettings, pod: str, program: Sequence[str]) -> int:
    own = await Own.open()
    try:
        wanted = await own.await_begin()
        async with _client(settings) as client:
            try:
                return await execute(client, settings.namespace, pod, program, own)
            except Refused as refused:
                if refused.status != FORBIDDEN:
                    raise
                if wanted == RUN:
                    return await own.refuse(_not_permitted(settings.namespace, refused))
            return await AnnotationView(client, settings.namespace, pod, program, own).serve(wanted)
    except (SchedulerError, Refused, NotStarted) as error:
        message = f"the controller in pod {pod} cannot be reached: {error}"
        return await own.refuse(message, AGAIN if _is_away(error) else EXIT_REFUSED)
    except (OwnerGone, FrameError) as error:
        if str(error):
            sys.stderr.write(f"ffdl: {error}\n")
        return EXIT_GONE


def _is_away(error: Exception) -> bool:
    """Return whether the API server did not answer, or is too busy to."""
    if isinstance(error, Refused):
        return error.status in BUSY
    return isinstance(error, SchedulerUnreachable) and not isinstance(error, SchedulerMissing)


def _client(settings: KubernetesSettings) -> httpx2.AsyncClient:
    """Raises SchedulerMissing."""
    require_library()
    import httpx2
    from lightkube.config.client_adapter import AsyncClient, ConnectionParams

    made = AsyncClient(load_config(settings), ConnectionParams(timeout=httpx2.Timeout(settings.request_timeout_s)))
    made.event_hooks = {"response": [_read_refusals]}
    return made


async def _read_refusals(reply: httpx2.Response) -> None:
    """Before the answer is closed: what was to become another protocol is not read by anybody else."""
    if reply.status_code >= 400:
        await reply.aread()


def _not_permitted(namespace: str, refused: Refused) -> str:
    return (
        f"commands in pods are not permitted in namespace {namespace} ({refused}); who runs the cluster permits them: "
        f"ffdl-admin tenant create {namespace} --debugging --update. ffdl top and ffdl stack work without"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
