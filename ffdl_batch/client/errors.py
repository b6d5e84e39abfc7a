"""What the client raises. Every exception carries a :class:`~ffdl_batch.domain.job.views.Problem`."""

from __future__ import annotations

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.views import Problem


class ClientError(Exception):
    """Base class. `problem.exit_code` is what a command that meets it ends with."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(describe(problem))


class RequestRefused(ClientError):
    """The daemon answered, and the answer is no."""


class NotAllowed(RequestRefused):
    """The job belongs to somebody else, or the caller may not use this daemon."""


class UnknownJob(RequestRefused):
    """There is no job of this id (or none that the caller may see)."""


class DaemonUnreachable(ClientError):
    """No daemon answers and none could be started; nothing was changed. Exit code 75 unless said otherwise."""

    def __init__(self, message: str, cure: str = "", exit_code: int = ExitCode.TRY_AGAIN) -> None:
        super().__init__(Problem("S200", message, int(exit_code), cure))


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


class WaitTimedOut(ClientError):
    """The time of a wait is over and the job continues. Exit code 124."""


def describe(problem: Problem) -> str:
    """Return the lines to print: the warnings and errors with their places, or the message and its cure after the
    warnings, which may explain it."""
    lines = [str(finding) for finding in problem.findings if finding.severity is not Severity.NOTE]
    if not any(finding.severity is Severity.ERROR for finding in problem.findings):
        lines.append(f"{problem.message} ({problem.cure})" if problem.cure else problem.message)
    return "\n".join(lines)
