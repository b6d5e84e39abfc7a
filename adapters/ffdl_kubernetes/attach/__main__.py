"""``python -m ffdl_kubernetes.attach``: start a program beside the controller of a pod, with this process's streams.

If commands in pods are not permitted, request tables and stacks of the controller by an annotation, and read its answer
in its log. This needs the permissions of a daemon: `patch` of pods and `get` of their logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffdl_batch.domain.launch.attach_protocol import AGAIN, LOOK, READY, RUN, STACK, TABLE, FrameError
from ffdl_batch.domain.launch.pod_protocol import (
    ANNOTATIONS,
    Answer,
    FrameKind,
    Look,
    PodAnnotation,
    decode_answer,
    decode_frame,
    encode_look,
)
from ffdl_batch.domain.scheduler_errors import SchedulerError, SchedulerMissing, SchedulerUnreachable
from ffdl_kubernetes.attach.owner_streams import EXIT_REFUSED, Own, OwnerGone
from ffdl_kubernetes.attach.pod_exec import BUSY, NotStarted, execute, unreachable
from ffdl_kubernetes.client import MERGE, Refused, refusal_of
from ffdl_kubernetes.connection import load_config, require_library
from ffdl_kubernetes.objects.names import CONTROLLER
from ffdl_kubernetes.settings import KubernetesSettings, read_settings

if TYPE_CHECKING:
    import httpx2


ANSWER_S = 80.0
"""Maximum wait for a pod: kubelet delivers a changed annotation within seconds, and py-spy has 20 s for a process."""
SLOW_S = 30.0
"""How much later than the request the log may be opened without missing the answer."""
AGAIN_S = 10.0
"""Seconds until the annotation is set again, because another command may have replaced it."""


class AnnotationView:
    """Shows what the helper `program` would show of the learners that it names."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str, pod: str, program: Sequence[str], own: Own) -> None:
        self._client, self._own = client, own
        self._path = f"api/v1/namespaces/{namespace}/pods/{pod}"
        self._pod = pod
        self._learners = tuple(int(word) for word in program[program.index("--learners") + 1].split(","))

    async def serve(self, wanted: str) -> int:
        """Answer the command as the helper does. Raises Refused, SchedulerUnreachable, OwnerGone, FrameError."""
        await self._own.send_object(READY, {"host": self._pod, "learners": list(self._learners)})
        if wanted == STACK:
            return await self._stack()
        while True:
            if LOOK not in await self._own.frames():
                continue
            answer = await self._ask(wanted)
            if answer.refused or answer.table is None:
                return await self._own.refuse(answer.refused)
            await self._own.send_object(TABLE, dict(answer.table))

    async def _stack(self) -> int:
        answer = await self._ask(STACK)
        if answer.refused:
            return await self._own.refuse(answer.refused)
        await self._own.print(answer.text)
        return await self._own.end(answer.status)

    async def _ask(self, wanted: str) -> Answer:
        look = Look(os.urandom(6).hex(), wanted, self._learners)
        reading = asyncio.ensure_future(self._read_answer(look.id))
        requesting = asyncio.ensure_future(self._annotate(look))
        try:
            done, _ = await asyncio.wait({reading, requesting}, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (found := task.result()) is not None:
                    return found
        finally:
            for task in (reading, requesting):
                task.cancel()
            await asyncio.gather(reading, requesting, return_exceptions=True)
        raise SchedulerUnreachable(
            f"it did not answer within {ANSWER_S:g} s: the controller's image is of an earlier release, or kubelet "
            "updates no annotations"
        )

    async def _annotate(self, look: Look) -> None:
        """Set the annotation again and again, until it is cancelled."""
        import httpx2

        body = json.dumps(
            {"metadata": {"annotations": {f"{ANNOTATIONS}/{PodAnnotation.LOOK.value}": encode_look(look)}}}
        )
        while True:
            try:
                reply = await self._client.patch(self._path, content=body, headers={"Content-Type": MERGE})
            except httpx2.HTTPError as error:
                raise unreachable(self._client, error) from error
            if reply.status_code >= 400:
                raise refusal_of(reply)
            await asyncio.sleep(AGAIN_S)

    async def _read_answer(self, look: str) -> Answer | None:
        """Return the answer in the controller's log. Read a log that is cut off again."""
        import httpx2

        begun = time.monotonic()
        while True:
            parts, since_s = b"", SLOW_S + time.monotonic() - begun
            query = {"container": CONTROLLER, "follow": "true", "sinceSeconds": f"{since_s:.0f}"}
            try:
                async with self._client.stream(
                    "GET", f"{self._path}/log", params=query, timeout=httpx2.Timeout(ANSWER_S)
                ) as reply:
                    if reply.status_code >= 400:
                        raise refusal_of(reply)
                    async for line in reply.aiter_lines():
                        frame = decode_frame(line)
                        if frame is None or frame.kind is not FrameKind.ANSWER or frame.file != look:
                            continue
                        parts = parts[: frame.offset] + frame.data
                        if len(parts) == frame.size:
                            return decode_answer(parts)
            except httpx2.HTTPError as error:
                raise unreachable(self._client, error) from error
            await asyncio.sleep(1.0)


EXIT_GONE = 0
FORBIDDEN = 403


def main(arguments: Sequence[str]) -> int:
    """Return the exit status of the program there; 69 if it was not started, 75 if the API server did not answer."""
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
    """Return a client of the API server. Raises SchedulerMissing."""
    require_library()
    import httpx2
    from lightkube.config.client_adapter import AsyncClient, ConnectionParams

    made = AsyncClient(load_config(settings), ConnectionParams(timeout=httpx2.Timeout(settings.request_timeout_s)))
    made.event_hooks = {"response": [_read_refusals]}
    return made


async def _read_refusals(reply: httpx2.Response) -> None:
    """Read the body of a refusal, which the upgrade to another protocol would not read."""
    if reply.status_code >= 400:
        await reply.aread()


def _not_permitted(namespace: str, refused: Refused) -> str:
    return (
        f"commands in pods are not permitted in namespace {namespace} ({refused}); an administrator of the cluster "
        f"permits them: ffdl-admin tenant create {namespace} --debugging --update. ffdl top and ffdl stack work without"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
