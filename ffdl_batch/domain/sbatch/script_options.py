"""Options of sbatch as a script gives them: those that the manifest passes on, and those that its keys mean. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from operator import attrgetter

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.quantity import format_time_limit
from ffdl_batch.domain.sbatch.begin_time import EXAMPLES, read_absolute, sbatch_time, to_absolute
from ffdl_batch.domain.sbatch.option_table import ARGS, BY_NAME, PATTERNS, TABLE, Form, Takes
from ffdl_batch.domain.sbatch.values import EXPEDITE
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.time_zone import UtcOffsets

_LONG_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """A long option; `value` is None for one without argument."""

    name: str
    value: str | None = None


class NotPassed(ValueError):
    """An item of `batch.slurm.args` that is not passed to sbatch, and what to write instead."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message} ({cure})")
        self.message = message
        self.cure = cure


def with_absolute_times(
    batch: BatchOptions, now: float, offsets: UtcOffsets
) -> tuple[BatchOptions, tuple[Finding, ...]]:
    """Return the options with absolute times for `begin` and ``--deadline``, and the errors of those that do not
    exist, and of a deadline that has passed. Raises NotPassed for items of `batch.slurm.args` that the manifest
    refuses."""
    wrong: list[Finding] = []

    def absolute(text: str, path: str, *, in_future: bool = False) -> str:
        try:
            found = to_absolute(text, now, offsets)
        except ValueError as error:
            message, _, cure = str(error).partition("; ")
            wrong.append(Finding(Severity.ERROR, message, cure, path=path))
            return text
        if in_future and (read_absolute(found) or 0) <= now:
            message = f"the deadline {text!r} is not in the future"
            wrong.append(Finding(Severity.ERROR, message, f"write a later time, as {EXAMPLES}", path=path))
        return found

    def absolute_arg(number: int, arg: str) -> str:
        option = read_passed(arg)
        if not is_moment(option) or option.value is None:
            return arg
        return f"--{option.name}={absolute(option.value, path_of_arg(number), in_future=True)}"

    args = tuple(absolute_arg(number, arg) for number, arg in enumerate(batch.slurm_args))
    begin = absolute(batch.begin, "batch.begin") if batch.begin else ""
    return replace(batch, begin=begin, slurm_args=args), tuple(wrong)


def path_of_arg(number: int) -> str:
    """Return the place of an item of `batch.slurm.args` in the manifest."""
    return f"{ARGS}[{number}]"


def scheduling_options(batch: BatchOptions) -> list[SbatchOption]:
    """Return the options that `batch` asks for, in the order of the table, and then those that it passes on."""
    found: list[SbatchOption] = []
    for row in TABLE:
        value: object = attrgetter(row.field)(batch) if row.field else None
        if isinstance(value, bool):
            word = EXPEDITE if row.name == "requeue" and batch.expedite else None
            found += [SbatchOption(row.name, word)] if value is row.flag else []
        elif value:
            found.append(SbatchOption(row.name, _argument(value)))
    found += map(read_passed, batch.slurm_args)
    return [replace(one, value=sbatch_time(one.value)) if one.value and is_moment(one) else one for one in found]


def _argument(value: object) -> str:
    if isinstance(value, int):
        return format_time_limit(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def read_passed(text: str) -> SbatchOption:
    """Return an item of `batch.slurm.args`, ``--name`` or ``--name=value``. Raises NotPassed."""
    match = _LONG_OPTION.fullmatch(text)
    if match is None:
        shown = repr(text if len(text) <= 60 else text[:57] + "...")
        raise NotPassed(f"{shown} is not a long sbatch option", "write --name or --name=value as one item")
    name, row = match[1], BY_NAME.get(match[1])
    if row is None:
        allowed = ", ".join(sorted(row.name for row in TABLE if row.is_passed))
        raise NotPassed(f"--{name} is not among the options that may be passed on", f"allowed are {allowed}")
    if not row.is_passed and row.key:
        raise NotPassed(f"--{name} has a key of its own", f"use {row.key}")
    if not row.is_passed:
        raise NotPassed(f"--{name} cannot be passed on", row.refused or "it is an option of ffdl-submit")
    return SbatchOption(name, match[2])


def is_moment(option: SbatchOption) -> bool:
    """Whether the value of the option is a time that sbatch reads in its own time zone."""
    return BY_NAME[option.name].form is Form.MOMENT


def check_number(option: SbatchOption) -> None:
    """Raise NotPassed for a value that sbatch does not read as what the option takes."""
    row = BY_NAME[option.name]
    pattern = row.pattern or PATTERNS.get(row.form, "")
    if not pattern or re.fullmatch(pattern, option.value or "", re.IGNORECASE | re.ASCII):
        return
    if option.value is None and row.takes is Takes.OPTIONAL:
        return
    message = f"--{option.name}: {(option.value or '')[:60]!r} is not a value that sbatch accepts"
    raise NotPassed(message, f"see --{option.name} in sbatch(1)")
