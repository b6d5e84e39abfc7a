"""The client for asyncio.

Each method has the signature of the method with the same name in :mod:`ffdl_batch.client`, and runs that method in a
thread. There is no second implementation: a class here has one line per method.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from ffdl_batch.client.api import Client
from ffdl_batch.client.api_calls.job_output import JobOutput
from ffdl_batch.client.api_calls.pools import Pools
from ffdl_batch.client.api_calls.reports import Reports
from ffdl_batch.client.functions.function_handle import FunctionHandle
from ffdl_batch.client.handles import ArrayHandle, Arrays, JobHandle, Secrets, Tokens
from ffdl_batch.client.workers import Workers

if TYPE_CHECKING:
    from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class Twin(Generic[S]):
    """Asynchronous version of an object that belongs to a client."""

    def __init__(self, workers: Workers, of: Callable[[Client], S]) -> None:
        self._workers, self._of = workers, of


def _call(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the asynchronous version of a method."""

    async def call(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._workers.run(lambda client: method(self._of(client), *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _stream(method: Callable[Concatenate[S, P], Iterator[R]]) -> Callable[Concatenate[Any, P], AsyncIterator[R]]:
    """Return the asynchronous version of a method that returns an iterator. Use it with ``async for``."""

    def stream(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        return self._workers.iterate(lambda client: method(self._of(client), *args, **kwargs))

    functools.update_wrapper(stream, method)
    return stream


def _handle(
    method: Callable[Concatenate[S, P], R], twin: Callable[[Workers, R], T]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous version of a method that returns a handle. It returns an asynchronous handle."""

    async def call(self: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        found = await self._workers.run(lambda client: method(self._of(client), *args, **kwargs))
        return twin(self._workers, found)

    functools.update_wrapper(call, method)
    return call


class AsyncJobHandle(Twin[JobHandle]):
    """Asynchronous version of :class:`~ffdl_batch.client.JobHandle`."""

    def __init__(self, workers: Workers, job: JobHandle) -> None:
        super().__init__(workers, lambda client: JobHandle(client, job.id, job.warnings, job.network))
        self.id, self.warnings, self.network = job.id, job.warnings, job.network

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, warnings={self.warnings!r}, network={self.network!r})"

    view = _call(JobHandle.view)
    wait = _call(JobHandle.wait)
    logs = _stream(JobHandle.logs)
    metrics = _stream(JobHandle.metrics)
    events = _stream(JobHandle.events)
    download = _call(JobHandle.download)
    exec = _call(JobHandle.exec)
    cancel = _call(JobHandle.cancel)
    halt = _call(JobHandle.halt)
    resume = _call(JobHandle.resume)
    drill = _call(JobHandle.drill)


class AsyncFunctionHandle(AsyncJobHandle, Generic[R]):
    """Asynchronous version of :class:`~ffdl_batch.client.FunctionHandle`."""

    def __init__(self, workers: Workers, job: FunctionHandle[R]) -> None:
        super().__init__(workers, job)
        self._key = job.key

    def _at(self, client: Client) -> FunctionHandle[R]:
        return FunctionHandle(client, self.id, self.warnings, self.network, self._key)

    async def done(self) -> bool:
        """Return whether the job has ended."""
        return await self._workers.run(lambda client: self._at(client).done())

    async def result(self, timeout_s: float | None = None) -> R:
        """Wait, and return the value, or raise the exception; see :meth:`FunctionHandle.result`."""
        return await self._workers.run(lambda client: self._at(client).result(timeout_s))


class AsyncArrayHandle(Twin[ArrayHandle]):
    """Asynchronous version of :class:`~ffdl_batch.client.ArrayHandle`."""

    def __init__(self, workers: Workers, array: ArrayHandle) -> None:
        super().__init__(workers, lambda client: ArrayHandle(client, array.id, ()))
        self.id, self.warnings, self.network = array.id, array.warnings, array.network
        self.jobs: Sequence[AsyncJobHandle] = [AsyncJobHandle(workers, job) for job in array.jobs]

    view = _call(ArrayHandle.view)
    elements = _call(ArrayHandle.elements)
    wait = _call(ArrayHandle.wait)
    cancel = _call(ArrayHandle.cancel)
    halt = _call(ArrayHandle.halt)


class AsyncArrays(Twin[Arrays]):
    """Asynchronous version of :class:`~ffdl_batch.client.Arrays`."""

    get = _call(Arrays.get)
    elements = _call(Arrays.elements)
    wait = _call(Arrays.wait)
    cancel = _call(Arrays.cancel)
    halt = _call(Arrays.halt)


class AsyncSecrets(Twin[Secrets]):
    """Asynchronous version of :class:`~ffdl_batch.client.Secrets`."""

    set = _call(Secrets.set)
    list = _call(Secrets.list)
    remove = _call(Secrets.remove)


class AsyncTokens(Twin[Tokens]):
    """Asynchronous version of :class:`~ffdl_batch.client.Tokens`."""

    create = _call(Tokens.create)
    list = _call(Tokens.list)
    revoke = _call(Tokens.revoke)
    identify = _call(Tokens.identify)


class AsyncPools(Twin[Pools]):
    """Asynchronous version of :class:`~ffdl_batch.client.Pools`."""

    status = _call(Pools.status)
    explain = _call(Pools.explain)
    pause = _call(Pools.pause)
    resume = _call(Pools.resume)
    replay = _call(Pools.replay)


class AsyncReports(Twin[Reports]):
    """Asynchronous version of :class:`~ffdl_batch.client.Reports`."""

    usage = _call(Reports.usage)
    site_usage = _call(Reports.site_usage)
    agreement = _call(Reports.agreement)
    job_uses = _stream(Reports.job_uses)
    faults = _call(Reports.faults)
    nodes = _call(Reports.nodes)


class AsyncJobOutput(Twin[JobOutput]):
    """Asynchronous version of :class:`~ffdl_batch.client.JobOutput`."""

    find = _call(JobOutput.find)
    support = _call(JobOutput.support)
    bring = _call(JobOutput.bring)


class AsyncClient(Twin[Client]):
    """The methods of :class:`~ffdl_batch.Client` for asyncio, to await or to iterate with ``async for``.

    At most `parallel` calls run at a time, each in a thread with its own connection; the others wait. If a task is
    cancelled, its request is interrupted; the daemon may have carried it out. Use it in one event loop.
    """

    def __init__(
        self,
        socket_path: str | Path | None = None,
        *,
        start: bool = True,
        state_dir: str | Path | None = None,
        host: str | None = None,
        parallel: int = 32,
    ) -> None:
        first = Client(socket_path, start=start, state_dir=state_dir, host=host)
        super().__init__(Workers(first._dialling, parallel), lambda client: client)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._workers.close()

    @property
    def outages(self) -> tuple[BackendHealth, ...]:
        """See :attr:`Client.outages`: those of the last call that ended."""
        return self._workers.last.outages if self._workers.last else ()

    @property
    def database_outage(self) -> DatabaseOutage | None:
        """See :attr:`Client.database_outage`: that of the last call that ended."""
        return self._workers.last.database_outage if self._workers.last else None

    async def run(self, work: Callable[[Client], R]) -> R:
        """Return the result of `work`, which makes several calls with one client in one thread."""
        return await self._workers.run(work)

    submit = _handle(Client.submit, AsyncJobHandle)
    submit_array = _handle(Client.submit_array, AsyncArrayHandle)
    submit_many = _call(Client.submit_many)
    submit_function = _handle(Client.submit_function, AsyncFunctionHandle)
    plan = _call(Client.plan)
    upload = _call(Client.upload)
    send = _call(Client.send)
    plan_submission = _call(Client.plan_submission)
    get = _call(Client.get)
    list = _call(Client.list)
    states = _call(Client.states)
    wait = _call(Client.wait)
    events = _stream(Client.events)
    logs = _stream(Client.logs)
    log_texts = _stream(Client.log_texts)
    metrics = _stream(Client.metrics)
    usage = _stream(Client.usage)
    download = _call(Client.download)
    exec = _call(Client.exec)
    cancel = _call(Client.cancel)
    halt = _call(Client.halt)
    resume = _call(Client.resume)
    drill = _call(Client.drill)
    remove = _call(Client.remove)
    why = _call(Client.why)
    outlook = _call(Client.outlook)
    advise = _call(Client.advise)
    attach_plans = _call(Client.attach_plans)
    health = _call(Client.health)
    figures = _call(Client.figures)

    @property
    def arrays(self) -> AsyncArrays:
        """Calls about arrays of jobs."""
        return AsyncArrays(self._workers, lambda client: client.arrays)

    @property
    def output(self) -> AsyncJobOutput:
        """Calls about the output of a job."""
        return AsyncJobOutput(self._workers, lambda client: client.output)

    @property
    def secrets(self) -> AsyncSecrets:
        """Calls about named secrets."""
        return AsyncSecrets(self._workers, lambda client: client.secrets)

    @property
    def pools(self) -> AsyncPools:
        """Calls for pools of elastic jobs."""
        return AsyncPools(self._workers, lambda client: client.pools)

    @property
    def tokens(self) -> AsyncTokens:
        """Calls about tokens for the site's hub."""
        return AsyncTokens(self._workers, lambda client: client.tokens)

    @property
    def reports(self) -> AsyncReports:
        """Calls for reports about many jobs."""
        return AsyncReports(self._workers, lambda client: client.reports)
