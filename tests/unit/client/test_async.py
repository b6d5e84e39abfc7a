"""The asynchronous twin: it has each call of the client, with its signature, and is interrupted with its task."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import assert_type

import pytest

from ffdl_batch import AsyncClient, Client
from ffdl_batch.client import (
    ArrayHandle,
    AsyncArrayHandle,
    AsyncFunctionHandle,
    AsyncJobHandle,
    DaemonUnreachable,
    FunctionHandle,
    JobHandle,
    UnknownJob,
    async_client,
)
from ffdl_batch.client.api_calls.job_output import JobOutput
from ffdl_batch.client.api_calls.pools import Pools
from ffdl_batch.client.api_calls.reports import Reports
from ffdl_batch.client.handles import Arrays, Secrets, Tokens
from ffdl_batch.client.workers import Workers, _InterruptibleClient
from ffdl_batch.domain.job.views import JobView, LogLine
from tests.unit.client.fake_daemon import FakeDaemon

TWINS: list[tuple[type, type]] = [
    (Client, AsyncClient),
    (JobHandle, AsyncJobHandle),
    (FunctionHandle, AsyncFunctionHandle),
    (ArrayHandle, AsyncArrayHandle),
    (Arrays, async_client.AsyncArrays),
    (Secrets, async_client.AsyncSecrets),
    (Tokens, async_client.AsyncTokens),
    (Pools, async_client.AsyncPools),
    (Reports, async_client.AsyncReports),
    (JobOutput, async_client.AsyncJobOutput),
]
HAS_NO_TWIN = {(Client, "open_helpers")}
"""It yields processes, which the caller reads and writes itself."""
ONLY_OF_TWIN = {(AsyncClient, "run")}
"""It makes several calls of a client in one thread."""


def calls(kind: type) -> dict[str, Callable[..., object]]:
    named = ((name, inspect.getattr_static(kind, name)) for name in dir(kind) if not name.startswith("_"))
    return {name: value for name, value in named if inspect.isfunction(value)}


@pytest.mark.parametrize(("kind", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_twin_has_every_call_with_its_signature(kind: type, twin: type) -> None:
    own = {name: call for name, call in calls(kind).items() if (kind, name) not in HAS_NO_TWIN}
    assert {name for name in calls(twin) if (twin, name) not in ONLY_OF_TWIN} == own.keys()
    for name, call in own.items():
        expected, found = inspect.signature(call), inspect.signature(calls(twin)[name])
        assert list(found.parameters.values()) == list(expected.parameters.values()), name
    properties = {name for name in dir(kind) if isinstance(inspect.getattr_static(kind, name), property)}
    assert properties <= set(dir(twin))


@pytest.mark.parametrize("kind", [kind for pair in TWINS for kind in pair], ids=lambda kind: kind.__name__)
def test_no_call_hides_its_keywords(kind: type) -> None:
    for name, call in calls(kind).items():
        kinds = {one.kind for one in inspect.signature(call).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name


async def typed(client: AsyncClient) -> None:
    """Checked by mypy, not executed: the twin's calls have the types of the client's."""
    job = await client.submit("manifest.yml", "model", time="2h", gpus=1)
    assert_type(job, AsyncJobHandle)
    assert_type(await job.wait(timeout_s=3), JobView)
    assert_type(job.logs(follow=True), AsyncIterator[LogLine])
    assert_type(await client.get("x"), JobView)
    assert_type(await client.list(), list[JobView])
    assert_type(await (await client.submit_function(len, "abc", gpus=1)).result(), int)
    await client.submit("m", "model", tiem="2h")  # type: ignore[call-arg]
    await client.submit("m", "model", hold="yes")  # type: ignore[arg-type]
    await client.get(3)  # type: ignore[arg-type]
    await client.submit_function(len, 3)  # type: ignore[arg-type]


def test_twin_submits_waits_and_reads_side_by_side(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.path, start=False) as client:
            jobs = await asyncio.gather(*(client.submit(manifest, model, backend="local") for _ in range(8)))
            assert len({job.id for job in jobs}) == 8
            assert sorted(job.id for job in await client.list()) == sorted(job.id for job in jobs)
            assert (await jobs[0].cancel()).requested_action == "cancel"
            assert repr(jobs[0]).startswith(f"AsyncJobHandle(id='{jobs[0].id}'")
            assert (await jobs[0].view()).id == jobs[0].id
            assert [event async for event in jobs[0].events()] == []
            with pytest.raises(UnknownJob):
                await client.get("training-none")
            assert client.outages == ()

    asyncio.run(main())


def test_cancelled_task_interrupts_its_request(daemon: FakeDaemon, manifest: Path, model: Path) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.path, start=False, parallel=1) as client:
            job = await client.submit(manifest, model)
            waiting = asyncio.create_task(job.wait())
            while not any("/wait" in request for request in daemon.requests):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await job.view()).id == job.id, "the only place is free again"

    before = threading.active_count()
    asyncio.run(main())
    await_threads(before)


def test_stream_that_begins_after_the_cancel_is_interrupted_too(daemon: FakeDaemon) -> None:
    client = _InterruptibleClient(Client(daemon.path, start=False)._dialling)
    client.interrupt()
    with pytest.raises(DaemonUnreachable, match="cancelled"):
        list(client.events("training-1", follow=True))
    with pytest.raises(DaemonUnreachable, match="cancelled"):
        client.get("training-1")
    assert daemon.requests == []


def test_close_ends_threads_that_work_after_their_work(daemon: FakeDaemon) -> None:
    async def main() -> None:
        workers = Workers(Client(daemon.path, start=False)._dialling, 2)
        began, goes_on = threading.Event(), threading.Event()

        def work(_: Client) -> bool:
            began.set()
            return goes_on.wait(60)

        working = asyncio.create_task(workers.run(work))
        while not began.is_set():
            await asyncio.sleep(0.01)
        workers.close()
        goes_on.set()
        assert await working
        await_threads(before)
        assert await workers.run(lambda _: True), "a later call starts another thread"
        workers.close()

    before = threading.active_count()
    asyncio.run(main())


def await_threads(most: int) -> None:
    """Wait until no more than so many threads run."""
    deadline = time.monotonic() + 20
    while threading.active_count() > most:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)
