"""Options of sbatch as a script gives them: those that the manifest passes on, and those that its keys mean. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ffdl_batch.domain.sbatch.option_table import BY_NAME, PATTERNS, TABLE, Form, Takes

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
    """Raise NotPassed for a value that sbatch cannot read as a number or a duration."""
    row = BY_NAME[option.name]
    pattern = row.pattern or PATTERNS.get(row.form, "")
    if not pattern or re.fullmatch(pattern, option.value or "", re.IGNORECASE | re.ASCII):
        return
    if option.value is None and row.takes is Takes.OPTIONAL:
        return
    message = f"--{option.name}: {(option.value or '')[:60]!r} is not a number or a time that sbatch accepts"
    raise NotPassed(message, f"see --{option.name} in sbatch(1)")
