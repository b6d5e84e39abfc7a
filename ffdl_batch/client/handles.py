"""Handles of submitted jobs and arrays, as :meth:`Client.submit` returns them, and calls about arrays and secrets."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ffdl_batch.client.api_calls.requests import long_poll, read_answer, segment, unreadable
from ffdl_batch.client.connection.http_client import Request, Wire, json_request
from ffdl_batch.client.errors import RequestRefused, WaitTimedOut
from ffdl_batch.domain.access import Identity, TokenView
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.log_text import Grep
from ffdl_batch.domain.job.views import (
    ArrayView,
    AttemptChoice,
    EventView,
    JobView,
    LogLine,
    Problem,
    SecretView,
)
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.client.api import Client
    from ffdl_batch.client.api_calls.metric_streams import MetricLine


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job's id and a client. Every method sends a request to the daemon."""

    client: Client = field(repr=False)
    id: str
    warnings: tuple[str, ...] = ()
    """The warnings of the submission."""
    network: str = ""
    """The planned level of network isolation."""

    def view(self) -> JobView:
        """Return the job as it is now."""
        return self.client.get(self.id)

    def wait(self, timeout_s: float | None = None) -> JobView:
        """Wait until the job has ended, and return it; see :meth:`Client.wait`."""
        return self.client.wait(self.id, timeout_s)

    def logs(
        self,
        *,
        follow: bool = False,
        learner: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        attempt: AttemptChoice = None,
        grep: Grep | None = None,
    ) -> Iterator[LogLine]:
        """Yield the learners' lines; see :meth:`Client.logs`."""
        return self.client.logs(
            self.id, follow=follow, learner=learner, since=since, tail=tail, attempt=attempt, grep=grep
        )

    def metrics(
        self, *, follow: bool = False, learner: int | None = None, attempt: AttemptChoice = None
    ) -> Iterator[MetricLine]:
        """Yield the learners' metrics; see :meth:`Client.metrics`."""
        return self.client.metrics(self.id, follow=follow, learner=learner, attempt=attempt)

    def download(
        self,
        into: str | Path,
        *,
        kind: str = "results",
        attempt: int | None = None,
        only: Sequence[str] = (),
        force: bool = False,
    ) -> Path:
        """Copy the results into a directory; see :meth:`Client.download`."""
        return self.client.download(self.id, into, kind=kind, attempt=attempt, only=only, force=force)

    def exec(self, command: Sequence[str], *, learner: int = 1) -> subprocess.CompletedProcess[bytes]:
        """Run a command inside a running learner; see :meth:`Client.exec`."""
        return self.client.exec(self.id, command, learner=learner)

    def events(self, *, follow: bool = False, after: int = 0, timeout_s: float | None = None) -> Iterator[EventView]:
        """Yield the state changes; see :meth:`Client.events`."""
        return self.client.events(self.id, follow=follow, after=after, timeout_s=timeout_s)

    def cancel(self) -> JobView:
        """Cancel the job; see :meth:`Client.cancel`."""
        return self.client.cancel(self.id)

    def halt(self) -> JobView:
        """Halt the job after a checkpoint; see :meth:`Client.halt`."""
        return self.client.halt(self.id)

    def resume(
        self,
        *,
        gpus: float | None = None,
        time: str | None = None,
        learners: int | None = None,
        global_batch: int | None = None,
    ) -> JobView:
        """Continue the job from its checkpoints; see :meth:`Client.resume`."""
        return self.client.resume(self.id, gpus=gpus, time=time, learners=learners, global_batch=global_batch)

    def drill(self, event: str) -> JobView:
        """Interrupt the running attempt; see :meth:`Client.drill`."""
        return self.client.drill(self.id, event)


MAX_LISTED = 10_000


