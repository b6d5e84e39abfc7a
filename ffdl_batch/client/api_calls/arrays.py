"""Arrays of jobs: the client's calls about a whole array, and the handle of one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from ffdl_batch.client.api_calls.log_streams import LONG_POLL_S
from ffdl_batch.client.connection.http_client import Request, Wire
from ffdl_batch.client.errors import RequestRefused, WaitTimedOut
from ffdl_batch.client.job_handle import JobHandle
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import ArrayView, JobView, Problem

V = TypeVar("V")
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
        return [_read(JobView, plain) for plain in self._wire.ask(Request("GET", path)).get("jobs", ())]

    def wait(self, array_id: str, timeout_s: float | None = None) -> ArrayView:
        """The array once all of its jobs have ended; raises WaitTimedOut after `timeout_s` seconds, and they continue.

        Keeps asking while the daemon does not answer, as :meth:`ffdl_batch.Client.wait`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
            request = _array_request("GET", array_id, f"/wait?wait_s={math.ceil(left)}", left)
            array = _read(ArrayView, self._wire.ask_until(request, deadline).get("array"))
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
        return _read(ArrayView, self._wire.ask(_array_request(method, array_id, rest)).get("array"))


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
    """An array's id, its jobs by index, and the client that knows them. Every method asks the daemon anew."""

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


def _read(kind: type[V], plain: Mapping[str, Any] | object) -> V:
    try:
        return from_plain(kind, plain)
    except CodecError as error:
        message = f"the daemon's answer cannot be read: {error}"
        raise RequestRefused(Problem("S106", message, int(ExitCode.FAILED))) from error
