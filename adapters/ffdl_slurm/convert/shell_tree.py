"""Parses a script with tree-sitter's grammar of bash into logical lines, commands and assignments.

It expands nothing and judges nothing. Offsets are in bytes of the script.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator

from tree_sitter import Node

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.executed_text import SPEAKS, Ranges, blanked, inert_ranges
from ffdl_slurm.convert.tree_nodes import SUBSTITUTIONS, ancestors, root_of, text_of, walk
from ffdl_slurm.convert.word_text import literal_text

LAUNCHERS = frozenset({
    "srun", "sbatch", "salloc", "apptainer", "singularity", "docker", "podman", "podman-hpc", "enroot", "shifter",
    "ssh", "pdsh", "clush", "pssh", "rsh",
})  # fmt: skip
"""Programs that matter also if another program, a variable or a text starts them."""
_INSTALLERS = frozenset({"pip", "pip3", "conda", "mamba", "apt", "apt-get", "yum", "dnf", "command"})
"""Programs whose arguments can have the names of launchers, which they do not start."""
_STARTS = re.compile(rf"(?<![\w./-])(?:{'|'.join(sorted(LAUNCHERS))})(?=[\s\"']|$)")
_JOINED = frozenset({
    "string", "raw_string", "ansi_c_string", "translated_string", "command_substitution", "process_substitution",
    "expansion", "arithmetic_expansion", "heredoc_redirect", "array",
})  # fmt: skip
"""Nodes within which a line break does not end a logical line."""
_PLAIN_PLACES = frozenset({"program", "redirected_statement"})
_TEXTS = frozenset({"string", "raw_string", "heredoc_body"})
"""Nodes with a text that the shell may run later."""
_DECLARES = {"declaration_command", "unset_command"}


@dataclass(frozen=True, slots=True)
class Word:
    """`raw` as it stands in the script, at `start`. `value` is what it becomes, None if the shell expands something."""

    raw: str
    start: int
    value: str | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME=value``, as a command of its own, of ``export`` and the like, or before a command."""

    line: int
    name: str
    raw: str
    text: str
    start: int
    top: bool
    """Whether it always takes place: not within a condition, a loop, a function or a sub-shell, nor for a command."""


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. `words` begin with its name; a command that only assigns has none."""

    line: int
    start: int
    end: int
    words: tuple[Word, ...]
    assigned: str = ""
    """The assignments before it, as they stand there."""
    behind: str = ""
    """The program that starts it ("timeout"), or "a text" or "an array" that holds it; "" if the script starts it."""
    top: bool = False
    """Whether it is a statement of its own: not within a condition, a list, a pipe, a function, ...."""
    redirected: bool = False

    @property
    def name(self) -> str:
        """Return the base name of the program; "" if the shell expands it."""
        return (self.words[0].value or "").rsplit("/", 1)[-1] if self.words else ""


@dataclass(frozen=True, slots=True)
class Read:
    """An expansion of a variable, also in arithmetic without ``$``."""

    line: int
    name: str
    start: int


@dataclass(frozen=True, slots=True)
class Line:
    """A logical line: continuation lines, quoted line breaks and here-documents belong to the line before."""

    number: int
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script. `problem` is the number of the first line that is not understood; 0 if all are."""

    data: bytes
    root: Node
    lines: tuple[Line, ...]
    commands: tuple[Command, ...]
    assignments: tuple[Assignment, ...]
    reads: tuple[Read, ...]
    inert: Ranges
    """The parts that are not run."""
    substituted: Ranges
    """The command substitutions."""
    functions: Ranges
    problem: int = 0

    def executed(self) -> list[str]:
        """Return what is run of each line."""
        data = blanked(self.data, self.inert)
        return [data[one.start : one.end].decode("utf-8", "replace").replace("\\\n", " ") for one in self.lines]


def parse(text: str) -> Script:
    """Parse a script."""
    data = text.encode("utf-8", "replace")
    root = root_of(data)
    lines, inert = tuple(_lines(data, root)), inert_ranges(root, data)
    starts = [line.start for line in lines]
    begins = [start for start, _ in inert]
    commands: list[Command] = []
    assignments: list[Assignment] = []
    problem = 0
    reads: list[Read] = []
    for node in walk(root):
        index = bisect_right(starts, node.start_byte) - 1
        number = lines[index].number if index >= 0 else 1
        before = bisect_right(begins, node.start_byte) - 1
        is_inert = before >= 0 and node.end_byte <= inert[before][1]
        if node.type == "ERROR" or node.is_missing:
            problem = problem or node.start_point[0] + 1
        elif node.type == "command" or node.type in _DECLARES:
            commands += _commands(node, number)
        elif node.type == "array":
            commands += _of_array(node, number)
        elif node.type in _TEXTS and not is_inert:
            commands += _of_text(node, number)
        elif node.type == "variable_assignment":
            assignments.append(_assignment(node, number))
        elif node.type in ("variable_name", "special_variable_name") and _is_read(node):
            reads.append(Read(number, text_of(node), node.start_byte))
    substituted, functions = _ranges(root, SUBSTITUTIONS), _ranges(root, {"function_definition"})
    found = tuple(commands), tuple(assignments), tuple(reads)
    return Script(data, root, lines, *found, inert, substituted, functions, problem)


def within(offset: int, ranges: Ranges) -> bool:
    """Return whether an offset is inside one of the parts."""
    return any(start <= offset < end for start, end in ranges)


