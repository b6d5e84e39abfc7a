"""Checks that are no tests, each counted as one: lint, documents, the README's first command, proofs."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.processes import call, say
from tools.tally import Tally

BIN = Path(sys.executable).parent
LINT = (
    (str(BIN / "ruff"), "format", "--check", "--quiet", "."),
    (str(BIN / "ruff"), "check", "--quiet", "."),
    (str(BIN / "mypy"),),
    (str(BIN / "mypy"), "--strict", "tools", "containers"),
    (str(BIN / "lint-imports"),),
)
"""Formatting, lint, types, import layers."""
_SPHINX = (sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going")
DOCS = tuple(
    (*_SPHINX, "-b", builder, "-d", f"docs/_build/doctrees-{builder}", "docs", f"docs/_build/{builder}")
    for builder in ("html", "man")
)
"""Site and man pages, warnings as errors. Not by make: that would install into the environment we run in."""
QUICKSTART = ((sys.executable, "tools/quickstart.py"),)
"""The README's first command."""


def run_checks(*commands: tuple[str, ...], passed: Path | None = None) -> Tally:
    """Run commands that count as one check each. If the file `passed` exists they are not run; it is made if they all
    pass."""
    if passed is not None and passed.exists():
        return Tally(passed=len(commands))
    tally = Tally()
    for argv in commands:
        shown = " ".join([Path(argv[0]).name, *argv[1:]])
        say(shown)
        status, cpu_s = call(argv)
        tally.cpu_s += cpu_s
        if status == 0:
            tally.passed += 1
        else:
            tally.failed += 1
            tally.troubles.append(f"failed: {shown}")
    if passed is not None and not tally.failed:
        passed.touch()
    return tally


def proof(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of `make proof-NAME`."""
    return (sys.executable, "-m", f"tests.proof.{name}", *arguments)
