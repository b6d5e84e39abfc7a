"""Composes a tree (:mod:`ffdl_batch.manifest.document.tree`) from YAML events, with limits on depth and on expanded
aliases."""

from __future__ import annotations

from dataclasses import field

import yaml

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest.document.syntax_errors import explain, name_template
from ffdl_batch.manifest.document.tree import Entry, Mapping, Mark, Node, Origin, Scalar, Sequence, Unreadable

MAX_DEPTH = 40
"""FfDL's manifests nest six deep."""
MAX_NODES = 60_000
"""Counted with every alias expanded: a "billion laughs" document stops here. Real manifests hold some fifty, and a
sweep that lists its elements some for each of them."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TAG_PREFIX = "tag:yaml.org,2002:"
_KNOWN_TAGS = frozenset({"str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "omap"})
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Document:
    """The first document of a stream. `more` is where a second one starts, `end` the offset where this one ends."""

    root: Node | None = None
    more: Mark | None = None
    end: int | None = None


@dataclass(slots=True)
class _Open:
    """A mapping or list that is not complete; `key` has no value yet."""

    node: Mapping | Sequence
    anchor: str
    key: Scalar | None = None
    merges: list[Node] = field(default_factory=list)


def compose(text: str) -> Document:
    """Return the tree of the first document. Raises :class:`Unreadable` with line and column."""
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if composer.take(event):
                break
    except Unreadable as error:
        raise name_template(error, text) from None
    except yaml.MarkedYAMLError as error:
        raise explain(error, text) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise Unreadable(f"this is not YAML: {error}") from None
    return composer.document


class _Composer:
    """Processes events one by one, with a stack of its own instead of recursion."""

    def __init__(self) -> None:
        self.document = Document()
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0

    def take(self, event: yaml.Event) -> bool:
        """Process one event. Return True when the first document is complete."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self.document.more = _mark(event)
                self.document.end = self.document.more.index
                return True
        elif isinstance(event, yaml.DocumentEndEvent) and event.explicit:
            self.document.end = _mark(event).end
            return True  # what follows "..." was never FfDL's business, right or wrong
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._start(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end()
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        return False

    def _start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        mark = _mark(event)
        if len(self._open) >= MAX_DEPTH:
            raise Unreadable(f"the manifest nests deeper than {MAX_DEPTH} levels", "a manifest needs six", mark)
        if self._open and isinstance(self._open[-1].node, Mapping) and self._open[-1].key is None:
            raise Unreadable("a key must be text, not a mapping or a list", "write `key: value`", mark)
        _check_tag(event.tag, mark)
        node = Mapping({}, Origin(mark)) if isinstance(event, yaml.MappingStartEvent) else Sequence([], Origin(mark))
        self._open.append(_Open(node, event.anchor or ""))

    def _end(self) -> None:
        ended = self._open.pop()
        if isinstance(ended.node, Mapping):
            for source in ended.merges:
                _merge(ended.node, source)
        if ended.anchor:
            self._anchors[ended.anchor] = ended.node
        self._place(ended.node)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        mark = _mark(event)
        _check_tag(event.tag, mark)
        if any("\ud800" <= c <= "\udfff" for c in event.value):
            raise Unreadable("an escape names half of a surrogate pair", "write the character itself", mark)
        is_null = (event.implicit[0] and event.value in _NULLS) or event.tag == f"{_TAG_PREFIX}null"
        node = Scalar(event.value, Origin(mark), is_null, event.anchor or "")
        if node.anchor:
            self._anchors[node.anchor] = node
        # `<<` merges only where it stands unquoted in the place of a key
        if self._awaits_key() and event.value == "<<" and event.implicit[0]:
            self._open[-1].key = Scalar("<<", Origin(mark), is_null=True)
            return
        self._place(node)

    def _alias(self, event: yaml.AliasEvent) -> None:
        mark = _mark(event)
        anchor = event.anchor or ""
        target = self._anchors.get(anchor)
        if target is None:
            if any(o.anchor == anchor for o in self._open):
                raise Unreadable(f"*{anchor} stands inside the very value that it repeats", "", mark)
            raise Unreadable(f"*{anchor} repeats a value that is marked &{anchor} nowhere before", "", mark)
        if len(self._open) + target.height > MAX_DEPTH:
            raise Unreadable(f"the manifest nests deeper than {MAX_DEPTH} levels", "a manifest needs six", mark)
        self._place(target, mark)

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].node, Mapping) and self._open[-1].key is None

    def _place(self, node: Node, mark: Mark | None = None) -> None:
        """Add `node` to its parent; `mark` is the place of an alias to it."""
        if not self._open:
            self.document.root = node
            return
        parent = self._open[-1]
        parent.node.size += node.size
        parent.node.height = max(parent.node.height, node.height + 1)
        if sum(o.node.size for o in self._open) > MAX_NODES:
            raise Unreadable(
                f"the manifest holds more than {MAX_NODES} values once its aliases are expanded",
                "",
                mark or node.origin.mark,
            )
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            if not isinstance(node, Scalar):
                raise Unreadable("a key must be text, not a mapping or a list", "write `key: value`", mark)
            parent.key = node
        else:
            self._pair(parent, parent.node, node)

    @staticmethod
    def _pair(parent: _Open, mapping: Mapping, value: Node) -> None:
        key, parent.key = parent.key, None
        if key is None:
            raise AssertionError("a value comes after its key")
        if key.text == "<<" and key.is_null:
            parent.merges.extend(_merge_sources(value, key))
            return
        earlier = mapping.entries.pop(key.text, None)
        if earlier is not None:
            mapping.shadowed.append(earlier)
        mapping.entries[key.text] = Entry(key, value)


def _merge_sources(value: Node, key: Scalar) -> list[Mapping]:
    sources = value.items if isinstance(value, Sequence) else [value]
    mappings = [node for node in sources if isinstance(node, Mapping)]
    if len(mappings) != len(sources):
        raise Unreadable(
            "<< merges mappings only", "write `<<: *anchor` of a mapping, or a list of such", key.origin.mark
        )
    return mappings


def _merge(into: Mapping, source: Node) -> None:
    if not isinstance(source, Mapping):
        raise AssertionError("_merge_sources lets only mappings through")
    for key, entry in source.entries.items():
        into.entries.setdefault(key, Entry(entry.key, entry.value, merged=True))


def _check_tag(tag: str | None, mark: Mark) -> None:
    if tag is None or tag == "!":
        return
    name = tag.removeprefix(_TAG_PREFIX)
    if name == tag or name not in _KNOWN_TAGS:
        shown = f"!!{name}" if name != tag else tag
        raise Unreadable(f"the tag {ascii(shown)[1:-1][:60]} means nothing in a manifest", "delete the tag", mark)


def _mark(event: yaml.Event) -> Mark:
    start, end = event.start_mark, event.end_mark
    if start is None or end is None:
        raise AssertionError("the parser marks every event")
    return Mark(start.line + 1, start.column + 1, start.index, end.index)
