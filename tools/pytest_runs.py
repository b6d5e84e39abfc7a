"""Runs of pytest: one over some folders, or several beside each other to which the test files are dealt out."""

# ruff: noqa: T201 - it prints for a command line program
from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.processes import REPORTS, ROOT, call, say
from tools.tally import Tally, on_ci, read_report, refuse

PYTEST_NOTHING_COLLECTED = 5
# As many lanes are through with their tiers, and give their place to second runs of tiers that are not.
VACANT = threading.Semaphore(0)
# So few files left are not worth the seconds that a second run needs to collect all tests.
FEW_FILES = 5


def run_shares(name: str, *paths: str, runs: list[tuple[str, ...]], later: bool = False) -> Tally:
    """pytest over those folders as several runs beside each other, to which the files are dealt out. `runs`: the
    command that starts each. `later`: all but the first begin when a lane is vacant, if files are left then."""
    shares = REPORTS / f"{name}.shares"
    shutil.rmtree(shares, ignore_errors=True)
    shares.mkdir(parents=True)
    say(f"what the tests of tier {name} print is in {REPORTS.relative_to(ROOT)}/{name}-*.log and shown at the end")
    options = ("-p", "tests.sharing", f"--shares={shares}")

    def left() -> int:
        return sum(1 for path in paths for _ in (ROOT / path).rglob("test_*.py")) - sum(1 for _ in shares.iterdir())

    def run(number: int, under: tuple[str, ...]) -> Tally:
        return run_pytest(f"{name}-{number}", *paths, quietly=True, under=under, options=options)

    def run_when_vacant(number: int, under: tuple[str, ...]) -> Tally:
        while left() > FEW_FILES:
            if VACANT.acquire(timeout=1.0):
                try:
                    return run(number, under) if left() > FEW_FILES else Tally()
                finally:
                    VACANT.release()
        return Tally()

    total = Tally()
    with ThreadPoolExecutor(len(runs)) as pool:
        started = [
            pool.submit(run_when_vacant if later and number > 1 else run, number, under)
            for number, under in enumerate(runs, 1)
        ]
        for one in started:
            total.add(one.result())
    return total


def run_pytest(
    name: str, *paths: str, quietly: bool, under: tuple[str, ...] = (), options: tuple[str, ...] = ()
) -> Tally:
    """pytest over those folders; counted from its report. `quietly`: what it prints is shown at its end. `under`: the
    command that starts it. The files of its tests stay where some failed."""
    report, log = REPORTS / f"{name}.xml", REPORTS / f"{name}.log"
    if missing := [path for path in paths if not (ROOT / path).is_dir()]:
        return refuse(f"{name} has no tests: {', '.join(missing)} not found")
    REPORTS.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    argv = [*under, sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    # A directory of its own: where runs share pytest's, one that begins closes it to other users, whom tests of a run
    # that goes on had let in.
    place = tempfile.mkdtemp(prefix="tests-")
    argv += ["-o", f"cache_dir=.pytest_cache/{name}", f"--basetemp={Path(place, 't')}", *options, *paths]
    if quietly:
        with log.open("wb") as output:
            status, cpu_s = call(argv, output)
        print(log.read_text(encoding="utf-8", errors="replace"), flush=True)
    else:
        status, cpu_s = call(argv)
    if status == 0:
        shutil.rmtree(place, ignore_errors=True)
    if status == PYTEST_NOTHING_COLLECTED:
        return refuse(f"{name} has no tests")
    if not report.is_file():
        return Tally(failed=1, troubles=[f"pytest of {name} left no report (exit status {status})"])
    tally = read_report(report, ci=on_ci())
    tally.cpu_s = cpu_s
    if status != 0 and not tally.failed:
        tally.failed = 1
        tally.troubles.append(f"pytest of {name} ended with exit status {status}")
    return tally
