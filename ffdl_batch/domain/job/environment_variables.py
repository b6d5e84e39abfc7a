"""Checks which environment variables a learner can be given. Runs on Python 3.9."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
RUNTIME_PREFIXES = ("APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_")
"""Settings of the container runtime: users have them in their profiles, but learners cannot be given them."""
OF_THE_SHELL = frozenset({
    "BASH", "BASHOPTS", "BASHPID", "BASH_ARGV0", "BASH_COMMAND", "BASH_EXECUTION_STRING", "BASH_MONOSECONDS",
    "BASH_SUBSHELL", "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME",
    "EPOCHSECONDS", "EUID", "FUNCNAME", "GID", "GROUPS", "HISTCMD", "IFS", "LINENO", "OLDPWD", "OPTERR", "OPTIND",
    "PPID", "PS1", "PS2", "PS4", "PWD", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID", "_",
})  # fmt: skip
"""Variables that bash does not take from its environment, or changes at once. Found by starting bash 5.1, 5.2 and 5.3
with each of them. bash ignores PS4 only as root. Apptainer's interpreter refuses DIRSTACK, FUNCNAME, GID and GROUPS."""
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
        return f"{name} belongs to the shell and cannot be given to a learner; leave it out, or use another name"
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
