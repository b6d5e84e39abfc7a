"""Turns YAML's syntax errors into messages that say what is wrong, where it began, and what would be right."""

from __future__ import annotations

import re

import yaml

from ffdl_batch.manifest.document.tree import Mark, Unreadable

_INDENTATION = (
    "this line does not fit the lines above it",
    "indent the keys of one block by the same number of blanks",
)
_NO_COLON = "there is a key without its ':'"
# The library's problem texts (libyaml and its Python twin differ a little), first match wins.
_PLAIN: tuple[tuple[str, tuple[str, str]], ...] = (
    (
        r"mapping values are not allowed",
        ("a ': ' stands where it cannot", "put the value in quotes, or give this key a line of its own"),
    ),
    (r"could not find expected ':'", (_NO_COLON, "write `key: value`")),
    (r"expected ',' or '\]'", ("the list in [ ] is not closed", "put ',' between its items and ']' at its end")),
    (r"expected ',' or '\}'", ("the mapping in { } is not closed", "put ',' between its keys and '}' at its end")),
    (
        r"did not find expected node content",
        ("a [ or { is opened and never closed", "close it, or put the whole value in quotes"),
    ),
    (
        r"unexpected end of stream",
        ("a quote is opened and never closed", "close it, or double a quote that is part of the text"),
    ),
    (r"unexpected document indicator", ("a quote is opened and never closed", "close it before the line of dashes")),
    (
        r"unknown escape|expected escape|invalid Unicode",
        ("this escape is not known in double quotes", "write \\\\ for a backslash, or use single quotes"),
    ),
    (
        r"comment or line break|chomping or indentation",
        ("the text after | or > must start on the next line", "move it there, indented"),
    ),
    (r"expected key|expected '-' indicator|<block end>|<document start>", _INDENTATION),
    (
        r"expected whitespace or line break",
        ("'!' starts a tag, and no tag is known here", "put the whole value in quotes"),
    ),
    (r"undefined tag handle", ("this tag means nothing in a manifest", "delete the tag")),
)


def explain(error: yaml.MarkedYAMLError, text: str) -> Unreadable:
    """Return the error with a message that says how to correct the text."""
    problem = error.problem or "this is not YAML"
    where = error.problem_mark or error.context_mark
    mark = Mark(where.line + 1, where.column + 1) if where is not None else None
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)
    for candidate in (error.problem_mark, error.context_mark):
        if candidate is not None and candidate.line < len(lines) and _has_tab_indent(lines[candidate.line]):
            column = lines[candidate.line].index("\t") + 1
            return Unreadable(
                "a tab indents this line; YAML takes blanks only",
                "replace each tab by blanks",
                Mark(candidate.line + 1, column),
            )
    if where is not None and where.line < len(lines):
        better = (
            _line_above_to_blame(lines, where)
            or _text_without_mark(lines, error, problem)
            or _text_not_indented(lines, where)
            or _after_a_quote(lines[where.line], where, problem)
        )
        if better is not None:
            return better
    if (
        re.search("cannot start any token|expected alphabetic or numeric character", problem)
        and where is not None
        and where.line < len(lines)
    ):
        at = error.context_mark if "expected alphabetic" in problem and error.context_mark else where
        return _odd_start(lines[at.line][at.column : at.column + 1], Mark(at.line + 1, at.column + 1))
    for pattern, (message, cure) in _PLAIN:
        if re.search(pattern, problem):
            opened = _opened_at(error, mark)
            return Unreadable(message + opened, cure, mark)
    context = f" {error.context}" if error.context else ""
    return Unreadable(f"this is not YAML: {problem}{context}", "", mark)


def name_template(error: Unreadable, text: str) -> Unreadable:
    """Return `error`, or the real one if ``{{ name }}`` was read as two nested mappings."""
    mark = error.mark
    if mark is None or text[mark.index - 1 : mark.index + 1] != "{{":
        return error
    message = "{{ starts a placeholder of a template that was not filled in"
    return Unreadable(message, "fill in the template, or write the value here", Mark(mark.line, mark.column - 1))


