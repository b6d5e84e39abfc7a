"""Measures how many small faults in the production code the tests find: `make mutate`.

    mutate.py [--tests REVISION] [--count 60] [--seed 1] [--hours 4] [--full]

The faults are the same for each set of tests, as long as the production code and the seed are. `--tests` takes those
of another revision, so that two sets of tests can be compared on one production tree. `--full` adds the tests that
only `make test-full` runs.

For each tier, the unit tests first, all its tests run once on code that notes when each chosen expression is evaluated.
Then each fault that no tier before has found is planted, and the tests that ran at such a time are run until one fails.
That test has to fail again alone.
Results are kept in build/mutate, and an interrupted run continues where it stopped.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.mutations import Site, choose, plant, watch
from tools.processes import ROOT, prefer_interpreter

PLACE = ROOT / "build" / "mutate"
TIERS = {
    "unit": ("unit", "golden"), "contract": ("contract",), "crash": ("crash",), "faults": ("faults",),
    "overlay": ("overlay",), "cluster": ("cluster",),
}  # fmt: skip
"""Folders of tests, in the order in which they are tried."""
ALONE = ("cluster", "overlay")
"""Tiers of which one process runs at a time: they start a cluster, or change the network of the machine."""
HANGS_S = 200
"""After how long a test counts as failed."""
LONGEST_S = 2400.0
"""How long the tests of one tier may take for one fault before the tier counts as one that found nothing."""


@dataclass(frozen=True)
class Verdict:
    """What a tier said about one fault: the test that found it, "" if none did, how long that took, tests tried."""

    number: int
    tier: str
    found_by: str
    seconds: float
    tests: int


class Tree:
    """A copy of the project with an environment of its own, in which faults are planted."""

    def __init__(self, place: Path, revision: str) -> None:
        self.place = place
        self.python = place / ".venv" / "bin" / "python"
        self._export("HEAD", ".")
        shutil.rmtree(place / "tests", ignore_errors=True)
        self._export(revision, "tests")
        subprocess.run(["make", "-s", "venv"], cwd=place, check=True)

    def _export(self, revision: str, what: str) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen(["git", "archive", revision, what], cwd=ROOT, stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", str(self.place)], stdin=archive.stdout, check=True)
        if archive.returncode != 0:
            raise SystemExit(f"mutate: git cannot read {what} of {revision}")

    def restore(self, path: str) -> None:
        """The file as it is at HEAD."""
        text = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        (self.place / path).write_bytes(text)

    def pytest(self, *arguments: str, limit_s: float | None = None) -> tuple[int, str]:
        """Exit status and output; status -1 if it took too long."""
        argv = [
            str(self.python), "-m", "pytest", "-q", "-p", "tools.mutation_tests", "-p", "no:cacheprovider",
            f"--timeout={HANGS_S}",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                [*argv, *arguments], cwd=self.place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, ""
        return done.returncode, done.stdout


def main() -> int:
    """Choose, watch, plant, and print the table."""
    parser = argparse.ArgumentParser(description="Plant faults in the production code and count those that tests find.")
    parser.add_argument("--tests", default="HEAD", help="revision whose tests are measured (default: HEAD)")
    parser.add_argument("--count", type=int, default=60, help="number of faults (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="which faults (default: 1)")
    parser.add_argument("--hours", type=float, default=4.0, help="stop planting after that time (default: 4)")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS), help="tiers to try (default: all)")
    parser.add_argument("--full", action="store_true", help="with the tests that only `make test-full` runs")
    options = parser.parse_args()
    prefer_interpreter()
    revision = _revision(options.tests)
    place = PLACE / f"{_revision('HEAD')}-{revision}-{options.seed}-{options.count}{'-full' if options.full else ''}"
    place.mkdir(parents=True, exist_ok=True)
    sites = choose(ROOT, options.count, options.seed)
    selection = [] if options.full else ["-m", "not full"]
    ends_at = time.monotonic() + options.hours * 3600
    trees = [Tree(PLACE / f"tree-{number}", revision) for number in (1, 2)]
    verdicts = Verdicts(place / "verdicts.jsonl")
    complete = True
    for tier in options.tiers:
        left = [number for number in range(len(sites)) if not verdicts.found(number)]
        reached = reach(trees, {number: sites[number] for number in left}, place / tier, TIERS[tier], selection)
        todo = [(number, sites[number], reached[number]) for number in left if not verdicts.has(number, tier)]
        judge(trees[: 1 if tier in ALONE else None], tier, todo, verdicts, ends_at)
        complete = complete and all(verdicts.has(number, tier) for number in left)
    print_table(sites, verdicts)
    return 0 if complete else 1


def _revision(name: str) -> str:
    argv = ["git", "rev-parse", "--short=12", "--verify", name]
    return subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Verdicts:
    """The verdicts so far; each is a line of a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.all = [Verdict(*json.loads(line)) for line in lines]
        self._lock = threading.Lock()

    def has(self, number: int, tier: str) -> bool:
        return any(verdict.number == number and verdict.tier == tier for verdict in self.all)

    def found(self, number: int) -> str:
        """The test that found the fault; "" if none did."""
        return next((verdict.found_by for verdict in self.all if verdict.number == number and verdict.found_by), "")

    def tried(self, number: int) -> int:
        """How many tests evaluated the expression."""
        return sum(verdict.tests for verdict in self.all if verdict.number == number)

    def add(self, verdict: Verdict) -> None:
        with self._lock, self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(list(vars(verdict).values())) + "\n")
            self.all.append(verdict)


