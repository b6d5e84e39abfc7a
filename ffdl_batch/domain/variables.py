"""Which environment variables a learner can be given. Runs on Python 3.9."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
RUNTIME_PREFIXES = ("APPTAINER", "SINGULARITY")
"""Settings of the container runtime: users have them in their profiles, and no learner can be given them."""
OF_THE_SHELL = frozenset(
    "BASHOPTS BASH_VERSINFO BASHPID DIRSTACK EUID FUNCNAME GID GROUPS PPID SHELLOPTS UID".split()  # noqa: SIM905
)
"""bash does not let a program set these (bash(1)), nor does Apptainer's interpreter."""


def why_refused(name: str) -> str:
    """Why no learner can be given a variable of this name; "" where one can."""
    if not NAME.fullmatch(name):
        return f"{name[:60]!r} is not a variable's name; use letters, digits and _"
    if name in OF_THE_SHELL:
        return f"{name} belongs to the shell and cannot be given to a learner; leave it out"
    if name.startswith(RUNTIME_PREFIXES):
        return f"{name} belongs to the container runtime and cannot be given to a learner; leave it out"
    return ""
