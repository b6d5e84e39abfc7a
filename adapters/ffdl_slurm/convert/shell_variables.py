"""Expand words with known variables, and find the variables that a script reads but does not set.

sbatch gives a script the variables of the submitting shell. Learners do not have them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.conversion import Fate, Judged
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert import word_text
from ffdl_slurm.convert.output_variables import OPTION_OF
from ffdl_slurm.convert.shell_tree import Script

Known = Mapping[str, str | None]
"""Variables that a script sets or gets, and their values; None if a value is not certain. For a variable that is not
listed, a default in the script counts."""
_NAME = re.compile(r"\$(\w+)", re.ASCII)
_BRACED = re.compile(r"\$\{(\w+)(?:(:?[-=])(.*))?\}", re.ASCII | re.DOTALL)
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?[-=]", re.ASCII)
_OF_THE_JOB = re.compile(r"SLURM\w*|CUDA_VISIBLE_DEVICES|HOST|HOSTNAME|HOME|LOGNAME|PWD|SHELL|TMPDIR|USER", re.ASCII)
"""Variables that a batch script has without setting them, so that a default may not count."""
_PATHS = re.compile(r"\w*PATH", re.ASCII)
"""Variables that users do not set as options of a job. Scripts add to them, with a default because of ``set -u``."""
LEARNERS_OWN = frozenset(PROTECTED) | {
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES",
    "GPU_COUNT",
}  # fmt: skip
"""Variables that every learner has (the contract with user code)."""
_SETS = re.compile(
    r"(?<![\w$-])(\w+)(?:\[[^]\s]*\])?(?:\+|:)?=|\b(?:for|select|read|unset|mapfile|getopts\s+\S+|printf\s+-v)\s+(?:-\w+\s+)*(\w+)"
)
"""The places where a variable is set."""


def literal(raw: str, known: Known) -> str | None:
    """Return what a word of a script becomes, apart from the environment of the submitting shell; None if that is not
    certain, or if it may become several words."""
    return word_text.expand(raw, lambda text: _variable(text, known))


def known_variables(script: Script, inputs: Known, offset: int | None = None) -> dict[str, str | None]:
    """Return the inputs, and the variables that the script always sets to a known value: at an offset, or at its end.
    A variable that is also set elsewhere, in a condition or a loop, has none."""
    text = "\n".join(line.text for line in script.lines)
    places = Counter(match[1] or match[2] for match in _SETS.finditer(text))
    defaults = Counter(re.findall(r"\$\{(\w+):?=", text))  # they set what is not set yet
    certain = {name for name, count in Counter(one.name for one in script.assignments if one.top).items()
               if count == places[name] - defaults[name]}  # fmt: skip
    known: dict[str, str | None] = {**inputs, **{name: None for name in places if name not in certain}}
    known |= {name: None for name in certain if name not in inputs}
    own = {name: inputs[name] for name in places if name in inputs}
    for one in script.assignments:
        if one.name in certain and (offset is None or one.start < offset):
            before = {name: value for name, value in known.items() if name != one.name or value is not None}
            known[one.name] = literal(one.raw, before)
    for command in script.commands:
        for word in command.words[1:] if command.name == ":" and command.top else ():
            default = sets_default(word.raw)
            if default and places[default[0]] == 1:
                before = {name: value for name, value in known.items() if name != default[0]} | own
                known[default[0]] = literal(default[1], before)
    return known


def _variable(text: str, known: Known) -> str | None:
    """Return the value of ``$NAME``, ``${NAME}`` or ``${NAME:-default}``; None if it is not certain."""
    plain = _NAME.fullmatch(text)
    match = plain or _BRACED.fullmatch(text)
    if match is None:
        return None
    name, operator = match[1], None if plain else match[2]
    if name in known or operator is None:
        value = known.get(name)
        return value if value is None or value or operator in (None, "-", "=") else expand_default(match[3], known)
    return None if name in LEARNERS_OWN or _OF_THE_JOB.fullmatch(name) else expand_default(match[3], known)


def expand_default(text: str, known: Known) -> str | None:
    """Return the value of the text after ``:-``, which blanks do not end."""
    return literal(text if text[:1] in ('"', "'") else f'"{text}"', known)


def sets_default(raw: str) -> tuple[str, str] | None:
    """Return name and text of a word that is only ``${NAME:=default}``; else None."""
    plain = raw[1:-1] if raw.startswith('"') and raw.endswith('"') and len(raw) > 1 else raw
    match = _BRACED.fullmatch(plain)
    return (match[1], plain) if match is not None and match[2] in ("=", ":=") else None


def defaults_in(text: str, known: Known) -> Iterator[str]:
    """Yield the variables with a default in the text, each once, whose value in a learner may differ from that in the
    script, because the submitting shell or the platform sets them."""
    seen = set(known)
    for match in _DEFAULT.finditer(text):
        name = match[1]
        of_the_job = _OF_THE_JOB.fullmatch(name) and name not in OPTION_OF
        if name not in seen and not of_the_job and not _PATHS.fullmatch(name):
            seen.add(name)
            yield name


def why_default(names: Sequence[str]) -> str:
    """Return the remark on a line that has such defaults."""
    has = [name for name in names if name in LEARNERS_OWN or name in OPTION_OF]
    others = [name for name in names if name not in has]
    reasons = []
    if has:
        reasons.append(f"learners have {' and '.join(has)} from the platform: the default does not count")
    if others:
        them = "them" if len(others) > 1 else "it"
        reasons.append(
            f"learners do not have {' and '.join(others)} of the submitting shell: the default counts, unless "
            f"batch.env sets {them}"
        )
    return "; ".join(reasons)


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
"""Variables that a learner, its shell, or an activated environment sets; and those of awk."""


def with_foreign(judged: Sequence[Judged], script: Script, given: Collection[str]) -> Iterator[Judged]:
    """Yield what became of each line, with a remark where a variable of the submitting shell is first read."""
    known = {*given, *LEARNERS_OWN, *_set_in("\n".join(line.text for line in script.lines))}
    texts = {  # text of echo needs no variable, but : tests some
        line.number: line.text if line.text.startswith(":") else text
        for line, text in zip(script.lines, script.executed(), strict=True)
    }
    for one in judged:
        names = [name for name in dict.fromkeys(_read_in(texts.get(one.line, ""))) if name not in known]
        known.update(names)
        yield with_remark(one, _why(names)) if names else one


def with_remark(one: Judged, why: str) -> Judged:
    """Return what became of a line, with one more remark."""
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
    """Yield the variables that the shell expands, thus none within single quotes."""
    live = _QUOTED.sub(lambda match: _inner(match[1] or ""), text)
    for match in _READ.finditer(live):
        name = match[1] or match[2]
        if not _ALWAYS.fullmatch(name):
            yield name


def _inner(text: str) -> str:
    return re.sub(r"'[^']*'", "", text) if "$(" in text else text
