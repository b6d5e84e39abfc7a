"""What Slurm's commands say when they refuse, know nothing or reach nobody, and what the adapter must conclude.

The questions are those of :mod:`tests.conformance.refusing`; a release's answers lie in its ``answers.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NoResources,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SchedulerUnreachable,
    SubmissionUncertain,
)
from ffdl_slurm.gateways import error_mapping
from ffdl_slurm.gateways.command_runner import CommandResult
from ffdl_slurm.observing import parsers

FILE = "answers.json"
DONE = "done"
"""The request was carried out, or there was nothing left to do."""
REFUSED, NOTHING_FITS, UNREACHABLE, UNCERTAIN = (
    kind.__name__ for kind in (InvalidRequest, NoResources, SchedulerUnreachable, SubmissionUncertain)
)
CONCLUSIONS: Mapping[str, str] = {
    "submit": DONE,
    "test-only": DONE,
    **{
        f"{command}-{fault}": REFUSED
        for command in ("submit", "test-only")
        for fault in ("partition", "account", "node", "option", "dependency", "rule-code")
    },
    # A job_submit.lua that returns slurm.ERROR, with a message to the user or without one.
    **{f"{command}-rule-message": RefusedBySite.__name__ for command in ("submit", "test-only")},
    "submit-rule-silent": NotUnderstood.__name__,
    "test-only-rule-silent": NotTaken.__name__,
    **{f"{command}-{fault}": NOTHING_FITS for command in ("submit", "test-only") for fault in ("memory", "gres")},
    **{f"cancel-{job}": DONE for job in ("unknown", "ended")},
    **{f"signal-{job}": DONE for job in ("unknown", "ended", "waiting")},
    **{f"withdraw-plainly-{job}": DONE for job in ("unknown", "ended", "running")},
    "excluded-unknown": DONE,
    "exclude-unknown": DONE,
    "exclude-ended": DONE,
    "exclude-running": REFUSED,
    "exclude-unknown-node": REFUSED,
    "sacct-unknown": DONE,
    # Nobody listens, or no credential can be made: the request did not leave this machine.
    **{
        f"{question}-away": UNREACHABLE
        for question in ("squeue", "sinfo", "submit", "test-only", "signal", "cancel", "withdraw", "exclude")
    },
    "submit-no-munge": UNREACHABLE,
    "sacct-away": UNREACHABLE,
    # Somebody listens and says nothing: who sent a job does not know what became of it.
    **{
        f"{question}-mute": UNREACHABLE
        for question in ("squeue", "sinfo", "test-only", "signal", "cancel", "withdraw", "exclude")
    },
    "submit-mute": UNCERTAIN,
}
"""By question. Not here: `withdraw-*` without `plainly`, an option that older releases do not know."""


def conclude(question: str, result: CommandResult) -> str:
    """DONE, or the name of the error that the gateway raises."""
    try:
        _judge(question.split("-", maxsplit=1)[0], question, result)
    except (InvalidRequest, SchedulerUnreachable, SubmissionUncertain) as error:
        return type(error).__name__
    return DONE


def _judge(command: str, question: str, result: CommandResult) -> None:
    """As :class:`ffdl_slurm.gateways.cli_gateway.CommandLineGateway` judges the end of that command."""
    if command == "submit":
        error_mapping.read_submission(result)
    elif command == "test":
        error_mapping.check_trial(result)
    elif command == "sacct":
        error_mapping.check_accounts(result)
        assert parsers.parse_sacct(result.stdout) == [], result
    elif command == "excluded":
        if not error_mapping.is_gone(result):
            error_mapping.check_answer(result)
            assert parsers.parse_excluded(result.stdout) is None, result
    elif command in ("squeue", "sinfo"):
        error_mapping.check_answer(result)
    else:
        error_mapping.check_request(result, question)


def check_answers(answers: Mapping[str, CommandResult]) -> None:
    """Every answer leads to the conclusion that is right for its question."""
    found = {name: conclude(name, answers[name]) for name in CONCLUSIONS}
    wrong = {name: (found[name], answers[name]) for name, right in CONCLUSIONS.items() if found[name] != right}
    assert not wrong, "\n".join(
        f"{name}: {kind}, not {CONCLUSIONS[name]}: {said}" for name, (kind, said) in wrong.items()
    )
    for job in ("unknown", "ended", "running"):
        newer = answers[f"withdraw-{job}"]
        assert error_mapping.is_misunderstood(newer) or conclude(f"withdraw-{job}", newer) == DONE, newer


def dump(answers: Mapping[str, CommandResult]) -> str:
    """The text of the file."""
    return json.dumps({name: asdict(answers[name]) for name in sorted(answers)}, indent=1) + "\n"


def load(path: Path) -> dict[str, CommandResult]:
    """The answers in a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: CommandResult(**{**fields, "argv": tuple(fields["argv"])}) for name, fields in found.items()}
