"""A submitted job, as what `Client.submit` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ffdl_batch.domain.job.views import AttemptChoice, EventView, JobView, LogLine


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
        """Go on from the checkpoints."""
        ...

    def drill(self, job_id: str, event: str) -> JobView:
        """Play an event."""
        ...


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A job's id and the client that knows it. Every method asks the daemon anew.

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
        """Go on from the checkpoints; see :meth:`Client.resume`."""
        return self.client.resume(self.id, gpus=gpus, time=time)

    def drill(self, event: str) -> JobView:
        """Play an event on the running attempt; see :meth:`Client.drill`."""
        return self.client.drill(self.id, event)
