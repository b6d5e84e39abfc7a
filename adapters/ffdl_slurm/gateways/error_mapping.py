"""Map the messages of Slurm to errors. Pure: texts in, exceptions out.

The question is always whether the request may still be accepted. Only a failure to connect proves that nothing was
sent. A job counts as refused only if Slurm itself refuses it, for a reason that is known to be about the request
(:mod:`ffdl_slurm.gateways.error_messages`). An unknown message may come from a fault of the login node, so the request
is repeated.
"""

from __future__ import annotations

from enum import Enum

from ffdl_batch.domain.scheduler_errors import (
    ArraysRefused,
    InvalidRequest,
    NoResources,
    NotNow,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_slurm.gateways import error_messages
from ffdl_slurm.gateways.command_runner import CommandResult
from ffdl_slurm.observing.parsers import parse_submission
from ffdl_slurm.output_text import LONG, begin, clean, shorten


def read_submission(result: CommandResult, where: str = "") -> str:
    """Return the job id that sbatch printed. Raises a SchedulerError for its status and output."""
    job = parse_submission(result.stdout)
    if job is not None and result.returncode == 0:
        return job
    host = f" on {where}" if where else ""
    if result.returncode == 0 or result.was_killed or job is not None:
        raise SubmissionUncertain(
            f"sbatch{host} exited with status {result.returncode} and printed {result.message!r}; "
            "the job may or may not exist, so it is looked for before it is submitted again"
        )
    raise _explain_end(result, f"sbatch{host}")


def _explain_end(result: CommandResult, who: str) -> SchedulerError:
    """Return the error of an sbatch that printed no job id and was not killed."""
    text = result.stderr or result.stdout
    if error_messages.VERDICT_OF_SUBMISSION.search(text):
        return explain_refusal(text, who)
    if retries_itself(text):
        return _explain_retries(text)
    said, low = shorten(text, LONG), " ".join(text.lower().split())
    is_asked = not _has(low, error_messages.NOT_ASKED)
    status = f"{who} exited with status {result.returncode}"
    if not said or (is_asked and _has(low, error_messages.REPLY_LOST, error_messages.MAYBE_SENT)):
        return SubmissionUncertain(f"{status} and printed {said or 'nothing'!r}; the job is looked for first")
    if is_asked and _has(low, error_messages.NOT_SENT, error_messages.CREDENTIAL_TEXTS):
        return SchedulerUnreachable(f"{who} could not ask Slurm ({said}); nothing was submitted, and it is tried again")
    if _complains_of_options(result.returncode, text):
        return InvalidRequest(f"{who} refuses the job: {said}; correct the request and submit again")
    is_local = is_asked and (result.returncode in error_messages.NOT_RUN_CODES or _has(low, error_messages.LOCAL))
    not_now = f"{status} ({said}); nothing was submitted, and it is tried again"
    return NotTaken(not_now) if is_local else NotUnderstood(not_now, said)


def _complains_of_options(code: int, text: str) -> bool:
    """Return whether sbatch itself, not a shell or a wrapper, refuses the script or its options."""
    if code == error_messages.USAGE_CODE:
        return error_messages.USAGE.match(text.strip().rpartition("\n")[2]) is not None
    return code == 1 and error_messages.SCRIPT.search(text) is not None


def explain_refusal(text: str, who: str) -> SchedulerError:
    """Return the error for Slurm's message about a failed submission. The controller's answer decides. The lines before
    it count only if the answer shows that the controller did not answer, or that its answer could not be read."""
    said = shorten(text, LONG) or "nothing"
    before, answer = _split_verdict(text)
    low = " ".join(answer.lower().split())
    if _lost_reply(before, low):
        return SubmissionUncertain(f"{who} lost the controller's reply ({said}); the job is looked for first")
    if _was_not_sent(before, low):
        return SchedulerUnreachable(f"{who} could not reach Slurm's controller ({said}); nothing was submitted")
    return _explain_answer(before, low, said)


def _split_verdict(text: str) -> tuple[str, str]:
    """Return the lines before the controller's answer, and the answer. Without sbatch's words, all of it is the
    answer."""
    verdicts = list(error_messages.VERDICT_OF_SUBMISSION.finditer(text))
    return (text[: verdicts[-1].start()], verdicts[-1][1]) if verdicts else ("", text)


def _lost_reply(before: str, low: str) -> bool:
    """Return whether the request may have arrived at the controller, and its reply is unknown."""
    if _has(low, error_messages.NOT_SENT):  # an earlier controller may have got the request
        return _has(before.lower(), error_messages.REPLY_LOST)
    if _has(low, error_messages.REPLY_LOST):
        return True
    if _has(low, error_messages.UNREAD) and error_messages.UNTRUSTED.search(before):
        return True
    is_unclear = not low or (_has(low, error_messages.MAYBE_SENT) and not _has(low, error_messages.NO_CODE))
    return is_unclear and not _was_not_sent(before, low)


def _was_not_sent(before: str, low: str) -> bool:
    """Return whether the request never left this machine."""
    has_no_credential = error_messages.NO_CREDENTIAL.search(before) is not None and (
        not low or _has(low, error_messages.UNREAD, error_messages.MAYBE_SENT)
    )
    return has_no_credential or _has(low, error_messages.NOT_SENT, error_messages.CREDENTIAL_TEXTS)


def _explain_answer(before: str, low: str, said: str) -> SchedulerError:
    """Return the error that the controller's answer `low` means. `before` has the lines before it."""
    not_now = f"Slurm does not take the job now ({said}); it is tried again"
    # sbatch prints the name of a limit before this answer only.
    limits = _read_limits(before + said if error_messages.POLICY in low else low)
    if error_messages.POLICY in low and limits is _Limits.OF_SUBMISSION:
        return TooMany(not_now)
    if error_messages.EAGAIN in low and retries_itself(before):
        return _explain_retries(before)
    if limits is not _Limits.OF_REQUEST and _has(low, error_messages.DECLINED_FOR_NOW):
        return (TooMany if _has(low, error_messages.TOO_MANY) else SchedulerUnreachable)(not_now)
    if _has(low, error_messages.NO_CODE):
        return _explain_no_code(before) or NotUnderstood(not_now, said)
    if limits is _Limits.OF_REQUEST or _has(low, error_messages.REFUSED):
        if _has(low, error_messages.NO_RESOURCES):
            return NoResources(f"Slurm refuses the job: {said}; ask for less, or for other nodes, and submit again")
        kind_of_no = ArraysRefused if error_messages.NO_SUCH_ARRAY in low else InvalidRequest
        return kind_of_no(f"Slurm refuses the job: {said}; correct the request and submit again")
    return NotTaken(not_now) if _has(low, error_messages.PASSING) else NotUnderstood(not_now, said)


def retries_itself(printed: str) -> bool:
    """Return whether sbatch prints that the controller did not accept the job, and that it submits the job again."""
    return error_messages.RETRIES.search(printed) is not None


def _explain_retries(text: str) -> NotTaken:
    """Return the error of an sbatch that retries. The controller returns the same code if it has no room for more jobs,
    and if a job_submit plugin refuses this job with EAGAIN, usually with a message. In both cases the same request may
    succeed later, so the job waits and does not fail."""
    not_now = f"Slurm does not take the job now ({shorten(text, LONG)}); it is tried again"
    return NotTaken(not_now) if _site_message(text) else TooMany(not_now)


def _explain_no_code(before: str) -> RefusedBySite | None:
    """Return the error for SLURM_ERROR with a message of the site; None without a message, because the cause is
    unknown."""
    message = _site_message(before)
    if not message:
        return None
    return RefusedBySite(f"the site refuses the job: {message}; change the request as the site asks and submit again")


def _site_message(before: str) -> str:
    """Return the message of a job_submit plugin on one line; "" if there is none."""
    printed = error_messages.SITE_MESSAGE.search(before)
    if printed is None:
        return ""
    return begin(" ".join(clean(line) for line in error_messages.SITE_PHRASES.findall(printed[0])), LONG)


class _Limits(Enum):
    """The kind of limits that a refusal names."""

    NONE = "none"
    OF_SUBMISSION = "of submission"
    OF_REQUEST = "of the request"


def _has(text: str, *tables: tuple[str, ...]) -> bool:
    return any(phrase in text for phrases in tables for phrase in phrases)


def _read_limits(text: str) -> _Limits:
    """Return which limits the text names: a limit of the owner's jobs, or a limit that the request can never meet."""
    named = error_messages.LIMIT.findall(text)
    if not named:
        return _Limits.NONE
    return _Limits.OF_SUBMISSION if any("submit" in name.lower() for name in named) else _Limits.OF_REQUEST


def check_trial(result: CommandResult) -> None:
    """Check the result of ``sbatch --test-only``. It submits no job, so a lost reply leaves nothing to look for, and
    the daemon does not repeat it. Raises InvalidRequest, TooMany, NotTaken, SchedulerUnreachable."""
    if result.returncode == 0:
        return
    why = SchedulerUnreachable("") if result.was_killed else _explain_end(result, "sbatch --test-only")
    if isinstance(why, InvalidRequest):
        raise why
    said = shorten(result.text, LONG) or "nothing"
    if isinstance(why, TooMany):
        raise TooMany(f"Slurm would not take the job now ({said}); nothing was submitted")
    if isinstance(why, NotTaken):
        raise NotTaken(
            f"sbatch --test-only exited with status {result.returncode} ({said}); nothing was submitted, try again"
        )
    raise SchedulerUnreachable(
        f"sbatch --test-only was not answered ({result.message}); nothing was submitted, try again"
    )


def is_gone(result: CommandResult) -> bool:
    """Return whether the command reports that the job does not exist any more."""
    return result.returncode > 0 and _has(result.text.lower(), error_messages.GONE)


def is_misunderstood(result: CommandResult) -> bool:
    """Return whether the command does not know one of its options, as in an older release."""
    return result.returncode > 0 and "unrecognized option" in result.stderr.lower()


def check_request(result: CommandResult, what: str) -> None:
    """Check the result of a request about a job. A job that is gone is no error. Raises SchedulerUnreachable, NotNow if
    the request did not reach the nodes of the job, else InvalidRequest."""
    if result.returncode < 0:
        raise SchedulerUnreachable(f"{what} was not answered ({result.argv[0]} was killed); it is tried again")
    if result.returncode in error_messages.NO_MESSAGE and not result.text.strip():
        return
    if result.returncode != 0:
        check_refused_request(result.text, what)


def check_refused_request(text: str, what: str) -> None:
    """Check Slurm's message about a signal or a cancellation that failed, as :func:`check_request`."""
    low, said = text.lower(), shorten(text) or "nothing"
    _check_steps(text, what)
    if _has(low, error_messages.GONE):
        return
    if _has(low, error_messages.UNANSWERED):
        raise SchedulerUnreachable(f"{what} was not answered ({said}); it is tried again")
    raise InvalidRequest(f"{what} was refused: {said}")


def _check_steps(text: str, what: str) -> None:
    """scancel has the list of jobs before it signals their steps, and asks the nodes itself: one that does not answer
    is no outage of the scheduler. Raises NotNow where that is all that went wrong."""
    verdicts = [line.lower() for line in error_messages.VERDICT.findall(text)]
    unanswered = [
        line for line in verdicts if _has(line, error_messages.UNANSWERED) and not _has(line, error_messages.GONE)
    ]
    if unanswered and all(error_messages.OF_A_STEP in line and "slurm controller" not in line for line in unanswered):
        raise NotNow(f"{what} did not reach all nodes ({shorten(text)}); it is repeated")


def check_requests(result: CommandResult, what: str) -> None:
    """Check the result of a request about several jobs, as :func:`check_request`. Jobs that are gone do not hide other
    answers."""
    if result.returncode > 0:
        _check_steps(result.text, what)
        if _has(result.text.lower(), error_messages.UNANSWERED):
            raise SchedulerUnreachable(f"{what} was not answered ({result.message}); it is tried again")
    check_request(result, what)


def check_answer(result: CommandResult) -> None:
    """Check the result of a query. Raises SchedulerUnreachable, because a failure says nothing about jobs.

    Standard error of a successful command is ignored: with an outdated line in slurm.conf, every command prints a
    warning.
    """
    if result.returncode != 0:
        raise SchedulerUnreachable(f"{result.argv[0]} gave no answer ({result.returncode}: {result.message})")


def check_accounts(result: CommandResult) -> None:
    """sacct's end. Its exit code is an errno cut to eight bits (src/sacct/sacct.c), so it may be 0 in vain."""
    if _has(result.stderr.lower(), error_messages.ACCOUNTS_DOWN):
        raise SchedulerUnreachable(f"the accounting gave no answer ({result.message})")
    check_answer(result)


def keeps_no_accounts(result: CommandResult) -> bool:
    """Return whether sacct reports that this cluster has no accounting storage."""
    return _has((result.stderr + result.stdout).lower(), error_messages.NO_ACCOUNTS)
