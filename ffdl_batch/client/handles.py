"""Represent submitted jobs and arrays, as :meth:`Client.submit` returns them, and make the calls about arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from ffdl_batch.client.api_calls.log_streams import LONG_POLL_S
from ffdl_batch.client.api_calls.requests import read_answer
from ffdl_batch.client.connection.http_client import Request, Wire
from ffdl_batch.client.errors import WaitTimedOut
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import ArrayView, AttemptChoice, EventView, JobView, LogLine, Problem


class KnowsJobs(Protocol):
    """What a handle asks of its client; :class:`ffdl_batch.Client` is one."""

    def get(self, job_id: str) -> JobView:
        """One job."""
        ...

    def wait(self, job_id: str, timeout_s: float | None = None) -> JobView:
        """The job once it has ended."""
        ...

    def logs(
        self, job_id: str, *, follow: bool = False, learner: int | None = None, attempt: AttemptChoice = None
    ) -> Iterator[LogLine]:
        """The learners' lines."""
        ...

    def events(self, job_id: str, *, follow: bool = False) -> Iterator[EventView]:
        """The changes of state."""
        ...

    def cancel(self, job_id: str) -> JobView:
        """Ask for the job's end."""
        ...

    def halt(self, job_id: str) -> JobView:
        """Ask for a checkpoint and the job's end."""
        ...

    def resume(self, job_id: str, *, gpus: float | None = None, time: str | None = None) -> JobView:
        """Continue from the checkpoints."""
        ...

    def drill(self, job_id: str, event: str) -> JobView:
        """Play an event."""
        ...


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job's id and the client that knows it. Every method asks the daemon again.

    `warnings` are what the manifest's check had to say; `network` is the isolation level that is planned.
    """

    client: KnowsJobs = field(repr=False)
    id: str
    warnings: tuple[str, ...] = ()
    network: str = ""

    def view(self) -> JobView:
        """The job as it is now."""
        return self.client.get(self.id)

    def wait(self, timeout_s: float | None = None) -> JobView:
        """The job once it has ended; see :meth:`Client.wait`."""
        return self.client.wait(self.id, timeout_s)

    def logs(
        self, *, follow: bool = False, learner: int | None = None, attempt: AttemptChoice = None
    ) -> Iterator[LogLine]:
        """The learners' lines; see :meth:`Client.logs`."""
        return self.client.logs(self.id, follow=follow, learner=learner, attempt=attempt)

    def events(self, *, follow: bool = False) -> Iterator[EventView]:
        """The changes of state; see :meth:`Client.events`."""
        return self.client.events(self.id, follow=follow)

    def cancel(self) -> JobView:
        """Ask for the job's end; see :meth:`Client.cancel`."""
        return self.client.cancel(self.id)

    def halt(self) -> JobView:
        """Ask for a checkpoint and the job's end; see :meth:`Client.halt`."""
        return self.client.halt(self.id)

    def resume(self, *, gpus: float | None = None, time: str | None = None) -> JobView:
        """Continue from the checkpoints; see :meth:`Client.resume`."""
        return self.client.resume(self.id, gpus=gpus, time=time)

    def drill(self, event: str) -> JobView:
        """Play an event on the running attempt; see :meth:`Client.drill`."""
        return self.client.drill(self.id, event)


MAX_LISTED = 10_000


class Arrays:
    """What can be asked about arrays; :attr:`ffdl_batch.Client.arrays` is one. All calls raise
    :class:`~ffdl_batch.client.ClientError`, UnknownJob for an array that there is not."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def get(self, array_id: str) -> ArrayView:
        """The array in numbers."""
        return self._ask("GET", array_id)

    def elements(self, array_id: str) -> list[JobView]:
        """Its jobs, by index."""
        path = f"/api/v1/jobs?array={quote(array_id, safe='')}&limit={MAX_LISTED}"
        return [read_answer(JobView, plain) for plain in self._wire.ask(Request("GET", path)).get("jobs", ())]

    def wait(self, array_id: str, timeout_s: float | None = None) -> ArrayView:
        """The array once all of its jobs have ended; raises WaitTimedOut after `timeout_s` seconds, and they continue.

        Keeps asking while the daemon does not answer, as :meth:`ffdl_batch.Client.wait`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
            request = _array_request("GET", array_id, f"/wait?wait_s={math.ceil(left)}", left)
            array = read_answer(ArrayView, self._wire.ask_until(request, deadline).get("array"))
            if array.ended:
                return array
            if timeout_s is not None and deadline is not None and time.monotonic() >= deadline:
                message = f"{array_id} has jobs that go on after {round(timeout_s, 1):g} s"
                raise WaitTimedOut(Problem("000", message, int(ExitCode.TIMEOUT)))

    def cancel(self, array_id: str) -> ArrayView:
        """Ask for the end of all of its jobs, as :meth:`ffdl_batch.Client.cancel` of one."""
        return self._ask("POST", array_id, "/cancel")

    def halt(self, array_id: str) -> ArrayView:
        """Ask all of its jobs for a checkpoint and their end, as :meth:`ffdl_batch.Client.halt` one."""
        return self._ask("POST", array_id, "/halt")

    def _ask(self, method: str, array_id: str, rest: str = "") -> ArrayView:
        return read_answer(ArrayView, self._wire.ask(_array_request(method, array_id, rest)).get("array"))


def _array_request(method: str, array_id: str, rest: str, held_s: float | None = None) -> Request:
    return Request(method, f"/api/v1/arrays/{quote(array_id, safe='')}{rest}", job_id=array_id, held_s=held_s)


class KnowsArrays(Protocol):
    """What a handle asks of its client."""

    @property
    def arrays(self) -> Arrays:
        """Calls about arrays."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayHandle:
    """An array's id, its jobs by index, and the client that knows them. Every method asks the daemon again."""

    client: KnowsArrays = field(repr=False)
    id: str
    jobs: Sequence[JobHandle]
    warnings: tuple[str, ...] = ()
    network: str = ""

    def view(self) -> ArrayView:
        """The array as it is now."""
        return self.client.arrays.get(self.id)

    def elements(self) -> list[JobView]:
        """Its jobs as they are now."""
        return self.client.arrays.elements(self.id)

    def wait(self, timeout_s: float | None = None) -> list[JobView]:
        """Its jobs once all of them have ended; see :meth:`Arrays.wait`."""
        self.client.arrays.wait(self.id, timeout_s)
        return self.elements()

    def cancel(self) -> ArrayView:
        """Ask for the end of all of them."""
        return self.client.arrays.cancel(self.id)

    def halt(self) -> ArrayView:
        """Ask all of them for a checkpoint and their end."""
        return self.client.arrays.halt(self.id)
