"""Reads values with the meaning that sbatch gives them (sbatch(1), Slurm 20.11 to 26.05).

It checks their form only: the cluster alone knows whether a partition or a GRES exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from ffdl_batch.domain.job.array import read_indexes
from ffdl_batch.domain.quantity import parse_gres_count
from ffdl_batch.domain.sbatch.begin_time import LEAP_YEAR, read_begin_time
from ffdl_batch.domain.sbatch.script_options import NotPassed, is_moment, read_passed
from ffdl_batch.domain.sbatch.values import (
    EXPEDITE,
    MAIL_EVENTS,
    UNTRAPPABLE,
    check_dependency,
    read_events,
    signal_name,
    split_signal,
)
from ffdl_batch.manifest.models.scalars import kind_of, read_flag, read_label, read_number, refusal, shown

Value = TypeVar("Value")
_MIG_PROFILE = re.compile(r"\d+g\.", re.ASCII)
"""How the type of a MIG device begins, as 1g.10gb: it is no count."""
_GRES_NAME = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+/)?[A-Za-z_][\w.-]*(:\w[\w.-]*)?", re.ASCII)
"""Slurm's names, and Kubernetes' names of extended resources: ``example.com/npu``."""


def read_signal_name(value: object) -> str:
    """Read the name or number of a signal that a process can catch, as a name without SIG; "" for nothing."""
    text = read_label(value)
    name = _checked(signal_name, text) if text else ""
    if name in UNTRAPPABLE:
        raise refusal(f"no program can catch {name}", "write a signal that the training handles, as USR2")
    return name


def read_signal(value: object) -> str:
    """Read ``--signal``: ``[{R|B}:]name[@seconds]``."""
    text = read_label(value)
    if text:
        read_signal_name(_checked(split_signal, text)[0])
    return text


def read_requeue(value: object) -> bool | str | None:
    """Read ``batch.requeue``: true, false, or ``expedite``; None for nothing."""
    is_word = isinstance(value, str) and value.strip().lower() == EXPEDITE
    return EXPEDITE if is_word else read_flag(value)


def read_mail_events(value: object) -> object:
    """Read ``--mail-type``: one comma-separated text; the items of a list are not read yet."""
    return value if isinstance(value, list) else _read_events(read_label(value).split(","))


def read_mail_event(value: object) -> str:
    """Read one item of a list of events; "" for nothing."""
    return "".join(_read_events([read_label(value)]))


def only_events(events: tuple[str, ...]) -> tuple[str, ...]:
    """Return the events of a list without empty items, and NONE only if it is alone."""
    return read_events(events)[0]


def _read_events(words: list[str]) -> tuple[str, ...]:
    events, unknown = read_events(words)
    if unknown:
        known = ", ".join(MAIL_EVENTS)
        raise refusal(f"{shown(unknown[0])} is not an event that mail is sent for", f"known are {known}")
    return events


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
    """How many each learner has, from 1; K, M, G, T and P are powers of 1024, as in Slurm."""
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
    amount = parse_gres_count(value.strip()) if isinstance(value, str) and value.strip()[-1:].isalpha() else None
    if amount is not None:
        return amount
    number = read_number(value)
    if number is None or number != number.to_integral_value() or not 0 <= number < 2**63:
        cure = "write a whole number from 1 up, or one with K, M, G, T or P"
        raise refusal(f"{shown(str(value or ''))} is not a count of a resource", cure)
    return int(number)


def read_array(value: object) -> str:
    """Read ``--array``: ``0-9%2``, ``1,3,5``, ``0-12:4``."""
    text = read_label(value)
    if text:
        _checked(read_indexes, text)
    return text


def read_begin(value: object) -> str:
    """Read ``--begin`` or ``--deadline``. Whether the day exists in this year is known at submission."""
    text = read_label(value)
    if text:
        _checked(lambda moment: read_begin_time(moment, LEAP_YEAR, ((0, 0),)), text)
    return text


def read_dependency(value: object) -> str:
    """Read ``--dependency``, with ids of trainings where sbatch has ids of jobs."""
    text = read_label(value)
    if text:
        _checked(check_dependency, text)
    return text


def _checked(read: Callable[[str], Value], text: str) -> Value:
    try:
        return read(text)
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        raise refusal(message, cure) from None


def read_slurm_args(value: object) -> object:
    """Return the list of long options that are passed to sbatch, whose items are not read yet."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise refusal(f"a list is needed here, not {kind_of(value)}", "write one option per item, as - --exclusive")
    return value


def read_slurm_arg(value: object) -> str:
    """Read one long option that is passed to sbatch."""
    text = read_label(value)
    try:
        option = read_passed(text)
    except NotPassed as error:
        raise refusal(error.message, error.cure) from None
    if is_moment(option) and option.value is not None:
        read_begin(option.value)
    return text
