"""What the daemon answers with: envelopes around the views, and one shape for every error.

The classes describe the replies in OpenAPI; what is sent is `domain.codec.to_plain` of the views, which is what the
client reads back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field
from starlette.responses import Response

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage
from ffdl_batch.domain.job.submission import Submission, SubmissionResult
from ffdl_batch.domain.job.views import (
    SCHEMA,
    ArrayView,
    EventView,
    JobView,
    LeftView,
    PlanView,
    Problem,
    SecretView,
)
from ffdl_batch.domain.launch.attach_protocol import AttachPlan
from ffdl_batch.domain.metrics.usage_report import Agreement, UsageReport
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.domain.pending.explanation import Outlook, WhyView

MAX_SUBMISSIONS = 100

_T = TypeVar("_T")


def when_asked(model: type[_T]) -> type[_T]:
    """Have pydantic look at a class when somebody wants the OpenAPI document: for each reply of each route, that takes
    as long as half of all else that a daemon does before it listens."""
    model.__pydantic_config__ = ConfigDict(defer_build=True)  # type: ignore[attr-defined]
    return model


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Jobs to submit; each is accepted or refused on its own."""

    submissions: Annotated[list[Submission], Field(min_length=1, max_length=MAX_SUBMISSIONS)]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A submission to plan; `trial` asks the scheduler for its opinion, too."""

    submission: Submission
    trial: bool = False


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """The event to play."""

    event: DrillEvent


@dataclass(frozen=True, slots=True)
class SecretRequest:
    """The value of a secret. No reply has it."""

    value: str = field(repr=False)


@when_asked
@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Every refusal and failure."""

    problem: Problem
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class ArchiveReply:
    """`new` is false where the archive was there already."""

    new: bool
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class SubmitReply:
    """One result per submission, in order; and the backends that do not answer now."""

    results: tuple[SubmissionResult, ...]
    outages: tuple[BackendHealth, ...] = ()
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class SecretReply:
    """One secret, without its value."""

    secret: SecretView
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class SecretsReply:
    """Secrets by name, without their values."""

    secrets: tuple[SecretView, ...]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class OutlookRequest:
    """A submission whose outlook is requested."""

    submission: Submission


@when_asked
@dataclass(frozen=True, slots=True)
class WhyReply:
    """Why one job waits."""

    why: WhyView
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class OutlookReply:
    """What awaits a submission."""

    outlook: Outlook
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class PlanReply:
    """Exactly what would be sent."""

    plan: PlanView
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class JobReply:
    """One job; the backends that do not answer now, and the database where it takes nothing."""

    job: JobView
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class ArrayReply:
    """One array of jobs; the backends that do not answer now, and the database where it takes nothing."""

    array: ArrayView
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class JobsReply:
    """Jobs, newest first. `outages` are the backends that do not answer now: of their jobs it is told what was seen
    last, and what their controllers wrote since. With `database_outage` nothing is written any more: of all jobs it is
    told what was seen before."""

    jobs: tuple[JobView, ...]
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class EventsReply:
    """Changes of state in order; `terminal`: there will be no more."""

    events: tuple[EventView, ...]
    terminal: bool
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class LeftReply:
    """Where something lies that a job left."""

    left: LeftView
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class UsageReply:
    """Who used what."""

    usage: UsageReport
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class AgreementReply:
    """Our reckoning beside the schedulers' accounting."""

    agreement: Agreement
    schema: int = SCHEMA


@when_asked
@dataclass(frozen=True, slots=True)
class AttachReply:
    """One plan per node with learners that were asked for."""

    plans: tuple[AttachPlan, ...]
    schema: int = SCHEMA


class PlainReply(Response):
    """JSON in ASCII: also a lone surrogate (a file name of undecodable bytes) travels as an escape."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See :class:`starlette.responses.Response`."""
        return json.dumps(to_plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def problem_reply(problem: Problem, status: int, headers: Mapping[str, str] | None = None) -> PlainReply:
    """Return the error reply."""
    return PlainReply(ErrorReply(problem), status_code=status, headers=headers)


def raw_problem_reply(problem: Problem, status: int) -> bytes:
    """Return the error reply as the bytes of a response that ends its connection."""
    body = bytes(problem_reply(problem, status).body)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