class Arrays:
    """The calls about arrays, as :attr:`ffdl_batch.Client.arrays` has them. All calls raise
    :class:`~ffdl_batch.client.ClientError`: UnknownJob if there is no such array."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def get(self, array_id: str) -> ArrayView:
        """Return the array with the numbers of its jobs by state."""
        return self._ask("GET", array_id)

    def elements(self, array_id: str) -> list[JobView]:
        """Return its jobs, by index."""
        path = f"/api/v1/jobs?array={quote(array_id, safe='')}&limit={MAX_LISTED}"
        return [read_answer(JobView, plain) for plain in self._wire.ask(Request("GET", path)).get("jobs", ())]

    def wait(self, array_id: str, timeout_s: float | None = None) -> ArrayView:
        """Wait until all of its jobs have ended, and return it. Raises WaitTimedOut after `timeout_s` seconds; the jobs
        continue.

        Keeps asking while the daemon does not answer, as :meth:`ffdl_batch.Client.wait`.
        """
        for reply in long_poll(self._wire, _array_request("GET", array_id, "/wait"), timeout_s):
            array = read_answer(ArrayView, reply.get("array"))
            if array.ended:
                return array
        raise WaitTimedOut(f"{array_id} has jobs that have not ended after {round(timeout_s or 0, 1):g} s")

    def cancel(self, array_id: str) -> ArrayView:
        """Cancel all of its jobs, as :meth:`ffdl_batch.Client.cancel` does with one."""
        return self._ask("POST", array_id, "/cancel")

    def halt(self, array_id: str) -> ArrayView:
        """Halt all of its jobs, as :meth:`ffdl_batch.Client.halt` does with one."""
        return self._ask("POST", array_id, "/halt")

    def _ask(self, method: str, array_id: str, rest: str = "") -> ArrayView:
        return read_answer(ArrayView, self._wire.ask(_array_request(method, array_id, rest)).get("array"))


def _array_request(method: str, array_id: str, rest: str) -> Request:
    return Request(method, f"/api/v1/arrays/{segment(array_id)}{rest}", job_id=array_id)


@dataclass(frozen=True, slots=True)
class ArrayHandle:
    """An array's id, its jobs by index, and a client. Every method sends a request to the daemon."""

    client: Client = field(repr=False)
    id: str
    jobs: Sequence[JobHandle]
    warnings: tuple[str, ...] = ()
    network: str = ""

    def view(self) -> ArrayView:
        """Return the array as it is now."""
        return self.client.arrays.get(self.id)

    def elements(self) -> list[JobView]:
        """Return its jobs as they are now."""
        return self.client.arrays.elements(self.id)

    def wait(self, timeout_s: float | None = None) -> list[JobView]:
        """Wait until all of its jobs have ended, and return them; see :meth:`Arrays.wait`."""
        self.client.arrays.wait(self.id, timeout_s)
        return self.elements()

    def cancel(self) -> ArrayView:
        """Cancel all of its jobs."""
        return self.client.arrays.cancel(self.id)

    def halt(self) -> ArrayView:
        """Halt all of its jobs after a checkpoint."""
        return self.client.arrays.halt(self.id)


class Secrets:
    """The calls about secrets, as :attr:`ffdl_batch.Client.secrets` has them. All calls raise
    :class:`~ffdl_batch.client.ClientError`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def set(self, name: str, value: str) -> SecretView:
        """Set a secret, or replace its value."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            problem = Problem("C101", "the value is not UTF-8 text; encode it, for example with base64", ExitCode.USAGE)
            raise RequestRefused(problem) from None
        return self._one(json_request("PUT", _secret_path(name), {"value": value}))

    def list(self) -> list[SecretView]:
        """Return all secrets, by name."""
        return [
            read_answer(SecretView, plain)
            for plain in self._wire.ask(Request("GET", "/api/v1/secrets")).get("secrets", ())
        ]

    def remove(self, name: str, *, force: bool = False) -> SecretView:
        """Remove a secret; with `force`, also one that unfinished jobs refer to."""
        return self._one(Request("DELETE", f"{_secret_path(name)}?force={str(force).lower()}"))

    def _one(self, request: Request) -> SecretView:
        return read_answer(SecretView, self._wire.ask(request).get("secret"))


class Tokens:
    """The calls about tokens for the site's hub, as :attr:`ffdl_batch.Client.tokens` has them. All calls raise
    :class:`~ffdl_batch.client.ClientError`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def create(self, name: str, scopes: Sequence[str], lifetime_s: float) -> tuple[TokenView, str]:
        """Create a token, and return it with its text, which cannot be read again."""
        body = {"name": name, "scopes": list(scopes), "lifetime_s": lifetime_s}
        reply = self._wire.ask(json_request("POST", "/api/v1/tokens", body))
        secret = reply.get("secret")
        if not isinstance(secret, str):
            raise unreadable("it has no token")
        return read_answer(TokenView, reply.get("token")), secret

    def list(self) -> list[TokenView]:
        """Return all tokens that are valid."""
        reply = self._wire.ask(Request("GET", "/api/v1/tokens"))
        return [read_answer(TokenView, plain) for plain in reply.get("tokens", ())]

    def revoke(self, token_id: str) -> bool:
        """Revoke a token: the daemon refuses it from now on. Return whether the hub knows that, too."""
        reply = self._wire.ask(Request("DELETE", f"/api/v1/tokens/{quote(token_id, safe='')}"))
        return reply.get("hub_informed") is True

    def identify(self) -> Identity:
        """Return how the hub identifies this client."""
        return read_answer(Identity, self._wire.ask(Request("GET", "/api/v1/whoami")))


def _secret_path(name: str) -> str:
    return f"/api/v1/secrets/{quote(name, safe='')}"
