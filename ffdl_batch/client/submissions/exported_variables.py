"""``--export`` as sbatch reads it: which variables of this shell travel with the job.

Facts: sbatch(1) of Slurm 26.05, and its ``env_merge_filter``: the list is read from left to right and later words
win, so ``ALL,A=1`` gives A the value 1 (the man page says otherwise, the program does this). A comma inside quotes
does not separate; quotes around a whole word are taken off, others are kept.

Four differences: SLURM_* and SBATCH_* never travel (they would steer the commands of the job); settings of the
container runtime and variables that bash keeps for itself stay behind with ALL and are refused by name; what tells
where things lie on this machine (PATH, HOME, ...) stays behind with ALL and travels by name, because in an image it
would hide the image's own programs; and without ``--export`` nothing travels: a learner's container starts clean, so
that a job does not depend on somebody's shell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ffdl_batch.domain.job.environment_variables import why_refused

_NEVER = ("SLURM_", "SBATCH_")
_OF_THIS_MACHINE = frozenset(
    ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "HOME", "HOSTNAME", "PWD", "OLDPWD", "SHELL", "TMPDIR"]
)


class ExportError(ValueError):
    """A text that ``--export`` does not take."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The variables that travel, and the names that were asked for but are not set (sbatch passes over them)."""

    values: Mapping[str, str]
    unset: tuple[str, ...] = ()


def select_variables(text: str, environ: Mapping[str, str]) -> Exported:
    """The variables that ``--export=text`` means in `environ`; raises :class:`ExportError`."""
    if text.upper() in ("NONE", "NIL"):
        return Exported({})
    values: dict[str, str] = {}
    unset: list[str] = []
    for word in split_list(text):
        if word.upper() == "ALL":
            values.update({k: v for k, v in environ.items() if _goes_with_all(k)})
            continue
        name, equals, value = word.partition("=")
        if name.upper() in ("NONE", "NIL") and not equals:
            raise ExportError(f"{name} stands alone: it cannot be combined with other words")
        refused = why_refused(name)
        if refused:
            raise ExportError(refused)
        if equals:
            values[name] = value
        elif name in environ:
            values[name] = environ[name]
        else:
            unset.append(name)
    return Exported({k: v for k, v in values.items() if not k.startswith(_NEVER)}, tuple(unset))


def _goes_with_all(name: str) -> bool:
    return name not in _OF_THIS_MACHINE and not why_refused(name)


def split_list(text: str) -> list[str]:
    """The comma-separated words; raises :class:`ExportError` for a quote without its end."""
    words: list[str] = []
    word = ""
    quotes: set[str] = set()
    for character in text:
        if character in "'\"":
            quotes ^= {character}
        if character == "," and not quotes:
            words.append(word)
            word = ""
        else:
            word += character
    if quotes:
        raise ExportError(f"a quote ({' '.join(sorted(quotes))}) is opened and not closed")
    return [_unquote(word) for word in (*words, word) if word]


def _unquote(word: str) -> str:
    quoted = len(word) >= 2 and word[0] == word[-1] and word[0] in "'\""
    return word[1:-1] if quoted else word