def reach(
    trees: list[Tree], sites: dict[int, Site], place: Path, folders: tuple[str, ...], selection: list[str]
) -> dict[int, list[str]]:
    """For each site the tests of these folders that ran when it was evaluated."""
    if place.name in ALONE:
        trees = trees[:1]
    if not (place / "watched").exists():
        shutil.rmtree(place, ignore_errors=True)
        files = sorted(
            (file for folder in folders for file in (trees[0].place / "tests" / folder).rglob("test_*.py")),
            key=lambda file: -file.stat().st_size,
        )

        def work(turn: int) -> None:
            tree, hits = trees[turn], place / f"hits-{turn}"
            hits.mkdir(parents=True)
            hits.chmod(0o1777)
            watch(tree.place, sites, hits)
            # Tests of another revision may import what HEAD has no more; the others run all the same.
            status, output = tree.pytest(
                "--continue-on-collection-errors", f"--ran={place / f'ran-{turn}.jsonl'}", *selection,
                *(str(file.relative_to(trees[0].place)) for file in files[turn :: len(trees)]),
            )  # fmt: skip
            (place / f"{turn}.log").write_text(output, encoding="utf-8")
            for path in {site.path for site in sites.values()}:
                tree.restore(path)
            print(f"watched {place.name}: exit status {status}; {output.strip().splitlines()[-1:]}", flush=True)

        with ThreadPoolExecutor(len(trees)) as pool:
            list(pool.map(work, range(len(trees))))
        (place / "watched").touch()
    found: dict[int, set[str]] = {number: set() for number in sites}
    for turn in range(len(trees)):
        ran = (place / f"ran-{turn}.jsonl").read_text(encoding="utf-8").splitlines()
        for number, ids in found.items():
            file = place / f"hits-{turn}" / str(number)
            seconds = {int(line) for line in file.read_text().splitlines()} if file.exists() else set()
            for test, first, last in map(json.loads, ran):
                if any(second in seconds for second in range(first, last + 1)):
                    ids.add(test)
    return {number: sorted(ids) for number, ids in found.items()}


def judge(
    trees: list[Tree], tier: str, todo: list[tuple[int, Site, list[str]]], verdicts: Verdicts, ends_at: float
) -> None:
    """Plant each fault; a copy of the project takes one after the other."""
    lock = threading.Lock()

    def work(tree: Tree) -> None:
        while True:
            with lock:
                if not todo or time.monotonic() > ends_at:
                    return
                number, site, tests = todo.pop(0)
            started = time.monotonic()
            found_by = try_site(tree, site, tests)
            verdict = Verdict(number, tier, found_by, time.monotonic() - started, len(tests))
            verdicts.add(verdict)
            said = f"{tier}: {found_by or 'not found'} ({len(tests)} tests)"
            print(f"{verdict.seconds:6.0f} s  {site.name}\n          {said}", flush=True)

    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(work, trees))


def try_site(tree: Tree, site: Site, ids: list[str]) -> str:
    """Plant the fault and run the tests until one fails; "" if none does."""
    only = tree.place / "build" / "only"
    only.parent.mkdir(exist_ok=True)
    try:
        plant(tree.place, site)
        while ids:
            only.write_text("\n".join(ids), encoding="utf-8")
            files = sorted({test.partition("::")[0] for test in ids})
            status, output = tree.pytest("-x", "--tb=no", f"--only={only}", *files, limit_s=LONGEST_S)
            if status not in (1, 2):
                return ""
            first = _failed(output)
            if first not in ids:
                return first or f"collection of {files[0]}"
            only.write_text(first, encoding="utf-8")
            again, _ = tree.pytest("-x", "--tb=no", f"--only={only}", first.partition("::")[0], limit_s=LONGEST_S)
            if again != 0:
                return first
            ids = ids[ids.index(first) + 1 :]
        return ""
    finally:
        tree.restore(site.path)


def _failed(output: str) -> str:
    """The first test that failed, by pytest's short summary."""
    for line in output.splitlines():
        for word in ("FAILED ", "ERROR "):
            if line.startswith(word):
                return line.removeprefix(word).partition(" - ")[0]
    return ""


def print_table(sites: list[Site], verdicts: Verdicts) -> None:
    """What was found, by tier, and what was not."""
    tiers: dict[str, int] = defaultdict(int)
    for number, site in enumerate(sites):
        if verdicts.found(number):
            tiers[next(one.tier for one in verdicts.all if one.number == number and one.found_by)] += 1
        else:
            print(f"not found: {site.name} ({verdicts.tried(number)} tests evaluate it)")
    print(", ".join(f"{tier} {tiers[tier]}" for tier in TIERS))
    print(f"{sum(tiers.values())} of {len(sites)} faults found")


if __name__ == "__main__":
    sys.exit(main())