def _ranges(root: Node, types: Collection[str]) -> Ranges:
    return [(node.start_byte, node.end_byte) for node in walk(root) if node.type in types]


def _is_read(name: Node) -> bool:
    above = name.parent
    if above is None or above.type in ("declaration_command", "unset_command", "for_statement"):
        return False
    return above.type != "variable_assignment" or above.child_by_field_name("name") != name


def _commands(node: Node, line: int) -> Iterator[Command]:
    """Yield a command, and the launchers that it starts by its words: ``timeout 60 srun …``."""
    words: list[Word] = []
    assigned: list[str] = []
    redirected = False
    for child in node.children:
        if child.type == "variable_assignment" and not words:
            assigned.append(text_of(child))
        elif "redirect" in child.type:
            redirected = True
        elif child.type != "comment":
            raw = text_of(child)
            words.append(Word(raw, child.start_byte, literal_text(raw)))
    parents = _places(node)
    redirected = redirected or parents[:1] == ["redirected_statement"]
    top = all(place in _PLAIN_PLACES for place in parents) and not _in_background(node)
    before = "".join(f"{one} " for one in assigned)
    first = Command(line, node.start_byte, node.end_byte, tuple(words), before, "", top, redirected)
    yield first
    if (
        first.name in SPEAKS
        or first.name in _INSTALLERS
        or node.type in _DECLARES
        or first.name in LAUNCHERS - {"srun"}
    ):
        return
    for index, word in enumerate(words[1:], 1):
        name = (word.value or "").rsplit("/", 1)[-1]
        if name in LAUNCHERS and index + 1 < len(words) and not words[index - 1].raw.startswith("--"):
            by = first.name or first.words[0].raw
            yield Command(line, word.start, node.end_byte, tuple(words[index:]), before, by, top, redirected)
            return


def _places(node: Node) -> list[str]:
    """Return the types of the nodes above, up to the script or the first one that decides."""
    found = []
    for above in ancestors(node):
        found.append(above.type)
        if above.type not in _PLAIN_PLACES:
            break
    return found


def _in_background(node: Node) -> bool:
    top = node
    for above in ancestors(node):
        if above.type == "program":
            break
        top = above
    following = top.next_sibling
    return following is not None and following.type == "&"


def _of_array(node: Node, line: int) -> Iterator[Command]:
    words = [Word(text_of(child), child.start_byte, literal_text(text_of(child))) for child in node.named_children]
    for index, word in enumerate(words):
        if (word.value or "").rsplit("/", 1)[-1] in LAUNCHERS:
            yield Command(line, word.start, node.end_byte, tuple(words[index:]), behind="an array")
            return


def _of_text(node: Node, line: int) -> Iterator[Command]:
    """Yield the launchers in a text that the shell may run later: ``bash -c 'srun …'``, or a variable."""
    text = _own_text(node)
    if not _STARTS.search(text):
        return
    for below in walk(root_of(text.encode("utf-8", "replace"))):
        if below.type == "command":
            for one in _commands(below, line):
                if one.name in LAUNCHERS:
                    start = node.start_byte
                    held = "a here-document" if node.type == "heredoc_body" else "a text"
                    yield Command(line, start, start, one.words, one.assigned, held)


def _own_text(node: Node) -> str:
    """Return the text of a string without quotes and without its substitutions, whose commands are nodes themselves."""
    if node.type == "raw_string":
        return text_of(node)[1:-1]
    data, start = node.text or b"", node.start_byte
    parts, position = [], 0
    for child in node.children:
        if child.type in SUBSTITUTIONS:
            parts += [data[position : child.start_byte - start], b"X"]
            position = child.end_byte - start
    text = b"".join([*parts, data[position:]]).decode("utf-8", "replace")
    return text if node.type == "heredoc_body" else text[1:-1].replace('\\"', '"')


def _assignment(node: Node, line: int) -> Assignment:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    places = _places(node)
    if places[:1] in (["declaration_command"], ["variable_assignments"]) and node.parent is not None:
        places = _places(node.parent)
    top = all(place in _PLAIN_PLACES for place in places)
    plain = name is not None and name.type == "variable_name" and "+=" not in text_of(node)[: len(text_of(name)) + 2]
    raw = text_of(value) if value is not None else ""
    return Assignment(
        line, text_of(name) if name is not None else "", raw, text_of(node), node.start_byte, top and plain
    )


def _lines(data: bytes, root: Node) -> Iterator[Line]:
    physical = data.split(b"\n")
    joined = [False] * (len(physical) + 1)
    """Whether the line with this index belongs to the one before."""
    comments: set[int] = set()
    for node in walk(root):
        if node.type == "comment":
            comments.add(node.start_point[0])
        elif node.type in _JOINED and node.end_point[0] > node.start_point[0]:
            if joined[node.start_point[0] + 1] and joined[node.end_point[0]]:
                continue  # within one that is joined already
            for row in range(node.start_point[0] + 1, min(node.end_point[0], len(physical) - 1) + 1):
                joined[row] = True
    for row, line in enumerate(physical):
        ends = len(line) - len(line.rstrip(b"\\"))
        if ends % 2 and row not in comments:
            joined[row + 1] = True
    start = row = 0
    while row < len(physical):
        end, last = start + len(physical[row]), row
        while last + 1 < len(physical) and joined[last + 1]:
            last += 1
            end += 1 + len(physical[last])
        text = data[start:end].decode("utf-8", "replace").replace("\\\n", "").strip()
        if text and not text.startswith("#"):
            yield Line(row + 1, text, start, end)
        start, row = end + 1, last + 1
