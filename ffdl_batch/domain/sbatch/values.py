"""Reads values of sbatch's options: flags, signals, mail events, dependencies (sbatch(1), Slurm 20.11 to 26.05).

The readers raise ValueError with a text of the form ``message; cure``.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence

MAIL_EVENTS = (
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
    "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
)  # fmt: skip
EXPEDITE = "expedite"
"""The value of ``--requeue`` for a job that starts again at once, before other jobs."""
_STAYS = "multiple-tasks-per-sharing"
UNTRAPPABLE = frozenset({"KILL", "STOP"})
LONGEST_LEAD_S = 65535
"""sig_time is a 16-bit number of seconds."""
_SIGNALS = {int(s): s.name.removeprefix("SIG") for s in signals.Signals}
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?([A-Za-z0-9+]+)(?:@(\d{1,5}))?", re.ASCII)
_DEPENDENCIES = frozenset(
    {"after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok", "expand", "singleton"}
)
_JOBS = re.compile(r"[\w.+-]+(:[\w.+-]+)*", re.ASCII)


def is_flag_set(value: str | None) -> bool:
    """Return whether an input variable of sbatch sets its flag: empty, ``yes``, or a number other than 0 (opt.c)."""
    if value is None:
        return False
    return value in ("", "yes") or (re.fullmatch(r"-?\d+", value, re.ASCII) is not None and int(value) != 0)


def signal_name(text: str) -> str:
    """Return the name of a signal, given by name or number, without SIG."""
    name = text.upper().removeprefix("SIG")
    if name.isascii() and name.isdigit() and len(name) < 4:
        name = _SIGNALS.get(int(name), name)
    if name not in _SIGNALS.values():
        raise ValueError(f"{_shown(name)} is not a signal; write a name such as USR2, TERM or INT")
    return name


def split_signal(text: str) -> tuple[str, int]:
    """Return the signal's name and the seconds before the time limit (0 if none) of ``[{R|B}:]name[@seconds]``."""
    match = _SIGNAL.fullmatch(text)
    if match is None:
        raise ValueError(f"{_shown(text)} is not sbatch's form of a signal; write [R:]name[@seconds], as USR1@120")
    return signal_name(match[1]), int(match[2] or 0)


def check_dependency(text: str) -> None:
    """Check the form of ``--dependency``; ids of jobs may be ids of trainings."""
    for item in re.split(r"[,?]", text):
        kind, colon, jobs = item.partition(":")
        if kind not in _DEPENDENCIES:
            known = ", ".join(sorted(_DEPENDENCIES))
            raise ValueError(f"{_shown(kind)} is not a kind of dependency; known are {known}")
        if (kind != "singleton" and not jobs) or (kind == "singleton" and colon):
            raise ValueError(f"{_shown(item)} names no job; write as afterok:training-0a1b2c3d4")
        if jobs and not _JOBS.fullmatch(jobs):
            raise ValueError(f"{_shown(jobs)} is not a list of jobs; join the ids by colons")


def read_events(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the events of ``--mail-type``, and the words that are none. NONE counts only if it is alone, as for
    repeated options of sbatch."""
    upper = [word.strip().upper() for word in words if word.strip()]
    events = tuple(word for word in upper if word in MAIL_EVENTS)
    unknown = tuple(word for word in upper if word not in MAIL_EVENTS)
    return tuple(word for word in events if word != "NONE") or events, unknown


def joined(option: str, before: str, value: str) -> str | None:
    """Return the value of an option that is given again, if what was given before it counts too; None if it does not.

    With sbatch 26.05 ``--requeue=expedite`` and ``multiple-tasks-per-sharing`` of ``--gres-flags`` stay. The events of
    ``--mail-type`` were joined before Slurm 25.05, in which the last option wins; here they are, and no mail is lost.
    """
    if option == "mail-type":
        return f"{before},{value}"
    if option == "requeue" and before == EXPEDITE and not value:
        return before
    if option == "gres-flags" and _STAYS in before.split(",") and "sharing" not in value:
        return f"{value},{_STAYS}"
    return None


def one_events(text: str) -> str:
    """Return the events of one ``--mail-type``: NONE among them is NONE alone."""
    return "NONE" if "NONE" in (word.strip().upper() for word in text.split(",")) else text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
