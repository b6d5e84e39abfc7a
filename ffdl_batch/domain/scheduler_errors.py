"""Errors that a backend may raise, and with each of them what its caller may do next."""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.domain.findings import Finding
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId


class SchedulerError(Exception):
    """Base of what a backend may raise. The message says what was tried, what came back, and what to do."""


class InvalidRequest(SchedulerError):
    """The request can never succeed as it is; never retried. `findings` name the fields."""

    def __init__(self, message: str, findings: tuple[Finding, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class SchedulerUnreachable(SchedulerError):
    """The scheduler did not answer; nothing was changed; try again later."""


class SchedulerMissing(SchedulerUnreachable):
    """This machine has no such scheduler at present: a file system may be unmounted, or credentials have expired. The
    message says what is missing; waiting helps only if an administrator repairs it."""


class NotNow(SchedulerUnreachable):
    """Nothing was changed, and the reason does not show whether the scheduler answers; try again later."""


class NotTaken(NotNow):
    """A submission failed, and the request is not the cause. Nothing was submitted. The job is submitted again after
    growing pauses. Other jobs do not wait for it."""


class TooMany(NotTaken):
    """The scheduler does not accept so many jobs now. Nothing was submitted; fewer jobs may be accepted. Jobs that meet
    the same limit wait until one of them is accepted."""


class NotUnderstood(NotTaken):
    """The scheduler refused the submission with a message that the adapter does not know. The cause may be the request
    or the scheduler. Nothing was submitted. A job whose refusal repeats while others are accepted ends with `words`."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words or message


class AccountingUnreachable(NotNow):
    """The scheduler answered, and its accounting did not."""

    def __init__(
        self, message: str, again_in_s: float, found: Mapping[Token, frozenset[NativeId]] | None = None
    ) -> None:
        super().__init__(message)
        self.again_in_s = again_in_s
        """Seconds until it is asked again."""
        self.found = found or {}
        """What was found without it, by token."""


class RefusedBySite(InvalidRequest):
    """The scheduler returned a site's own message and an unspecific error code. The job ends only if `find`, called
    after that, finds no job of the attempt."""


class NoResources(InvalidRequest):
    """No node of the site has the requested resources."""


class ArraysRefused(InvalidRequest):
    """The scheduler accepts no such array; its elements may be submitted one by one."""


class SubmissionUncertain(SchedulerError):
    """The submission may or may not have been accepted: call `find` first, never submit again at once."""


class NotPermitted(SchedulerError):
    """The cluster does not let this user do it: the message names the permission and the object."""


class NotOurs(SchedulerError):
    """An object of that name exists and ffdl did not create it. Nothing was changed."""
