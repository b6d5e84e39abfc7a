"""Return the parts of a script that the shell runs: no comments, no text of ``echo``, no here-documents that are only
data.

In case of doubt the text counts as run: to miss a step is worse than to report one that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ffdl_slurm.convert.shell_syntax import Line, end_of_substitution, heredocs_of, lines_of, unfinished

_SPEAKS = frozenset({"echo", "printf", ":", "true", "false", "logger", "which", "type", "hash", "module", "ml"})
"""Commands that start none of the programs which their words name."""
_HANDS_ON = frozenset({"cat", "tee", ":", "true", "sed", "awk", "grep", "tr", "sort", "mail", "logger", "read"})
"""Commands that read a here-document and run nothing of it."""
_RUNS = re.compile(
    r"(?<![\w.-])(?:\w*sh|srun|sbatch|salloc|xargs|parallel|at|batch|eval|source|python[\d.]*|perl|mpirun|mpiexec)(?![\w.-])"
)
"""Programs that run what they are given on standard input."""
_GROUP_WRITES = re.compile(r"(?:^|\s)(?:\}|done|fi|esac|\))\s*(?:\d?>|\|(?!\|))", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_BEFORE_COMMANDS = frozenset({"then", "do", "else", "if", "elif", "while", "until", "!", "{", "time", "exec"})
_TARGET = re.compile(r">>?\|?\s*([^\s;&|<>()]+)|\btee\s+(?:-\w+\s+)*([^\s;&|<>()]+)")


def executed(lines: Sequence[Line]) -> list[str]:
    """Return what is run of each line, with continuation lines joined."""
    texts = [line.text.replace("\\\n", " ") for line in lines]
    grouped = bool(_GROUP_WRITES.search("\n".join(texts)))
    return [_line(text, [*texts[:index], *texts[index + 1 :]], grouped) for index, text in enumerate(texts)]


def _line(text: str, others: Sequence[str], grouped: bool) -> str:
    head, bodies = _parts(text)
    ran = _commands(head, others, grouped)
    first = head.split(None, 1)[0] if head.strip() else ""
    read = first not in _HANDS_ON or _RUNS.search(head) or _named(head, others)
    for body, quoted in bodies:
        if read:
            ran += "\n" + "\n".join(executed(list(lines_of(body))))
        elif not quoted:
            ran += "\n" + " ".join(_substitutions(body, quotes=False))
    return ran


def _parts(text: str) -> tuple[str, list[tuple[str, bool]]]:
    """Return the command and its here-documents, each with whether its delimiter is quoted, so that nothing expands."""
    found = heredocs_of(text)
    if not found:
        return text, []
    end = text.find("\n")
    while end >= 0 and unfinished(text[:end]):
        end = text.find("\n", end + 1)
    if end < 0:
        return text, []
    head, rest = text[:end], text[end + 1 :].split("\n")
    bodies: list[tuple[str, bool]] = []
    for one in heredocs_of(head):
        body: list[str] = []
        while rest:
            line = rest.pop(0)
            if (line.lstrip("\t") if one.stripped else line) == one.delimiter:
                break
            body.append(line)
        bodies.append(("\n".join(body), one.quoted))
    return head, bodies


def _commands(text: str, others: Sequence[str], grouped: bool) -> str:
    found: list[str] = []
    position, begins = 0, True
    while position < len(text):
        letter = text[position]
        if letter == "#" and (not position or text[position - 1].isspace()):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        if letter.isspace() or letter in ";&|()<>":
            begins = letter in "\n;&|()" or (begins and letter not in "<>")
            found.append(letter)
            position += 1
            continue
        end = _end_of_word(text, position)
        word = text[position:end]
        if begins and word.rsplit("/", 1)[-1] in _SPEAKS:
            behind = _end_of_command(text, end)
            rest = text[end : _end_of_pipeline(text, behind)]
            if not grouped and not _RUNS.search(text[behind : end + len(rest)]) and not _named(rest, others):
                found += [word, " ", " ".join(_substitutions(text[end:behind]))]
                position, begins = behind, False
                continue
        begins = begins and (word in _BEFORE_COMMANDS or bool(_ASSIGNMENT.match(word)))
        found.append(word)
        position = end
    return "".join(found)


def _named(text: str, others: Sequence[str]) -> bool:
    """Return whether other lines name a file that the command writes, so that they may run it."""
    for match in _TARGET.finditer(text):
        name = (match[1] or match[2]).strip("\"'").rsplit("/", 1)[-1]
        if name and not name.isdigit() and any(name in other for other in others):
            return True
    return False


def _end_of_word(text: str, position: int) -> int:
    start = position
    while position < len(text) and not (text[position].isspace() or text[position] in ";&|()<>"):
        position = _behind(text, position)
    return max(position, start + 1)


def _behind(text: str, position: int) -> int:
    """Behind a letter, or behind what is quoted or substituted there."""
    letter = text[position]
    if letter == "\\":
        return position + 2
    if letter == "'":
        end = text.find("'", position + 1)
        return len(text) if end < 0 else end + 1
    if letter == '"':
        position += 1
        while position < len(text) and text[position] != '"':
            live = text[position] in "$`"
            position = end_of_substitution(text, position) if live else position + 1 + (text[position] == "\\")
        return position + 1
    return end_of_substitution(text, position) if letter in "$`" else position + 1


def _end_of_command(text: str, position: int) -> int:
    while position < len(text):
        letter = text[position]
        duplicates = letter == "&" and (text[position - 1] == ">" or text[position + 1 : position + 2] == ">")
        if letter in ";|\n)" or (letter == "&" and not duplicates):
            return position
        if letter == "#" and text[position - 1].isspace():
            return position
        position = _behind(text, position)
    return len(text)


def _end_of_pipeline(text: str, position: int) -> int:
    while text[position : position + 1] == "|" and text[position + 1 : position + 2] != "|":
        position = _end_of_command(text, position + 1)
    return position


def _substitutions(text: str, *, quotes: bool = True) -> Iterator[str]:
    """Yield the command substitutions in a text. If `quotes` count, skip single quotes."""
    position, double = 0, False
    while position < len(text):
        letter = text[position]
        if letter == "'" and quotes and not double:
            position = _behind(text, position)
        elif letter == "`" or text.startswith("$(", position):
            end = end_of_substitution(text, position)
            yield text[position:end]
            position = end
        else:
            double ^= letter == '"'
            position += 2 if letter == "\\" else 1
