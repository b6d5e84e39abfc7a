"""The scheduler port: the contract between the core and a backend.

A backend is a package with one entry point in the group ``ffdl_batch.adapters`` that names a function
``create(settings, context) -> Scheduler`` (see :mod:`ffdl_batch.plugins`). One suite,
``tests/contract/test_scheduler_contract.py``, runs over all of them and is the contract's second half.

Required are six methods. Everything else is a small optional Protocol of :mod:`ffdl_batch.ports.capabilities`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId, Observation
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest


class Scheduler(Protocol):
    """A backend."""

    @property
    def name(self) -> str:
        """The adapter's name, as in configuration and records."""
        ...

    def probe(self) -> BackendFacts:
        """Ask the site what it is. Raises SchedulerUnreachable (SchedulerMissing where there is no such scheduler), or
        InvalidRequest where the settings cannot work."""
        ...

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """What would be sent. Pure: no I/O, same request, same plan. Raises InvalidRequest."""
        ...

    def submit(self, plan: LaunchPlan) -> NativeId:
        """Hand over one attempt whose files are written. Called at most once per process for a token unless
        `find` came back empty after the credential's life.

        Raises InvalidRequest (refused permanently because of this request), RefusedBySite, SchedulerUnreachable (not
        accepted), NotTaken, TooMany, NotUnderstood, SubmissionUncertain (call `find` first).
        """
        ...

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        """All own jobs of this token, living or ended, duplicates included; looks at the scheduler, its
        accounting and the attempt's claim. An id that `submit` was answered with proves nothing. Empty is a
        statement: raises SchedulerUnreachable rather than return half an answer.
        """
        ...

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        """One round trip for any number of jobs. An id left out is unknown, not ended."""
        ...

    def signal(self, native_id: NativeId, signal: str) -> None:
        """Request that the node controllers get this signal (name without SIG), KILL included; the head and what
        submitted it live on. A job that waits, has ended or is unknown is no error. Idempotent."""
        ...

    def cancel(self, native_id: NativeId) -> None:
        """Request the end of the job; a job that has ended or is unknown is no error. Idempotent."""
        ...
