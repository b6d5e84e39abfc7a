"""Reads values with the meaning that sbatch gives them (sbatch(1), Slurm 20.11 to 26.05).

It checks their form only: the cluster alone knows whether a partition or a GRES exists.
"""

from __future__ import annotations

import re
import signal as signals

from ffdl_batch.domain.job.array import read_indexes
from ffdl_batch.domain.sbatch.begin_time import read_begin_time
from ffdl_batch.domain.sbatch.script_options import NotPassed, is_moment, read_passed
from ffdl_batch.manifest.models.scalars import kind_of, read_label, read_number, refusal, shown

MAIL_EVENTS = (
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
    "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
)  # fmt: skip
SIGNAL_NAMES = tuple(s.name.removeprefix("SIG") for s in signals.Signals)
_SIGNAL_NUMBERS = {int(s): s.name.removeprefix("SIG") for s in signals.Signals}
UNTRAPPABLE = frozenset({"KILL", "STOP"})
_DEPENDENCIES = frozenset(
    {"after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok", "expand", "singleton"}
)
_LEAP_YEAR = 1_830_000_000
"""A moment in a year with a 29 February."""
_MIG_PROFILE = re.compile(r"\d+g\.", re.ASCII)
"""How the type of a MIG device begins, as 1g.10gb: it is no count."""
_GRES_NAME = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+/)?[A-Za-z_][\w.-]*(:\w[\w.-]*)?", re.ASCII)
"""Slurm's names, and Kubernetes' names of extended resources: ``example.com/npu``."""


def read_signal_name(value: object) -> str:
    """A signal's name without SIG that a process can catch; a number is translated; "" for nothing."""
    text = read_label(value).upper().removeprefix("SIG")
    name = _SIGNAL_NUMBERS.get(int(text), text) if text.isascii() and text.isdigit() and len(text) < 4 else text
    if name and name not in SIGNAL_NAMES:
        raise refusal(f"{shown(text)} is not a signal", "write a name such as USR2, TERM or INT")
    if name in UNTRAPPABLE:
        raise refusal(f"no program can catch {name}", "write a signal that the training handles, as USR2")
    return name


def read_signal(value: object) -> str:
    """sbatch's ``[{R|B}:]name[@seconds]``."""
    text = read_label(value)
    match = re.fullmatch(r"(?:[RB]{1,2}:)?([A-Za-z0-9+]+)(@\d{1,5})?", text, re.ASCII)
    if text and match is None:
        raise refusal(f"{shown(text)} is not sbatch's form of a signal", "write [R:]name[@seconds], as USR1@120")
    if match is not None:
        read_signal_name(match[1])
    return text


def read_mail_events(value: object) -> tuple[str, ...]:
    """sbatch's --mail-type words, as one comma-separated text or a list."""
    items = value if isinstance(value, list) else read_label(value).split(",")
    words = [read_label(item).upper() for item in items]
    for word in words:
        if word and word not in MAIL_EVENTS:
            raise refusal(f"{shown(word)} is not an event that mail is sent for", f"known are {', '.join(MAIL_EVENTS)}")
    return tuple(word for word in words if word)


def read_gres(value: object) -> object:
    """Generic resources beside GPUs, ``name[:type][:count],…`` or a mapping, as a mapping of name to count."""
    if value is None:
        return {}
    if isinstance(value, str):
        return split_gres(value)
    if not isinstance(value, dict):
        raise refusal(f"a text or a mapping is needed here, not {kind_of(value)}", "write name:count")
    return value


def read_gres_name(value: object) -> str:
    """``name`` or ``name:type`` of a generic resource that is no GPU."""
    name = read_label(value)
    if name != value or not _GRES_NAME.fullmatch(name):
        raise refusal(f"{shown(str(value))} is not the name of a resource", "write name or name:type")
    if name.split(":")[0] == "gpu":
        raise refusal("GPUs have keys of their own", "write `gpus: 2` and `gpu_type: v100` at the top level")
    return name


def read_gres_count(value: object) -> int:
    """How many each learner has, from 1."""
    count = value if isinstance(value, int) else _gres_count(value)
    if count == 0:
        raise refusal("0 asks for nothing", "leave it out, or write a whole number from 1 up")
    return count


def split_gres(text: str) -> dict[str, int]:
    """``gpu:v100:2,shard:4`` → {"gpu:v100": 2, "shard": 4}; a missing count is 1; ``none`` is nothing."""
    found: dict[str, int] = {}
    for item in read_label(text).split(","):
        name, count = item.strip(), 1
        head, colon, last = name.rpartition(":")
        if colon and last[:1].isdigit() and not _MIG_PROFILE.match(last):
            name, count = head, _gres_count(last)
        if item.strip() in ("", "none"):
            continue
        if not _GRES_NAME.fullmatch(name):
            raise refusal(f"{shown(item)} is not a generic resource", "write name[:type]:count, as gpu:v100:2")
        if name in found:
            raise refusal(f"{shown(name)} is named twice", "write it once")
        found[name] = count
    return found


def _gres_count(value: object) -> int:
    number = read_number(value)
    if number is None or number != number.to_integral_value() or not 0 <= number < 2**31:
        raise refusal(f"{shown(str(value or ''))} is not a count of a resource", "write a whole number from 1 up")
    return int(number)


def read_array(value: object) -> str:
    """sbatch's --array: ``0-9%2``, ``1,3,5``, ``0-12:4``."""
    text = read_label(value)
    try:
        if text:
            read_indexes(text)
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        raise refusal(message, cure) from None
    return text


def read_begin(value: object) -> str:
    """sbatch's --begin and --deadline. Whether the day exists in this year is known at submission."""
    text = read_label(value)
    try:
        if text:
            read_begin_time(text, _LEAP_YEAR, ((0, 0),))
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        raise refusal(message, cure) from None
    return text


def read_dependency(value: object) -> str:
    """sbatch's --dependency, with training ids where sbatch has job ids."""
    text = read_label(value)
    if not text:
        return text
    for item in re.split(r"[,?]", text):
        kind, colon, jobs = item.partition(":")
        if kind not in _DEPENDENCIES:
            raise refusal(f"{shown(kind)} is not a kind of dependency", f"known are {', '.join(sorted(_DEPENDENCIES))}")
        if (kind != "singleton" and not jobs) or (kind == "singleton" and colon):
            raise refusal(f"{shown(item)} names no job", "write as afterok:training-0a1b2c3d4")
        if jobs and not re.fullmatch(r"[\w.+-]+(:[\w.+-]+)*", jobs, re.ASCII):
            raise refusal(f"{shown(jobs)} is not a list of jobs", "join the ids by colons")
    return text


def read_slurm_args(value: object) -> tuple[str, ...]:
    """Read the long options that are passed to sbatch."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise refusal(f"a list is needed here, not {kind_of(value)}", "write one option per item, as - --exclusive")
    return tuple(_slurm_arg(read_label(item)) for item in value)


def _slurm_arg(text: str) -> str:
    try:
        option = read_passed(text)
    except NotPassed as error:
        raise refusal(error.message, error.cure) from None
    if is_moment(option) and option.value is not None:
        read_begin(option.value)
    return text
