"""Variables that a script reads and does not set: sbatch hands it those of the submitting shell, and learners have none
of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ffdl_batch.domain.conversion import Fate, Judged
from ffdl_slurm.convert.executed_text import executed
from ffdl_slurm.convert.shell_syntax import Line
from ffdl_slurm.convert.variable_expansion import LEARNERS_OWN

_ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)(?:\[[^]\s]*\])?[+:]?=")
_LOOPED = re.compile(r"\b(?:for|select)\s+(\w+)")
_NAMED = re.compile(
    r"\b(?:read|mapfile|readarray|getopts|declare|typeset|local|readonly|unset|printf\s+-v)\b([^;|&\n<]*)"
)
_READ = re.compile(r"(?<!\\)\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?=[}%#/^,:?@])(?!:[-+=]))", re.ASCII)
_QUOTED = re.compile(r"(\\.|\"(?:[^\"\\]|\\.)*\")|'[^']*'", re.DOTALL)
_ALWAYS = re.compile(
    r"SLURM\w*|CUDA_VISIBLE_DEVICES|\w*PATH|HOST\w*|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|TMPDIR|RANDOM|SECONDS|LINENO|E?UID|"
    r"PPID|BASH\w*|FUNCNAME|PIPESTATUS|OPTARG|OPTIND|REPLY|IFS|OSTYPE|MACHTYPE|EPOCH\w*|SHLVL|TERM|LANG|LC_\w+|"
    r"CONDA\w*|VIRTUAL_ENV|N[FR]|O?FS|RS",
    re.ASCII,
)
"""What a learner, its shell, or what is activated in it sets; and awk's own."""


def with_foreign(judged: Sequence[Judged], lines: Sequence[Line], given: Collection[str]) -> Iterator[Judged]:
    """`judged`, of lines of the script's commands; each such variable is told where it is read first."""
    told = {*given, *LEARNERS_OWN, *_set_in("\n".join(line.text for line in lines))}
    texts = {  # what is only said needs no variable, but : asks for some
        line.number: line.text if line.text.startswith(":") and line.words else text
        for line, text in zip(lines, executed(lines), strict=True)
    }
    for one in judged:
        names = [name for name in dict.fromkeys(_read_in(texts.get(one.line, ""))) if name not in told]
        told.update(names)
        yield _near(one, _why(names)) if names else one


def _near(one: Judged, why: str) -> Judged:
    reason = why if one.fate is Fate.MAPPED else f"{one.reason}; {why}"
    return replace(one, fate=Fate.APPROXIMATED, reason=reason)


def _why(names: Sequence[str]) -> str:
    which = " and ".join(names)
    are, them = ("are", "them") if len(names) > 1 else ("is", "it")
    return (
        f"{which} {are} not set by the script, and learners have nothing of the submitting shell: batch.env sets {them}"
    )


def _set_in(text: str) -> Iterator[str]:
    yield from (match[1] for match in _ASSIGNED.finditer(text))
    yield from (match[1] for match in _LOOPED.finditer(text))
    for match in _NAMED.finditer(text):
        yield from re.findall(r"\w+", match[1])


def _read_in(text: str) -> Iterator[str]:
    """What the shell expands: nothing within single quotes, also of those in a substitution."""
    live = _QUOTED.sub(lambda match: _inner(match[1] or ""), text)
    for match in _READ.finditer(live):
        name = match[1] or match[2]
        if not _ALWAYS.fullmatch(name):
            yield name


def _inner(text: str) -> str:
    return re.sub(r"'[^']*'", "", text) if "$(" in text else text
