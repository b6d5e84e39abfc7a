"""Variables that bash takes from its environment, compared with bash itself."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from ffdl_batch.domain.job.environment_variables import OF_THE_SHELL, why_refused

BASH = shutil.which("bash") or "bash"
NOT_IN_ALL = {"BASH_MONOSECONDS", "SRANDOM"}
"""Since bash 5.3 and 5.1."""
OF_APPTAINER = {"DIRSTACK", "EUID", "FUNCNAME", "GID", "GROUPS", "UID"}
"""bash takes these and forbids some assignments; Apptainer's interpreter refuses them."""
OF_ROOT = {"PS4"} if os.geteuid() else set()
"""bash ignores these as root."""
OTHERS = {"HOME", "LANG", "PS0", "PS3", "PROMPT_COMMAND", "TMOUT", "COLUMNS", "ENV"}
VALUES = ("mine", "7")


def bash(text: str, **environ: str) -> str:
    done = subprocess.run(
        [BASH, "-c", text], check=True, capture_output=True, text=True, cwd="/usr", env={"PATH": os.defpath, **environ}
    )
    return done.stdout


def is_changed(name: str) -> bool:
    """Return whether bash changes a value for itself or for the programs that it starts."""
    text = f'printf %s "${{{name}-}}"; printf "="; printenv {name} || :'
    return any(bash(text, **{name: value}) != f"{value}={value}\n" for value in VALUES)


@pytest.mark.parametrize("name", sorted(OF_THE_SHELL - NOT_IN_ALL - OF_APPTAINER - OF_ROOT))
def test_refused_variable_is_changed_by_bash(name: str) -> None:
    assert is_changed(name)


def test_every_variable_that_bash_has_and_changes_is_refused() -> None:
    found = set(bash("compgen -v").split()) | OTHERS
    changed = {name for name in found - {"PATH"} if is_changed(name)}
    assert len(changed) > 20
    assert changed <= OF_THE_SHELL


@pytest.mark.parametrize("name", ["PATH", "HOME", "LANG", "TERM", "HOSTNAME", "BASH_ENV", "PS3", "REPLY", "__", "A"])
def test_variable_that_bash_takes_is_accepted(name: str) -> None:
    assert why_refused(name) == ""


@pytest.mark.parametrize("name", ["UID", "IFS", "PWD", "_", "RANDOM"])
def test_refusal_of_shell_variable_names_the_cure(name: str) -> None:
    assert why_refused(name) == (
        f"{name} belongs to the shell and cannot be given to a learner; leave it out, or use another name"
    )
