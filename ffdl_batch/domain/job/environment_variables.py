"""Checks which environment variables a learner can be given. Runs on Python 3.9."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
RUNTIME_PREFIXES = ("APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_")
"""Settings of the container runtime: users have them in their profiles, but learners cannot be given them."""
OF_THE_SHELL = frozenset(
    "BASHOPTS BASH_VERSINFO BASHPID DIRSTACK EUID FUNCNAME GID GROUPS PPID SHELLOPTS UID".split()  # noqa: SIM905
)
"""bash does not let a program set these (bash(1)), nor does Apptainer's interpreter."""
LONGEST_BYTES = 128 * 1024 - 1
"""Maximum of one variable with its name (Linux's MAX_ARG_STRLEN without the NUL at its end, execve(2))."""
MOST_BYTES = 2 * 1024 * 1024 - LONGEST_BYTES
"""Maximum of all variables of a user: arguments and variables of a program have 2 MiB together, a quarter of the usual
stack limit of 8 MiB (execve(2)). The rest is for the arguments and the platform's own variables."""


def why_refused(name: str) -> str:
    """Return why no learner can be given a variable of this name; "" = it can."""
    if not NAME.fullmatch(name):
        return f"{name[:60]!r} is not a variable's name; use letters, digits and _"
    if name in OF_THE_SHELL:
        return f"{name} belongs to the shell and cannot be given to a learner; leave it out"
    if name.startswith(RUNTIME_PREFIXES):
        return f"{name} belongs to the container runtime and cannot be given to a learner; leave it out"
    return ""


def why_too_long(name: str, value: str) -> str:
    """Return why no program can be started with this variable; "" if one can."""
    size = _size(name, value)
    if size <= LONGEST_BYTES:
        return ""
    return f"{name[:60]} has {size} bytes; Linux starts no program with more than {LONGEST_BYTES} in one variable"


def why_too_many(variables: Mapping[str, str]) -> str:
    """Return why no program can be started with all these variables; "" if one can."""
    size = sum(_size(name, value) + 1 for name, value in variables.items())
    if size <= MOST_BYTES:
        return ""
    return f"the job's variables have {size} bytes; Linux starts no program with more than {MOST_BYTES} in all"


def _size(name: str, value: str) -> int:
    return len(f"{name}={value}".encode("utf-8", "surrogatepass"))
