"""`make bench-compare`: run benchmarks of two revisions alternately, and print the ratios with their spread.

    python -m tests.benchmarks.compare --base REV [--turns N] NAME... [options of `make bench`]

The base is checked out and installed in build/bench-base. Each turn runs both revisions, in alternating order, so that
a slow change of the machine affects both. The ratios of the plain tools should be near 1. If they are not, the machine
was not quiet, and the other ratios mean little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import aligned, shown

CHECKOUT = Path(__file__).resolve().parents[2]
BASE = CHECKOUT / "build" / "bench-base"
STDERR = 2
_HEADER = ("benchmark", "measure", "who", "n", "base", "now", "unit", "ratio", "min", "max")
Medians = Mapping[tuple[str, str, str, str], float]
"""Medians of one run, by benchmark, measure, who and unit."""


class CompareError(Exception):
    """The comparison could not be made."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of both revisions, one median for each turn."""

    name: tuple[str, str, str, str]
    base: Sequence[float]
    now: Sequence[float]

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table. The ratio is now / base; its spread is that over the turns."""
        benchmark, measure, who, unit = self.name
        ratios = [now / base for base, now in zip(self.base, self.now, strict=True) if base]
        spread = [statistics.median(ratios), min(ratios), max(ratios)] if ratios else []
        return (
            benchmark,
            measure,
            who,
            str(len(self.base)),
            shown(statistics.median(self.base)),
            shown(statistics.median(self.now)),
            unit,
            *([f"{ratio:.2f}" for ratio in spread] or ["N/A"] * 3),
        )


def compare(base: Sequence[Medians], now: Sequence[Medians]) -> tuple[list[Compared], list[str]]:
    """Return the figures that every run has, and the names of those that only some runs have."""
    values: dict[str, dict[tuple[str, str, str, str], list[float]]] = {}
    for revision, runs in (("base", base), ("now", now)):
        values[revision] = defaultdict(list)
        for run in runs:
            for name, median in run.items():
                values[revision][name].append(median)
    names = list(dict.fromkeys([*values["base"], *values["now"]]))
    whole = [name for name in names if len(values["base"][name]) == len(base) and len(values["now"][name]) == len(now)]
    rest = [" ".join(name[:3]) for name in names if name not in whole]
    return [Compared(name, values["base"][name], values["now"][name]) for name in whole], rest


def table(compared: Sequence[Compared]) -> str:
    """Return the table."""
    return aligned([_HEADER, *(one.row() for one in compared)], {3, 4, 5, 7, 8, 9})


def medians(document: Mapping[str, Any]) -> Medians:
    """Return the medians of a file that `make bench` wrote."""
    return {(one["benchmark"], one["measure"], one["who"], one["unit"]): one["median"] for one in document["figures"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the working tree with the base."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare", description=__doc__.partition("\n")[0])
    parser.add_argument("--base", required=True, metavar="REV", help="a revision of git to compare with")
    parser.add_argument("--turns", type=int, default=5, help="runs of each revision (default: 5)")
    options, bench = parser.parse_known_args(arguments)
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    if not bench or bench[0].startswith("-"):
        parser.error('name benchmarks first, such as: make bench-compare BASE=HEAD~1 BENCH="submit many"')
    try:
        with tempfile.TemporaryDirectory() as results:
            runs = _run(options.base, bench, options.turns, Path(results))
    except CompareError as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2
    compared, rest = compare(runs["base"], runs["now"])
    print(table(compared))
    for name in rest:
        print(f"not in both: {name}")
    return 0


def _run(base: str, bench: Sequence[str], turns: int, results: Path) -> dict[str, list[Medians]]:
    commit = _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}", why=f"git knows no revision {base!r}")
    if BASE.exists():  # an earlier comparison was killed
        _git("worktree", "remove", "--force", str(BASE), why=f"{BASE} is not a work tree of git; remove it")
    _git("worktree", "add", "--force", "--detach", str(BASE), commit, why="the base could not be checked out")
    try:
        _call(["make", "-C", str(BASE), "venv"], CHECKOUT, "the base could not be installed")
        runs: dict[str, list[Medians]] = {"base": [], "now": []}
        trees = [("base", BASE), ("now", CHECKOUT)]
        for turn in range(turns):
            for name, tree in trees if turn % 2 == 0 else trees[::-1]:
                file = results / f"{name}-{turn}.json"
                argv = [str(tree / ".venv" / "bin" / "python"), "-m", "tests.benchmarks", *bench, "--output", str(file)]
                _call(argv, tree, f"the benchmarks of {name} failed")
                runs[name].append(medians(json.loads(file.read_text(encoding="utf-8"))))
        return runs
    finally:
        _git("worktree", "remove", "--force", str(BASE), why="the base could not be removed")


def _git(*arguments: str, why: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise CompareError(f"{why}: {done.stderr.strip()}" if done.stderr.strip() else why)
    return done.stdout.strip()


def _call(argv: Sequence[str], tree: Path, why: str) -> None:
    """Run a command; its output goes to standard error. Raises CompareError if it fails."""
    done = subprocess.run(argv, cwd=tree, check=False, stdout=STDERR)
    if done.returncode != 0:
        raise CompareError(f"{why} with exit status {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
