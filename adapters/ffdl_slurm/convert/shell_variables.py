"""What the shell makes of a word whose variables are known, and of which variables a script has only defaults."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.conversion import Fate, Judged
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert.executed_text import executed
from ffdl_slurm.convert.output_variables import OPTION_OF
from ffdl_slurm.convert.shell_syntax import Line, Word, end_of_substitution

Known = Mapping[str, str | None]
"""Variables that a script sets, or was given: their values, None where that is not sure. What is not among them nobody
set that is known of, and a default counts."""
_NAME = re.compile(r"\$(\w+)", re.ASCII)
_BRACED = re.compile(r"\$\{(\w+)(?:(:?[-=])(.*))?\}", re.ASCII | re.DOTALL)
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?[-=]", re.ASCII)
_OF_THE_JOB = re.compile(r"SLURM\w*|CUDA_VISIBLE_DEVICES|HOST|HOSTNAME|HOME|LOGNAME|PWD|SHELL|TMPDIR|USER", re.ASCII)
"""Variables that a batch script has without setting them, so that no default of theirs is sure to count."""
_PATHS = re.compile(r"\w*PATH", re.ASCII)
"""Nobody gives a job such a variable to choose something; scripts add to it, and write a default for ``set -u``."""
LEARNERS_OWN = frozenset(PROTECTED) | {
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES",
    "GPU_COUNT",
}  # fmt: skip
"""Variables that every learner has (the contract with user code)."""
_SPLITS = re.compile(r"[\s*?\[]")


def literal(word: Word, known: Known) -> str | None:
    """What the word becomes, where that is sure but for the environment of whoever submits; None where it is not, or
    where it may become several words."""
    return word.value if word.value is not None else expand(word.raw, known)


def expand(text: str, known: Known) -> str | None:
    """As :func:`literal`, of a word as it stands in a script."""
    found: list[str] = []
    position, quoted = 0, False
    while position < len(text):
        letter = text[position]
        if letter == '"':
            quoted = not quoted
            position += 1
        elif letter == "$":
            end = end_of_substitution(text, position)
            value = _variable(text[position:end], known)
            if value is None or (not quoted and _SPLITS.search(value)):
                return None
            found.append(value)
            position = end
        elif letter == "'" and not quoted:
            end = text.find("'", position + 1)
            if end < 0:
                return None
            found.append(text[position + 1 : end])
            position = end + 1
        elif letter == "\\":
            following = text[position + 1 : position + 2]
            found.append(following if not quoted or following in ("$", "`", '"', "\\") else letter + following)
            position += 2
        elif letter == "`" or (letter in "*?[{~" and not quoted):
            return None
        else:
            found.append(letter)
            position += 1
    return None if quoted else "".join(found)


def _variable(text: str, known: Known) -> str | None:
    """The value of ``$NAME``, ``${NAME}`` or ``${NAME:-default}``."""
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
    """What stands behind ``:-``; it is no word of its own, and blanks do not end it."""
    return expand(text, known) if text[:1] in ('"', "'") else expand(f'"{text}"', known)


def sets_default(word: Word) -> tuple[str, str] | None:
    """Name and word of a ``${NAME:=default}`` that is all of a word."""
    raw = word.raw[1:-1] if word.raw.startswith('"') and word.raw.endswith('"') and len(word.raw) > 1 else word.raw
    match = _BRACED.fullmatch(raw)
    return (match[1], raw) if match is not None and match[2] in ("=", ":=") else None


def defaults_in(text: str, known: Known) -> Iterator[str]:
    """Variables with a default in the text, each once, that a learner may have otherwise than the script: by whoever
    submits, or from the platform."""
    seen = set(known)
    for match in _DEFAULT.finditer(text):
        name = match[1]
        of_the_job = _OF_THE_JOB.fullmatch(name) and name not in OPTION_OF
        if name not in seen and not of_the_job and not _PATHS.fullmatch(name):
            seen.add(name)
            yield name


def why_default(names: Sequence[str]) -> str:
    """What is said of a line that has such defaults."""
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
