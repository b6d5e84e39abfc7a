"""Runs of pytest beside each other, to which the test files of some folders are dealt out."""

# ruff: noqa: T201 - it prints for a command line program
from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.sharing import read_results
from tools.processes import ROOT, call, say
from tools.tally import Tally, on_ci, refuse

PYTEST_OK, PYTEST_TESTS_FAILED, PYTEST_NOTHING_COLLECTED = 0, 1, 5


def run_shares(
    name: str,
    *paths: str,
    starts: Sequence[tuple[str, ...]] = ((),),
    runs: int = 1,
    results: Path,
    options: Sequence[str],
) -> Tally:
    """Run pytest over those folders, once for each of `starts`: the command that starts it, and as that many `runs`,
    which are forks. What they print is shown when they end. Files whose tests passed before, by `results`, are counted
    and not run again."""
    if missing := [path for path in paths if not (ROOT / path).is_dir()]:
        return refuse(f"{name} has no tests: {', '.join(missing)} not found")
    shares = results / f"{name}.shares"
    shares.mkdir(parents=True, exist_ok=True)
    for file, result in read_results(shares).items():
        if result is None or result.failed:
            (shares / file).unlink()
    say(f"tier {name}: output in {results.relative_to(ROOT)}/{name}-*.log, shown at the end")
    logs = [results / f"{name}-{number}.log" for number in range(1, len(starts) * runs + 1)]
    with ThreadPoolExecutor(len(starts)) as pool:
        numbers = range(0, len(logs), runs)
        given = [f"--shares={shares}", *options]
        done = list(pool.map(lambda under, n: _run_pytest(under, paths, logs[n : n + runs], given), starts, numbers))
    tally = count_results(shares)
    for one in done:
        tally.add(one)
    if not tally.passed and not tally.failed:
        return refuse(f"{name} has no tests")
    return tally


def _run_pytest(under: Sequence[str], paths: Sequence[str], logs: list[Path], options: Sequence[str]) -> Tally:
    """Run pytest once, with a fork for each log but the first. The files of its tests stay if some failed."""
    # A directory of its own: where runs share pytest's, one that begins closes it to other users, whom tests of a run
    # that goes on had let in.
    place = tempfile.mkdtemp(prefix="tests-")
    argv = [*under, sys.executable, "-m", "pytest", "-q", "-p", "tests.sharing", *options]
    argv += ["-p", "no:cacheprovider", f"--basetemp={Path(place, '1')}"]
    argv += [f"--fork={log}" for log in logs[1:]]
    with logs[0].open("wb") as output:
        status, cpu_s = call([*argv, *paths], output)
    for log in logs:
        if log.exists():
            print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
    if status in (PYTEST_OK, PYTEST_NOTHING_COLLECTED):
        shutil.rmtree(place, ignore_errors=True)
    elif status != PYTEST_TESTS_FAILED:
        return Tally(failed=1, cpu_s=cpu_s, troubles=[f"pytest of {logs[0].stem} ended with exit status {status}"])
    return Tally(cpu_s=cpu_s)


def count_results(shares: Path) -> Tally:
    """Count what pytest stored for each file (see tests/sharing.py)."""
    tally = Tally()
    for name, result in read_results(shares).items():
        if result is None:
            tally.failed += 1
            tally.troubles.append(f"failed: {name}: its tests did not all run")
            continue
        tally.passed += result.passed
        tally.failed += len(result.failed) + (len(result.skipped) if on_ci() else 0)
        tally.skipped += len(result.skipped)
        tally.troubles += [f"failed: {test}" for test in result.failed] + result.skipped
    return tally
