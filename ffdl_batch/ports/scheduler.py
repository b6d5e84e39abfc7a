"""The scheduler port: the contract between the core and a backend.

A backend is a package with one entry point in the group ``ffdl_batch.adapters`` that names a function
``create(settings, context) -> Scheduler`` (see :mod:`ffdl_batch.plugins`). One suite,
``tests/contract/test_scheduler_contract.py``, runs over all of them and is the contract's second half.

What this Protocol has, every backend must implement. What only some schedulers can do is in the optional Protocols of
:mod:`ffdl_batch.ports.capabilities`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import BackendFacts, BackendTraits, WaitingRequest
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.domain.pending.explanation import Explanation
from ffdl_batch.runtimes.launch_request import AttemptNode, LaunchPlan, LaunchRequest, NodeProgram


class Scheduler(Protocol):
    """A backend: what every one of them implements."""

    @property
    def name(self) -> str:
        """The adapter's name, as in configuration and records."""
        ...

    @property
    def traits(self) -> BackendTraits:
        """What never changes while the adapter exists."""
        ...

    def effective_settings(self) -> Mapping[str, object]:
        """Return every key of the backend's table of the configuration with its value, defaults included. Does no
        I/O."""
        ...

    def probe(self) -> BackendFacts:
        """Return the facts about the site. Raises SchedulerUnreachable (SchedulerMissing if there is no such
        scheduler), or InvalidRequest if the settings cannot work."""
        ...

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Return what would be sent. Pure: no I/O; the same request gives the same plan. Raises InvalidRequest."""
        ...

    def submit(self, plan: LaunchPlan) -> NativeId:
        """Submit one attempt whose files are written. A process calls it at most once for a token, unless `find`
        returned nothing after the life of the credential.

        Raises InvalidRequest (refused permanently because of this request), RefusedBySite, SchedulerUnreachable (not
        accepted), NotTaken, TooMany, NotUnderstood, SubmissionUncertain (call `find` first).
        """
        ...

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """Return all own jobs of this token, living or ended, duplicates included. Looks at the scheduler, its
        accounting and the attempt's claim; an id that `submit` returned proves nothing. Empty means that there is none:
        raises SchedulerUnreachable if one of these sources does not answer."""
        ...

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """Return the state of these jobs, with one round trip for any number of them. A missing id is unknown, not
        ended."""
        ...

    def signal(self, native_id: NativeId, signal: str) -> None:
        """Request that the node controllers get this signal (name without SIG), KILL included. The head and the process
        that submitted it keep running. Not an error for a job that waits, has ended or is unknown. Idempotent."""
        ...

    def cancel(self, native_id: NativeId) -> None:
        """Request the end of the job; not an error for a job that has ended or is unknown. Idempotent."""
        ...

    def withdraw(self, native_id: NativeId) -> None:
        """Request the end of the job if it still waits (scancel --state=PENDING); else do nothing, so that a job that
        has just started is not harmed. Idempotent."""
        ...

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """Return what is known of each of `requests`, in their order; None for a job that is not in the queue. The
        number of round trips does not depend on the number of requests. The core turns the values into sentences.
        Raises SchedulerUnreachable."""
        ...

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
        """Return how the job's owner starts `argv` on the node, beside the controller, with the program's standard
        streams. The program uses none of the job's resources, ends with the job, and does not delay it.

        Sends no request. Raises InvalidRequest if it cannot be started there, SchedulerMissing if the program that
        reaches the node is missing, and SchedulerUnreachable.
        """
        ...
