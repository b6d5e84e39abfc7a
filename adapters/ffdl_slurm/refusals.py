"""From what Slurm said to which error it is. Pure: texts in, exceptions out.

Wordings from Slurm's src/common/slurm_errno.c (20.11 and 26.05) and src/sbatch/sbatch.c. The question is always
the same: may the request still be accepted? Only a failure to connect proves that nothing was sent.

sbatch complains while it tries again by itself, and says last what came of it: "... submission failed: <why>".
"""

from __future__ import annotations

import re

from ffdl_batch.ports.scheduler import (
    ArraysRefused,
    InvalidRequest,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_slurm.parsers import parse_submission
from ffdl_slurm.run import CommandResult
from ffdl_slurm.said import LONG, shorten

_NOT_SENT = (
    "controller (connect failure)",
    "connection timed out establishing",
    "communication connection failure",
    "could not establish a configuration source",
    "unable to establish controller machine",
    "unable to resolve",
)
"""The message never left this machine."""
_NO_CREDENTIAL = ("munge encode failed", "failed to initialize auth", "cannot find auth plugin")
"""Said before the last word: no credential could be made, so the message never left this machine either."""
_REPLY_LOST = (
    "timed out on send/recv",
    "zero bytes were transmitted",
    "munge decode failed",
    "auth_g_verify",
)
"""Said anywhere: something was sent, and its answer did not come or could not be trusted. (auth_g_create is about what
was to be sent, src/common/slurm_protocol_api.c.)"""
_TOO_MANY = ("job queue full", "temporarily unable to accept job", "job submit limit", "maxsubmitjob")
"""The controller answered: it, the account or the QOS has no room for so many jobs now."""
_LAST_WORD = re.compile(r".*submission failed:", re.DOTALL | re.IGNORECASE)
_LIMIT = re.compile(r"\b(?:Assoc|QOS|Partition)[A-Z]\w+")
"""The name of a limit, which sbatch prints before "Job violates accounting/QOS policy" (slurm_protocol_defs.c,
job_state_reason_string). That sentence itself is said of limits of submission and of limits that this request can never
meet."""
_NO_SUCH_ARRAY = "invalid job array"
_DECLINED_FOR_NOW = (
    *_TOO_MANY,
    "temporarily disabled",
    "protocol authentication error",
    "invalid authentication credential",
    "slurm backup controller in standby mode",
    "in standby mode",
    "resource temporarily unavailable",
    "cannot send after transport",
)
"""The controller answered, and did not take the job now; the same request may succeed later."""
_MAYBE_SENT = (
    "timed out",
    "controller (send failure)",
    "controller (receive failure)",
    "controller (shutdown failure)",
    "message receive failure",
    "message send failure",
    "communication shutdown failure",
    "unexpected message received",
    "connection reset",
    "broken pipe",
    "header lengths are longer",
    "insane message length",
    "unspecified error",
)
_UNANSWERED = (*_NOT_SENT, *_NO_CREDENTIAL, *_REPLY_LOST, *_MAYBE_SENT, *_DECLINED_FOR_NOW)
_GONE = (
    "invalid job id",
    "already completing or completed",
    "already finished",
    "job/step already",
    "does not exist",
    "invalid job/step",
)
_ACCOUNTS_DOWN = ("talking to the database", "persist", "slurmdbd", "connection refused")
_NO_ACCOUNTS = ("accounting storage is disabled",)


def read_submission(result: CommandResult, where: str = "") -> str:
    """The job id of an sbatch that ended. Raises what its end means."""
    job = parse_submission(result.stdout)
    if job is not None and result.returncode == 0:
        return job
    host = f" on {where}" if where else ""
    if result.returncode == 0 or result.returncode < 0 or job is not None:
        raise SubmissionUncertain(
            f"sbatch{host} ended with {result.returncode} and said {result.said!r}; "
            "the job may or may not be there, it is looked for before anything is submitted again"
        )
    raise explain_refusal(result.stderr or result.stdout, f"sbatch{host}")


def explain_refusal(text: str, who: str) -> SchedulerError:
    """The error that a failed submission's message means."""
    said = shorten(text) or "nothing"
    all_of_it, low = text.lower(), " ".join(_LAST_WORD.sub("", text).lower().split())
    if any(phrase in all_of_it for phrase in _REPLY_LOST):
        return SubmissionUncertain(f"{who} lost the controller's reply ({said}); the job is looked for first")
    if any(phrase in low for phrase in _NOT_SENT) or any(phrase in all_of_it for phrase in _NO_CREDENTIAL):
        return SchedulerUnreachable(f"{who} could not reach Slurm's controller ({said}); nothing was submitted")
    if any(phrase in low for phrase in _DECLINED_FOR_NOW) and not _is_for_good(text):
        kind = TooMany if any(phrase in low for phrase in _TOO_MANY) else SchedulerUnreachable
        return kind(f"Slurm does not take the job now ({shorten(text, LONG)}); it is tried again")
    if any(phrase in low for phrase in _MAYBE_SENT):
        return SubmissionUncertain(f"{who} lost the controller's reply ({said}); the job is looked for first")
    if said == "nothing":
        return SubmissionUncertain(f"{who} failed and said nothing; the job is looked for first")
    kind_of_no = ArraysRefused if _NO_SUCH_ARRAY in low else InvalidRequest
    return kind_of_no(f"Slurm refuses the job: {shorten(text, LONG)}; correct the request and submit again")


def _is_for_good(text: str) -> bool:
    """Whether the limits that are named hold for this request whatever else is queued."""
    named = _LIMIT.findall(text)
    return bool(named) and not any("submit" in name.lower() for name in named)


def check_trial(result: CommandResult) -> None:
    """The end of ``sbatch --test-only``, which sends no job: a lost reply leaves nothing to look for, and nobody tries
    it again. Raises InvalidRequest, TooMany, SchedulerUnreachable."""
    if result.returncode == 0:
        return
    why = explain_refusal(result.stderr or result.stdout, "sbatch --test-only")
    if isinstance(why, InvalidRequest):
        raise why
    if isinstance(why, TooMany):
        raise TooMany(f"Slurm would not take the job now ({shorten(result.text, LONG)}); nothing was submitted")
    raise SchedulerUnreachable(f"sbatch --test-only was not answered ({result.said}); nothing was submitted, try again")


def is_gone(result: CommandResult) -> bool:
    """Whether the command says that there is no such job any more."""
    return result.returncode > 0 and any(phrase in result.text.lower() for phrase in _GONE)


def is_misunderstood(result: CommandResult) -> bool:
    """Whether the command does not know one of its options, as an older release does not."""
    return result.returncode > 0 and "unrecognized option" in result.stderr.lower()


def check_request(result: CommandResult, what: str) -> None:
    """A request's end: a job that is gone is no error. Raises SchedulerUnreachable, else InvalidRequest."""
    if result.returncode < 0:
        raise SchedulerUnreachable(f"{what} was not answered ({result.argv[0]} was killed); it is tried again")
    if result.returncode != 0:
        check_refused_request(result.text, what)


def check_refused_request(text: str, what: str) -> None:
    """What Slurm said to a signal or a cancellation that it did not carry out; see :func:`check_request`."""
    low, said = text.lower(), shorten(text) or "nothing"
    if any(phrase in low for phrase in _GONE):
        return
    if any(phrase in low for phrase in _UNANSWERED):
        raise SchedulerUnreachable(f"{what} was not answered ({said}); it is tried again")
    raise InvalidRequest(f"{what} was refused: {said}")


def check_requests(result: CommandResult, what: str) -> None:
    """As :func:`check_request`, of a request about several jobs: those that are gone hide no other answer."""
    low = result.text.lower()
    if result.returncode > 0 and any(phrase in low for phrase in _UNANSWERED):
        raise SchedulerUnreachable(f"{what} was not answered ({result.said}); it is tried again")
    check_request(result, what)


def check_answer(result: CommandResult) -> None:
    """A query's end. Raises SchedulerUnreachable: whatever failed, it is no statement about any job.

    What stands on standard error beside a good end is left alone: sites with an outdated line in slurm.conf see
    a complaint with every command.
    """
    if result.returncode != 0:
        raise SchedulerUnreachable(f"{result.argv[0]} gave no answer ({result.returncode}: {result.said})")


def check_accounts(result: CommandResult) -> None:
    """sacct's end. Its exit code is an errno cut to eight bits (src/sacct/sacct.c), so it may be 0 in vain."""
    low = result.stderr.lower()
    if any(phrase in low for phrase in _ACCOUNTS_DOWN):
        raise SchedulerUnreachable(f"the accounting gave no answer ({result.said})")
    check_answer(result)


def keeps_no_accounts(result: CommandResult) -> bool:
    """Whether sacct says that this cluster has no accounting storage."""
    return any(phrase in (result.stderr + result.stdout).lower() for phrase in _NO_ACCOUNTS)
