"""The job options of ``ffdl-submit``: the options of sbatch that have a help text in the table, and three of its own.

Their values are sent to the daemon unchanged (``Submission.options``). The parsers of the manifest read them there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from ffdl_batch.domain.sbatch.option_table import BY_NAME, BY_VARIABLE, TABLE, OptionRow, Takes
from ffdl_batch.domain.sbatch.values import EXPEDITE, is_flag_set
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option."""

    name: str
    letter: str
    """The letter of the short option; "" for none."""
    metavar: str
    """The name of the value; "" for a flag."""
    help: str
    repeats: bool = False
    """Whether the option can be repeated. Its values are joined by commas."""
    optional: bool = False
    """Whether the value may be left out. It follows ``=`` only, as in sbatch."""

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return "job_" + self.name.replace("-", "_")


def _option_of(row: OptionRow) -> JobOption:
    may_stand_alone = bool(row.metavar) and row.takes is Takes.OPTIONAL
    return JobOption(row.name, row.letter, row.metavar, row.help, row.repeats, may_stand_alone)


_OWN = (
    JobOption("cpus", "", "N", "CPUs of each learner; the manifest's word for --cpus-per-task."),
    JobOption("learners", "", "N", "Number of learners (processes of the training, one allocation)."),
    JobOption(
        "network",
        "",
        "LEVEL",
        "Network isolation: auto, none, job, egress:HOST:PORT,... or host. Not Slurm's --network.",
    ),
)
JOB_OPTIONS = (
    *(_option_of(row) for row in TABLE if row.help),
    *_OWN,
)
FLAGS = frozenset(option.name for option in JOB_OPTIONS if not option.metavar)
MAY_STAND_ALONE = frozenset(f"--{option.name}" for option in JOB_OPTIONS if option.optional)
"""Options whose value may be left out, as they are written then."""


CLUSTERS, SBATCH_CLUSTERS = "SLURM_CLUSTERS", "SBATCH_CLUSTERS"
TAKEN = {variable: row.name for variable, row in BY_VARIABLE.items() if row.help}
IGNORED = {
    **{
        variable: row.refusal
        for variable, row in sorted(BY_VARIABLE.items())
        if row.refusal and variable != SBATCH_CLUSTERS
    },
    "SBATCH_RUNTIME": BY_NAME["container"].refusal,
    "SLURM_EXIT_ERROR": "the exit codes of ffdl-submit do not change",
    "SLURM_UMASK": "set the umask of the shell",
}
"""Variables of sbatch that ``ffdl-submit`` does not read, and why."""


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """Options by name, and warnings about variables that sbatch reads and ``ffdl-submit`` does not."""

    options: Mapping[str, str]
    warnings: tuple[str, ...]


def read_environment(environ: Mapping[str, str]) -> FromEnvironment:
    """Return the options of the job that are set in the environment. Raises UsageError for SBATCH_CLUSTERS."""
    if environ.get(SBATCH_CLUSTERS) and not environ.get(CLUSTERS):  # it overrides SBATCH_CLUSTERS
        raise click.UsageError(f"{SBATCH_CLUSTERS}={environ[SBATCH_CLUSTERS]}: {BY_NAME['clusters'].refusal}")
    options: dict[str, str] = {}
    for variable, name in TAKEN.items():
        _take(options, name, environ.get(variable))
    for option in JOB_OPTIONS:
        _take(options, option.name, environ.get(f"FFDL_{option.name.upper().replace('-', '_')}"))
    warnings = [f"{variable} is ignored: {why}" for variable, why in IGNORED.items() if variable in environ]
    return FromEnvironment(options, tuple(warnings))


def absolute_output(pattern: str) -> str:
    """Return ``--output`` relative to the working directory of the command, as in sbatch; the daemon has another one.
    Raises UsageError if the daemon runs on another host, which has no such directory."""
    if not pattern or pattern.startswith("/"):
        return pattern
    from ffdl_batch.cli.connection import find_other_host

    if host := find_other_host():
        raise click.UsageError(f"--output {pattern}: the file is written on {host}; use an absolute path")
    return os.path.join(Path.cwd(), pattern)  # noqa: PTH118


def _take(options: dict[str, str], name: str, value: str | None) -> None:
    if name in FLAGS or (name == "requeue" and value != EXPEDITE):
        if is_flag_set(value):
            options[name] = ""
            options.pop({"requeue": "no-requeue", "no-requeue": "requeue"}.get(name, ""), None)
    elif value or (value is not None and f"--{name}" in MAY_STAND_ALONE):
        options[name] = absolute_output(value) if name == "output" else value
