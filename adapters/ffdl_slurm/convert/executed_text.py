"""Finds the parts of a script that the shell runs: no comments, no text of ``echo``, no here-documents that are only
data.

In case of doubt the text counts as run: to miss a step is worse than to report one that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tree_sitter import Node

from ffdl_slurm.convert.tree_nodes import SUBSTITUTIONS, ancestors, name_of, root_of, walk

SPEAKS = frozenset({"echo", "printf", ":", "true", "false", "logger", "which", "type", "hash", "module", "ml", "man"})
"""Commands that start none of the programs which their words name."""
_HANDS_ON = frozenset({"cat", "tee", ":", "true", "sed", "awk", "grep", "tr", "sort", "mail", "logger", "read"})
"""Commands that read a here-document and run nothing of it."""
_RUNS = re.compile(
    r"(?<![\w.-])(?:\w*sh|srun|sbatch|salloc|xargs|parallel|at|batch|eval|source|python[\d.]*|perl|mpirun|mpiexec)(?![\w.-])"
)
"""Programs that run what they are given on standard input."""
_TARGET = re.compile(r">>?\|?\s*([^\s;&|<>()]+)|\btee\s+(?:-\w+\s+)*([^\s;&|<>()]+)")
Ranges = list[tuple[int, int]]


def inert_ranges(root: Node, data: bytes) -> Ranges:
    """Return the parts of a script that are not run, in ascending order. The substitutions within them are run."""
    found: Ranges = []
    for node in walk(root):
        if node.type == "comment":
            found.append((node.start_byte, node.end_byte))
        elif node.type == "command" and name_of(node) in SPEAKS and not _handed_on(node, data):
            for child in node.children[1:]:
                found += _without_substitutions(child)
        elif node.type == "heredoc_body" and not _is_read(node, data):
            found += _without_substitutions(node)
        elif node.type == "heredoc_body":
            body = data[node.start_byte : node.end_byte]
            found += (
                (node.start_byte + one, node.start_byte + other) for one, other in inert_ranges(root_of(body), body)
            )
    return sorted(found)


def blanked(data: bytes, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Return the script with blanks in these parts; line breaks stay."""
    text = bytearray(data)
    for start, end in ranges:
        text[start:end] = re.sub(rb"[^\n]", b" ", data[start:end])
    return bytes(text)


def _without_substitutions(node: Node) -> Iterator[tuple[int, int]]:
    position = node.start_byte
    for below in walk(node, into_substitutions=False):
        if below.type in SUBSTITUTIONS:
            yield position, below.start_byte
            position = below.end_byte
    yield position, node.end_byte


def _handed_on(command: Node, data: bytes) -> bool:
    """Return whether something may run what a command prints: a shell behind a pipe, or the file that it writes."""
    inner = command
    for above in ancestors(command):
        if above.type in SUBSTITUTIONS:
            return True
        if above.type in ("pipeline", "redirected_statement"):
            behind = data[inner.end_byte : above.end_byte].decode("utf-8", "replace")
            if _RUNS.search(behind) or _is_named(behind, data):
                return True
        inner = above
    return False


def _is_read(body: Node, data: bytes) -> bool:
    """Return whether a here-document may be run."""
    statement = next((one for one in ancestors(body) if one.type != "heredoc_redirect"), body)
    first = next((one for one in walk(statement) if one.type == "command"), None)
    head = data[statement.start_byte : body.start_byte].decode("utf-8", "replace")
    name = name_of(first) if first is not None else ""
    return name not in _HANDS_ON or bool(_RUNS.search(head)) or _is_named(head, data)


def _is_named(text: str, data: bytes) -> bool:
    """Return whether another part of the script names a file that this part writes, so that it may run it."""
    for match in _TARGET.finditer(text):
        name = (match[1] or match[2]).strip("\"'").rsplit("/", 1)[-1]
        if name and not name.isdigit() and name != "null" and data.count(name.encode()) > text.count(name):
            return True
    return False
