"""The manifest as a tree of nodes that know where they stand.

Composed from PyYAML's *events*, never by a loader that constructs objects: tags run nothing, scalars keep their
raw text (FfDL's string fields never see YAML's type guessing), depth and the expansion of aliases are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: line and column from 1, `index` and `end` as offsets into the text."""

    line: int
    column: int
    index: int = 0
    end: int = 0


class Unreadable(Exception):
    """The text cannot be read as a manifest at all; `mark` is None where no place is to blame."""

    def __init__(self, message: str, cure: str = "", mark: Mark | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.mark = mark


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: a place in the manifest, or an option or variable by its name.

    `option` is what messages name (``--time``, ``SBATCH_TIMELIMIT``); `source` is what the job records.
    """

    mark: Mark
    option: str = ""
    source: str = ""

    def __str__(self) -> str:
        return self.source or f"manifest:{self.mark.line}"


@dataclass(slots=True, eq=False)
class Scalar:
    """One value. `is_null`: YAML's nothing (``~``, ``null``, empty, unquoted). `anchor` is "" where there is none."""

    text: str
    origin: Origin
    is_null: bool = False
    anchor: str = ""
    size: int = 1
    height: int = 1


@dataclass(slots=True, eq=False)
class Sequence:
    """A list of nodes."""

    items: list[Node]
    origin: Origin
    size: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value. `merged`: ``<<`` added it."""

    key: Scalar
    value: Node
    merged: bool = False


@dataclass(slots=True, eq=False)
class Mapping:
    """A mapping. `shadowed` are earlier entries of a key that is written twice: the last wins."""

    entries: dict[str, Entry]
    origin: Origin
    shadowed: list[Entry] = field(default_factory=list)
    size: int = 1
    height: int = 1

    def get(self, key: str) -> Node | None:
        """Return the value of `key`, or None."""
        entry = self.entries.get(key)
        return entry.value if entry is not None else None


Node = Scalar | Sequence | Mapping
Place = tuple[str | int, ...]


def to_raw(node: Node) -> object:
    """Return plain dicts, lists, texts and None, as the models read them."""
    if isinstance(node, Mapping):
        return {key: to_raw(entry.value) for key, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [to_raw(item) for item in node.items]
    return None if node.is_null else node.text


def locate(root: Node, place: Place) -> tuple[Origin, int]:
    """Where `place` stands and how many of its steps exist; of a missing one, where its nearest parent stands."""
    node, origin = root, root.origin
    for depth, step in enumerate(place):
        if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
            entry = node.entries[step]
            node = entry.value
            # An empty value or a block is best found by its key; a value that is there, by itself.
            by_key = not isinstance(node, Scalar) or node.is_null or not node.text
            origin = entry.key.origin if by_key and not node.origin.option else node.origin
        elif isinstance(node, Sequence) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
            origin = node.origin
        else:
            return origin, depth
    return origin, len(place)


def find(root: Node, place: Place) -> Node | None:
    """Return the node at `place`, or None."""
    node: Node | None = root
    for step in place:
        if isinstance(node, Mapping) and isinstance(step, str):
            node = node.get(step)
        elif isinstance(node, Sequence) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
        else:
            return None
    return node


def walk(root: Node, place: Place = ()) -> Iterator[tuple[Node, Place]]:
    """Yield every node once, with its first place; shadowed values too, at the place of their key."""
    seen: set[int] = set()
    waiting: list[tuple[Node, Place]] = [(root, place)]
    while waiting:
        node, at = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node, at
        if isinstance(node, Mapping):
            waiting.extend((entry.value, (*at, key)) for key, entry in node.entries.items())
            waiting.extend((entry.value, (*at, entry.key.text)) for entry in node.shadowed)
        elif isinstance(node, Sequence):
            waiting.extend((item, (*at, i)) for i, item in enumerate(node.items))


def path_text(place: Place) -> str:
    """``data_stores[0].type``; keys that would not fit on one line are shortened and escaped."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            shown = step if step.isprintable() and len(step) <= 60 else ascii(step[:60])
            text += f".{shown}" if text else shown
    return text
