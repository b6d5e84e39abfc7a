"""Interpret Slurm's words for the state of a job.

The words are from Slurm's src/common/slurm_protocol_defs.c (`job_state_string`, `job_state_string_compact`) and the
flags of slurm.h, 20.11 to 26.05. squeue and sacct print a flag instead of the base state if one is set. A word
that is not in the table means UNKNOWN, never an end, and is logged once.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache

from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_batch.host.fast_dataclass import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateMeaning:
    """The meaning of a word. `end` is set only if the phase is ENDED."""

    phase: Phase
    end: EndCause | None = None


def _ended(cause: EndCause) -> StateMeaning:
    return StateMeaning(Phase.ENDED, cause)


_PENDING, _RUNNING = StateMeaning(Phase.PENDING), StateMeaning(Phase.RUNNING)
_SUSPENDED, _COMPLETING = StateMeaning(Phase.SUSPENDED), StateMeaning(Phase.COMPLETING)
UNKNOWN = StateMeaning(Phase.UNKNOWN)

STATES: dict[str, StateMeaning] = {
    "PENDING": _PENDING,
    "RUNNING": _RUNNING,
    "SUSPENDED": _SUSPENDED,
    "COMPLETED": _ended(EndCause.SUCCESS),
    "CANCELLED": _ended(EndCause.CANCELLED),
    "FAILED": _ended(EndCause.FAILURE),
    "TIMEOUT": _ended(EndCause.TIMEOUT),
    "NODE_FAIL": _ended(EndCause.NODE_FAIL),
    "PREEMPTED": _ended(EndCause.PREEMPTED),
    "BOOT_FAIL": _ended(EndCause.LAUNCH_FAILED),
    "DEADLINE": _ended(EndCause.TIMEOUT),
    "OUT_OF_MEMORY": _ended(EndCause.OUT_OF_MEMORY),
    "COMPLETING": _COMPLETING,
    "STAGE_OUT": _COMPLETING,
    "CONFIGURING": _PENDING,
    "POWER_UP_NODE": _PENDING,
    "EXPEDITING": _PENDING,
    "REQUEUED": _PENDING,
    "REQUEUE_FED": _PENDING,
    "REQUEUE_HOLD": _PENDING,
    "SPECIAL_EXIT": _PENDING,
    "RESV_DEL_HOLD": _PENDING,
    "RESIZING": _RUNNING,
    "SIGNALING": _RUNNING,
    "STOPPED": _SUSPENDED,
    "REVOKED": _ended(EndCause.REVOKED),
    "LAUNCH_FAILED": _ended(EndCause.LAUNCH_FAILED),
    "RECONFIG_FAIL": _ended(EndCause.LAUNCH_FAILED),
}
COMPACT: dict[str, str] = {
    "PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "CD": "COMPLETED", "CA": "CANCELLED", "F": "FAILED",
    "TO": "TIMEOUT", "NF": "NODE_FAIL", "PR": "PREEMPTED", "BF": "BOOT_FAIL", "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY", "CG": "COMPLETING", "SO": "STAGE_OUT", "CF": "CONFIGURING", "RS": "RESIZING",
    "RQ": "REQUEUED", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "SE": "SPECIAL_EXIT", "ST": "STOPPED",
    "RV": "REVOKED", "RD": "RESV_DEL_HOLD", "SI": "SIGNALING",
}  # fmt: skip
# In a list of a base state and its flags, the first of these decides.
_FLAGS_FIRST = (
    "COMPLETING", "STAGE_OUT", "CONFIGURING", "POWER_UP_NODE", "EXPEDITING", "RESIZING", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING", "LAUNCH_FAILED",
    "RECONFIG_FAIL",
)  # fmt: skip
_warned: set[str] = set()


@lru_cache(maxsize=1024)  # a listing has the same few words for thousands of jobs
def interpret_state(text: str) -> tuple[str, StateMeaning]:
    """Return Slurm's long word and its meaning for a state that squeue or sacct printed.

    Accepts ``CANCELLED by 1000``, sacct's cut words (``OUT_OF_ME+``), the compact forms, and lists of a base
    state with flags (``FAILED,LAUNCH_FAILED``).
    """
    words = [_full_state(word) for word in re.split(r"[\s,|]+", re.sub(r"\s+by\s+\S+", "", text.strip())) if word]
    known = [word for word in words if word in STATES]
    if not words or len(known) < len(words):
        _warn_once(text)
        return text.strip() or "?", UNKNOWN
    decisive = next((flag for flag in _FLAGS_FIRST if flag in known), known[0])
    return decisive, STATES[decisive]


def is_held_for_good(phase: Phase, reason: str) -> bool:
    """Return whether Slurm put a waiting job on hold because it failed to start it, so that it waits for ever.

    The reasons are from `job_reason_string` (WAIT_MAX_REQUEUE, which MaxBatchRequeue leads to) and the descriptions
    that slurmctld sets itself ("launch failed requeued held", "launch failure limit exceeded requeued held", "user env
    retrieval failed requeued held"); some releases print them with underscores. A person who holds a job (JobHeldUser,
    JobHeldAdmin, ``scontrol requeuehold``) can release it.
    """
    said = reason.replace("_", " ").strip("( )").lower()
    return phase is Phase.PENDING and (said.startswith("jobholdmax") or said.endswith("requeued held"))


def has_nowhere_to_run(phase: Phase, reason: str) -> bool:
    """Return whether no node fits a waiting job, so that it waits for ever (WAIT_FAIL_CONSTRAINTS)."""
    return phase is Phase.PENDING and reason.strip("( )").lower() == "badconstraints"


def _full_state(word: str) -> str:
    upper = word.upper()
    if upper.endswith("+"):
        stem = upper.rstrip("+")
        fits = [name for name in STATES if name.startswith(stem)] if len(stem) > 2 else []
        upper = stem if stem in STATES else fits[0] if len(fits) == 1 else stem
    return COMPACT.get(upper, upper)


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning("Slurm reports the job state %r, which this release does not know; the job counts as unknown", text)
