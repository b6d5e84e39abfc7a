"""Select the variables that ``--export`` passes to the job, as sbatch does.

Source: sbatch(1) of Slurm 26.05, and its ``env_merge_filter``. The list is read from left to right, and later words
override earlier ones: ``ALL,A=1`` sets A to 1 (the man page says otherwise). A comma inside quotes does not separate.
Quotes around a whole word are removed, others are kept.

There are four differences:

- SLURM_* and SBATCH_* are never passed, because they would change commands in the job.
- Settings of the container runtime and internal variables of bash are left out of ALL, and refused by name.
- Variables with paths of this machine (PATH, HOME, ...) are left out of ALL, because they would hide the programs of an
  image. They can be passed by name.
- Without ``--export``, no variable is passed, so that a job does not depend on the user's shell.
"""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.host.fast_dataclass import dataclass

_NEVER = ("SLURM_", "SBATCH_")
_OF_THIS_MACHINE = frozenset(
    ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "HOME", "HOSTNAME", "PWD", "OLDPWD", "SHELL", "TMPDIR"]
)


class ExportError(ValueError):
    """The value of ``--export`` is invalid."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of ``--export``."""

    values: Mapping[str, str]
    """The variables to pass."""
    unset: tuple[str, ...] = ()
    """Requested names that are not set. sbatch ignores them."""


def select_variables(text: str, environ: Mapping[str, str]) -> Exported:
    """Return the variables that ``--export=text`` selects from `environ`. Raises :class:`ExportError`."""
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
    """Return the comma-separated words. Raises :class:`ExportError` for an unclosed quote."""
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
