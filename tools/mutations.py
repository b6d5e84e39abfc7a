"""Chooses small faults to plant in the production code, and writes the code with one of them in it.

The choice depends on the sources and the seed alone. A fault is one changed expression inside a function: a comparison,
a condition, a boolean operator, a number or a returned value.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

AREAS = {
    "domain": "ffdl_batch/domain",
    "services": "ffdl_batch/services",
    "controller": "ffdl_batch/controller",
    "store": "ffdl_batch/store",
    "adapters": "adapters",
}
"""Where faults are planted; each area gets the same number of them."""
LEFT_OUT = ("migrations",)
"""Folders without faults: scripts that run once."""
_SWAPPED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, order=True)
class Site:
    """One expression of a file and the text that replaces it. Offsets are bytes of the whole file."""

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Where it is and what changes, on one line."""
        return f"{self.path}:{self.line}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"


def choose(root: Path, count: int, seed: int) -> list[Site]:
    """The faults, the same number from each area as far as `count` allows."""
    chosen: list[Site] = []
    for number, folder in enumerate(AREAS.values()):
        wanted = count // len(AREAS) + (number < count % len(AREAS))
        candidates = sorted(site for path in _sources(root, folder) for site in sites_of(root, path))
        chosen += random.Random(f"{seed} {folder}").sample(candidates, wanted)  # noqa: S311 - a repeatable choice
    return chosen


def _sources(root: Path, folder: str) -> Iterator[Path]:
    for path in sorted((root / folder).rglob("*.py")):
        if not set(path.parts) & set(LEFT_OUT):
            yield path.relative_to(root)


def sites_of(root: Path, path: Path) -> Iterator[Site]:
    """Every fault that can be planted in a file."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _expressions(ast.parse(source)):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 1) - 1] + _end(node)
        old = source[start:end].decode()
        new = _fault(node, source, starts)
        if new and new != old:
            yield Site(str(path), node.lineno, start, end, old, new)


def _end(node: ast.expr) -> int:
    return node.end_col_offset or 0


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that run when a function does: no defaults, decorators, annotations, patterns or f-strings."""
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, inside = todo.pop()
        if isinstance(node, (ast.JoinedStr, ast.match_case)):
            continue
        if inside and isinstance(node, ast.expr):
            yield node
        if isinstance(node, _FUNCTIONS):
            todo += [(child, True) for child in node.body]
        elif isinstance(node, ast.Lambda):
            todo.append((node.body, inside))
        elif isinstance(node, ast.AnnAssign):
            todo += [(node.value, inside)] if node.value else []
        else:
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]


def _fault(node: ast.expr, source: bytes, starts: list[int]) -> str:
    """What replaces the expression; "" if nothing does."""

    def text(part: ast.expr) -> str:
        return source[
            starts[part.lineno - 1] + part.col_offset : starts[(part.end_lineno or 1) - 1] + _end(part)
        ].decode()

    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return f"{text(left)} {_SWAPPED[type(op)]} {text(right)}"
        case ast.BoolOp(op=op, values=values):
            return (" or " if isinstance(op, ast.And) else " and ").join(f"({text(value)})" for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"bool({text(operand)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return f"({text(orelse)}) if ({text(test)}) else ({text(body)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return f"{text(left)} {'-' if isinstance(op, ast.Add) else '+'} {text(right)}"
        case ast.Constant(value=bool() as value):
            return str(not value)
        case ast.Constant(value=int() as value):
            return str(value + 1)
    return ""


def plant(root: Path, site: Site) -> None:
    """Write the file with the fault in it."""
    _replace(root, site, f"({site.new})")


_PROBE = (
    '; exec("def _reached_(n, known=set()):\\n import os, time\\n now = int(time.time())\\n'
    " if (n, now) not in known:\\n  known.add((n, now))\\n  try:\\n"
    "   file = os.open('{hits}/' + str(n), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)\\n"
    "   os.write(file, b'%d\\\\n' % now)\\n   os.close(file)\\n  except OSError:\\n   pass\\n\")"
)
"""Goes behind the import of annotations: writes the second at which expression number `n` was evaluated."""
_FUTURE = "from __future__ import annotations"


def watch(root: Path, sites: dict[int, Site], hits: Path) -> None:
    """Write the code in which each site notes when it is evaluated, as a file of its number in `hits`."""
    by_path: dict[str, list[tuple[int, Site]]] = {}
    for number, site in sites.items():
        by_path.setdefault(site.path, []).append((number, site))
    for path, found in by_path.items():
        _insert(root / path, found)
        text = (root / path).read_text(encoding="utf-8")
        assert f"\n{_FUTURE}\n" in text, path
        probe = _PROBE.replace("{hits}", str(hits))
        (root / path).write_text(text.replace(f"\n{_FUTURE}\n", f"\n{_FUTURE}{probe}\n", 1), encoding="utf-8")


def _insert(path: Path, found: list[tuple[int, Site]]) -> None:
    """Put a call before each site, and close it behind. Sites may contain others."""
    before = [(site.start, 1, -site.end, f"(_reached_({number}) or (") for number, site in found]
    behind = [(site.end, 0, -site.start, "))") for _, site in found]
    data, pieces, done = path.read_bytes(), list[bytes](), 0
    for place, _, _, text in sorted([*before, *behind]):
        pieces += [data[done:place], text.encode()]
        done = place
    path.write_bytes(b"".join([*pieces, data[done:]]))


def _replace(root: Path, site: Site, new: str) -> None:
    data = (root / site.path).read_bytes()
    (root / site.path).write_bytes(data[: site.start] + new.encode() + data[site.end :])
