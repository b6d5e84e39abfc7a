"""Measures how many small faults in the production code the tests find: `make mutate`.

    mutate.py [--tests REVISION] [--count 60] [--seed 1] [--hours 4] [--full]

The faults are the same for each set of tests, as long as the production code and the seed are. `--tests` takes those
of another revision, so that two sets of tests can be compared on one production tree. `--full` adds the tests that
only `make test-full` runs.

First all tests run once on code that notes when each chosen expression is evaluated. Then each fault is planted and
the tests that ran at such a time are run, unit tests first, until one fails. That test has to fail again alone.
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
STAGES = ("unit", "golden", "contract", "crash", "faults", "overlay", "cluster")
"""Folders of tests, in the order in which they are tried; the first two run as one."""
FIRST = ("unit", "golden")
LONGEST_S = 2400.0
"""How long the tests of one stage may take for one fault before the stage counts as one that found nothing."""


@dataclass(frozen=True)
class Verdict:
    """What became of one fault: the test that found it, "" if none did, and how long that took."""

    site: str
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
        argv = [str(self.python), "-m", "pytest", "-q", "-p", "tools.mutation_tests", "-p", "no:cacheprovider"]
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
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="folders of tests")
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
    reached = reach(trees, sites, place, options.stages, selection)
    verdicts = judge(trees, sites, reached, place / "verdicts.jsonl", ends_at)
    print_table(sites, reached, verdicts)
    return 0 if len(verdicts) == len(sites) else 1


def _revision(name: str) -> str:
    argv = ["git", "rev-parse", "--short=12", "--verify", name]
    return subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def reach(
    trees: list[Tree], sites: list[Site], place: Path, stages: list[str], selection: list[str]
) -> list[list[str]]:
    """For each site the tests that ran when it was evaluated, in the order of the stages."""
    hits, ran = place / "hits", place / "ran.jsonl"
    todo = [stage for stage in stages if not (place / f"{stage}.ran").exists()]
    if todo:
        hits.mkdir(exist_ok=True)
        hits.chmod(0o1777)
        for tree in trees:
            watch(tree.place, sites, hits)
        lock = threading.Lock()

        def work(tree: Tree) -> None:
            while True:
                with lock:
                    if not todo:
                        return
                    stage = todo.pop(0)
                # Tests of another revision may import what HEAD has no more; the others run all the same.
                options = ("--continue-on-collection-errors", f"--ran={ran}", *selection)
                status, output = tree.pytest(*options, f"tests/{stage}")
                (place / f"{stage}.log").write_text(output, encoding="utf-8")
                print(f"watched tests/{stage}: exit status {status}; {output.strip().splitlines()[-1:]}", flush=True)
                (place / f"{stage}.ran").touch()

        with ThreadPoolExecutor(len(trees)) as pool:
            list(pool.map(work, trees))
        for tree in trees:
            for path in {site.path for site in sites}:
                tree.restore(path)
    tests = [json.loads(line) for line in ran.read_text(encoding="utf-8").splitlines()]
    found = []
    for number in range(len(sites)):
        file = hits / str(number)
        seconds = {int(line) for line in file.read_text().splitlines()} if file.exists() else set()
        ids = {test for test, first, last in tests if any(second in seconds for second in range(first, last + 1))}
        found.append(sorted(ids, key=lambda test: (_stage(test), test)))
    return found


def _stage(test: str) -> int:
    return STAGES.index(test.split("/")[1])


def judge(
    trees: list[Tree], sites: list[Site], reached: list[list[str]], file: Path, ends_at: float
) -> dict[int, Verdict]:
    """Plant each fault for which there is no verdict yet; a copy of the project takes one after the other."""
    verdicts: dict[int, Verdict] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            number, *rest = json.loads(line)
            verdicts[number] = Verdict(*rest)
    todo = [number for number in range(len(sites)) if number not in verdicts]
    lock = threading.Lock()

    def work(tree: Tree) -> None:
        while True:
            with lock:
                if not todo or time.monotonic() > ends_at:
                    return
                number = todo.pop(0)
            verdict = try_site(tree, sites[number], reached[number])
            with lock, file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([number, verdict.site, verdict.found_by, verdict.seconds, verdict.tests]) + "\n")
                verdicts[number] = verdict
                print(f"{verdict.seconds:6.0f} s  {verdict.found_by or 'NOT FOUND':60}  {verdict.site}", flush=True)

    with ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(work, trees))
    return verdicts


def try_site(tree: Tree, site: Site, tests: list[str]) -> Verdict:
    """Plant the fault and run the tests, stage by stage, until one fails."""
    started = time.monotonic()
    stages: dict[int, list[str]] = defaultdict(list)
    for test in tests:
        stages[max(_stage(test), len(FIRST) - 1)].append(test)
    only = tree.place / "build" / "only"
    only.parent.mkdir(exist_ok=True)
    found = ""
    try:
        plant(tree.place, site)
        for stage in sorted(stages):
            ids = stages[stage]
            while ids and not found:
                only.write_text("\n".join(ids), encoding="utf-8")
                files = sorted({test.partition("::")[0] for test in ids})
                status, output = tree.pytest("-x", "--tb=no", f"--only={only}", *files, limit_s=LONGEST_S)
                if status not in (1, 2):
                    break
                first = _failed(output)
                if not first or first not in ids:
                    found = first or f"collection of tests/{STAGES[stage]}"
                    break
                only.write_text(first, encoding="utf-8")
                again, _ = tree.pytest("-x", "--tb=no", f"--only={only}", first.partition("::")[0], limit_s=LONGEST_S)
                if again != 0:
                    found = first
                ids = ids[ids.index(first) + 1 :]
            if found:
                break
    finally:
        tree.restore(site.path)
    return Verdict(site.name, found, time.monotonic() - started, len(tests))


def _failed(output: str) -> str:
    """The first test that failed, by pytest's short summary."""
    for line in output.splitlines():
        for word in ("FAILED ", "ERROR "):
            if line.startswith(word):
                return line.removeprefix(word).partition(" - ")[0]
    return ""


def print_table(sites: list[Site], reached: list[list[str]], verdicts: dict[int, Verdict]) -> None:
    """What was found, by stage, and what was not."""
    stages: dict[str, int] = defaultdict(int)
    for number, site in enumerate(sites):
        verdict = verdicts.get(number)
        if verdict and verdict.found_by:
            stages[verdict.found_by.split("/")[1].split("::")[0]] += 1
        else:
            what = "no test evaluates it" if not reached[number] else "no test failed" if verdict else "not tried"
            print(f"not found: {site.name} ({what}; {len(reached[number])} tests)")
    print(", ".join(f"{stage} {count}" for stage, count in sorted(stages.items())))
    print(f"{sum(stages.values())} of {len(sites)} faults found")


if __name__ == "__main__":
    sys.exit(main())
