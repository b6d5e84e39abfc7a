"""Reads the text of a command, and finds the line breaks that end a command of the shell.

FfDL replaced each line break with a blank. Its manifests continue a command on indented lines that start with a dash.
Such a line continues the previous line. Every other line break is kept, so that the text is a script. The rules are
those of bash(1): QUOTING, COMMENTS, "Here Documents", "Command Substitution", "Arrays". Nothing is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ffdl_batch.host.fast_dataclass import dataclass

_CODE = re.compile(
    r"(?P<line>\n)|(?P<blank>[ \t]+)|(?P<continuation>\\\n)|(?P<comment>\#)"
    r"|(?P<quoted>\\.?|\$'(?:\\.|[^'\\])*'?|'[^']*'?|\$[#$])"
    r"|(?P<array>(?<=[\w\]]=)\(|(?<=\+=)\()|(?P<open>\$\(\(|\(\(|\$\(|\(|\$\{|\$?\"|`)|(?P<close>\))"
    r"|<<(?P<tabs>-?)[ \t]*(?P<document>(?:\\.|'[^'\n]*'|\"[^\"\n]*\"|[^\s;&|<>()'\"\\`])+)"
    r"|(?P<operator>[;&|]+)|(?P<redirection><<<|[<>])|(?P<word>[^\s\\'\"$`()<>;&|\#][^\s\\'\"$`()<>;&|]*|.)",
    re.DOTALL,
)
_INSIDE = re.compile(r"\\.?|\$\(\(|\$\(|\$\{|[\"`(){}']|[^\\$\"`(){}']+|\$", re.DOTALL)
"""Contexts in which a line break does not end a command: double quotes, ``${...}`` and arithmetic."""
_INDENT = re.compile(r"(?:[ \t]*\n)*([ \t]*)")
_CASE_PATTERN = re.compile(r"[^\s()|]+(?:[ \t]*\|[ \t]*[^\s()|]+)*[ \t]*\)")
_QUOTES = re.compile(r"\\(.)|'([^']*)'|\"([^\"]*)\"", re.DOTALL)
_ODD_BACKSLASHES = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_ARITHMETIC, _ARRAY, _SUBSHELLS = "((", "=(", ("(", "$(")


@dataclass(frozen=True, slots=True)
class Command:
    """A command as bash runs it. Lines are numbered from 1. `text` and the manifest have the same line numbers."""

    text: str
    lines: int
    continued: Sequence[int]
    """The lines that continue the previous line, with the blank lines between them."""
    stray: Sequence[int]
    """The lines that start with a dash and continue no line. bash runs them as commands of their own."""
    runs: bool
    """Whether the command has more than comments."""
    blank_word: bool
    """Whether a word begins with an escaped blank: YAML joined a line that ended in a backslash with the next line, or
    a blank follows the backslash at the end of a line."""


def read_command(written: str) -> Command:
    """Return the command of a manifest's text. A carriage return at the end of a line is removed. If the last line ends
    in a backslash, it gets a line break, because without one bash takes the backslash for an argument."""
    text = re.sub(r"\r(?=\n|\Z)", "", written)
    text += "\n" if text.endswith("\\") else ""
    scan = _Scan(text)
    parts = (text[start:end] for start, end in zip([0, *scan.joined], [*scan.joined, None], strict=True))
    lines = text.rstrip().count("\n") + 1
    continued = [text.count("\n", 0, at) + 2 for at in scan.joined]
    return Command(" \\".join(parts), lines, continued, scan.stray, scan.runs, scan.blank_word)


class _Scan:
    """One pass over a text. `joined` has the offsets of the line breaks before continuation lines."""

    def __init__(self, text: str) -> None:
        self.joined: list[int] = []
        self.stray: list[int] = []
        self.runs = self.blank_word = False
        self._text, self._at = text, 0
        self._open: list[str] = []
        self._documents: list[re.Match[str]] = []
        self._in_word = self._in_test = False
        """Whether the offset is in a word, and whether it is between ``[[`` and ``]]``."""
        self._last = ""
        """The kind of the last lexeme that is not blank. The end of a branch of ``case`` has the kind "branch"."""
        self._begin_line(0)
        while self._at < len(text):
            if self._open and self._open[-1] in ('"', "${", _ARITHMETIC):
                self._read_inside()
            else:
                self._read_code()

    def _read_code(self) -> None:
        found = _CODE.match(self._text, self._at)
        assert found is not None  # its last alternative is any character
        lexeme, kind = found[0], found.lastgroup or ""
        self._at = found.end()
        if kind == "comment" and self._in_word:
            kind = "word"
        if kind == "line":
            self._end_line(found.start())
            return
        if kind == "blank":
            self._in_word = False
            return
        if kind == "continuation":
            return
        self.runs = self.runs or kind != "comment"
        self.blank_word = self.blank_word or (lexeme in ("\\ ", "\\\t") and not self._in_word)
        if lexeme in ("[[", "]]"):
            self._in_test = lexeme == "[["
        if lexeme.endswith((";;", ";&")) and kind == "operator":
            kind = "branch"
        self._last = "operator" if lexeme == "(" else kind
        self._in_word = kind in ("word", "quoted")
        if kind == "comment":
            self._skip_comment()
        elif kind == "document":
            self._documents.append(found)
        elif kind in ("open", "array"):
            self._begin(_ARRAY if kind == "array" else lexeme)
        elif kind == "close" and self._open and self._open[-1] in (*_SUBSHELLS, _ARRAY):
            self._in_word = self._open.pop() != "("

    def _read_inside(self) -> None:
        found = _INSIDE.match(self._text, self._at)
        assert found is not None  # its alternatives have every character
        lexeme, top = found[0], self._open[-1]
        self._at = found.end()
        if (lexeme, top) in (('"', '"'), ("}", "${"), (")", _ARITHMETIC)):
            self._open.pop()
            self._in_word, self._last = True, "word"
        elif lexeme in ("$((", "$(", "${", '"', "`"):
            self._begin(lexeme)
        elif lexeme == "(" and top == _ARITHMETIC:
            self._open.append(top)
        elif lexeme == "'" and '"' not in self._open:
            self._at = self._text.find("'", self._at) + 1 or len(self._text)

    def _begin(self, lexeme: str) -> None:
        """Enter the context that `lexeme` opens. A second backquote closes the one that the first opened."""
        if lexeme == "`" and lexeme in self._open:
            del self._open[self._open.index(lexeme) :]
            self._in_word = True
        elif lexeme.endswith("(("):
            self._open += [_ARITHMETIC, _ARITHMETIC]
        else:
            self._open.append(lexeme.replace('$"', '"'))

    def _skip_comment(self) -> None:
        end = re.compile(r"[\n`]" if "`" in self._open else r"\n").search(self._text, self._at)
        self._at = end.start() if end else len(self._text)

    def _end_line(self, newline: int) -> None:
        for found in self._documents:
            self._skip_document(found)
            self._last = "document"
        self._documents.clear()
        self._begin_line(newline)

    def _skip_document(self, found: re.Match[str]) -> None:
        end = _QUOTES.sub(lambda quote: "".join(filter(None, quote.groups())), found["document"])
        while self._at < len(self._text):
            line = self._read_line()
            while end == found["document"] and _ODD_BACKSLASHES.search(line) and self._at < len(self._text):
                line = line[:-1] + self._read_line()
            if (line.lstrip("\t") if found["tabs"] else line) == end:
                return

    def _read_line(self) -> str:
        start, end = self._at, self._text.find("\n", self._at)
        self._at = end + 1 or len(self._text)
        return self._text[start : end if end >= 0 else None]

    def _begin_line(self, newline: int) -> None:
        """Go to the first character of the next non-blank line. `newline` is the end of the previous line."""
        indent = _INDENT.match(self._text, self._at)
        assert indent is not None  # it matches nothing, too
        self._at, self._in_word = indent.end(), False
        if not self._text.startswith("-", self._at) or self._last == "branch" or '"' in self._open:
            return
        if self._in_test and self._last in ("operator", "comment"):
            return
        top = self._open[-1] if self._open else ""
        if top == _ARRAY or (top not in _SUBSHELLS and _CASE_PATTERN.match(self._text, self._at)):
            return
        if not indent[1] or self._last in ("", "comment", "document", "operator"):
            self.stray.append(self._text.count("\n", 0, self._at) + 1)
        else:
            self.joined += [at for at in range(newline, self._at) if self._text[at] == "\n"]
