"""Write the text of a batch script. No other module writes an #SBATCH line.

The rules are from Slurm's source, src/sbatch/opt.c, `get_argument` (read in 20.11.9 and 26.05): sbatch splits each
#SBATCH line at blanks; single and double quotes group, a backslash takes the next character as it is (inside
quotes too), an unquoted ``#`` starts a comment. 20.11 blanks out the words "packjob" and "hetjob" anywhere in a
line; a backslash inside the word hides it. Lines end at newline, so a newline or NUL can't be carried.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_batch.domain.scheduler_errors import InvalidRequest

MARK = "#SBATCH"
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
        raise InvalidRequest(f"--{name}: the value {value[:60]!r} contains {bad!r}, which an #SBATCH line cannot carry")
    if _PLAIN.fullmatch(value):
        return _hide_words(value)
    return '"' + _hide_words(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _hide_words(text: str) -> str:
    return _SEPARATOR_WORDS.sub(r"\1\\\2", text)


def escape_pattern(path: str, what: str) -> str:
    """Return a literal path for --output and --error, in which sbatch replaces %x patterns.

    Raises InvalidRequest for a backslash, which has no literal form (sbatch(1), "filename pattern").
    """
    if "\\" in path:
        raise InvalidRequest(f"{what}: the path {path!r} contains a backslash, which sbatch cannot keep in a file name")
    return path.replace("%", "%%")


def render_option(option: SbatchOption) -> str:
    """One line, without newline. Always ``--name=value``: a value with a leading dash stays a value."""
    if option.value is None:
        return f"{MARK} --{option.name}"
    return f"{MARK} --{option.name}={quote_value(option.name, option.value)}"


def render_script(options: Iterable[SbatchOption], command: Sequence[str], before: Sequence[str] = ()) -> str:
    """Return the whole script: options, the lines `before`, and an exec of `command` with each word quoted."""
    return _render(options, [*before, "exec " + _quote(command)])


def render_array_script(options: Iterable[SbatchOption], command: Sequence[str], tasks: str, log: str) -> str:
    """Return the script of a native array. `command` ends with the head; each task finds its attempt's directory in the
    table `tasks`, or makes it. The output is appended to its file `log` ("" = the file that Slurm chooses)."""
    lines = [f"{NATIVE_ID}=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID", f"export {NATIVE_ID}"]
    words = (*command, "--tasks", tasks, *(("--log", log) if log else ()))
    return _render(options, [*lines, f'exec {_quote(words)} --task "$SLURM_ARRAY_TASK_ID"'])


def _render(options: Iterable[SbatchOption], lines: Sequence[str]) -> str:
    # LC_ALL=C is for reading sbatch's messages; the job gets the locale that LANG names.
    text = ["#!/bin/sh", *(render_option(option) for option in options), "unset LC_ALL", *lines]
    return "\n".join(text) + "\n"


def _quote(words: Sequence[str]) -> str:
    for word in words:
        if any(c in word for c in "\n\0"):
            raise InvalidRequest(f"the path or option {word[:60]!r} contains a line break, which no script can carry")
    return shlex.join(words)


def parse_options(script: str) -> list[SbatchOption]:
    """Return the options of a script as sbatch reads them. This is the inverse of :func:`render_option`.

    The pyslurm gateway submits these options, so the script alone defines a plan.
    """
    found = []
    for _, line in comments_of(script):
        for word in split_line(line.removeprefix(MARK)).words if line.startswith(MARK) else ():
            name, equals, value = word.removeprefix("--").partition("=")
            found.append(SbatchOption(name, value if equals else None))
    return found


def comments_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines before the first command, with their numbers from 1."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line


class SplitLine(NamedTuple):
    """The words of an #SBATCH line. `cut` is the text that a ``#`` within a word cut off, `quote` a quote that is not
    closed; "" for none."""

    words: list[str]
    cut: str
    quote: str


def split_line(text: str) -> SplitLine:
    """Split the text after ``#SBATCH`` as sbatch does."""
    words: list[str] = []
    word: list[str] | None = None
    quote, escaped, cut = "", False, ""
    for position, letter in enumerate(text):
        if escaped or (quote and letter not in (quote, "\\")):
            word, escaped = [*(word or []), letter], False
        elif letter == "\\":
            escaped, word = True, word or []
        elif letter == quote:
            quote = ""
        elif letter in "\"'":
            quote, word = letter, word or []
        elif letter == "#":
            cut = text[position:].rstrip() if word is not None else ""
            break
        elif letter.isspace():
            words += ["".join(word)] if word is not None else []
            word = None
        else:
            word = [*(word or []), letter]
    if word is not None:
        words.append("".join(word) + ("\\" if escaped else ""))
    return SplitLine(words, cut, quote)
