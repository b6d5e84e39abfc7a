"""Checks that are no tests, each counted as one: lint, documents, the README's first command."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.processes import call, say
from tools.tally import Tally

BIN = Path(sys.executable).parent


def run_lint() -> Tally:
    """Formatting, lint, types, import layers."""
    return run_checks(
        [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
        [str(BIN / "ruff"), "check", "--quiet", "."],
        [str(BIN / "mypy")],
        [str(BIN / "mypy"), "--strict", "tools", "containers"],
        [str(BIN / "lint-imports")],
    )


def run_docs() -> Tally:
    """Site and man pages, warnings as errors. Not by make: that would install into the environment we run in."""
    return run_checks(*(sphinx_argv(builder) for builder in ("html", "man")))


def sphinx_argv(builder: str) -> list[str]:
    """One builder's command, the same as in the Makefile's `docs`."""
    trees = f"docs/_build/doctrees-{builder}"
    options = ["-q", "-W", "--keep-going", "-b", builder, "-d", trees]
    return [sys.executable, "-m", "sphinx", *options, "docs", f"docs/_build/{builder}"]


def run_quickstart() -> Tally:
    """The README's first command."""
    return run_checks([sys.executable, "tools/quickstart.py"])


def run_checks(*commands: list[str]) -> Tally:
    """Commands that count as one check each."""
    tally = Tally()
    for argv in commands:
        say(" ".join([Path(argv[0]).name, *argv[1:]]))
        status, cpu_s = call(argv)
        tally.cpu_s += cpu_s
        if status == 0:
            tally.passed += 1
        else:
            tally.failed += 1
            tally.troubles.append(f"failed: {' '.join([Path(argv[0]).name, *argv[1:]])}")
    return tally
