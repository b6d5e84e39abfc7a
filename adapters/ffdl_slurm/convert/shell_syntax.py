"""A script's lines and words by the shell's rules of quoting (POSIX 2.2, 2.3), as far as simple commands need them.

It expands nothing. A line that is not certainly a simple command has the reason, and callers leave it unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ffdl_batch.host.fast_dataclass import dataclass

_HEREDOC = re.compile(r"<<(-?)\s*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.-]+))")
_COMPOUND = frozenset(
    "if then else elif fi for while until do done case esac select function time coproc { } ! [[ ((".split()  # noqa: SIM905
)
_META = {"|": "a pipe", ";": "several commands", "&": "a background or conditional command", "(": "a sub-shell",
         ")": "a sub-shell", "<": "a redirection", ">": "a redirection"}  # fmt: skip
_SINGLE = re.compile(r"(\\.|\"(?:[^\"\\]|\\.)*\")|'[^']*'", re.DOTALL)
_BRACES = re.compile(r"\\.|\$\{|\}", re.DOTALL)
_EXPANDS = frozenset("*?[{~")
_FUNCTION = re.compile(r"function\s|[\w.:-]+\s*\(\s*\)")
_COMPOUND_BEGINS = re.compile(r"(if|for|while|until|case|select|time|\[\[)(?=\s|$)|(\(\()")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Word:
    """`raw` as it stands in the script, at `start` of its line's text. `value` is what it becomes, None where the shell
    expands something in it. `live` are the parts of it that the shell expands in (all but single quotes)."""

    raw: str
    start: int
    value: str | None
    live: str


@dataclass(frozen=True, slots=True)
class Line:
    """One command of a script, its continuation lines joined. `why`: why it is no simple command ("" = it is)."""

    number: int
    text: str
    words: tuple[Word, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Heredoc:
    """`stripped`: tabs before its lines are taken away. `quoted`: nothing is expanded in it."""

    delimiter: str
    stripped: bool
    quoted: bool


def lines_of(text: str, first: int = 1) -> Iterator[Line]:
    """Yield the commands from line `first` on, without blank lines and comments."""
    lines = text.split("\n")
    index = first - 1
    while index < len(lines):
        number, whole = index + 1, lines[index]
        index += 1
        while (unfinished(whole) or _continues(whole)) and index < len(lines):
            whole = whole[:-1] + lines[index] if _continues(whole) else f"{whole}\n{lines[index]}"
            index += 1
        documents = heredocs_of(whole)
        if documents:
            index = _behind(lines, index, documents)
            yield Line(number, "\n".join(lines[number - 1 : index]), (), "a here-document")
            continue
        stripped = whole.strip()
        if stripped and not stripped.startswith("#"):
            yield read_line(number, stripped)


def read_line(number: int, text: str) -> Line:
    """Return the words of one command, or why it is not a simple one."""
    words: list[Word] = []
    position = 0
    if _FUNCTION.match(text):
        return Line(number, text, (), "a function begins there")
    begun = _COMPOUND_BEGINS.match(text)
    if begun:
        return Line(number, text, (), f"{begun[0]} begins a compound command")
    while position < len(text):
        letter = text[position]
        if letter.isspace():
            position += 1
        elif letter == "#":
            text = text[:position].rstrip()
        else:
            word, end, why = _word(text, position)
            if why or word is None:
                return Line(number, text, (), why)
            words.append(word)
            position = end
    if not words:
        return Line(number, text, (), "no command")
    if words[0].raw in _COMPOUND or words[0].raw.endswith("()"):
        return Line(number, text, (), f"{words[0].raw} begins a compound command")
    if unfinished(text):
        return Line(number, text, (), "a quote that is not closed")
    if "\n" in text:
        return Line(number, text, tuple(words), "a line break within quotes")
    return Line(number, text, tuple(words))


def words_from(text: str, position: int) -> list[Word]:
    """Return the words of a command from a position to its end: a line break, a pipe, a redirection, a comment."""
    words: list[Word] = []
    while position < len(text) and text[position] not in "\n#":
        if text[position].isspace():
            position += 1
            continue
        word, position, why = _word(text, position)
        if why or word is None:
            break
        words.append(word)
    return words


def unfinished(text: str) -> bool:
    """Return whether a quote or a substitution is open at the end."""
    return _scan(text) != ""


def _continues(text: str) -> bool:
    """Return whether the line ends with a backslash that joins the next line, thus not within single quotes or a
    comment."""
    backslashes = len(text) - len(text.rstrip("\\"))
    return backslashes % 2 == 1 and _scan(text[:-1]) != "'" and not _in_comment(text)


def _in_comment(text: str) -> bool:
    return bool(re.search(r"(^|\s)#", text)) and _scan(text.split("#", 1)[0]) == ""


def _scan(text: str) -> str:
    """Return the innermost open construct at the end: a quote, ``(`` of a substitution, or ""."""
    stack: list[str] = []
    position = 0
    while position < len(text):
        letter, top = text[position], stack[-1] if stack else ""
        if letter == "\\" and top != "'":
            position += 2
            continue
        if top == "'":
            stack = stack[:-1] if letter == "'" else stack
        elif letter == '"':
            stack = stack[:-1] if top == '"' else [*stack, '"']
        elif letter == "'" and top != '"':
            stack.append("'")
        elif letter == "`":
            stack = stack[:-1] if top == "`" else [*stack, "`"]
        elif text.startswith("$(", position) or (letter == "(" and top == "("):
            stack.append("(")
            position += text[position] == "$"
        elif letter == ")" and top == "(":
            stack.pop()
        elif letter == "#" and not top and (not position or text[position - 1].isspace()):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        position += 1
    return stack[-1] if stack else ""


def heredocs_of(text: str) -> list[Heredoc]:
    """Return the here-documents that begin in the text."""
    if "<<" not in text:
        return []
    found = []
    for match in _HEREDOC.finditer(text):
        before = text[: match.start()]
        if _scan(before) in ("'", '"') or before.endswith("<") or text[match.end() - 1 :].startswith("<"):
            continue
        if _in_comment(before) or "((" in before.rsplit("\n", 1)[-1]:
            continue
        quoted = match[4] is None or "\\" in match[0]
        found.append(Heredoc(match[2] or match[3] or match[4], bool(match[1]), quoted))
    return found


def _behind(lines: list[str], index: int, documents: list[Heredoc]) -> int:
    """Return the index of the line after all here-documents; the end of the script if one is not closed."""
    for one in documents:
        while index < len(lines):
            line = lines[index].lstrip("\t") if one.stripped else lines[index]
            index += 1
            if line == one.delimiter:
                break
    return index


def _word(text: str, start: int) -> tuple[Word | None, int, str]:
    position, cooked, live, literal = start, [], [], True
    while position < len(text) and not text[position].isspace():
        letter = text[position]
        if letter == "'":
            end = text.find("'", position + 1)
            if end < 0:
                return None, len(text), "a quote that is not closed"
            cooked.append(text[position + 1 : end])
            position = end + 1
        elif letter == '"':
            end, inner, plain = _double(text, position + 1)
            cooked.append(inner)
            live.append(text[position + 1 : end])
            literal, position = literal and plain, end + 1
        elif letter == "\\":
            cooked.append(text[position + 1 : position + 2])
            position += 2
        elif letter in "$`":
            end = end_of_substitution(text, position)
            live.append(text[position:end])
            literal, position = False, end
        elif letter in _META:
            return None, position, _why_not(text, start, position)
        else:
            literal = literal and letter not in _EXPANDS
            cooked.append(letter)
            live.append(letter)
            position += 1
    raw = text[start:position]
    return Word(raw, start, "".join(cooked) if literal else None, "".join(live)), position, ""


def expanded(live: str) -> str:
    """Return the parts of a word's live text that the shell expands. Within substitutions, single quotes prevent it."""
    found, position = [], 0
    while position < len(live):
        end = end_of_substitution(live, position) if live[position] == "`" or live.startswith("$(", position) else 0
        found.append(_SINGLE.sub(lambda match: match[1] or "", live[position:end]) if end else live[position])
        position = end or position + 1
    return "".join(found)


def _why_not(text: str, start: int, position: int) -> str:
    letter = text[position]
    if letter == "(" and _ARRAY.fullmatch(text[start:position]):
        return "an array"
    return _META["&" if text.startswith("||", position) else letter]


def _double(text: str, position: int) -> tuple[int, str, bool]:
    """Return the end of a text in double quotes, its value, and whether it has nothing to expand."""
    cooked, plain = [], True
    while position < len(text) and text[position] != '"':
        letter = text[position]
        if letter == "\\" and text[position + 1 : position + 2] in ("$", "`", '"', "\\", "\n"):
            cooked.append(text[position + 1])
            position += 2
        elif letter in "$`":
            plain = False
            position = end_of_substitution(text, position)
        else:
            cooked.append(letter)
            position += 1
    return position, "".join(cooked), plain


def end_of_substitution(text: str, position: int) -> int:
    """Return the end of a ``$NAME``, ``${…}``, ``$(…)`` or `` `…` ``."""
    if text[position] == "`":
        end = text.find("`", position + 1)
        return len(text) if end < 0 else end + 1
    if text.startswith("$(", position):
        for end in range(position + 3, len(text) + 1):
            if text[end - 1] == ")" and _scan(text[position:end]) == "":
                return end
        return len(text)
    if text.startswith("${", position):
        depth = 0
        for brace in _BRACES.finditer(text, position):
            depth += {"${": 1, "}": -1}.get(brace[0], 0)
            if not depth:
                return brace.end()
        return len(text)
    match = re.compile(r"\$(\w+|.|$)").match(text, position)
    return match.end() if match else position + 1
