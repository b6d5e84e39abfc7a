"""Decides whether commands of a batch script, which run once on the first node, may run in each learner instead."""

from __future__ import annotations

import re

from ffdl_slurm.convert.launch_command import NotUnderstood
from ffdl_slurm.convert.shell_tree import Command, Read, Script, within

_PRINTS = frozenset({
    "echo", "printf", "date", "hostname", "pwd", "whoami", "uname", "nvidia-smi", "which", "type", "ls", "lscpu",
    "free", "df", "nproc", "env", "printenv", "uptime", "numactl", "rocm-smi", "true", ":", "sleep", "wait", "head",
    "tail", "cat", "sort", "grep", "tee", "id", "lspci", "ulimit", "umask", "command",
})  # fmt: skip
"""Commands that change nothing, so that each learner may run them, and whose output may differ."""
_SETS_UP = frozenset({
    "export", "declare", "typeset", "readonly", "local", "unset", "set", "shopt", "alias", "hash", "test", "[",
    "module", "ml", "source", ".", "conda", "mamba", "micromamba", "pyenv", "spack", "cd", "pushd", "popd", "mkdir",
    "exit", "dirname", "basename", "shift", "deactivate", "sync", "false", "workon",
})  # fmt: skip
"""Commands that set up a shell, or make what each learner needs for itself."""
PREPARES = _PRINTS | _SETS_UP
"""Commands that need nothing of an image but a shell."""
_SAME = frozenset({
    "scontrol", "expr", "basename", "dirname", "seq", "cut", "tr", "sed", "awk", "uniq", "wc", "bc", "paste",
    "realpath", "readlink", "nproc", "conda", "mamba", "echo", "printf", "head", "tail", "cat", "sort", "grep",
    "pwd", "which", "[", "test", "nvidia-smi", "git",
})  # fmt: skip
"""Commands whose output is the same in each learner, if they read the same files."""
_DIFFERS = re.compile(
    r"SLURM_(PROCID|NODEID|LOCALID|TASK_PID|STEP\w*|JOB_GPUS|GPUS_ON_NODE|SUBMIT_HOST)|SLURMD_NODENAME|HOSTNAME|HOST|RANDOM|"
    r"SRANDOM|SECONDS|EPOCH\w*|CUDA_VISIBLE_DEVICES|PWD|OLDPWD|TMPDIR|SLURM_TMPDIR|LINENO|BASHPID|BASH_\w+|[$!?_]"
)
_ADDRESS = re.compile(r"\shostname(\s+(-[iI]|--ip-address|--all-ip-addresses))?$")


def check_variables(reads: list[Read]) -> None:
    """Raise NotUnderstood for a variable that differs between learners."""
    for one in reads:
        if _DIFFERS.fullmatch(one.name):
            raise NotUnderstood(
                f"${one.name} is expanded once, on the first node, and differs between learners", one.line
            )


def check_statement(script: Script, start: int, end: int) -> None:
    """Raise NotUnderstood if a statement before or after the launch may not run in each learner."""
    commands = [one for one in script.commands if start <= one.start < end and one.behind == ""]
    prints = [(one.start, one.end) for one in commands if one.name in _PRINTS and not one.redirected]
    for one in commands:
        if not within(one.start, script.substituted):
            _check_command(one)
        elif not _is_printed(one, prints):
            check_substituted(one)
    check_variables([one for one in script.reads if start <= one.start < end and not within(one.start, prints)])


def _is_printed(one: Command, prints: list[tuple[int, int]]) -> bool:
    return any(start < one.start < end for start, end in prints)


def check_substituted(one: Command) -> None:
    """Raise NotUnderstood for a substituted command whose output may differ between learners. srun of a learner gives
    all of them the same answer to the question for a node's name or address."""
    text = " ".join(word.raw for word in one.words)
    if one.name not in _SAME and not (one.name == "srun" and _ADDRESS.search(text)):
        raise NotUnderstood("a command is substituted once, on the first node", one.line)


def _check_command(one: Command) -> None:
    if not one.words:
        return
    if one.name in PREPARES and not one.redirected:
        file = one.words[1].raw if one.name in ("source", ".") and len(one.words) > 1 else ""
        if file.strip("\"'").endswith(".sh") and not re.search(r"conda|mamba|profile", file):
            raise NotUnderstood(f"{file} may start steps", one.line)
        return
    if one.name == "eval" and re.search(r"conda|mamba", one.words[-1].raw):
        return
    if one.words[-1].raw in ("--version", "-V", "list", "freeze"):
        return
    what = one.name or one.words[0].raw
    raise NotUnderstood(f"{what} runs before or after the step, and only once", one.line)
