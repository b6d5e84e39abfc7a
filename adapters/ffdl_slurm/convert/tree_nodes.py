"""Access to the syntax tree of a script: tree-sitter with its grammar of bash."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution"})


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def root_of(data: bytes) -> Node:
    """Return the root of the tree of a script."""
    return _parser().parse(data).root_node


def walk(root: Node, *, into_substitutions: bool = True) -> Iterator[Node]:
    """Yield a node and all nodes below it, in the order of the text."""
    rest = [root]
    while rest:
        node = rest.pop()
        yield node
        if into_substitutions or node.type not in SUBSTITUTIONS:
            rest += reversed(node.children)


def ancestors(node: Node) -> Iterator[Node]:
    """Yield the nodes above a node, from the nearest."""
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def text_of(node: Node) -> str:
    """Return the text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def name_of(command: Node) -> str:
    """Return the base name of the program that a command node starts, as it stands there."""
    name = command.child_by_field_name("name")
    return text_of(name).rsplit("/", 1)[-1] if name is not None else ""
