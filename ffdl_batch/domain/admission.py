"""Encode and read the requests in which a daemon asks the hub to admit new jobs, and the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from ffdl_batch.host.fast_dataclass import dataclass

MOST_JOBS = 1000
"""Jobs in one request."""
LONGEST_TEXT = 200
LONGEST_REASON = 500
_MOST_GPUS, _MOST_HOURS = 1e6, 1e5


class Word(StrEnum):
    """The hub's answer about a job."""

    GO = "go"
    LATER = "later"
    """It is not its turn yet; others are being handed over."""
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Claim:
    """A job, and what it will use."""

    job: str
    account: str = ""
    """The scheduler's account of the job; "" = none is given."""
    gpus: float = 0.0
    """GPUs of all learners."""
    gpu_type: str = ""
    hours: float = 0.0
    """Time limit; 0 = none is given."""
    account_is_checked: bool = True
    """Whether the scheduler checks that the user may use the account. Else an account of no tenant counts as none."""
    continues: bool = False
    """Whether a scaler has changed the size of the job. If the hub has admitted the job, it counts the new size, and
    neither delays nor refuses the job."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What may happen to a job, and why not; `reason` is "" for GO and LATER."""

    word: Word
    reason: str = ""


GO, LATER = Answer(Word.GO), Answer(Word.LATER)


def encode_claims(claims: Sequence[Claim], handed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the body of a request. `handed` are admitted jobs about which the scheduler has answered."""
    jobs = [
        [one.job, one.account, one.gpus, one.gpu_type, one.hours, one.account_is_checked, one.continues]
        for one in claims
    ]
    return {"jobs": jobs, "handed": list(handed)}


def read_claims(plain: object) -> list[Claim]:
    """Read the body of a request. Raises ValueError."""
    rows = plain.get("jobs") if isinstance(plain, dict) else None
    if not isinstance(rows, list) or len(rows) > MOST_JOBS:
        raise ValueError(f"jobs must be a list of at most {MOST_JOBS} jobs")
    return [_read_claim(row) for row in rows]


def _read_claim(row: object) -> Claim:
    match row:
        case [str(job), str(account), float() | int() as gpus, str(gpu_type), float() | int() as hours, *flags] if (
            job
            and len(flags) in (0, 2)
            and all(isinstance(one, bool) for one in flags)
            and max(map(len, (job, account, gpu_type))) <= LONGEST_TEXT
            and 0 <= gpus <= _MOST_GPUS
            and 0 <= hours <= _MOST_HOURS
        ):
            return Claim(job, account, float(gpus), gpu_type, float(hours), *map(bool, flags))
    raise ValueError(
        "each job must be a list: id, account, number of GPUs, GPU type, hours, and optionally two booleans"
    )


def encode_answers(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return the body of an answer."""
    return {"jobs": {job: [answer.word.value, answer.reason] for job, answer in answers.items()}}


def read_answers(plain: object) -> dict[str, Answer]:
    """Read the body of an answer. Raises ValueError."""
    rows = plain.get("jobs") if isinstance(plain, dict) else None
    if not isinstance(rows, dict):
        raise ValueError("the hub's answer has no jobs")
    found: dict[str, Answer] = {}
    for job, row in rows.items():
        match row:
            case [str(word), str(reason)]:
                found[job] = Answer(Word(word), reason[:LONGEST_REASON])
            case _:
                raise ValueError(f"the hub's answer about {job} is not readable")
    return found


def read_ids(plain: object, key: str) -> list[str]:
    """Read a list of ids of jobs. Raises ValueError."""
    ids = plain.get(key) if isinstance(plain, dict) else None
    if not isinstance(ids, list) or len(ids) > MOST_JOBS or not all(isinstance(one, str) for one in ids):
        raise ValueError(f"{key} must be a list of at most {MOST_JOBS} strings")
    return ids
