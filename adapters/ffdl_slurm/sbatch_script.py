"""The text of a batch script: options in, lines out. Nothing else in this package writes an #SBATCH line.

Facts from Slurm's source, src/sbatch/opt.c, `get_argument` (read in 20.11.9 and 26.05): sbatch splits each
#SBATCH line at blanks; single and double quotes group, a backslash takes the next character as it is (inside
quotes too), an unquoted ``#`` starts a comment. 20.11 blanks out the words "packjob" and "hetjob" anywhere in a
line; a backslash inside the word hides it. Lines end at newline, so a newline or NUL can't be carried.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_batch.ports.scheduler import InvalidRequest

PREFIX = "#SBATCH "
NATIVE_ID = "FFDL_NATIVE_ID"
"""How an element of an array learns by what id the scheduler lists it; SLURM_JOB_ID is another one for tasks."""
_PLAIN = re.compile(r"[A-Za-z0-9_./=:,+@%-]+", re.ASCII)
_SEPARATOR_WORDS = re.compile(r"(pac|he)(kjob|tjob)", re.IGNORECASE)


def quote_value(name: str, value: str) -> str:
    """`value` such that sbatch reads it back unchanged from an #SBATCH line.

    Raises InvalidRequest for a newline, a carriage return or NUL, which no #SBATCH line can carry.
    """
    bad = next((c for c in value if c in "\n\r\0"), None)
    if bad is not None:
        raise InvalidRequest(f"--{name}: the value {value[:60]!r} holds {bad!r}, which an #SBATCH line cannot carry")
    if _PLAIN.fullmatch(value):
        return _hide_words(value)
    return '"' + _hide_words(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _hide_words(text: str) -> str:
    return _SEPARATOR_WORDS.sub(r"\1\\\2", text)


def escape_pattern(path: str, what: str) -> str:
    """A literal path for --output and --error: sbatch replaces %x patterns and treats backslashes as a switch.

    Raises InvalidRequest for a backslash: sbatch(1) "filename pattern" gives it no literal form.
    """
    if "\\" in path:
        raise InvalidRequest(f"{what}: the path {path!r} holds a backslash, which sbatch cannot keep in a file name")
    return path.replace("%", "%%")


def render_option(option: SbatchOption) -> str:
    """One line, without newline. Always ``--name=value``: a value with a leading dash stays a value."""
    if option.value is None:
        return f"{PREFIX}--{option.name}"
    return f"{PREFIX}--{option.name}={quote_value(option.name, option.value)}"


def render_script(options: Iterable[SbatchOption], command: Sequence[str], before: Sequence[str] = ()) -> str:
    """The whole script: options, the lines `before`, then one exec of `command` with each word quoted for the shell."""
    return _render(options, [*before, "exec " + _quote(command)])


def render_array_script(options: Iterable[SbatchOption], command: Sequence[str], tasks: str, log: str) -> str:
    """The script of a native array. Each task finds its attempt's directory in the table `tasks`, and its launch file
    there, with which `command` ends; `log` is the file there that its output is appended to ("" = Slurm's choice)."""
    lines = [
        f"{NATIVE_ID}=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID",
        f"export {NATIVE_ID}",
        f'attempt=$(sed -n "s/^$SLURM_ARRAY_TASK_ID //p" {_quote([tasks])})',
        '[ -n "$attempt" ] && cd -- "$attempt" || { echo "task $SLURM_ARRAY_TASK_ID has no directory" >&2; exit 66; }',
    ]
    if log:
        lines.append(f"exec >>{_quote([log])} 2>&1")
    return _render(options, [*lines, f'exec {_quote(command)} "$attempt/launch.json"'])


def _render(options: Iterable[SbatchOption], lines: Sequence[str]) -> str:
    # LC_ALL=C is for reading sbatch's messages; the job gets the locale that LANG names.
    text = ["#!/bin/sh", *(render_option(option) for option in options), "unset LC_ALL", *lines]
    return "\n".join(text) + "\n"


def _quote(words: Sequence[str]) -> str:
    for word in words:
        if any(c in word for c in "\n\0"):
            raise InvalidRequest(f"the path or option {word[:60]!r} holds a newline, which no batch script can carry")
    return shlex.join(words)


def parse_options(script: str) -> list[SbatchOption]:
    """The options of a script as sbatch would read them; the inverse of :func:`render_option`.

    The pyslurm gateway submits from these, so that the script stays the one truth of a plan.
    """
    found = []
    for line in script.split("\n"):
        if line.startswith(PREFIX):
            for word in _split_words(line[len(PREFIX) :]):
                name, equals, value = word.removeprefix("--").partition("=")
                found.append(SbatchOption(name, value if equals else None))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def _split_words(line: str) -> list[str]:
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    characters = iter(line)
    for c in characters:
        if c == "\\":
            word = [*(word or []), next(characters, "")]
        elif quote:
            if c == quote:
                quote = ""
            else:
                word = [*(word or []), c]
        elif c in "\"'":
            quote, word = c, word or []
        elif c == "#":
            break
        elif c.isspace():
            words += ["".join(word)] if word is not None else []
            word = None
        else:
            word = [*(word or []), c]
    return words + (["".join(word)] if word is not None else [])
