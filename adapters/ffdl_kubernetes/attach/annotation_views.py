"""Tables and stacks without a command in the pod: requested by an annotation, answered on the controller's output.

It needs what a daemon needs: `patch` of pods, `get` of their logs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffdl_batch.domain.launch.attach_protocol import LOOK, READY, STACK, TABLE
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
from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_kubernetes.attach.owner_streams import Own
from ffdl_kubernetes.attach.pod_exec import unreachable
from ffdl_kubernetes.client import MERGE, refusal_of
from ffdl_kubernetes.objects.names import CONTROLLER

if TYPE_CHECKING:
    import httpx2

ANSWER_S = 80.0
"""How long a pod may take: kubelet brings a changed annotation within seconds, py-spy has 20 s for a process."""
SLOW_S = 30.0
"""How much later than the request its log may be opened: the answer is read all the same."""
AGAIN_S = 10.0
"""Another one may have requested something of the same pod in between."""


class AnnotationView:
    """What `program`, the helper, would show of the learners that it names."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str, pod: str, program: Sequence[str], own: Own) -> None:
        self._client, self._own = client, own
        self._path = f"api/v1/namespaces/{namespace}/pods/{pod}"
        self._pod = pod
        self._learners = tuple(int(word) for word in program[program.index("--learners") + 1].split(","))

    async def serve(self, wanted: str) -> int:
        """As the helper does. Raises Refused, SchedulerUnreachable, OwnerGone, FrameError."""
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
        hearing = asyncio.ensure_future(self._read_answer(look.id))
        wishing = asyncio.ensure_future(self._annotate(look))
        try:
            done, _ = await asyncio.wait({hearing, wishing}, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (found := task.result()) is not None:
                    return found
        finally:
            for task in (hearing, wishing):
                task.cancel()
            await asyncio.gather(hearing, wishing, return_exceptions=True)
        raise SchedulerUnreachable(
            f"it did not answer within {ANSWER_S:g} s: the controller's image is of an earlier release, or kubelet "
            "brings no annotations"
        )

    async def _annotate(self, look: Look) -> None:
        """Until it is cancelled."""
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
        """Its answer, of what the controller prints; a log that is cut off is read again."""
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
