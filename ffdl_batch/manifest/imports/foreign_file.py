"""A job file of another system: the values at its places, and what became of each of its fields.

A reader has a table of the format's fields. A field that is in no table is reported as dropped, so that nothing is lost
in silence. Credentials are never in the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Mappings

from ffdl_batch.domain.conversion import CannotConvert, Fate, Judged, KeyFate, Origin
from ffdl_batch.manifest.credentials import is_secret
from ffdl_batch.manifest.document.composer import compose
from ffdl_batch.manifest.document.source_text import read_text
from ffdl_batch.manifest.document.tree import Mapping, Node, Place, Scalar, Sequence, Unreadable, find, path_text

_SHOWN = 60
_UNKNOWN = KeyFate(Fate.DROPPED, "", "no manifest has such a field")
QUIET = KeyFate(Fate.MAPPED)
"""Of a field that is no request: it is not reported."""


def mapped(to: str, reason: str = "") -> KeyFate:
    """Return the fate of a field that means the same."""
    return KeyFate(Fate.MAPPED, to, reason)


def near(to: str, reason: str) -> KeyFate:
    """Return the fate of a field that means something similar."""
    return KeyFate(Fate.APPROXIMATED, to, reason)


def lost(reason: str) -> KeyFate:
    """Return the fate of a field that no manifest can express."""
    return KeyFate(Fate.DROPPED, "", reason)


def read_documents(text: str) -> list[Mapping]:
    """Return the YAML documents of a text that are mappings, with their lines in the whole text. Raises Unreadable."""
    text = read_text(text)
    found: list[Mapping] = []
    start, line = 0, 1
    while True:
        # Blank lines in place of the documents before it keep the numbers of the lines.
        head = "\n" * (line - 1)
        document = compose(head + text[start:])
        if isinstance(document.root, Mapping):
            found.append(document.root)
        if document.more is None:
            return found
        start, line = start + document.more.index - len(head), document.more.line


def mappings_of(text: str) -> list[Mapping]:
    """Return the documents of a text, for a reader that decides whether they are its own; none if it is no YAML."""
    if text.startswith("#!"):
        return []
    try:
        return read_documents(text)
    except Unreadable:
        return []


class ForeignFile:
    """One document, and the fates of its fields."""

    def __init__(self, root: Mapping, fates: Mappings[str, KeyFate], left_out: frozenset[str] = frozenset()) -> None:
        """`fates` has the fields by path without indexes, as ``spec.containers.image``. `left_out` are steps of paths
        that the report leaves out, so that its lines stay short."""
        self.root = root
        self._left_out = left_out
        self._fates = dict(fates)
        self._special: dict[Place, KeyFate] = {}
        self._hidden: set[Place] = set()

    def node(self, *place: str | int) -> Node | None:
        """Return the node at a place, or None."""
        return find(self.root, place)

    def text(self, *place: str | int) -> str:
        """Return the text of a value; "" if there is none, or if it is a mapping or a list."""
        node = self.node(*place)
        return node.text.strip() if isinstance(node, Scalar) and not node.is_null else ""

    def is_true(self, *place: str | int) -> bool:
        """Return whether the value is YAML's true."""
        return self.text(*place).lower() in ("true", "yes", "on")

    def count(self, *place: str | int) -> int | None:
        """Return a whole number from 0; None if there is none. Raises CannotConvert for another text."""
        text = self.text(*place)
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 9:
            raise self.error(f"{path_text(place)}: {text[:_SHOWN]!r} is not a whole number", place=place)
        return int(text)

    def texts(self, *place: str | int) -> list[str]:
        """Return the texts of a list, or the one text."""
        node = self.node(*place)
        if isinstance(node, Sequence):
            return [item.text for item in node.items if isinstance(item, Scalar) and not item.is_null]
        text = self.text(*place)
        return [text] if text else []

    def keys(self, *place: str | int) -> list[str]:
        """Return the keys of a mapping; none if there is no mapping."""
        node = self.node(*place)
        return list(node.entries) if isinstance(node, Mapping) else []

    def items(self, *place: str | int) -> range:
        """Return the indexes of a list; none if there is no list."""
        node = self.node(*place)
        return range(len(node.items)) if isinstance(node, Sequence) else range(0)

    def error(self, message: str, cure: str = "", place: Place = ()) -> CannotConvert:
        """Return the error of a place."""
        node = self.node(*place) or self.root
        return CannotConvert(message, cure, node.origin.mark.line)

    def set_fates(self, prefix: Place, fates: Mappings[str, KeyFate]) -> None:
        """Add the fates of the fields below a place."""
        before = _path(prefix)
        self._fates |= {f"{before}.{path}" if before else path: fate for path, fate in fates.items()}

    def judge(self, place: Place, fate: KeyFate) -> None:
        """Set what becomes of the field at a place, with everything in it."""
        self._special[place] = fate

    def hide(self, place: Place) -> None:
        """Keep the value of a field out of the report."""
        self._hidden.add(place)

    def judged(self) -> Iterator[Judged]:
        """Yield what became of each field, in the order of the file."""
        yield from self._judge(self.root, (), 1)

    def _judge(self, node: Node, place: Place, line: int) -> Iterator[Judged]:
        fate = self._special.get(place) or self._fates.get(_path(place))
        if fate is QUIET:
            return
        if fate is None and isinstance(node, Mapping | Sequence) and (not place or self._has_fates_in(place)):
            if isinstance(node, Mapping):
                for key, entry in node.entries.items():
                    yield from self._judge(entry.value, (*place, key), entry.key.origin.mark.line)
            else:
                for number, item in enumerate(node.items):
                    yield from self._judge(item, (*place, number), item.origin.mark.line)
            return
        fate = fate or _UNKNOWN
        shown = tuple(step for step in place[:-1] if step not in self._left_out)
        text = f"{path_text((*shown, *place[-1:]))}{self._shown(node, place)}"
        yield Judged(Origin.SCRIPT, line, text, fate.fate, fate.to, fate.reason)

    def _has_fates_in(self, place: Place) -> bool:
        path = f"{_path(place)}."
        below = any(len(other) > len(place) and other[: len(place)] == place for other in self._special)
        return below or any(known.startswith(path) for known in self._fates)

    def _shown(self, node: Node, place: Place) -> str:
        if not isinstance(node, Scalar) or node.is_null:
            return ""
        name = str(place[-1]) if place else ""
        if place in self._hidden or is_secret(name, node.text):
            return ": ***"
        words = " ".join(node.text.split())
        return f": {words if len(words) <= _SHOWN else words[: _SHOWN - 3] + '...'}"


def _path(place: Place) -> str:
    return ".".join(step for step in place if isinstance(step, str))
