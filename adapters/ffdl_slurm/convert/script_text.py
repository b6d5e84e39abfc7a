"""Writes the command of a manifest: the commands of a script, without comments and what learners do not need."""

from __future__ import annotations

from collections.abc import Iterable

from tree_sitter import Node

from ffdl_slurm.convert.launch_command import Edit
from ffdl_slurm.convert.shell_tree import Script
from ffdl_slurm.convert.tree_nodes import walk

_SIMPLE = frozenset({"command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments"})
_QUOTED = frozenset({"string", "raw_string", "ansi_c_string", "translated_string", "command_substitution", "array"})


def command_text(script: Script, edits: Iterable[Edit]) -> str:
    """Return the commands with the edits made: on one line if all are simple, else line by line."""
    comments = [Edit(node.start_byte, node.end_byte) for node in walk(script.root) if node.type == "comment"]
    changes = sorted([*edits, *comments], key=lambda one: one.start)
    parts: list[str] = []
    for line in script.lines:
        found, position = [], line.start
        for one in changes:
            if line.start <= one.start and one.end <= line.end and one.start >= position:
                found += [script.data[position : one.start], one.text.encode()]
                position = one.end
        found.append(script.data[position : line.end])
        text = b"".join(found).decode("utf-8", "replace")
        text = _stripped(text)
        if text.strip():
            parts.append(_indented(text))
    if _is_plain(script):
        return "; ".join(part.replace("\\\n", "").strip() for part in parts)
    return "\n".join(parts)


def _is_plain(script: Script) -> bool:
    """Return whether the script is a list of simple commands, one on each line, without line breaks in quotes, and
    without arithmetic: after an error in it, bash continues on the next line."""
    if not all(node.type in _SIMPLE or node.type == "comment" for node in script.root.children):
        return False
    return not any(
        node.type == "arithmetic_expansion" or (node.type in _QUOTED and _has_line_break(node))
        for node in walk(script.root)
    )


def _has_line_break(node: Node) -> bool:
    text = node.text or b""
    return b"\n" in (text if node.type == "raw_string" else text.replace(b"\\\n", b""))


def _stripped(text: str) -> str:
    """Return a line without blanks and joined empty lines at its end."""
    while text:
        if text.endswith("\\\n"):
            text = text[:-2]
        elif text[-1].isspace() and text[-2:-1] != "\\":
            text = text[:-1]
        else:
            break
    return text


def _indented(text: str) -> str:
    """Return a line with blanks for the tabs before it, so that YAML can show it as it is."""
    rest = text.lstrip("\t ")
    return text if "\n" in text else text[: len(text) - len(rest)].expandtabs(4) + rest
