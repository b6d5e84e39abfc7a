"""Requests and replies of the API: envelopes around the views, and one form for every error.

The classes describe the replies in OpenAPI. The daemon sends `domain.codec.to_plain` of the views, which the client
reads back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field
from starlette import types
from starlette.responses import Response

from ffdl_batch.domain.access import Role, Scope, TokenView
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.daemon_health import BackendHealth, DatabaseOutage
from ffdl_batch.domain.job.submission import Submission, SubmissionResult
from ffdl_batch.domain.job.views import (
    SCHEMA,
    ArrayView,
    EventView,
    JobCounts,
    JobView,
    OutputView,
    PlanView,
    Problem,
    SecretView,
    SupportPart,
)
from ffdl_batch.domain.launch.attach_protocol import AttachPlan
from ffdl_batch.domain.metrics.advice import Advice
from ffdl_batch.domain.metrics.usage_report import Agreement, UsageReport
from ffdl_batch.domain.outcome.continuation import DrillEvent
from ffdl_batch.domain.pending.explanation import Outlook, WhyView
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.munge import LONGEST
from ffdl_batch.services.tokens import LONGEST_S, SHORTEST_S, USUAL_S

FFDL_API = "/v1/"
"""Beginning of the paths of FfDL's REST API."""
MAX_SUBMISSIONS = 500
RETRY_S = 5
"""When a client that was refused a connection may try again."""


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Jobs to submit. Each is accepted or refused on its own."""

    submissions: Annotated[list[Submission], Field(min_length=1, max_length=MAX_SUBMISSIONS)]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A submission to plan. With `trial`, the scheduler is asked, too (sbatch --test-only)."""

    submission: Submission
    trial: bool = False


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """The event to simulate."""

    event: DrillEvent


@dataclass(frozen=True, slots=True)
class SecretRequest:
    """The value of a secret. No reply has it."""

    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token to create."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """For its owner, who recognises it by this."""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))]
    lifetime_s: Annotated[int, Field(ge=SHORTEST_S, le=LONGEST_S)] = USUAL_S


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A munge credential of the daemon's user, which only that user can decode."""

    credential: Annotated[str, Field(min_length=1, max_length=LONGEST)]


@dataclass(frozen=True, slots=True)
class TrustedLoginRequest:
    """A token of the daemon's user. The hub has identified the user. The text has no secret."""

    login: Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The reply to every refused or failed request."""

    problem: Problem
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class FfdlErrorReply:
    """The reply of FfDL's API to every refused or failed request."""

    code: int
    """The HTTP status."""
    error: str
    description: str


@dataclass(frozen=True, slots=True)
class ArchiveReply:
    """The reply to an uploaded archive. `new` is false if it existed already."""

    new: bool
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class SubmitReply:
    """One result per submission, in order, and the backends that do not answer now."""

    results: tuple[SubmissionResult, ...]
    outages: tuple[BackendHealth, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class SecretReply:
    """One secret, without its value."""

    secret: SecretView
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class SecretsReply:
    """Secrets by name, without their values."""

    secrets: tuple[SecretView, ...]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class OutlookRequest:
    """A submission whose capacity and start time, or advice, are requested."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class WhyReply:
    """Why one job is pending."""

    why: WhyView
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class OutlookReply:
    """The capacity and the start time of a submission."""

    outlook: Outlook
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class AdviceReply:
    """Advice on the resources of a submission."""

    advice: Advice
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class PlanReply:
    """The exact text that would be submitted."""

    plan: PlanView
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class JobReply:
    """One job; the backends that do not answer now, and the database if it cannot be written."""

    job: JobView
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class ArrayReply:
    """One array of jobs; the backends that do not answer now, and the database if it cannot be written."""

    array: ArrayView
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class JobsReply:
    """Jobs, newest first.

    `outages` are the backends that do not answer now: the states of their jobs are from the last poll and from what
    their controllers wrote since. With `database_outage` the daemon cannot write, and all states are from before.
    """

    jobs: tuple[JobView, ...]
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class CountsReply:
    """Number of jobs by state."""

    counts: JobCounts
    outages: tuple[BackendHealth, ...] = ()
    database_outage: DatabaseOutage | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class EventsReply:
    """Changes of state in order. `terminal`: the job has ended, so no more will come."""

    events: tuple[EventView, ...]
    terminal: bool
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class OutputReply:
    """Where the requested output of a job is."""

    output: OutputView
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class SupportReply:
    """What the daemon has about a job for a support archive, without secrets."""

    parts: tuple[SupportPart, ...]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class UsageReply:
    """The usage report of a period."""

    usage: UsageReport
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class AgreementReply:
    """Our usage figures beside the schedulers' accounting."""

    agreement: Agreement
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class TokenReply:
    """A new token. No other reply has its secret."""

    token: TokenView
    secret: str = field(repr=False)
    """The whole text, ``ffdl_ID_SECRET``."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class LoginReply:
    """The stored token."""

    token: TokenView
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class TokensReply:
    """Tokens, newest first, without their secrets."""

    tokens: tuple[TokenView, ...]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class RevokedReply:
    """A token that was revoked. `hub_informed`: the hub refuses it, too; the daemon does in any case."""

    token: TokenView
    hub_informed: bool
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class WhoReply:
    """The caller of this request. Only a caller with a token has scopes and an expiry."""

    uid: int
    account: str
    role: Role
    scopes: tuple[Scope, ...] = ()
    expires_at: float | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class AttachReply:
    """One plan for each node with requested learners."""

    plans: tuple[AttachPlan, ...]
    schema: int = SCHEMA


class PlainReply(Response):
    """A reply in ASCII JSON, which can also carry lone surrogates (file names with undecodable bytes) as escapes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See :class:`starlette.responses.Response`."""
        return json.dumps(to_plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


class ProblemReply(PlainReply):
    """An error reply. For paths of FfDL's API it has FfDL's form."""

    def __init__(self, problem: Problem, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(ErrorReply(problem), status_code=status, headers=headers)
        self._problem, self._own_headers = problem, headers

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Send it."""
        if not scope["path"].startswith(FFDL_API):
            await super().__call__(scope, receive, send)
            return
        problem = self._problem
        description = "; ".join(filter(None, (HTTPStatus(self.status_code).phrase, problem.cure)))
        plain = {"code": self.status_code, "error": problem.message, "description": description}
        headers = {
            name: value for name, value in self.headers.items() if name not in ("content-length", "content-type")
        }
        await PlainReply(plain, self.status_code, headers)(scope, receive, send)


def problem_reply(problem: Problem, status: int, headers: Mapping[str, str] | None = None) -> ProblemReply:
    """Return the error reply."""
    return ProblemReply(problem, status, headers)


def raw_problem_reply(problem: Problem, status: int) -> bytes:
    """Return the error reply as the bytes of a response that ends its connection."""
    body = bytes(problem_reply(problem, status).body)
    retry = f"Retry-After: {RETRY_S}\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
