"""Finds what makes a script run whole in any case: it asks for what no learner can do in place of the batch script."""

from __future__ import annotations

import re

from ffdl_slurm.convert.launch_command import NotUnderstood
from ffdl_slurm.convert.shell_tree import Script, within

_OTHERS_CONTAINERS = frozenset({"docker", "podman", "podman-hpc", "enroot", "shifter", "nerdctl", "udocker", "ch-run"})
_REMOTE = frozenset({"ssh", "pdsh", "clush", "pssh", "rsh"})
_ASKS_SLURM = frozenset({"scancel", "scontrol", "sbatch", "salloc"})
_HOLDS_PYXIS = re.compile(
    r"\s*(?:(?:export|declare|readonly|local)\s+(?:-\w+\s+)*)?(?:\w+\+?=|--container-).*--(?:no-)?container-|\s*--(?:no-)?container-",
    re.DOTALL,
)
_LONGEST = 64 * 1024
_ITS_NAME = re.compile(r"0|BASH_SOURCE|BASH_ARGV\w*")
VERBS = frozenset({"exec", "run", "shell", "test", "instance", "start", "create"})
"""Subcommands that start a container."""


def check_script(script: Script) -> None:
    """Raise NotUnderstood for what no learner can do in place of the batch script."""
    if script.problem:
        raise NotUnderstood(f"line {script.problem} is not understood as bash")
    if not script.lines:
        raise NotUnderstood("it has no command")
    _check_text(script)
    printed = [(one.start, one.end) for one in script.commands if one.name in ("echo", "printf") and not one.redirected]
    for read in script.reads:
        if _ITS_NAME.fullmatch(read.name) and not within(read.start, printed):
            raise NotUnderstood(f"it reads its own name: ${read.name}", read.line)
    for one in script.commands:
        verb = one.words[1].value if len(one.words) > 1 else ""
        if one.name in _ASKS_SLURM and not (one.name == "scontrol" and verb == "show"):
            raise NotUnderstood(f"{one.name} asks Slurm, which learners cannot reach", one.line)
        if one.name in _REMOTE:
            raise NotUnderstood(f"{one.name} starts commands on other hosts", one.line)
        if one.name in _OTHERS_CONTAINERS and (one.name == "shifter" or verb in VERBS or one.name == "ch-run"):
            raise NotUnderstood(f"{one.behind or one.name} starts a container of its own", one.line)
        if one.name == "trap":
            raise NotUnderstood("it traps signals or its end", one.line)


def _check_text(script: Script) -> None:
    """Raise NotUnderstood for a text that no manifest holds, and for options of Pyxis that a variable holds."""
    if len(script.data) > _LONGEST:
        raise NotUnderstood(f"it has more than {_LONGEST >> 10} KiB, too much for a command")
    for line in script.lines:
        if not line.text.replace("\n", "").replace("\t", "").isprintable():
            raise NotUnderstood("it has control characters, which no manifest holds", line.number)
    for line, text in zip(script.lines, script.executed(), strict=True):
        if _HOLDS_PYXIS.match(text) and not re.search(r"\bsrun\s", text):
            raise NotUnderstood("a variable holds options of Pyxis", line.number)
