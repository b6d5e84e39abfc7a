"""Print the size and the shape of the production code: `make shape`.

Lines of code are those that hold a token other than a comment; lines of docstrings do not count. An importer is a
production module that names another one in an import statement. Listed words are those that docs/glossary.md replaces;
they count in strings, docstrings and comments, which hold every message and help text.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.sharing import read_results
from tools.processes import REPORTS, ROOT

PACKAGES = ("ffdl_batch", *(f"adapters/{path.name}" for path in sorted((ROOT / "adapters").iterdir()) if path.is_dir()))
LISTED = re.compile(
    r"\b(told|tells?|telling|wish(?:es|ed)?|anew|who(?:m|ever)|nobody|(?:goes|go|going|went) on|comes of|"
    r"of wh(?:ich|om)|by the word of|what is there|lies in|owed|given up|let in|nothing of ours|"
    r"(?:ended|ends|ending) with \d+)\b",
    re.IGNORECASE,
)
LONG_FUNCTION = 60
SMALL_MODULE = 60
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Shape:
    """Figures of one room: a package, or a part of `ffdl_batch`."""

    files: int = 0
    lines: int = 0
    code: int = 0
    long_functions: list[str] = field(default_factory=list)
    public: int = 0
    documented: int = 0
    """Public modules, classes and functions, and those of them that have a docstring."""
    words: Counter[str] = field(default_factory=Counter)


def main() -> None:
    """Print one table for the rooms, the figures of the whole, and what the last test run stored."""
    modules = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
    rooms: defaultdict[str, Shape] = defaultdict(Shape)
    for path in modules.values():
        measure(path, rooms[room_of(path)])
    print(f"{'room':28}{'files':>7}{'lines':>8}{'code':>8}{'long':>6}{'documented':>12}{'words':>7}")
    for name, shape in sorted(rooms.items()):
        print_row(name, shape)
    print_row("all", total(rooms.values()))
    print()
    folders = Counter(path.parent.relative_to(ROOT) for path in modules.values() if path.name != "__init__.py")
    print("largest folders:", ", ".join(f"{folder} {count}" for folder, count in folders.most_common(5)))
    single = single_importers(modules)
    small = [name for name in single if line_count(modules[name]) < SMALL_MODULE]
    print(f"modules with one importer: {len(single)}, of these under {SMALL_MODULE} lines: {len(small)}")
    print(f"functions over {LONG_FUNCTION} lines:", ", ".join(total(rooms.values()).long_functions) or "none")
    print("listed words:", ", ".join(f"{word} {count}" for word, count in total(rooms.values()).words.most_common(12)))
    print_tests()


def print_row(name: str, shape: Shape) -> None:
    """Print one line of the table."""
    documented = f"{shape.documented}/{shape.public}"
    print(
        f"{name:28}{shape.files:7}{shape.lines:8}{shape.code:8}{len(shape.long_functions):6}{documented:>12}"
        f"{shape.words.total():7}"
    )


def total(shapes: Iterable[Shape]) -> Shape:
    """Add the rooms up."""
    whole = Shape()
    for shape in shapes:
        whole.files += shape.files
        whole.lines += shape.lines
        whole.code += shape.code
        whole.long_functions += shape.long_functions
        whole.public += shape.public
        whole.documented += shape.documented
        whole.words += shape.words
    return whole


def module_name(path: Path) -> str:
    """Return the dotted name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "adapters" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(path: Path) -> str:
    """Return the part of the tree that a file is counted in."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def line_count(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def measure(path: Path, shape: Shape) -> None:
    """Add a file's figures to its room."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    shape.files += 1
    shape.lines += len(text.splitlines())
    shape.code += len(code_lines(text) - docstring_lines(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONG_FUNCTION:
                shape.long_functions.append(f"{module_name(path)}.{node.name} {length}")
    for definition in public_definitions(tree):
        shape.public += 1
        shape.documented += ast.get_docstring(definition) is not None
    shape.words.update(word.lower() for prose in proses(text) for word in LISTED.findall(prose))


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {n for one in tokens if one.type not in _LAYOUT for n in range(one.start[0], one.end[0] + 1)}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of docstrings: strings that are statements."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def public_definitions(tree: ast.Module) -> Iterator[ast.Module | _Definition]:
    """Yield the module, and its classes, functions and methods without a leading underscore."""
    yield tree
    for node in tree.body:
        if isinstance(node, _Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
                yield from (one for one in methods if not one.name.startswith("_"))


def proses(text: str) -> Iterator[str]:
    """Yield the strings and comments of a file."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return (one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type in kinds)


def single_importers(modules: dict[str, Path]) -> list[str]:
    """Return the modules that exactly one other production module imports."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for imported in imports_of(ast.parse(path.read_text(encoding="utf-8"))):
            if imported in modules and imported != name:
                importers[imported].add(name)
    return sorted(name for name, found in importers.items() if len(found) == 1 and modules[name].name != "__init__.py")


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the modules that a file may import. A name imported from a package may be a module of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def print_tests() -> None:
    """Print what the last `make test` stored: tests and seconds of a core by tier. Beside it the lines of the tests."""
    lines = sum(line_count(path) for path in (ROOT / "tests").rglob("*.py"))
    print(f"lines of tests: {lines}")
    for shares in sorted(REPORTS.glob("*.shares")):
        results = [one for one in read_results(shares).values() if one is not None]
        cpu_s = sum(one.cpu_s for one in results)
        print(f"  {shares.stem:12}{sum(one.passed for one in results):7} passed {cpu_s:8.0f} s of CPU")


if __name__ == "__main__":
    main()
