"""The client's calls, one per request of the daemon's API. What only some of them need is imported when they run."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ffdl_batch.client.api_calls.file_calls import FileCalls
from ffdl_batch.client.api_calls.log_streams import LogCalls, iterate_events
from ffdl_batch.client.api_calls.queries import MeasuredCalls, WaitingCalls
from ffdl_batch.client.api_calls.removal import RemovalCalls
from ffdl_batch.client.api_calls.requests import JobFilter, long_poll, read_answer, segment
from ffdl_batch.client.api_calls.submit_calls import SubmitCalls
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.connection.http_client import REQUEST_TIMEOUT_S, Request, Wire, json_request
from ffdl_batch.client.errors import WaitTimedOut
from ffdl_batch.client.functions.function_calls import FunctionCalls
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage, Health
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import EventView, JobCounts, JobView, Resume
from ffdl_batch.domain.job_state import TERMINAL, JobState
from ffdl_batch.domain.launch.attach_protocol import UPGRADE, AttachPlan

if TYPE_CHECKING:
    from ffdl_batch.client.api_calls.job_output import JobOutput
    from ffdl_batch.client.api_calls.pools import Pools
    from ffdl_batch.client.attach import Helper, Link
    from ffdl_batch.client.handles import Arrays, Secrets, Tokens

__all__ = ["Client", "JobFilter"]
_TIME_LIMIT = "C203"


class Client(SubmitCalls, FunctionCalls, FileCalls, MeasuredCalls, LogCalls, WaitingCalls, RemovalCalls):
    """Sends requests to the daemon, and starts one if none runs, unless ``start=False``.

    With `host`, it uses the daemon of a login node, over SSH (None: according to FFDL_HOST and the configuration; "":
    this machine's). No connection is opened before the first call. Use a client in one thread only. Use it as a context
    manager, or call :meth:`close`, to close its connection early. All calls raise
    :class:`~ffdl_batch.client.ClientError`.
    """

    def __init__(
        self,
        socket_path: str | Path | None = None,
        *,
        start: bool = True,
        state_dir: str | Path | None = None,
        host: str | None = None,
        dialling: Dialling | None = None,
    ) -> None:
        self._dialling = dialling or Dialling(
            socket_path=Path(socket_path).absolute() if socket_path else None,
            state_dir=Path(state_dir).absolute() if state_dir else None,
            start=start,
            host=host,
        )
        self._wire = self._open_wire()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another one."""
        self._wire.close()

    @property
    def outages(self) -> tuple[BackendHealth, ...]:
        """The backends that did not answer the daemon at its last reply to this client. The states of their jobs in
        that reply are the last known ones."""
        return tuple(read_answer(BackendHealth, plain) for plain in self._wire.outages)

    @property
    def database_outage(self) -> DatabaseOutage | None:
        """Why the daemon could not write to its database at its last reply. States in that reply are the last known
        ones."""
        plain = self._wire.database_outage
        return None if plain is None else read_answer(DatabaseOutage, plain)

    def _open_wire(self) -> Wire:
        user = self._dialling.user
        prefix = "/site" if self._dialling.is_site else "" if user is None else f"/users/{user}"
        return Wire(self._dialling.dial, self._dialling.report, prefix)

    @property
    def arrays(self) -> Arrays:
        """Calls about arrays of jobs."""
        from ffdl_batch.client.handles import Arrays

        return Arrays(self._wire)

    @property
    def output(self) -> JobOutput:
        """Calls about the output of a job."""
        from ffdl_batch.client.api_calls.job_output import JobOutput

        return JobOutput(self._open_wire)

    @property
    def secrets(self) -> Secrets:
        """Calls about named secrets."""
        from ffdl_batch.client.handles import Secrets

        return Secrets(self._wire)

    @property
    def pools(self) -> Pools:
        """Calls for pools of elastic jobs."""
        from ffdl_batch.client.api_calls.pools import Pools

        return Pools(self._wire)

    @property
    def tokens(self) -> Tokens:
        """Calls about tokens for the site's hub."""
        from ffdl_batch.client.handles import Tokens

        return Tokens(self._wire)

    def get(self, job_id: str) -> JobView:
        """Return a job. Raises UnknownJob."""
        return read_answer(JobView, self._wire.ask(_job_request("GET", job_id)).get("job"))

    def list(self, which: JobFilter | None = None) -> builtins.list[JobView]:
        """Return jobs, newest first."""
        query = (which or JobFilter()).query()
        reply = self._wire.ask(Request("GET", f"/api/v1/jobs{query}"))
        return [read_answer(JobView, plain) for plain in reply.get("jobs", ())]

    def states(self, version: int | None = None, wait_s: float = 0.0) -> JobCounts:
        """Return how many jobs are in each state. With the `version` of an earlier answer, wait for a change of a job,
        at most `wait_s` seconds (30)."""
        query = f"?version={version}&wait_s={wait_s:g}" if version is not None else ""
        reply = self._wire.ask(Request("GET", f"/api/v1/states{query}", held_s=wait_s))
        return read_answer(JobCounts, reply.get("counts"))

    def wait(self, job_id: str, timeout_s: float | None = None) -> JobView:
        """Wait until the job has ended, and return it. Raises WaitTimedOut after `timeout_s` seconds; the job
        continues.

        Keeps asking while the daemon does not answer, and raises DaemonUnreachable if a later try cannot help.
        """
        state = ""
        for reply in long_poll(self._wire, _job_request("GET", job_id, "/wait"), timeout_s):
            job = read_answer(JobView, reply.get("job"))
            if is_ended(job):
                return job
            state = job.state
        raise WaitTimedOut(f"{job_id} is {state} after {round(timeout_s or 0, 1):g} s and continues")

    def events(
        self, job_id: str, *, follow: bool = False, after: int = 0, timeout_s: float | None = None
    ) -> Iterator[EventView]:
        """Yield the state changes after number `after`; with `follow` until the job has ended.

        Raises WaitTimedOut if nothing happens until `timeout_s` seconds after the first request.
        """
        with closing(self._open_wire()) as wire:
            yield from iterate_events(wire, segment(job_id), follow=follow, after=after, timeout_s=timeout_s)

    def cancel(self, job_id: str) -> JobView:
        """Request that the job is cancelled. The answer shows the request; the job ends later.

        A HALTED job is CANCELLED at once. A job that has ended otherwise does not change.
        """
        return read_answer(JobView, self._wire.ask(_job_request("POST", job_id, "/cancel")).get("job"))

    def halt(self, job_id: str) -> JobView:
        """Request that the job is halted after a checkpoint. The answer shows the request; the job ends later.

        A job that has ended does not change.
        """
        return read_answer(JobView, self._wire.ask(_job_request("POST", job_id, "/halt")).get("job"))

    def resume(
        self,
        job_id: str,
        *,
        gpus: float | None = None,
        time: str | None = None,
        learners: int | None = None,
        global_batch: int | None = None,
    ) -> JobView:
        """Continue a HALTED or FAILED job from its checkpoints; `gpus` (of each learner) and `time` alter it, and
        `learners` and `global_batch` if it is elastic.

        The job has the `warnings` of a submission. Raises RequestRefused for a job in another state, and if the altered
        job could not run. If the answer is lost, the request is sent again; it may then be refused because the first
        one was accepted.
        """
        resume = Resume(None if gpus is None else float(gpus), time, learners, global_batch)
        return self._act(job_id, "/resume", resume)

    def drill(self, job_id: str, event: str) -> JobView:
        """Interrupt the running attempt on purpose. `event` is halt, timeout, preempt or node-fail."""
        return self._act(job_id, "/drill", {"event": event})

    def attach_plans(self, job_id: str, learner: int | None = None) -> tuple[AttachPlan, ...]:
        """Return how to reach a running learner, or all (a plan for each node); see :mod:`ffdl_batch.client.attach`.

        Raises RequestRefused for a job that is not in PROCESSING, or a learner that does not run.
        """
        rest = "/attach" if learner is None else f"/attach?learner={learner}"
        plans = self._wire.ask(_job_request("GET", job_id, rest)).get("plans", ())
        return tuple(read_answer(AttachPlan, plain) for plain in plans)

    def open_helpers(self, job_id: str, learner: int | None = None) -> Iterator[Helper]:
        """Start a helper beside a running learner, or one on each node with running learners; see
        :mod:`ffdl_batch.client.attach`. Enter each of them before the next one is taken.

        Behind a hub or on another host they are processes of the user's daemon. Raises RequestRefused.
        """
        from ffdl_batch.client.attach import Helper

        for plan in self.attach_plans(job_id, learner):
            is_far = self._wire.is_through_hub or self._dialling.is_on_host
            yield Helper(plan, self._open_stream(job_id, learner, plan) if is_far else None)

    def _open_stream(self, job_id: str, learner: int | None, plan: AttachPlan) -> Link:
        from ffdl_batch.client.connection.attach_stream import AttachStream

        rest = f"?learner={plan.learners[0]}&whole_node={'true' if learner is None else 'false'}"
        return AttachStream(self._wire.upgrade(_job_request("GET", job_id, f"/attach/stream{rest}"), UPGRADE))

    def _act(self, job_id: str, rest: str, body: object) -> JobView:
        request = json_request("POST", f"/api/v1/jobs/{segment(job_id)}{rest}", to_plain(body))
        return read_answer(JobView, self._wire.ask(replace(request, job_id=job_id)).get("job"))

    def health(self, timeout_s: float = REQUEST_TIMEOUT_S) -> Health:
        """Return the daemon's report about itself. Raises DaemonUnreachable without an answer after `timeout_s`
        seconds."""
        return read_answer(Health, self._wire.ask(Request("GET", "/api/v1/health", timeout_s=timeout_s)))


def is_ended(job: JobView) -> bool:
    """Return whether the job is in a terminal state, and no scaler continues it. A state of a newer release counts as
    not terminal."""
    return not job.continued_by and job.state in {state.value for state in TERMINAL}


def job_exit_code(job: JobView) -> int:
    """Return the exit code of a command that waited for this job, as ``sbatch --wait``: 0, the job's exit code,
    128+signal, or 1.

    It is 1 for a HALTED job and 124 for a job that ended at its time limit, whatever the exit codes of their learners.
    """
    if job.state == JobState.COMPLETED:
        return 0
    if job.state == JobState.HALTED:
        return int(ExitCode.FAILED)
    if job.error_code == _TIME_LIMIT:
        return int(ExitCode.TIMEOUT)
    if job.exit_signal:
        return 128 + job.exit_signal
    return job.exit_code or int(ExitCode.FAILED)


def _job_request(method: str, job_id: str, rest: str = "") -> Request:
    return Request(method, f"/api/v1/jobs/{segment(job_id)}{rest}", job_id=job_id)