def _line_above_to_blame(lines: list[str], where: yaml.Mark) -> Unreadable | None:
    """``a: b`` with a further indented ``c: d`` below it, or ``a`` above ``c: d``; YAML blames the second colon."""
    key = re.match(r"( *)[\w.-]+:", lines[where.line])
    if key is None or where.column not in (len(key[1]), key.end() - 1):
        return None
    above = next((i for i in range(where.line - 1, -1, -1) if re.match(r"\s*[^\s#]", lines[i])), None)
    opened = re.match(r"( *)(- )?[\w.-]+: +[^\s#]", lines[above]) if above is not None else None
    if above is not None and re.fullmatch(rf"{key[1]}[\w.-]+( +[^:#]*)?\s*", lines[above]):
        return Unreadable(_NO_COLON, "write `key: value`", Mark(above + 1, len(key[1]) + 1))
    if above is None or opened is None or len(opened[1]) >= len(key[1]):
        return None
    message = f"this line is indented further than line {above + 1}, which has its value already"
    return Unreadable(message, _INDENTATION[1], Mark(where.line + 1, len(key[1]) + 1))


def _text_without_mark(lines: list[str], error: yaml.MarkedYAMLError, problem: str) -> Unreadable | None:
    """A text of several lines below ``run:``, indented no further than that key."""
    opened = error.context_mark
    if "could not find expected ':'" not in problem or opened is None:
        return None
    for i in range(opened.line - 1, -1, -1):
        key = re.match(r"( *)([\w.-]+):\s*$", lines[i])
        indent = len(lines[i + 1]) - len(lines[i + 1].lstrip())
        if key is not None and indent <= len(key[1]):
            cure = f"write `key: value`; if this is the text of `{key[2]}` on line {i + 1}, write `{key[2]}: >` there"
            return Unreadable(_NO_COLON, f"{cure} and indent the text further", Mark(i + 2, indent + 1))
        if key is not None or re.match(r" *[\w.-]+:\s", lines[i]):
            return None
    return None


def _text_not_indented(lines: list[str], where: yaml.Mark) -> Unreadable | None:
    """``run: >`` whose text below starts no further right than ``run``."""
    line = lines[where.line]
    key = re.fullmatch(r"( *)(?:- )?([\w.-]+): *[|>][-+0-9]*\s*", lines[where.line - 1]) if where.line else None
    if key is None or not line.strip() or len(line) - len(line.lstrip()) > len(key[1]):
        return None
    message = f"this text belongs to `{key[2]}` on line {where.line} and is indented no further than that"
    return Unreadable(message, "indent it further", Mark(where.line + 1, len(line) - len(line.lstrip()) + 1))


def _after_a_quote(line: str, where: yaml.Mark, problem: str) -> Unreadable | None:
    if re.search("expected key|<block end>|<document start>", problem) is None:
        return None
    before = line[: where.column].rstrip()
    if not before.endswith(("'", '"')) or not line[where.column :].strip():
        return None
    again = before[-1] in line[where.column :]
    cure = "double a quote that is part of the text" if again else "put the whole value in quotes"
    return Unreadable("text follows a closing quote", cure, Mark(where.line + 1, where.column + 1))


def _has_tab_indent(line: str) -> bool:
    return "\t" in line[: len(line) - len(line.lstrip())]


def _odd_start(character: str, mark: Mark | None) -> Unreadable:
    if character == "\t":
        return Unreadable("a tab stands here; YAML takes blanks only", "replace the tab by blanks", mark)
    return Unreadable(f"a value cannot start with {character!r}", "put the whole value in quotes", mark)


def _opened_at(error: yaml.MarkedYAMLError, mark: Mark | None) -> str:
    """`` (it starts on line N)`` for what was opened on an earlier line."""
    opened = error.context_mark
    if opened is None or mark is None or opened.line + 1 == mark.line or "block" in (error.context or ""):
        return ""
    return f"; it starts on line {opened.line + 1}"
