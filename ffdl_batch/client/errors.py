"""The exceptions of the client. Each has a :class:`~ffdl_batch.domain.job.views.Problem`."""

from __future__ import annotations

from typing import Protocol

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.views import Problem


class Refusal(Protocol):
    """An error that names its cure and its exit code, such as PlaceRefused and SshFailed."""

    cure: str
    exit_code: int


class ClientError(Exception):
    """Base class. `problem.exit_code` is the exit code of a command that fails with it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(describe(problem))


class RequestRefused(ClientError):
    """The daemon refused the request."""


class NotAllowed(RequestRefused):
    """The job belongs to another user, or the caller may not use this daemon."""


class UnknownJob(RequestRefused):
    """No job has this id, or the caller may not see it."""


class DaemonUnreachable(ClientError):
    """No daemon answers and none could be started; nothing was changed. Exit code 75 unless said otherwise."""

    def __init__(self, message: str, cure: str = "", exit_code: int = ExitCode.TRY_AGAIN) -> None:
        super().__init__(Problem("S200", message, int(exit_code), cure))

    @classmethod
    def because(cls, refusal: Refusal) -> DaemonUnreachable:
        """Return the error for a refusal of another package."""
        return cls(str(refusal), refusal.cure, refusal.exit_code)


class OtherSchema(ClientError):
    """The daemon is of a release whose replies this client cannot read."""


class InputUnusable(ClientError):
    """A manifest or model that the client does not send: missing, unreadable, empty, not a zip, not allowed."""

    def __init__(
        self,
        message: str,
        *,
        cure: str = "",
        code: str = "C102",
        exit_code: int = ExitCode.NO_INPUT,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        super().__init__(Problem(code, message, int(exit_code), cure, findings))


class FunctionFailed(ClientError):
    """A function's job ended without a result: it failed before or after the function, or was cancelled or halted."""


class FileTooLarge(ClientError):
    """A file was not copied because it has more bytes than the caller permits."""


class SubmissionWarning(UserWarning):
    """A warning of a submission. The text begins with the id of the submitted job, except for a warning about a large
    model, which comes before the submission."""


class WaitTimedOut(ClientError):
    """A wait timed out, and the job continues. Exit code 124."""

    def __init__(self, message: str) -> None:
        super().__init__(Problem("000", message, int(ExitCode.TIMEOUT)))


def describe(problem: Problem) -> str:
    """Return the lines to print: the warnings and errors with their places, or the message and its cure after the
    warnings, which may explain it."""
    lines = [str(finding) for finding in problem.findings if finding.severity is not Severity.NOTE]
    if not any(finding.severity is Severity.ERROR for finding in problem.findings):
        lines.append(f"{problem.message} ({problem.cure})" if problem.cure else problem.message)
    return "\n".join(lines)
