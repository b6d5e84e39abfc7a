"""What the shell makes of a word whose variables are known, and of which variables a script has only defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert.output_variables import OPTION_OF
from ffdl_slurm.convert.shell_syntax import Word, end_of_substitution

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
